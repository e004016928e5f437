"""Metrics: what a report, a sweep, a comparison and the studio say about how far estimates are from the truth.

A metric is a class with a title, its value over the slices of one job, how values of several jobs and releases are put
together, the value to expect before any run, and its text. ``METRICS`` maps names to them; nothing else knows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np

from aggservice.campaign.columns import Flags, Floats
from aggservice.kinds import Kinds

_ROUNDED_UP = 1 + 1e-12
"""Ends of intervals are divided by a scale; a truth on the very end counts as held."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceColumns:
    """The slices of one measure in one job as columns, in natural units: truth, what was sent, estimate.

    ``width`` is the half-width of each slice's interval, which is about what was sent: ``covered`` says whether it
    holds that, and ``above_noise`` whether more than the half-width was sent. ``tau`` is τ of RMSRE_τ.
    """

    truth: Floats
    sent: Floats
    estimate: Floats
    width: Floats
    covered: Flags
    above_noise: Flags
    tau: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceLaws:
    """The slices of one measure in a job that has not run, as columns, in natural units; the noise is unbiased.

    ``variance`` is that of each slice's noise, and ``chance(low, high)`` the probability that it lies in [low, high].
    """

    truth: Floats
    sent: Floats
    width: Floats
    variance: Floats
    tau: float
    chance: Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureErrors:
    """The errors of one measure over the slices of a job: ``values`` are those of metrics, by their names in jobs.

    ``truth`` is that of the whole job, with keys that no slice shows. ``bias`` is the sum that was sent minus the
    truth, in natural units: repeating the query does not average it away. ``half_width`` is that of one key's stated
    interval, in natural units; None for event-level reports.
    """

    measure: str
    slices: int
    tau: float
    truth: float
    estimate: float
    bias: float
    values: Mapping[str, float | None]
    half_width: float | None = None

    @classmethod
    def over(cls, slices: SliceColumns, metrics: Iterable[Metric], **given: Any) -> MeasureErrors:
        """Compute the metrics over the slices; ``given`` are the other fields."""
        return cls(
            slices=slices.truth.size,
            tau=slices.tau,
            estimate=float(slices.estimate.sum()),
            values={one.in_job: one.value(slices) for one in metrics if one.in_job},
            **given,
        )

    def __getitem__(self, metric: Metric) -> float | None:
        return self.values[metric.in_job]

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "values"}
        return {**plain, **self.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryScore:
    """How well discovery found keys. Precision: released keys with a true sum; recall: true keys that were released."""

    released: int
    true_keys: int
    precision: float | None
    recall: float | None
    left_out_keys: int
    left_out_share: float
    others: int | None


Jobs = Sequence[MeasureErrors]
"""The figures of one measure in the paid jobs of one query and release."""


class Metric:
    """A metric. ``name`` is its name in files; subclasses say what it is and compute it.

    ``title`` heads its column on pages, ``short`` in terminals. ``columns`` are those of ``SliceColumns`` that it is
    computed from. ``share`` values print as percentages, others with ``digits``. ``places`` are where it is shown:
    ``report``, ``comparison``, ``terminal``, ``sweep``, ``studio``. ``plot`` labels its plot in sweeps, if any.
    ``in_job``, ``in_query`` and ``in_sweep`` are its names in the outputs of these: its own, or empty if it has none.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    short: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
    share: ClassVar[bool] = False
    digits: ClassVar[int] = 3
    places: ClassVar[frozenset[str]] = frozenset({"report", "comparison", "terminal", "sweep", "studio"})
    plot: ClassVar[str] = ""
    in_job: ClassVar[str]
    in_query: ClassVar[str]
    in_sweep: ClassVar[str]

    def __init_subclass__(cls) -> None:
        for level in ("in_job", "in_query", "in_sweep"):
            if not hasattr(cls, level) and hasattr(cls, "name"):
                setattr(cls, level, cls.name)

    @property
    def says(self) -> str:
        """What it is: the first paragraph of its docstring."""
        return " ".join((type(self).__doc__ or "").split("\n\n")[0].split())

    @property
    def digest(self) -> str:
        """What the digest of a stage knows the metric by."""
        return f"{type(self).__module__}:{type(self).__qualname__} {self.name}"

    def value(self, slices: SliceColumns) -> float | None:
        """Return the value over the slices of one job; None if they have none."""
        raise NotImplementedError

    def expected(self, laws: SliceLaws) -> float | None:
        """Return the value to expect of a job, which ``over`` many runs tends to; None if that is not known."""
        return None

    def over(self, jobs: Jobs) -> float | None:
        """Return the value over several jobs: the mean over their slices."""
        known = [(value, job.slices) for job in jobs if (value := job[self]) is not None]
        slices = sum(count for _, count in known)
        return sum(value * count for value, count in known) / slices if slices else None

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        """Return the value over the releases of one point of a sweep: the mean of theirs.

        ``found`` are the scores of the jobs that discovered keys.
        """
        return mean_of(self.over(jobs) for jobs in releases)

    def text(self, value: float | None, digits: int | None = None) -> str:
        """Return a value as it prints; a dash for None."""
        if value is None:
            return "–"
        return f"{value:z.1%}" if self.share else f"{value:z,.{self.digits if digits is None else digits}f}"


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


class ShareOfSlices(Metric):
    """The share of slices that have a property; jobs keep their number."""

    share = True

    def over(self, jobs: Jobs) -> float | None:
        slices = sum(job.slices for job in jobs)
        return sum(job[self] or 0 for job in jobs) / slices if slices else None


class RootMeanSquare(Metric):
    """The root of the mean over slices of a squared error."""

    def mean_square(self, jobs: Jobs) -> float | None:
        """Return the mean over the slices of all jobs of the squared error."""
        slices = sum(job.slices for job in jobs)
        return sum((job[self] or 0.0) ** 2 * job.slices for job in jobs) / slices if slices else None

    def over(self, jobs: Jobs) -> float | None:
        square = self.mean_square(jobs)
        return None if square is None else square**0.5

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        square = self.mean_square([job for jobs in releases for job in jobs])
        return None if square is None else math.sqrt(square)


def _root_mean_square(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


class Rmse(RootMeanSquare):
    """The root mean square of estimate − truth, in natural units."""

    name = "rmse"
    title = "error of a slice (RMSE)"
    short = "error of a slice"
    columns = ("truth", "estimate")
    digits = 1
    places = frozenset({"comparison", "terminal", "studio"})
    in_query = ""

    def value(self, slices: SliceColumns) -> float | None:
        return _root_mean_square(slices.estimate - slices.truth)

    def expected(self, laws: SliceLaws) -> float | None:
        """Return the root of the expected mean square: bias² + variance."""
        square = (laws.sent - laws.truth) ** 2 + laws.variance
        return float(np.sqrt(np.mean(square))) if square.size else 0.0


class RelativeRmse(Metric):
    """RMSE over the mean truth of a slice, of queries that declare their keys; can be compared between points."""

    name = "relative_rmse"
    title = "RMSE over the mean truth of a slice"
    plot = "error (RMSE over the mean truth of a slice)"
    share = True
    places = frozenset({"sweep"})
    in_job = in_query = ""

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        error = RMSE.over_releases(releases, found)
        jobs = [job for release in releases for job in release]
        slices = sum(job.slices for job in jobs)
        truth = sum(job.truth for job in jobs) / slices if slices and not found else None
        return error / truth if error is not None and truth else None


class MedianRelativeError(Metric):
    """The median over slices with a truth of the relative error; of a query, the median over its jobs."""

    name = "median_relative_error"
    title = "median relative error"
    columns = ("truth", "estimate")
    plot = "median relative error"
    share = True
    places = frozenset()
    in_query = "typical_error"

    def value(self, slices: SliceColumns) -> float | None:
        positive = slices.truth > 0
        relative = np.abs(slices.estimate - slices.truth)[positive] / slices.truth[positive]
        return float(np.median(relative)) if relative.size else None

    def over(self, jobs: Jobs) -> float | None:
        known = [value for job in jobs if (value := job[self]) is not None]
        return median(known) if known else None

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        """Return the mean over all jobs."""
        return mean_of(job[self] for jobs in releases for job in jobs)


class IntervalCoverage(ShareOfSlices):
    """The share of slices whose interval holds what was sent."""

    name = "coverage"
    title = "intervals that hold what was sent"
    short = "intervals that hold"
    columns = ("covered",)
    places = frozenset({"report", "comparison", "terminal", "sweep"})
    in_job = "covered"

    def value(self, slices: SliceColumns) -> float | None:
        return int(slices.covered.sum())

    def expected(self, laws: SliceLaws) -> float | None:
        return float(laws.chance(-laws.width, laws.width).sum())


class AboveNoise(ShareOfSlices):
    """The share of slices of which more was sent than the half-width of their interval."""

    name = "above_noise"
    title = "slices above the noise"
    columns = ("above_noise",)
    places = frozenset({"report", "comparison", "sweep", "studio"})

    def value(self, slices: SliceColumns) -> float | None:
        return int(slices.above_noise.sum())

    def expected(self, laws: SliceLaws) -> float | None:
        """Return their number, which the noise does not change."""
        return int((laws.sent > laws.width).sum())


class SweepFigure(Metric):
    """A mean over releases, or over jobs that discovered keys, that only sweeps have: ``of`` computes it of each."""

    in_job = in_query = ""
    places = frozenset()

    def __init__(self, name: str, title: str, of: Callable[[Jobs], Iterable[float | None]], says: str) -> None:
        self.name, self.in_sweep, self.title = name, name, title  # type: ignore[misc]
        self._of, self._says = of, says

    @property
    def says(self) -> str:
        return self._says

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        return mean_of(value for jobs in releases for value in self._of(jobs))


class DiscoveryMetric(Metric):
    """A figure of key discovery, a mean over jobs."""

    share = True
    places = frozenset({"sweep"})
    in_job = in_query = ""

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        return mean_of(getattr(one, self.name) for one in found)


class Precision(DiscoveryMetric):
    """Key discovery: the share of released keys that have a true sum."""

    name = "precision"
    title = "precision of discovery"


class Recall(DiscoveryMetric):
    """Key discovery: the share of true keys that were released."""

    name = "recall"
    title = plot = "recall of discovery"


class LeftOut(DiscoveryMetric):
    """Key discovery: the part of the total whose keys were not released."""

    name = "left_out_share"
    title = "share left out"


class Rmsre(RootMeanSquare):
    """RMSRE_τ: the root mean square of (estimate − truth) / max(truth, τ); τ is the standard deviation of the noise
    unless the query gives it.
    """

    name = "rmsre"
    title = "RMSRE"
    columns = ("truth", "estimate", "tau")
    places = frozenset({"report", "studio"})

    def value(self, slices: SliceColumns) -> float | None:
        return _root_mean_square((slices.estimate - slices.truth) / np.maximum(slices.truth, slices.tau))

    def expected(self, laws: SliceLaws) -> float | None:
        """Return the root of the expected mean square: (bias² + variance) / max(truth, τ)²."""
        weight = np.maximum(laws.truth, laws.tau) ** -2.0
        square = weight * ((laws.sent - laws.truth) ** 2 + laws.variance)
        return float(square.mean()) ** 0.5 if square.size else 0.0


class StandardError(Metric):
    """The standard error of the mean estimate."""

    name = "standard_error"
    title = "standard error of the estimate"
    places = frozenset()
    in_job = in_query = ""

    def over_releases(self, releases: Sequence[Jobs], found: Sequence[DiscoveryScore]) -> float | None:
        """Return the standard error over jobs; None for fewer than two."""
        values = [job.estimate for jobs in releases for job in jobs]
        mean, count = mean_of(values), len(values)
        if mean is None or count < 2:
            return None
        return math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)


class TruthCoverage(ShareOfSlices):
    """The share of slices whose interval holds the truth, which bias keeps below that of what was sent."""

    name = "truth_coverage"
    title = "intervals that hold the truth"
    columns = ("truth", "estimate", "width")

    def value(self, slices: SliceColumns) -> float | None:
        return int((np.abs(slices.estimate - slices.truth) <= slices.width * _ROUNDED_UP).sum())

    def expected(self, laws: SliceLaws) -> float | None:
        off = laws.truth - laws.sent
        return float(laws.chance(off - laws.width, off + laws.width).sum())


RMSE, RMSRE, TYPICAL_ERROR = Rmse(), Rmsre(), MedianRelativeError()
STANDARD: tuple[Metric, ...] = (
    RMSE,
    RelativeRmse(),
    TYPICAL_ERROR,
    IntervalCoverage(),
    AboveNoise(),
    SweepFigure(
        "bias",
        "bias (sent − truth)",
        lambda jobs: [float(sum(job.bias for job in jobs))],
        "The total that was sent minus the truth, a mean over releases.",
    ),
    SweepFigure(
        "truth", "truth", lambda jobs: [float(sum(job.truth for job in jobs))], "The total truth, a mean over releases."
    ),
    Precision(),
    Recall(),
    LeftOut(),
    RMSRE,
    SweepFigure(
        "estimate",
        "estimate",
        lambda jobs: (job.estimate for job in jobs),
        "The total estimate of a job, a mean over jobs.",
    ),
    StandardError(),
)
"""The metrics of every run; ``[draw] metrics`` of a campaign file adds others."""
METRICS: Kinds[Metric] = Kinds("metric", base=Metric, builtin={one.name: one for one in (*STANDARD, TruthCoverage())})


def shown_in(place: str, metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics that a place shows: shares first, then errors."""
    return sorted((one for one in metrics if place in one.places), key=lambda one: not one.share)
