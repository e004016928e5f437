"""Stored sources, indexed by destination and priority, time and expiry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from sortedcontainers import SortedDict, SortedList

from aggservice.wire import Origin
from ara_client.constants import AGGREGATABLE_BUDGET
from ara_client.registration.filters import AttributionScopes, FilterSubject
from ara_client.registration.source import SourceRegistration
from ara_client.registration.windows import TriggerSpec

# The state of a source with ``trigger_specs``: sums by trigger data, crossed buckets, planned reports.
#
# WICG's ``flexible_event_config.md`` says that a report goes out for every bucket a sum crosses, at the end of a
# window; it does not say which crossings are reported when there may be fewer reports than crossings. As on Android,
# triggers of higher priority come first, then earlier ones. Each unit of value counts for one sent report only.
#
# For all priorities and limits, the sent reports form a state that noise could also produce, so that true reports
# cannot be recognised: the first buckets of each trigger data, without gaps, in windows that never go back
# (``ara_client.event_noise.state_space``).


@dataclass(slots=True, kw_only=True, eq=False)
class AttributedTrigger:
    """A trigger that counts for a source. ``left`` is the part of its value that no sent report has used."""

    trigger_data: int
    left: int
    priority: int
    time_ms: int
    window_end_ms: int
    debug_key: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReport:
    """A report that will be sent unless a later trigger changes the plan."""

    trigger_data: int
    bucket_index: int
    due_ms: int
    parts: tuple[tuple[AttributedTrigger, int], ...]

    @property
    def debug_keys(self) -> tuple[int, ...]:
        """The debug keys of its triggers; empty unless every trigger has one."""
        keys = [trigger.debug_key for trigger, _ in self.parts]
        return tuple(key for key in keys if key is not None) if None not in keys else ()


@dataclass(slots=True, kw_only=True)
class _Account:
    """One trigger data while ``plan`` runs: its buckets, how many are crossed, and its sum so far.

    ``due_ms`` is the time of the report of the previous bucket, ``last_ms`` the end of the last window of its triggers.
    ``parts`` lists the triggers that count for the next bucket, each with the part of its value that is used.
    """

    buckets: Sequence[int]
    crossed: int = 0
    sum: int = 0
    due_ms: int = 0
    last_ms: int = 0
    parts: list[tuple[AttributedTrigger, int]] = field(default_factory=list)


class FlexibleLedger:
    """Turns triggers into planned reports: call ``settle``, then ``add``, then ``plan``."""

    def __init__(self, specs: Sequence[TriggerSpec], max_reports: int) -> None:
        self._buckets = {data: spec.buckets for spec in specs for data in spec.trigger_data}
        self._settled = dict.fromkeys(self._buckets, 0)
        self._max_reports = max_reports
        self._triggers: list[AttributedTrigger] = []
        self._planned: dict[int, PlannedReport] = {}
        self.sent = 0

    def settle(self, now_ms: int, waiting: Collection[int]) -> None:
        """Mark reports as sent that are due, or not in ``waiting``: those left before the clock was set back."""
        for identity, report in list(self._planned.items()):
            if report.due_ms <= now_ms or identity not in waiting:
                self.sent += 1
                self._settled[report.trigger_data] += 1
                for trigger, used in report.parts:
                    trigger.left -= used
                del self._planned[identity]
        self._triggers = [trigger for trigger in self._triggers if trigger.left > 0]

    def add(self, trigger: AttributedTrigger) -> None:
        """Add a trigger; the next ``plan`` includes it."""
        self._triggers.append(trigger)

    def plan(self, now_ms: int) -> list[PlannedReport]:
        """Return the reports for the triggers so far, most important first; drop the previous plan.

        O(n log n) in the triggers not used up. A report is due when the last window of its triggers ends, but not
        before the report of the bucket below. A report that a limit kept out of a past window is sent in the next one.
        """
        self._planned = {}
        accounts: dict[int, _Account] = {}
        for data, buckets in self._buckets.items():
            crossed = self._settled[data]
            accounts[data] = _Account(buckets=buckets, crossed=crossed, sum=buckets[crossed - 1] if crossed else 0)
        for trigger in self._triggers:
            account = accounts[trigger.trigger_data]
            account.last_ms = max(account.last_ms, trigger.window_end_ms)
        reports: list[PlannedReport] = []
        room = self._max_reports - self.sent
        for trigger in sorted(self._triggers, key=lambda trigger: (-trigger.priority, trigger.time_ms)):
            account, left = accounts[trigger.trigger_data], trigger.left
            while left and account.crossed < len(account.buckets):
                used = min(left, account.buckets[account.crossed] - account.sum)
                account.sum += used
                left -= used
                account.parts.append((trigger, used))
                if account.sum < account.buckets[account.crossed]:
                    break
                due_ms = max(account.due_ms, *(part.window_end_ms for part, _ in account.parts))
                account.due_ms = due_ms if due_ms > now_ms else account.last_ms
                report = PlannedReport(
                    trigger_data=trigger.trigger_data,
                    bucket_index=account.crossed,
                    due_ms=account.due_ms,
                    parts=tuple(account.parts),
                )
                account.crossed += 1
                account.parts = []
                if len(reports) < room and account.last_ms > now_ms:
                    reports.append(report)
        return reports

    def keep(self, report: PlannedReport, identity: int) -> None:
        """Keep a planned report, pending under the id ``identity`` until it is due or planned again."""
        self._planned[identity] = report


AttributionLogic = Literal["truthfully", "never", "falsely"]
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, kw_only=True, eq=False)
class StoredSource:
    """A registered source and what its budgets have spent.

    ``attribution_logic`` is the result of randomized response: report ``truthfully``, ``never`` report, or report
    ``falsely``.
    """

    id: int
    registration: SourceRegistration
    origin: Origin
    reporting_origin: Origin
    source_type: str
    time_ms: int
    cookie_debug_allowed: bool
    fenced: bool
    site: str = field(init=False)
    reporting_site: str = field(init=False)
    expiry_time_ms: int = field(init=False)
    debug_key: int | None = field(init=False)
    scopes: AttributionScopes | None = field(init=False)
    attribution_logic: AttributionLogic = "truthfully"
    response_rate: float = 0.0
    event_level_active: bool = True
    event_reports: int = 0
    dedup_keys: set[int] = field(default_factory=set)
    aggregatable_dedup_keys: set[int] = field(default_factory=set)
    debug_budget: int = field(init=False)
    debug_reports: int = 0
    remaining_budget: int = field(init=False)
    aggregatable_reports: int = 0
    named_budgets: dict[str, int] = field(init=False)
    flexible: FlexibleLedger | None = None

    def __post_init__(self) -> None:
        registration = self.registration
        self.site, self.reporting_site = self.origin.site, self.reporting_origin.site
        self.expiry_time_ms = self.time_ms + registration.expiry_ms
        self.debug_key = registration.debug_key if self.cookie_debug_allowed else None
        self.scopes = registration.scopes
        self.debug_budget = registration.debug.budget
        self.remaining_budget = AGGREGATABLE_BUDGET - registration.debug.budget
        self.named_budgets = dict(registration.named_budgets)
        if registration.specs is not None:
            self.flexible = FlexibleLedger(registration.specs, registration.max_event_level_reports)

    @property
    def aggregatable_window_end_ms(self) -> int:
        """The end of the aggregatable report window: from this time on, triggers make no aggregatable report."""
        return self.time_ms + self.registration.aggregatable_window_ms

    def as_subject(self, now_ms: int) -> FilterSubject:
        """Return the view that filters have of the source at ``now_ms``."""
        return FilterSubject(self.registration.filter_data, self.source_type, now_ms - self.time_ms)


def count(counts: dict[K, int], key: K, by: int) -> None:
    """Add ``by`` to the count of a key; remove the key if its count becomes 0."""
    total = counts.get(key, 0) + by
    if total:
        counts[key] = total
    else:
        del counts[key]


class SourceStore:
    """The active sources. Each operation is O(log n) in the sources it concerns; nothing scans them all."""

    def __init__(self) -> None:
        self._by_id: dict[int, StoredSource] = {}
        self._by_expiry: SortedDict[tuple[int, int], StoredSource] = SortedDict()
        self._by_time: SortedDict[tuple[int, int], StoredSource] = SortedDict()
        self._by_target: dict[tuple[Origin, str], SortedList] = defaultdict(SortedList)
        self._per_origin: dict[Origin, int] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, source: StoredSource) -> bool:
        return source.id in self._by_id

    def add(self, source: StoredSource) -> None:
        """Store a source."""
        self._by_id[source.id] = source
        self._by_expiry[source.expiry_time_ms, source.id] = source
        self._by_time[source.time_ms, source.id] = source
        for destination in source.registration.destinations:
            self._by_target[source.reporting_origin, destination].add((source.registration.priority, source.id))
        count(self._per_origin, source.origin, 1)

    def remove(self, source: StoredSource) -> None:
        """Remove a source, but not its pending reports. Removing it again has no effect."""
        if self._by_id.pop(source.id, None) is None:
            return
        del self._by_expiry[source.expiry_time_ms, source.id]
        del self._by_time[source.time_ms, source.id]
        for destination in source.registration.destinations:
            target = (source.reporting_origin, destination)
            listed = self._by_target[target]
            listed.remove((source.registration.priority, source.id))
            if not listed:
                del self._by_target[target]
        count(self._per_origin, source.origin, -1)

    def expire(self, now_ms: int) -> None:
        """Remove the sources that have expired."""
        while self._by_expiry and self._by_expiry.keys()[0][0] <= now_ms:
            self.remove(self._by_expiry.peekitem(0)[1])

    def count_at(self, origin: Origin) -> int:
        """Return how many sources an origin has; O(1)."""
        return self._per_origin.get(origin, 0)

    def with_target(self, reporting_origin: Origin, destination: str) -> list[StoredSource]:
        """Return the sources of a reporting origin for a destination, highest priority first, then newest."""
        listed = self._by_target.get((reporting_origin, destination), ())
        return [self._by_id[identity] for _, identity in reversed(listed)]

    def get(self, identity: int) -> StoredSource | None:
        """Return the source with an id, or None if it is not stored."""
        return self._by_id.get(identity)

    def between(self, begin_ms: int, end_ms: int) -> Iterator[StoredSource]:
        """Yield the sources registered in a range of time, both ends included, oldest first."""
        for key in list(self._by_time.irange((begin_ms, -1), (end_ms, 1 << 63))):
            yield self._by_time[key]

    def _check(self) -> None:
        """Assert that every index holds exactly the stored sources."""
        sources = set(self._by_id.values())
        assert set(self._by_expiry.values()) == sources == set(self._by_time.values())
        targets = [(target, entry) for target, listed in self._by_target.items() for entry in listed]
        expected = {
            ((source.reporting_origin, destination), (source.registration.priority, source.id))
            for source in sources
            for destination in source.registration.destinations
        }
        assert len(targets) == len(expected)
        assert set(targets) == expected
        assert sum(self._per_origin.values()) == len(sources)
        assert all(count > 0 for count in self._per_origin.values())
