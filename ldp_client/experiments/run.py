"""One method on one data set over all collections: its error, its privacy loss, and the changes it reveals.

Equations and tables are those of the LOLOHA paper, §5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.estimation.steps import MICRO
from ldp_client.estimation.support import Estimate, Floats
from ldp_client.experiments.change_detection import ChangeDetector
from ldp_client.experiments.datasets import Dataset
from ldp_client.protocols.bitflip import BitFlipFleet
from ldp_client.protocols.interface import FrequencyProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """The measurements of one run.

    ``mse`` is MSE_avg (Eq. 7) of the unbiased estimates and ``mse_normalised`` that of estimates cut at 0 and scaled
    to sum to 1; ``expected_mse`` is what the exact variance predicts for the first. ``loss`` is ε̌_avg (Eq. 8).
    ``detected`` is, of the users whose bucket changes, the share for whom every change shows in the reports, and
    ``injective`` the share whose different buckets all have different answers, which is what the authors' code
    counts. Both are NaN except for dBitFlipPM, whose reports have no second step.
    """

    mse: float
    mse_normalised: float
    expected_mse: float
    loss: float
    detected: float
    injective: float


def run_method(
    data: Dataset,
    protocol: FrequencyProtocol,
    bits: Bits,
    each: Callable[[int, Estimate], object] | None = None,
) -> MethodResult:
    """Return the measurements over all collections; ``each`` is called after each one with its index and estimate."""
    fleet = protocol.fleet(data.users, bits)
    watch = ChangeDetector(data.users) if isinstance(fleet, BitFlipFleet) else None
    mse, normalised, expected = [], [], []
    for t in range(data.collections):
        cells = protocol.cell(data.values[:, t])
        truth = np.bincount(cells, minlength=protocol.cells) / data.users
        columns = fleet.report(data.values[:, t])
        estimate = protocol.estimate(columns)
        mse.append(estimate.mse(truth))
        normalised.append(float(np.mean((estimate.normalised() - truth) ** 2)))
        expected.append(expected_mse(protocol, truth, data.users))
        if watch is not None:
            watch.add_collection(cells, columns)
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


def _loss(protocol: FrequencyProtocol, memoized: NDArray[np.int64], collections: int) -> float:
    """Return ε̌_avg (Eq. 8): ε∞ for each memoized answer; without memory, ε for each collection."""
    each = protocol.epsilon_permanent_micro / MICRO
    return each * (collections if math.isinf(protocol.privacy.worst_case) else float(np.mean(memoized)))


def expected_mse(protocol: FrequencyProtocol, truth: Floats, users: int) -> float:
    """Return the mean of the exact variances: the expected error of one collection."""
    return float(np.mean(protocol.support.variance(users, truth)))


def _distinct(cells: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return how many different cells each row holds."""
    keys = np.unique(np.arange(cells.shape[0])[:, None] * size + cells)
    return np.bincount(keys // size, minlength=cells.shape[0])
