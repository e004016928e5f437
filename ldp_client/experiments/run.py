"""One method on one data set over all collections: its error, its privacy loss, and the changes it reveals.

Equations and tables are those of the LOLOHA paper, §5. Changes are those of Table 2: the share of users for whom
*every* change of bucket shows as a changed report, measured, and exact for one sampled bit of dBitFlipPM.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import is_count, short_text
from ldp_client.errors import LdpParameterError
from ldp_client.estimation import MICRO, Floats, FrequencyEstimate
from ldp_client.experiments.datasets import Dataset
from ldp_client.protocols.base import LocalProtocol
from ldp_client.protocols.bitflip import BitFlip
from ldp_client.sampling import Words


class ChangeDetector:
    """Finds the users for whom every change of bucket showed as a changed report (Table 2)."""

    def __init__(self, users: int) -> None:
        self._all_seen = np.ones(users, dtype=np.bool_)
        self._changed = np.zeros(users, dtype=np.bool_)
        self._cells: NDArray[np.int64] | None = None
        self._rows: Words | None = None

    def add_collection(self, cells: NDArray[np.int64], rows: Words) -> None:
        """Add one collection: the true buckets and the answers that the reports show."""
        if self._cells is not None and self._rows is not None:
            moved = cells != self._cells
            shown = (rows != self._rows).any(axis=1)
            self._changed |= moved
            self._all_seen &= shown | ~moved
        self._cells, self._rows = cells, rows

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
        watch.add_collection(protocol.cell(data.values[:, t]), protocol.repeated(fleet.report(data.values[:, t])))
    return watch.caught()


def detection_chances(data: Dataset, protocol: BitFlip) -> Floats:
    """Return, for each user who changes bucket, the exact probability that every change shows, for d = 1.

    One bit shows every change only if it alternates: the user's buckets must form two sides such that every change
    goes from one side to the other. With memo "bucket", the bits of one side must all be 1 and those of the other 0;
    the bit of the sampled bucket is 1 with probability p, that of any other bucket with probability q. With memo
    "pattern", buckets outside the sample share one bit, so one side must be the sampled bucket alone.
    """
    if protocol.sampled != 1:
        raise LdpParameterError(
            f"exact probabilities of detection need one sampled bit, d = 1, not d = {protocol.sampled}"
        )
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
        raise LdpParameterError(f"runs must be an integer of at least 1, not {short_text(runs)}")
    law = np.ones(1)
    for chance in np.repeat(chances[chances > 0], runs):
        law = np.convolve(law, (1 - chance, chance))
    return law


def two_sided(law: Floats, hits: int) -> float:
    """Return the probability, under ``law``, of a number of hits no more likely than ``hits``."""
    if not is_count(hits, 0):
        raise LdpParameterError(f"hits must be an integer of at least 0, not {short_text(hits)}")
    if hits >= law.size:
        return 0.0
    return min(1.0, float(law[law <= law[hits] * (1 + 1e-9)].sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """The measurements of one run.

    ``mse`` is MSE_avg (Eq. 7) of the unbiased estimates and ``mse_normalised`` that of estimates cut at 0 and scaled
    to sum to 1; ``expected_mse`` is what the exact variance predicts for the first. ``loss`` is ε̌_avg (Eq. 8).
    ``detected`` is, of the users whose bucket changes, the share for whom every change shows in the reports, and
    ``injective`` the share whose different buckets all have different answers, which is what the authors' code
    counts. Both are NaN except for protocols whose reports repeat memoized answers as they are, such as dBitFlipPM.
    """

    mse: float
    mse_normalised: float
    expected_mse: float
    loss: float
    detected: float
    injective: float


def run_method(
    data: Dataset,
    protocol: LocalProtocol,
    bits: Bits,
    each: Callable[[int, FrequencyEstimate], object] | None = None,
) -> MethodResult:
    """Return the measurements over all collections; ``each`` is called after each one with its index and estimate."""
    fleet = protocol.fleet(data.users, bits)
    watch: ChangeDetector | None = None
    mse, normalised, expected = [], [], []
    for t in range(data.collections):
        cells = protocol.cell(data.values[:, t])
        truth = np.bincount(cells, minlength=protocol.cells) / data.users
        columns = fleet.report(data.values[:, t])
        estimate = protocol.estimate(columns)
        mse.append(estimate.mse(truth))
        normalised.append(float(np.mean((estimate.normalised() - truth) ** 2)))
        expected.append(expected_mse(protocol, truth, data.users))
        shown = protocol.repeated(columns)
        if shown is not None:
            watch = watch or ChangeDetector(data.users)
            watch.add_collection(cells, shown)
        if each is not None:
            each(t, estimate)
    detected = injective = math.nan
    if watch is not None:
        detected = watch.detected()
        different = _distinct(protocol.cell(data.values), protocol.cells)
        injective = float(np.mean(fleet.distinct_answers() == different))
    return MethodResult(
        mse=float(np.mean(mse)),
        mse_normalised=float(np.mean(normalised)),
        expected_mse=float(np.mean(expected)),
        loss=_loss(protocol, fleet.memoized(), data.collections),
        detected=detected,
        injective=injective,
    )


def _loss(protocol: LocalProtocol, memoized: NDArray[np.int64], collections: int) -> float:
    """Return ε̌_avg (Eq. 8): ε∞ for each memoized answer; without memory, ε for each collection."""
    each = protocol.describe().get("epsilon_permanent_micro", MICRO * protocol.privacy.permanent) / MICRO
    return each * (float(np.mean(memoized)) if protocol.memoizes else collections)


def expected_mse(protocol: LocalProtocol, truth: Floats, users: int) -> float:
    """Return the mean of the exact variances: the expected error of one collection."""
    return float(np.mean(protocol.support.variance(users, truth)))


def _distinct(cells: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return how many different cells each row holds."""
    keys = np.unique(np.arange(cells.shape[0])[:, None] * size + cells)
    return np.bincount(keys // size, minlength=cells.shape[0])
