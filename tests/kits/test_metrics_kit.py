"""Every metric passes its kit, beside a twin in plain Python; metrics that lie fail it with the reason."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest

from aggservice.campaign.metrics import METRICS, IntervalCoverage, Metric, Rmse, ShareOfSlices, SliceColumns, SliceLaws
from aggservice.kits.failures import KitFailure
from aggservice.kits.metrics import Rows, check_metric


def relative_errors(rows: Rows) -> list[float]:
    return [abs(row["estimate"] - row["truth"]) / row["truth"] for row in rows if row["truth"]]


FORMULAS: dict[str, Callable[[Rows, float], float | None]] = {
    "rmse": lambda rows, tau: (sum((row["estimate"] - row["truth"]) ** 2 for row in rows) / len(rows)) ** 0.5,
    "rmsre": lambda rows, tau: (
        (sum(((row["estimate"] - row["truth"]) / max(row["truth"], tau)) ** 2 for row in rows) / len(rows)) ** 0.5
    ),
    "median_relative_error": lambda rows, tau: median(found) if (found := relative_errors(rows)) else None,
    "coverage": lambda rows, tau: sum(abs(row["estimate"] - row["sent"]) <= row["width"] for row in rows),
    "above_noise": lambda rows, tau: sum(row["sent"] > row["width"] for row in rows),
    "truth_coverage": lambda rows, tau: sum(abs(row["estimate"] - row["truth"]) <= row["width"] for row in rows),
}


@pytest.mark.parametrize("name", METRICS.names)
def test_every_metric_passes_its_kit(name: str) -> None:
    check_metric(METRICS[name], FORMULAS.get(name))


def test_every_metric_of_jobs_has_a_twin_and_some_an_expected_value() -> None:
    assert {name for name in METRICS if METRICS[name].in_job} == FORMULAS.keys()
    assert sum(type(METRICS[name]).expected is not Metric.expected for name in METRICS) >= 4


class OtherColumn(IntervalCoverage):
    """Says that it counts covered intervals, and counts slices above the noise."""

    name = "other_column"

    def value(self, slices: SliceColumns) -> float | None:
        return int(slices.above_noise.sum())


class Hopeful(Rmse):
    """Expects no bias."""

    name = "hopeful"
    in_job = "hopeful"

    def expected(self, laws: SliceLaws) -> float | None:
        return float(laws.variance.mean() ** 0.5)


class FirstSlice(Metric):
    """Looks at one slice."""

    name = "first_slice"
    title = "first slice"
    columns = ("truth",)

    def value(self, slices: SliceColumns) -> float | None:
        return float(slices.truth[0]) if slices.truth.size else None


class Rounded(IntervalCoverage):
    """Prints less than it has."""

    name = "rounded"

    def text(self, value: float | None, digits: int | None = None) -> str:
        return "–" if value is None else f"{value:.0%}"


class TooMany(ShareOfSlices):
    """States a column that it does not read."""

    name = "too_many"
    title = "too many"
    columns = ("covered", "width")

    def value(self, slices: SliceColumns) -> float | None:
        return int(slices.covered.sum())


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (OtherColumn(), "other_column changes with the column above_noise, which it does not state: it states covered"),
        (Hopeful(), "hopeful is .*, and its mean over all outcomes of the noise is"),
        (FirstSlice(), "first_slice is .*, and its value over the same slices in another order is"),
        (Rounded(), "rounded prints 0.123 as '12%', which reads as 0.12"),
        (TooMany(), "too_many states the column width and never changes with it"),
    ],
)
def test_a_metric_that_lies_fails_with_the_reason(metric: Metric, words: str) -> None:
    with pytest.raises(KitFailure, match=words):
        check_metric(metric)


def test_a_metric_that_is_not_its_formula_fails() -> None:
    with pytest.raises(KitFailure, match=r"rmse is .*, and the formula given beside it is"):
        check_metric(METRICS["rmse"], FORMULAS["rmsre"])
