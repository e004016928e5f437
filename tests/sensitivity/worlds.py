"""Two worlds that differ in one privacy unit: what left each, how far their sums are apart, and what a job states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from aggservice.engine import ledger_terms
from aggservice.engine.opening.coverage import Coverage, debug_days
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.wire import Api, SharedInfo, Spans, parse_shared_info_batch
from budget import Sensitivity

DAY_MS = 86_400_000
MINUTE_MS = 60_000
#: A bucket with this bit is a contribution that moved to a dummy, or is disabled: no sum of the second world has it.
MARK = 1 << 127

Sums = Counter[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One report that left a client: the parts of ``shared_info`` that a job sees, and its true contributions.

    ``contributions`` are (bucket, filtering ID, value).
    """

    api: Api
    time_ms: int
    destination: str | None
    contributions: tuple[tuple[int, int, int], ...]


class SetClock:
    """A clock that goes where it is told, back too."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        """Return the time."""
        return self.time_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The change that one unit made, and what a job over the same reports states for it."""

    l1: int = 0
    l0: int = 0
    stated: Sensitivity = field(default_factory=Sensitivity)

    @property
    def l1_ratio(self) -> float:
        """The change of the sums over what is stated."""
        return self.l1 / self.stated.l1

    @property
    def l0_ratio(self) -> float:
        """The number of sums that changed over what is stated."""
        return self.l0 / self.stated.l0

    @property
    def holds(self) -> bool:
        """Whether both stay within what is stated."""
        return self.l1 <= self.stated.l1 and self.l0 <= self.stated.l0


Bounds = Mapping[Api, Sensitivity]
Statement = Callable[[Collection[Sent], Bounds], Sensitivity]


def stated(reports: Collection[Sent], bounds: Bounds) -> Sensitivity:
    """Return the (Λ₁, Λ₀) that the engine states for a job over ``reports`` under an operator's bounds per API."""
    return ledger_terms(sensitivities=bounds).sensitivity(_covers(frozenset(_groups(reports))))


@lru_cache(maxsize=4096)
def _covers(groups: frozenset[tuple[Api, str | None, int]]) -> dict[str, int]:
    """Return what the engine says a job covers that has a report of each of these APIs, destinations and days."""
    infos = parse_shared_info_batch(
        Spans.of(
            [
                SharedInfo(
                    api=api,
                    report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
                    reporting_origin="https://adtech.example",
                    scheduled_report_time_s=day * DAY_MS // 1000,
                    attribution_destination=destination or ("https://shop.example" if api.has_destination else None),
                )
                .serialise()
                .encode()
                for api, destination, day in sorted(groups, key=str)
            ]
        )
    )
    assert not infos.status.any()
    empty = np.empty(0)
    coverage = Coverage()
    coverage.add(
        JudgedBatch(
            statuses=infos.status,
            ids=empty,  # type: ignore[arg-type]
            units=empty,  # type: ignore[arg-type]
            apis=infos.api.view(np.uint8),
            debug_days=debug_days(infos, np.arange(len(infos))),
            high=empty,  # type: ignore[arg-type]
            low=empty,  # type: ignore[arg-type]
            values=empty,  # type: ignore[arg-type]
            rows=empty,  # type: ignore[arg-type]
        )
    )
    return {api.value: times for api, times in coverage.covers().items()}


def stated_by_the_larger_bound(reports: Collection[Sent], bounds: Bounds) -> Sensitivity:
    """A broken rule: bounds of several APIs do not add up, the largest is taken."""
    found = [bounds.get(api, Sensitivity()) for api, _, _ in _groups(reports)]
    return Sensitivity(l1=max((one.l1 for one in found), default=1), l0=max((one.l0 for one in found), default=1))


def stated_with_debug_once(reports: Collection[Sent], bounds: Bounds) -> Sensitivity:
    """A broken rule: debug reports of any number of sites and days count once."""
    return _add(bounds.get(api, Sensitivity()) for api in {report.api for report in reports})


def _groups(reports: Collection[Sent]) -> set[tuple[Api, str | None, int]]:
    debug = Api.ATTRIBUTION_REPORTING_DEBUG
    return {
        (report.api, report.destination, report.time_ms // DAY_MS) if report.api is debug else (report.api, None, 0)
        for report in reports
    }


def _add(parts: Iterable[Sensitivity]) -> Sensitivity:
    chosen = list(parts)
    return Sensitivity(l1=sum(part.l1 for part in chosen), l0=sum(part.l0 for part in chosen))


def sums_of(reports: Iterable[Sent]) -> Sums:
    """Return the sum of each (bucket, filtering ID), leaving out what is marked."""
    sums: Sums = Counter()
    for report in reports:
        for bucket, filtering_id, value in report.contributions:
            if not bucket & MARK:
                sums[bucket, filtering_id] += value
    return sums


def compare(
    first: Collection[Sent],
    second: Collection[Sent],
    *,
    apis: Collection[Api],
    bounds: Bounds,
    statement: Statement = stated,
    same_reports: bool = True,
) -> Measured:
    """Return the change between two worlds for a job over the reports of ``apis``; none if an API has no report.

    ``same_reports`` says that both worlds send the same reports and only contributions differ, so that a job states
    the same in both: a statement that differed would itself tell the worlds apart.
    """
    one, other = ([report for report in reports if report.api in apis] for reports in (first, second))
    if {report.api for report in one} != set(apis):
        return Measured()
    states = statement(one, bounds)
    if same_reports:
        assert states == statement(other, bounds), "what a job states depends on a unit's contributions"
    here, there = sums_of(one), sums_of(other)
    gaps = [abs(here[key] - there[key]) for key in here.keys() | there.keys()]
    return Measured(l1=sum(gaps), l0=sum(gap > 0 for gap in gaps), stated=states)
