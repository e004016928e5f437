"""Which users an observer of dBitFlipPM catches changing: measured, and exactly for one sampled bit.

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
        """Return, of the users who changed, the share for whom every change showed."""
        changed = int(self._changed.sum())
        return self.caught() / changed if changed else math.nan


def caught_users(data: Dataset, protocol: BitFlip, bits: Bits) -> int:
    """Return how many users of ``data`` one run of ``protocol`` over all collections catches changing."""
    fleet, watch = protocol.fleet(data.users, bits), ChangeDetector(data.users)
    for t in range(data.collections):
        watch.add_collection(protocol.cell(data.values[:, t]), fleet.report(data.values[:, t]))
    return watch.caught()


def detection_chances(data: Dataset, protocol: BitFlip) -> Floats:
    """Return for each user who changes bucket the exact probability that every change shows, for d = 1.

    One bit shows every change only if it alternates at each of them: the user's buckets must fall into two sides,
    with every change going from one to the other. By bucket, the bits of one side must all be 1 and those of the other
    0; the one sampled bucket, if it is among them, is 1 with p, all others with q. By pattern, buckets outside the
    sample share their bit, so that one side must be the sampled bucket alone.
    """
    if protocol.sampled != 1:
        raise ProtocolError(f"exact chances of detection are for one sampled bit, not d = {protocol.sampled}")
    p, q, b = float(protocol.chain.permanent.p), float(protocol.chain.permanent.q), protocol.buckets
    cells = protocol.cell(data.values)
    moving = cells[(cells[:, 1:] != cells[:, :-1]).any(axis=1)]
    if protocol.memo == "pattern":
        centres = [0 if sides is None else (sides[0] == 1) + (sides[1] == 1) for sides in map(_sides, moving.tolist())]
        return np.array(centres, dtype=np.float64) * (p * p + q * q) / b

    def alternates(ones: int, zeros: int) -> float:
        """Return the probability that these many buckets have bit 1, and these many bit 0."""
        none = (b - ones - zeros) * q**ones * p**zeros
        among_ones = ones * p * q ** (ones - 1) * p**zeros if ones else 0.0
        among_zeros = zeros * q * q**ones * p ** (zeros - 1) if zeros else 0.0
        return (none + among_ones + among_zeros) / b

    found = map(_sides, moving.tolist())
    return np.array([0.0 if s is None else alternates(*s) + alternates(*reversed(s)) for s in found])


def _sides(walk: list[int]) -> tuple[int, int] | None:
    """Return the sizes of the two sides between which every change of a walk goes; None if there are none."""
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
    """Return the exact law of how many users are caught over all ``runs`` runs: a sum of independent coins.

    Users with chance 0 do not matter. O((users · runs)²) for the others, of whom Table 2 has few.
    """
    if not is_count(runs, 1):
        raise ProtocolError(f"a law of hits needs at least one run, not {short_text(runs)}")
    law = np.ones(1)
    for chance in np.repeat(chances[chances > 0], runs):
        law = np.convolve(law, (1 - chance, chance))
    return law


def two_sided(law: Floats, hits: int) -> float:
    """Return the probability, under ``law``, of a number of hits no more likely than ``hits``."""
    if not is_count(hits, 0):
        raise ProtocolError(f"a number of hits must be an integer of at least 0, not {short_text(hits)}")
    if hits >= law.size:
        return 0.0
    return min(1.0, float(law[law <= law[hits] * (1 + 1e-9)].sum()))
