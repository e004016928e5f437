"""The kit of local-DP protocols: what a protocol states, against its own client run along every branch of its draws.

Give ``check_protocol`` a protocol with few values: it enumerates one report and pairs of reports of a device. Words of
a client (hash functions) are enumerated as if they had ``WORD_BITS`` bits, which keeps the family of
``ldp_client.protocols.hashed`` universal for up to four values and two or four hash values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import SeededBits
from ldp_client import LocalProtocol, randomizer_of
from ldp_client.enumeration import Branch, distribution, widest
from ldp_client.errors import LdpParameterError, ReportError

WORD_BITS = 3
#: The strings that users of a protocol over strings hold.
_STRINGS = ("a", "b", "c")
_TOLERANCE = 1e-9

Law = dict[tuple[bytes, ...], Fraction]


def check_protocol(protocol: LocalProtocol, values: Sequence[Any] | None = None) -> None:
    """Raise ``KitFailure`` unless a protocol's law, costs, bytes, estimator and stream law agree with its client.

    ``values`` are those that users hold in the check; by default all values, or three strings.
    """
    held = list(values if values is not None else _STRINGS if protocol.values is None else range(protocol.values))
    enumerated = _Enumerated(protocol)
    one = {value: enumerated.law((value,)) for value in held}
    # Reports that are said to be independent must be so for different values too.
    pairs = [(value, value) for value in held] if protocol.shares else list(itertools.product(held, repeat=2))
    two = {pair: enumerated.law(pair) for pair in pairs}
    for law in (*one.values(), *two.values()):
        if sum(law.values()) != 1:
            _fail(protocol, f"the probabilities of its reports add up to {float(sum(law.values())):.9g}, not to 1")
    _check_costs(protocol, one, two)
    _check_bytes(protocol, enumerated.reports)
    if protocol.values is not None:
        _check_estimator(protocol, one)
    if protocol.memoizes:
        for value in held:
            _check_stream_law(protocol, value, two[value, value], enumerated)


def _fail(protocol: LocalProtocol, sentence: str) -> None:
    raise KitFailure(f"{protocol.kind}: {sentence}")


class _Enumerated:
    """Runs a protocol's client along every branch; keeps each report by its bytes, and how many words were drawn."""

    def __init__(self, protocol: LocalProtocol) -> None:
        self.protocol = protocol
        self.reports: dict[bytes, Any] = {}
        self.words = 0

    def law(self, values: tuple[Any, ...]) -> Law:
        """Return the probability of every sequence of reports that a new device sends of these values."""

        def program(draws: Branch) -> tuple[bytes, ...]:
            client = self.protocol.client(draws)
            sent = [client.report(value) for value in values]
            self.words = draws.words
            return tuple(self._encoded(report) for report in sent)

        return distribution(program, word_bits=WORD_BITS)

    def _encoded(self, report: Any) -> bytes:
        data = self.protocol.encode(report)
        if self.reports.setdefault(data, report) != report:
            _fail(self.protocol, "two different reports have the same bytes: `encode` loses a part of a report")
        return data


def _check_costs(protocol: LocalProtocol, one: dict[Any, Law], two: dict[Any, Law]) -> None:
    """Check what one report and two reports of a value lose, what they share, and what the service charges."""
    stated = protocol.privacy
    first = widest(list(one.values()))
    if not first <= stated.first * (1 + _TOLERANCE):
        _fail(protocol, f"one report loses ε = {first:.6g}, more than the {stated.first:.6g} of `privacy.first`")
    independent = all(
        law.get((*before, *after), 0) == one[value][before] * one[again][after]
        for (value, again), law in two.items()
        for before, after in itertools.product(one[value], one[again])
    )
    if not (protocol.shares or independent):
        _fail(protocol, "`shares` says that the reports of a device share nothing, and they are not independent")
    try:
        charged = randomizer_of(protocol).epsilon_micro / 1e6
    except LdpParameterError:
        charged = math.inf  # too large to be charged: the service refuses it
    if not first <= charged * (1 + _TOLERANCE):
        _fail(protocol, f"one report loses ε = {first:.6g}, more than the {charged:.6g} that the service charges")
    both = widest([law for (value, again), law in two.items() if value == again])
    limit = stated.permanent if protocol.memoizes else 2 * stated.first
    if not both <= limit * (1 + _TOLERANCE):
        what = "`privacy.permanent`" if protocol.memoizes else "two reports that cost `privacy.first` each"
        _fail(protocol, f"two reports of a value lose ε = {both:.6g}, more than the {limit:.6g} of {what}")


