"""RAPPOR with q moving towards p from one collection to the next, so that all reports together have a finite loss.

The RAPPOR paper on values that change quickly: budget ε over time, by letting q come closer to p with each collection.
Here q_t = p + (q − p)·ratio^t for the t-th collection, counted from 0. A report tells less each time, and decoding
needs more of them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

from aggservice.mechanisms import Bits
from ldp_client.checks import is_count, short_text
from ldp_client.enumeration import log_ratio
from ldp_client.errors import LdpParameterError, StateError
from ldp_client.protocols.base import as_draws, load_state
from ldp_client.protocols.rappor import Rappor, RapporClient, RapporReport
from ldp_client.sampling import ExactDraws

#: Bits of ratio^t after which q_t cannot be told from p.
_MOST_BITS = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class FadingLosses:
    """The privacy losses, in ε, of the reports up to a collection.

    ``first`` is the loss of one report of a new string in this collection; ``strings`` is the total for a user whose
    strings all differ; ``fixed_strings`` is that total if q did not move. ``sequence`` bounds the loss for any sequence
    of strings, also one that returns to earlier strings. A string that never changes also loses at most ε∞.
    """

    collection: int
    first: float
    strings: float
    sequence: float
    fixed_strings: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FadingRappor:
    """RAPPOR whose q − p shrinks by ``ratio`` with each collection."""

    kind: ClassVar[str] = "fading RAPPOR"
    rappor: Rappor
    ratio: Fraction

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, Fraction) or not 0 < self.ratio < 1:
            raise LdpParameterError(f"the ratio must be a Fraction between 0 and 1, not {short_text(self.ratio)}")
        if self.rappor.p == 0:
            raise LdpParameterError("fading needs an instantaneous response, and p = 0 with q = 1 omits it: set 0 < p")

    def describe(self) -> dict[str, Any]:
        """Return the kind and the parameters, as a saved state holds them."""
        return {"kind": self.kind, "rappor": self.rappor.describe(), "ratio": str(self.ratio)}

    def at(self, collection: int) -> Rappor:
        """Return RAPPOR with the q_t of a collection; use it to decode the reports of that collection."""
        if not is_count(collection, 0):
            raise LdpParameterError(f"collection must be an integer of at least 0, not {short_text(collection)}")
        if collection * self.ratio.denominator.bit_length() > _MOST_BITS:
            raise LdpParameterError(f"q is too close to p at collection {collection}: stop collecting earlier")
        p, q = Fraction(self.rappor.p), Fraction(self.rappor.q)
        return replace(self.rappor, q=p + (q - p) * self.ratio**collection)

    def losses(self, collections: int) -> list[FadingLosses]:
        """Return the losses after each of the first ``collections`` collections."""
        if not is_count(collections, 1):
            raise LdpParameterError(f"collections must be an integer of at least 1, not {short_text(collections)}")
        rows: list[FadingLosses] = []
        strings = sequence = 0.0
        fixed = self.rappor.privacy.first
        for collection in range(collections):
            now = self.at(collection)
            first = now.privacy.first
            strings, sequence = strings + first, sequence + _any_report(now)
            rows.append(
                FadingLosses(
                    collection=collection,
                    first=first,
                    strings=strings,
                    sequence=sequence,
                    fixed_strings=(collection + 1) * fixed,
                )
            )
        return rows

    def limit(self) -> FadingLosses:
        """Return bounds on the losses of all collections to come, however many.

        The terms are summed up to a collection T; the slope of the log-odds between p and q_T bounds each later term by
        a multiple of (q_T − p)·ratio^t, which is a geometric series. ``first`` is that of collection 0.
        """
        last = max(1, _MOST_BITS // self.ratio.denominator.bit_length() // 4)
        row = self.losses(last)[-1]
        end = self.at(last)
        p, q, f = float(end.p), float(end.q), float(end.f)
        rest = float((end.q - end.p) / (1 - self.ratio))
        slope = max(1 / (p * (1 - p)), 1 / (q * (1 - q)))
        return FadingLosses(
            collection=last,
            first=self.rappor.privacy.first,
            strings=row.strings + end.hashes * (1 - f) * rest * slope,
            sequence=row.sequence + end.size * rest * max(1 / p, 1 / (1 - q)),
            fixed_strings=math.inf,
        )

    def client(self, bits: Bits | ExactDraws) -> FadingClient:
        """Return a new device, at collection 0."""
        return FadingClient(self, self.rappor.client(bits), 0)

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> FadingClient:
        """Return a device from a saved state, at the collection that it had reached."""
        stored = load_state(saved, self.describe())
        collection, device = stored.get("collection"), stored.get("device")
        if not is_count(collection, 0) or not isinstance(device, str):
            raise StateError("this is not a saved client of fading RAPPOR: it has no collection, or no device")
        assert isinstance(collection, int)
        return FadingClient(self, self.rappor.restore(device.encode(), as_draws(bits)), collection)


class FadingClient:
    """One device: a RAPPOR client that counts its collections; its permanent responses stay."""

    def __init__(self, protocol: FadingRappor, device: RapporClient, collection: int) -> None:
        self.protocol = protocol
        self.collection = collection
        self._device = device

    def report(self, value: str) -> RapporReport:
        """Return a report of ``value`` with the current q, and advance to the next collection."""
        instant = self.protocol.at(self.collection).chain.instant
        self.collection += 1
        return self._device.report(value, instant)

    def skip(self) -> None:
        """Advance to the next collection without a report."""
        self.collection += 1

    def save(self) -> bytes:
        """Return the state as JSON. It includes the collection, so that a restored device does not use a larger q."""
        memo = {"collection": self.collection, "device": self._device.save().decode()}
        return json.dumps({"protocol": self.protocol.describe(), "memo": memo}, sort_keys=True).encode()


def _any_report(rappor: Rappor) -> float:
    """Return the largest loss of a report about the permanent response: k times the largest log-ratio of one bit."""
    p, q = Fraction(rappor.p), Fraction(rappor.q)
    return rappor.size * max(log_ratio(q / p), log_ratio((1 - p) / (1 - q)))
