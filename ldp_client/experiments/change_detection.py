"""The share of users whose changes an observer of dBitFlipPM detects: measured, and exact for one sampled bit.

LOLOHA paper, §5.2 and Table 2: the share of users for whom *every* change of bucket shows as a changed report.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import is_count, short_text
from ldp_client.errors import ProtocolError
from ldp_client.estimation.support import Floats
from ldp_client.experiments.datasets import Dataset
from ldp_client.protocols.bitflip import BitFlip, BitFlipColumns


class ChangeDetector:
    """Finds the users for whom every change of bucket showed as a changed report (Table 2)."""

    def __init__(self, users: int) -> None:
        self._all_seen = np.ones(users, dtype=np.bool_)
        self._changed = np.zeros(users, dtype=np.bool_)
        self._cells: NDArray[np.int64] | None = None
        self._rows: NDArray[np.uint64] | None = None

    def add_collection(self, cells: NDArray[np.int64], columns: BitFlipColumns) -> None:
        """Add one collection: the true buckets and the reports."""
        if self._cells is not None and self._rows is not None:
            moved = cells != self._cells
            shown = (columns.rows != self._rows).any(axis=1)
            self._changed |= moved
            self._all_seen &= shown | ~moved
        self._cells, self._rows = cells, columns.rows

    def caught(self) -> int:
        """Return the number of users who changed and for whom every change showed."""
        return int(np.sum(self._all_seen & self._changed))

    def detected(self) -> float:
        """Return the share of the users who changed for whom every change showed."""
        changed = int(self._changed.sum())
        return self.caught() / changed if changed else math.nan


def caught_users(data: Dataset, protocol: BitFlip, bits: Bits) -> int:
    """Run ``protocol`` once over all collections; return for how many users of ``data`` every change showed."""
    fleet, watch = protocol.fleet(data.users, bits), ChangeDetector(data.users)
    for t in range(data.collections):
        watch.add_collection(protocol.cell(data.values[:, t]), fleet.report(data.values[:, t]))
    return watch.caught()


def detection_chances(data: Dataset, protocol: BitFlip) -> Floats:
    """Return, for each user who changes bucket, the exact probability that every change shows, for d = 1.

    One bit shows every change only if it alternates: the user's buckets must form two sides such that every change
    goes from one side to the other. With memo "bucket", the bits of one side must all be 1 and those of the other 0;
    the bit of the sampled bucket is 1 with probability p, that of any other bucket with probability q. With memo
    "pattern", buckets outside the sample share one bit, so one side must be the sampled bucket alone.
    """
    if protocol.sampled != 1:
        raise ProtocolError(f"exact probabilities of detection need one sampled bit, d = 1, not d = {protocol.sampled}")
    p, q, b = float(protocol.chain.permanent.p), float(protocol.chain.permanent.q), protocol.buckets
    cells = protocol.cell(data.values)
    moving = cells[(cells[:, 1:] != cells[:, :-1]).any(axis=1)]
    if protocol.memo == "pattern":
        centres = [0 if sides is None else (sides[0] == 1) + (sides[1] == 1) for sides in map(_sides, moving.tolist())]
        return np.array(centres, dtype=np.float64) * (p * p + q * q) / b

    def alternates(ones: int, zeros: int) -> float:
        """Return the probability that ``ones`` given buckets have bit 1 and ``zeros`` others have bit 0."""
        none = (b - ones - zeros) * q**ones * p**zeros
        among_ones = ones * p * q ** (ones - 1) * p**zeros if ones else 0.0
        among_zeros = zeros * q * q**ones * p ** (zeros - 1) if zeros else 0.0
        return (none + among_ones + among_zeros) / b

    found = map(_sides, moving.tolist())
    return np.array([0.0 if s is None else alternates(*s) + alternates(*reversed(s)) for s in found])


def _sides(walk: list[int]) -> tuple[int, int] | None:
    """Return the sizes of the two sides between which every change of a walk goes; None if no such sides exist."""
    side = {walk[0]: 0}
    changes = {(x, y) for x, y in itertools.pairwise(walk) if x != y}
    near: dict[int, list[int]] = {}
    for x, y in changes:
        near.setdefault(x, []).append(y)
        near.setdefault(y, []).append(x)
    waiting = [walk[0]]
    while waiting:
        here = waiting.pop()
        for there in near.get(here, []):
            if there not in side:
                side[there] = 1 - side[here]
                waiting.append(there)
            elif side[there] == side[here]:
                return None
    second = sum(side.values())
    return len(side) - second, second


def hits_law(chances: Floats, runs: int) -> Floats:
    """Return the exact distribution of the number of detected users, summed over ``runs`` independent runs.

    O((users · runs)²) in the users whose chance is not 0; Table 2 has few of them.
    """
    if not is_count(runs, 1):
        raise ProtocolError(f"runs must be an integer of at least 1, not {short_text(runs)}")
    law = np.ones(1)
    for chance in np.repeat(chances[chances > 0], runs):
        law = np.convolve(law, (1 - chance, chance))
    return law


def two_sided(law: Floats, hits: int) -> float:
    """Return the probability, under ``law``, of a number of hits no more likely than ``hits``."""
    if not is_count(hits, 0):
        raise ProtocolError(f"hits must be an integer of at least 0, not {short_text(hits)}")
    if hits >= law.size:
        return 0.0
    return min(1.0, float(law[law <= law[hits] * (1 + 1e-9)].sum()))