def _check_bytes(protocol: LocalProtocol, reports: dict[bytes, Any]) -> None:
    for data, report in reports.items():
        if len(data) != protocol.report_bytes:
            _fail(protocol, f"a report has {len(data)} bytes, and `report_bytes` says {protocol.report_bytes}")
        try:
            found = protocol.decode(data)
        except ReportError as error:
            raise KitFailure(f"{protocol.kind}: `decode` refuses a client's own report: {error}") from error
        if found != report:
            _fail(protocol, f"`decode` of an encoded report is {found!r}, not the report {report!r}")
        for wrong in (data[:-1], data + b"\0"):
            try:
                protocol.decode(wrong)
            except ReportError:
                continue
            _fail(protocol, f"`decode` takes {len(wrong)} bytes for a report of {protocol.report_bytes}")


def _check_estimator(protocol: LocalProtocol, one: dict[Any, Law]) -> None:
    """Check the mean over the law of one report, and the variance where the protocol states one."""
    for value, law in one.items():
        chances = np.array([float(chance) for chance in law.values()])
        estimates = np.array(
            [protocol.estimate(protocol.columns([protocol.decode(data)])).frequencies for (data,) in law]
        )
        true = np.zeros(protocol.cells)
        true[protocol.cell(np.array([value]))] = 1
        mean = chances @ estimates
        worst = int(np.argmax(np.abs(mean - true)))
        if not abs(mean[worst] - true[worst]) <= _TOLERANCE:
            _fail(
                protocol,
                f"the decoder is biased: for a user who holds {value}, the estimate of cell {worst} is "
                f"{mean[worst]:.9g} on average, not {true[worst]:g}",
            )
        try:
            stated = protocol.support.variance(1, true)
        except LdpParameterError:
            continue
        variance = chances @ (estimates - mean) ** 2
        if not np.allclose(variance, stated, rtol=1e-6, atol=_TOLERANCE):
            _fail(protocol, f"an estimate from one report has the variances {variance}, and `support` says {stated}")
    columns = protocol.fleet(2, SeededBits("kit")).report(np.array(list(one)[:2]))
    if protocol.estimate(columns).frequencies.shape != (protocol.cells,):
        _fail(protocol, f"an estimate from a fleet's columns does not have {protocol.cells} cells")


def _check_stream_law(protocol: LocalProtocol, value: Any, sent: Law, enumerated: _Enumerated) -> None:
    """Compare the stream law with the client's law of two reports; of a word's 2^64 forms, few were enumerated."""
    law = protocol.stream_law(value, cohort="sent")
    scale = 2.0 ** (enumerated.words * (64 - WORD_BITS))
    stated = {
        pair: scale * math.exp(float(law.log_probability(law.part([enumerated.reports[data] for data in pair]))[0]))
        for pair in sent
    }
    total = math.fsum(stated.values())
    if not abs(total - 1) <= _TOLERANCE:
        _fail(protocol, f"the stream law's probabilities of two reports add up to {total:.9g}, not to 1")
    for pair, chance in sent.items():
        if not abs(stated[pair] - chance) <= _TOLERANCE * float(chance):
            _fail(
                protocol,
                f"the stream law gives two reports of {value!r} the probability {stated[pair]:.9g}, and the client "
                f"sends them with probability {float(chance):.9g}",
            )
