"""RAPPOR: strings in Bloom filters by cohort, with a permanent and an instantaneous randomized response.

Erlingsson, Pihur and Korolova (CCS 2014). A string sets h of k bits, which depend on the client's cohort; each bit is
permanently replaced by 1 or by 0 with probability f/2 each; and each report sends 1 with probability q if the
permanent bit is 1 and with probability p if it is 0. Decoding is in ``ldp_client.protocols.rappor_decoding``.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, uniform_below_batch
from ldp_client.checks import (
    as_list,
    check_columns,
    check_numbers,
    check_value,
    check_values,
    check_words,
    is_count,
    short_text,
    whole_numbers,
)
from ldp_client.enumeration import log_ratio
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.estimation import Floats, ResponseChain, ResponseStep, check_size
from ldp_client.protocols.base import (
    MEMOIZED_ANSWERS,
    LocalProtocol,
    MemoizingColumns,
    MemoizingDevice,
    Privacy,
    ProtocolRequest,
    as_draws,
    memo_int,
    memo_row,
)
from ldp_client.protocols.unary import UnaryEncoding, l_sue
from ldp_client.sampling import ExactDraws, LaneCoins, Words, count_bits, pack, rows_from_bytes, unpack, words_of
from ldp_client.tracking import BitsLaw, StreamLaw

MOST_COHORTS = 1 << 16
MOST_BITS = 1 << 16
#: The most bits in a denominator of f, p or q: enough for any probability, and short enough to print.
_LONGEST_DENOMINATOR = 1024


def string_bytes(value: str) -> bytes:
    """Return a user's string in UTF-8. The error for an invalid string contains no part of it, in any attribute."""
    encoded = None
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):
            encoded = value.encode()
    if encoded is None:
        raise ReportError("a value of RAPPOR must be a string that UTF-8 can encode, without lone surrogates")
    return encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class RapporReport:
    """A client's report: its cohort and a packed row of k bits."""

    cohort: int
    row: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RapporColumns:
    """One collection in columns: one cohort and one row of words per user."""

    cohorts: NDArray[np.int64]
    rows: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class RapporCounts:
    """The counts for decoding: the number of reports per cohort, and how many of them had each bit set."""

    reports: NDArray[np.int64]
    set_bits: NDArray[np.int64]

    def __add__(self, other: RapporCounts) -> RapporCounts:
        """Return the sum of two counts of the same protocol."""
        if self.reports.shape != other.reports.shape or self.set_bits.shape != other.set_bits.shape:
            raise ReportError("counts with different numbers of cohorts or bits cannot be added")
        return RapporCounts(reports=self.reports + other.reports, set_bits=self.set_bits + other.set_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rappor(LocalProtocol):
    """RAPPOR with ``size`` bits (k), ``hashes`` (h), ``cohorts`` (m), and the probabilities f, p and q.

    f = 0 omits the permanent step, and p = 0 with q = 1 the instantaneous one, as in the RAPPOR paper's variants.
    """

    methods: ClassVar = {"RAPPOR": "Basic RAPPOR: one bit per value, kept and sent with noise (L-SUE)"}
    kind: ClassVar[str] = "RAPPOR"
    size: int = 128
    hashes: int = 2
    cohorts: int = 64
    f: Fraction = Fraction(1, 2)
    p: Fraction = Fraction(1, 2)
    q: Fraction = Fraction(3, 4)
    chain: ResponseChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.size, "the number of bits of a filter", least=1, most=MOST_BITS)
        check_size(self.hashes, "the number of hashes, no more than bits,", least=1, most=self.size)
        check_size(self.cohorts, "the number of cohorts", least=1, most=MOST_COHORTS)
        for name in ("f", "p", "q"):
            chance = getattr(self, name)
            if not isinstance(chance, Fraction | int):
                raise LdpParameterError(f"{name} must be a Fraction, because coins are exact, not {short_text(chance)}")
            if not 0 <= chance <= 1 or chance.denominator.bit_length() > _LONGEST_DENOMINATOR:
                raise LdpParameterError(
                    f"{name} must be a Fraction in [0, 1] with a denominator of at most {_LONGEST_DENOMINATOR} bits, "
                    f"not {short_text(chance)}"
                )
        if not 0 <= self.f < 1 or not 0 <= self.p < self.q <= 1:
            raise LdpParameterError(
                f"0 ≤ f < 1 and 0 ≤ p < q ≤ 1 must hold, not f = {self.f}, p = {self.p}, q = {self.q}"
            )
        if (self.p == 0) != (self.q == 1):
            raise LdpParameterError("give p = 0 and q = 1 together: they omit the instantaneous response")
        half = Fraction(self.f) / 2
        permanent = ResponseStep(p=Real.of(1 - half), q=Real.of(half))
        instant = None if self.p == 0 else ResponseStep(p=Real.of(self.q), q=Real.of(self.p))
        object.__setattr__(self, "chain", ResponseChain(permanent=permanent, instant=instant))

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> UnaryEncoding:
        """Return Basic RAPPOR, which has one bit per value in place of a filter: L-SUE."""
        return l_sue(k=request.k, **request.pair)

    @classmethod
    def for_tracking(cls, name: str, request: ProtocolRequest) -> Rappor:
        """Return RAPPOR over strings, with its own parameters as options."""
        given = {each: request.options[each] for each in ("size", "hashes", "cohorts", "f", "p", "q")}
        return cls(**{each: value for each, value in given.items() if value is not None})

    @classmethod
    def examples(cls) -> Sequence[LocalProtocol]:
        """Return RAPPOR with two bits: one and two cohorts, without the permanent response, and without the other."""
        none = {"p": Fraction(0), "q": Fraction(1)}
        small = [cls(size=2, hashes=1, cohorts=cohorts) for cohorts in (1, 2)]
        return [*small, cls(size=2, hashes=1, cohorts=1, f=Fraction(0)), cls(size=2, hashes=2, cohorts=1, **none)]

    @property
    def values(self) -> None:
        return None

    @property
    def set_chance(self) -> Fraction:
        """q*: the probability that a report sets a bit that the string sets."""
        half = Fraction(self.f) / 2
        return (1 - half) * self.q + half * self.p

    @property
    def clear_chance(self) -> Fraction:
        """p*: the probability that a report sets a bit that the string does not set."""
        half = Fraction(self.f) / 2
        return half * self.q + (1 - half) * self.p

    @property
    def privacy(self) -> Privacy:
        """ε₁ = h ln(q*(1−p*)/(p*(1−q*))) of a report, ε∞ = 2h ln((1−f/2)/(f/2)) of all reports of one string.

        If a user reports different strings, the total grows with their number.
        """
        q, p = self.set_chance, self.clear_chance
        first = math.inf if p == 0 else self.hashes * log_ratio(q * (1 - p) / (p * (1 - q)))
        half = Fraction(self.f) / 2
        permanent = math.inf if half == 0 else 2 * self.hashes * log_ratio((1 - half) / half)
        return Privacy(asked=first, first=first, permanent=permanent, worst_case=math.inf)

    @property
    def shares(self) -> str:
        return " and ".join(["the cohort"] * (self.cohorts > 1) + [MEMOIZED_ANSWERS] * (self.f > 0))

    @property
    def memoizes(self) -> bool:
        """Whether ε∞ bounds all reports of a string: with an instantaneous response."""
        return self.chain.instant is not None

    def describe(self) -> dict[str, Any]:
        """Return the kind and the parameters, as a saved state holds them; probabilities as text."""
        return LocalProtocol.describe(self) | {name: str(getattr(self, name)) for name in ("f", "p", "q")}

    def positions(self, value: str, cohort: int) -> list[int]:
        """Return the bits that a string sets in a cohort; two hashes may give the same bit.

        Each hash is eight bytes of SHA-256 over the cohort, a counter and the string, modulo k.
        """
        if not is_count(cohort, 0, self.cohorts - 1):
            raise ReportError(f"cohort must be an integer from 0 to {self.cohorts - 1}, not {short_text(cohort)}")
        text = string_bytes(value)
        found: list[int] = []
        block = 0
        while len(found) < self.hashes:
            prefix = b"rappor" + int(cohort).to_bytes(4, "big") + block.to_bytes(4, "big")
            digest = hashlib.sha256(prefix + text).digest()
            found += [int.from_bytes(digest[at : at + 8], "big") % self.size for at in range(0, 32, 8)]
            block += 1
        return found[: self.hashes]

    def bloom(self, value: str, cohort: int) -> NDArray[np.bool_]:
        """Return the Bloom filter of one string in a cohort."""
        row = np.zeros(self.size, dtype=np.bool_)
        row[self.positions(value, cohort)] = True
        return row

    def client(self, bits: Bits | ExactDraws) -> RapporClient:
        """Return a new device, in a cohort that is drawn once."""
        draws = as_draws(bits)
        return RapporClient(self, draws, draws.below(self.cohorts), {})

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> RapporClient:
        stored = self.load(saved)
        rows = stored.get("rows")
        if not isinstance(rows, dict):
            raise StateError("this is not a saved client: it has no permanent responses")
        memo = {value: memo_row(row, self.size) for value, row in rows.items()}
        return RapporClient(self, bits, memo_int(stored.get("cohort"), self.cohorts, "a cohort"), memo)

    def fleet(self, users: int, bits: Bits, strings: Sequence[str] = ()) -> RapporFleet:
        """Return ``users`` new devices in columns, which report strings of the list by index."""
        return RapporFleet(self, users, as_list(strings, "strings"), bits)

    @property
    def report_bytes(self) -> int:
        return 4 + -(-self.size // 8)

    def pack_report(self, report: Any) -> bytes | None:
        if not isinstance(report, RapporReport):
            return None
        unpack(report.row, self.size)
        return struct.pack(">I", check_value(report.cohort, self.cohorts)) + report.row

    def unpack_report(self, data: bytes) -> RapporReport:
        unpack(data[4:], self.size)
        return RapporReport(cohort=check_value(int.from_bytes(data[:4], "big"), self.cohorts), row=data[4:])

    def stream_law(self, value: str, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        """Return the law of reports of a string: in one cohort, or with the cohort that each user draws and sends."""
        if isinstance(cohort, str):
            if cohort != "sent":
                raise LdpParameterError(f'cohort must be an integer or "sent", not {short_text(cohort)}')
            return CohortLaw(value, self)
        return BitsLaw(self.bloom(value, cohort), self.chain)

    def columns(self, reports: Sequence[RapporReport]) -> RapporColumns:
        sent = as_list(reports, "reports")
        if not all(isinstance(report, RapporReport) for report in sent):
            raise ReportError("a report of RAPPOR must be a RapporReport, with its cohort")
        cohorts = whole_numbers([report.cohort for report in sent], self.cohorts, "cohorts")
        return RapporColumns(cohorts=cohorts, rows=rows_from_bytes([report.row for report in sent], self.size))

    def count(self, columns: RapporColumns) -> RapporCounts:
        """Return the counts of a collection, by cohort and bit."""
        columns = check_columns(columns, RapporColumns)
        cohorts = check_numbers(columns.cohorts, self.cohorts, "cohorts")
        rows = check_words(columns.rows, (cohorts.size, words_of(self.size)), f"reports of {self.size} bits")
        order = np.argsort(cohorts, kind="stable")
        sizes = np.bincount(cohorts, minlength=self.cohorts)
        ends = np.cumsum(sizes)
        counts = [count_bits(rows[order[end - size : end]], self.size) for size, end in zip(sizes, ends, strict=True)]
        return RapporCounts(reports=sizes, set_bits=np.array(counts, dtype=np.int64))


class RapporClient(MemoizingDevice[Rappor, str, bytes]):
    """One device: a report is its cohort and the randomized filter, and each string has a permanent response."""

    def __init__(self, protocol: Rappor, bits: Bits | ExactDraws, cohort: int, memo: dict[str, bytes]) -> None:
        super().__init__(protocol, bits, memo)
        self.cohort = cohort

    def report(self, value: str, instant: ResponseStep | None = None) -> RapporReport:
        """Return a report of ``value``: its permanent response, drawn at the first use, then randomized again.

        ``instant``, if given, replaces the protocol's instantaneous response for this report.
        """
        string_bytes(value)
        row = self._kept(value, lambda: self._permanent(value))
        instant = self.protocol.chain.instant if instant is None else instant
        if instant is not None:
            row = self._flip(unpack(row, self.protocol.size), instant)
        return RapporReport(cohort=self.cohort, row=row)

    def _saved(self) -> dict[str, Any]:
        return {"cohort": self.cohort, "rows": super()._saved()}

    def _permanent(self, value: str) -> bytes:
        row = self.protocol.bloom(value, self.cohort)
        return pack(row) if self.protocol.f == 0 else self._flip(row, self.protocol.chain.permanent)


class RapporFleet(MemoizingColumns[Rappor]):
    """Many devices in columns; one permanent row of words per (user, string) that occurred."""

    def __init__(self, protocol: Rappor, users: int, strings: list[str], bits: Bits) -> None:
        if not strings:
            raise ReportError("a fleet needs a list of strings to report: give at least one")
        super().__init__(protocol, users, bits, span=len(strings), width=words_of(protocol.size))
        self.strings = strings
        self.cohorts = uniform_below_batch(bits, protocol.cohorts, users)
        filters = [[pack(protocol.bloom(value, cohort)) for value in strings] for cohort in range(protocol.cohorts)]
        self._filters = rows_from_bytes([row for rows in filters for row in rows], protocol.size)
        chain = protocol.chain
        self._permanent = None if protocol.f == 0 else LaneCoins(chain.permanent)
        self._instant = None if chain.instant is None else LaneCoins(chain.instant)

    def report(self, values: NDArray[np.int64]) -> RapporColumns:
        """Return one collection: per user a report of the string at their index."""
        held = check_values(values, len(self.strings), self.users)

        def permanent(fresh: NDArray[np.int64]) -> Words:
            filters = self._filters[self.cohorts[fresh] * len(self.strings) + held[fresh]]
            return filters if self._permanent is None else self._permanent.flip(self._bits, filters, self.protocol.size)

        kept = self._memo.get(held, permanent)
        sent = kept if self._instant is None else self._instant.flip(self._bits, kept, self.protocol.size)
        return RapporColumns(cohorts=self.cohorts, rows=sent)


class CohortLaw(BitsLaw):
    """RAPPOR as it is sent: each user draws a cohort once and sends it in the clear. A part includes the cohorts.

    Reports of two cohorts cannot come from one user. Two users have different cohorts with probability ``told_apart``.
    """

    def __init__(self, value: str, protocol: Rappor) -> None:
        patterns = [protocol.bloom(value, cohort) for cohort in range(protocol.cohorts)]
        super().__init__(patterns[0], protocol.chain)
        self.told_apart = 1 - Fraction(1, protocol.cohorts)
        self._patterns = np.array(patterns).astype(np.int64)
        self._rows = rows_from_bytes([pack(pattern) for pattern in patterns], protocol.size)

    def part(self, reports: Sequence[RapporReport]) -> Any:  # type: ignore[override]
        """Return a device's cohort, and how often each bit was set."""
        if any(report.cohort != reports[0].cohort for report in reports):
            raise ReportError("all reports of a device have one cohort: these are not of one device")
        return np.array([reports[0].cohort]), super().part([report.row for report in reports])

    def log_probability(self, *parts: Any) -> Floats:
        """Return the log-probability of the cohort and of its bits, or −∞ if the parts have different cohorts."""
        cohorts = parts[0][0]
        counts = sum(part[1][0].astype(np.int64) for part in parts)
        table = self._table(sum(part[1][1] for part in parts))
        found = table[self._patterns[cohorts], counts].sum(axis=1) - math.log(len(self._patterns))
        one = np.all([part[0] == cohorts for part in parts], axis=0)
        return np.where(one, found, -math.inf)

    def report_epsilon(self) -> float:
        """Return infinity: the cohort is a part of the state. With one cohort, the ε of the bits."""
        return math.inf if self.told_apart else super().report_epsilon()

    def _state(self, bits: Bits, users: int) -> Any:
        several = len(self._patterns) > 1
        cohorts = uniform_below_batch(bits, len(self._patterns), users) if several else np.zeros(users, dtype=np.int64)
        return cohorts, self._permanent.flip(bits, self._rows[cohorts], self._pattern.size)

    def _send(self, bits: Bits, state: Any, reports: int) -> Any:
        return state[0], super()._send(bits, state[1], reports)
