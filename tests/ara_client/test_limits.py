"""The limits against scans of plain lists: the specification's own words, slow and without indexes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import example, given
from hypothesis import strategies as st

from aggservice.wire import Origin
from ara_client import Config, parse_source
from ara_client.constants import DAY_MS, MINUTE_MS
from ara_client.origins import parse_suitable_origin
from ara_client.storage.limits import DebugBudgets, DestinationLimits, RateLimits
from ara_client.storage.sources import SourceStore, StoredSource

VENDOR = Config(
    max_destinations_per_source_site_and_reporting_site=3,
    max_destinations_per_window_reporting_site=2,
    max_destinations_per_window_total=3,
    max_destinations_per_day=3,
    max_source_reporting_origins=2,
    max_attribution_reporting_origins=2,
    max_attributions=2,
    max_reporting_origins_per_source_reporting_site=1,
)
REPORTERS = [parse_suitable_origin(f"https://{name}") for name in ("a.r1.test", "b.r1.test", "r2.test", "r3.test")]
SITES = ["https://d1.test", "https://d2.test", "https://d3.test", "https://d4.test"]


@dataclass(frozen=True)
class Row:
    """A record of the reference."""

    scope: str
    source_id: int
    site: str
    destination: str
    origin: Origin
    time_ms: int
    until_ms: int
    priority: int


class Reference:
    """Every limit as a scan of all records."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.deactivated: set[int] = set()

    def add(self, source: StoredSource, scope: str, destinations: tuple[str, ...], until_ms: int) -> None:
        for destination in destinations:
            self.rows.append(
                Row(
                    scope=scope,
                    source_id=source.id,
                    site=source.site,
                    destination=destination,
                    origin=source.reporting_origin,
                    time_ms=source.time_ms,
                    until_ms=until_ms,
                    priority=source.registration.destination_limit_priority,
                )
            )

    def sources(self, source: StoredSource, since_ms: int, *, same_site: bool) -> list[Row]:
        return [
            row
            for row in self.rows
            if row.scope == "source"
            and row.site == source.site
            and row.time_ms > since_ms
            and (not same_site or row.origin.site == source.reporting_site)
        ]

    def origins_fit(
        self, source: StoredSource, scopes: tuple[str, ...], destinations: tuple[str, ...], most: int
    ) -> bool:
        begin = source.time_ms - VENDOR.rate_limit_window_ms
        for destination in destinations:
            others: set[Origin] = set()
            for row in self.rows:
                if row.scope in scopes and (row.site, row.destination) == (source.site, destination):
                    if row.time_ms > begin and row.origin == source.reporting_origin:
                        break
                    others |= {row.origin} if row.time_ms > begin else set()
                    if len(others) == most:
                        return False
        return True

    def window(self, source: StoredSource) -> str:
        own = set(source.registration.destinations)
        begin = source.time_ms - VENDOR.destination_window_ms
        rows = [row for row in self.sources(source, begin, same_site=False) if row.until_ms > source.time_ms]
        every = own | {row.destination for row in rows}
        same = own | {row.destination for row in rows if row.origin.site == source.reporting_site}
        if len(same) > VENDOR.max_destinations_per_window_reporting_site:
            return "hit reporting limit"
        return "hit global limit" if len(every) > VENDOR.max_destinations_per_window_total else "allowed"

    def day(self, source: StoredSource) -> bool:
        rows = self.sources(source, source.time_ms - DAY_MS, same_site=True)
        known = {row.destination for row in rows if row.until_ms > source.time_ms}
        return len(known | set(source.registration.destinations)) <= VENDOR.max_destinations_per_day

    def to_deactivate(self, source: StoredSource) -> set[int] | None:
        rows = [
            row
            for row in self.sources(source, -(1 << 60), same_site=True)
            if row.until_ms > source.time_ms and row.source_id not in self.deactivated
        ]
        ranked = [(row.priority, row.time_ms, row.destination, row.source_id) for row in rows]
        own, priority = source.registration.destinations, source.registration.destination_limit_priority
        ranked += [(priority, source.time_ms, destination, source.id) for destination in own]
        kept: set[str] = set()
        gone = set()
        for _, _, destination, source_id in sorted(ranked, reverse=True):
            if len(kept) < VENDOR.max_destinations_per_source_site_and_reporting_site:
                kept.add(destination)
            elif destination not in kept:
                gone.add(source_id)
        return None if source.id in gone else gone

    def attributions(self, source: StoredSource, scope: str, destination: str) -> int:
        begin = source.time_ms - VENDOR.rate_limit_window_ms
        return sum(
            (row.scope, row.site, row.destination, row.origin.site)
            == (scope, source.site, destination, source.reporting_site)
            and row.time_ms > begin
            for row in self.rows
        )


def _source(
    identity: int, time_ms: int, reporter: int, destinations: tuple[int, ...], priority: int, days: int
) -> StoredSource:
    sites = ", ".join(f'"{SITES[place]}"' for place in destinations)
    text = f'{{"destination": [{sites}], "destination_limit_priority": "{priority}", "expiry": {days * 86400}}}'
    registration = parse_source(text, "navigation", VENDOR).value
    assert registration is not None
    return StoredSource(
        id=identity,
        registration=registration,
        origin=parse_suitable_origin(f"https://s{identity % 2}.test"),
        reporting_origin=REPORTERS[reporter],
        source_type="navigation",
        time_ms=time_ms,
        cookie_debug_allowed=False,
        fenced=False,
    )


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([1, MINUTE_MS - 1, MINUTE_MS, 3_600_000, DAY_MS, 10 * DAY_MS, 29 * DAY_MS]),
        st.integers(0, len(REPORTERS) - 1),
        st.sets(st.integers(0, len(SITES) - 1), min_size=1, max_size=3).map(lambda s: tuple(sorted(s))),
        st.integers(-1, 1),
        st.integers(1, 30),
        st.sampled_from(["store", "store", "attribute", "fake", "replace", "deactivate"]),
    ),
    min_size=1,
    max_size=20,
)


@given(EVENTS)
def test_limits_equal_scans(events: list[tuple[int, int, tuple[int, ...], int, int, str]]) -> None:
    limits = RateLimits(VENDOR)
    destinations = DestinationLimits(limits, VENDOR)
    reference = Reference()
    now = 0
    for identity, (step, reporter, places, priority, days, action) in enumerate(events):
        now += step
        source = _source(identity, now, reporter, places, priority, days)
        own = source.registration.destinations
        recent = {row.origin for row in reference.sources(source, now - DAY_MS, same_site=True)}
        fits = limits.allows_origin_per_site(source)
        assert fits == (len(recent | {source.reporting_origin}) <= 1)
        assert limits.allows_source_origin(source) == reference.origins_fit(source, ("source",), own, 2)
        assert destinations.within_window(source) == reference.window(source)
        assert destinations.within_day(source) == reference.day(source)
        gone = destinations.sources_to_deactivate(source)
        assert gone == reference.to_deactivate(source)
        assert limits.allows_attribution_origin(source, own[0]) == reference.origins_fit(
            source, ("event", "aggregatable"), own[:1], 2
        )
        assert limits.allows_attribution(source, "event", own[0]) == (
            reference.attributions(source, "event", own[0]) < VENDOR.max_attributions
        )
        if action == "deactivate" and gone:
            for source_id in gone:
                limits.deactivate(source_id)
            reference.deactivated |= gone
        if not fits:
            continue
        limits.add_source(source)
        reference.add(source, "source", own, source.expiry_time_ms)
        if action in ("attribute", "replace"):
            limits.add_attribution(source, "event", own[0], now, identity)
            if action == "replace":
                limits.forget_report("event", identity)
            else:
                reference.add(source, "event", own[:1], now)
        elif action == "fake":
            limits.add_fake_attribution(source)
            reference.add(source, "event", own, now)


@given(EVENTS, st.integers(0, 3), st.booleans())
@example(
    [(1, 0, (0,), 0, 1, "store"), (DAY_MS, 1, (0,), 0, 1, "store"), (29 * DAY_MS, 1, (0,), 0, 1, "store")], 1, False
)
def test_forgetting_leaves_no_trace(
    events: list[tuple[int, int, tuple[int, ...], int, int, str]], origin: int, everything: bool
) -> None:
    limits = RateLimits(replace(VENDOR, rate_limit_window_ms=1 << 50))  # nothing is forgotten for its age
    now = 0
    for identity, (step, reporter, places, priority, days, _) in enumerate(events):
        now += step
        source = _source(identity, now, reporter, places, priority, days)
        limits.add_source(source)
        limits.add_attribution(source, "aggregatable", source.registration.destinations[0], now, identity)
    chosen = None if everything else REPORTERS[origin]
    limits.forget_range(chosen, 0, now)
    left = [event for event in events if chosen is not None and REPORTERS[event[1]] != chosen]
    assert (len(limits) == 0) == (not left)
    limits.forget_sources(range(len(events)))
    assert len(limits) == 0
    assert limits.sources_by_site._lists == {} == limits.sources_by_sites._lists


def test_records_are_kept_until_no_living_source_can_count_them() -> None:
    limits = RateLimits(replace(VENDOR, rate_limit_window_ms=DAY_MS))
    first = _source(0, 0, 0, (0,), 0, 1)
    limits.add_source(first)
    limits.add_attribution(first, "event", "https://d1.test", 0, first.id)
    limits.purge(31 * DAY_MS - 1)
    assert len(limits) == 2
    limits.purge(32 * DAY_MS)
    assert len(limits) == 0


def test_a_limit_does_not_depend_on_when_records_were_purged() -> None:
    config = replace(VENDOR, max_attributions=1)
    verdicts = []
    for other_registers in (False, True):
        limits = RateLimits(config)
        early, late = _source(0, 0, 0, (0,), 0, 30), _source(2, 20 * DAY_MS, 0, (0,), 0, 30)
        limits.add_source(early)
        limits.add_attribution(early, "event", "https://d1.test", DAY_MS, 7)
        limits.add_source(late)
        if other_registers:  # another reporting site, for another destination, 40 days after the first source
            limits.add_source(_source(3, 40 * DAY_MS, 3, (3,), 0, 30))
        verdicts.append(limits.allows_attribution(late, "event", "https://d1.test"))
    assert verdicts == [False, False]


def test_debug_reports_of_all_origins_share_the_budget_of_a_context_site() -> None:
    budgets = DebugBudgets(replace(VENDOR, max_aggregatable_debug_budget_per_context_site=100_000))
    first, second = list({one.site: one for one in REPORTERS}.values())[:2]
    for origin, amount, fits in ((first, 60_000, True), (second, 40_001, False), (second, 40_000, True)):
        charged = budgets.charge(amount, context_site="https://c.test", reporting_origin=origin, source=None, now_ms=0)
        assert charged == fits


@given(st.lists(st.tuples(st.integers(0, DAY_MS), st.integers(0, 3), st.integers(1, 40_000)), max_size=30))
def test_debug_budgets_equal_scans(charges: list[tuple[int, int, int]]) -> None:
    config = replace(VENDOR, max_aggregatable_debug_budget_per_context_site=100_000)
    budgets = DebugBudgets(config)
    paid: list[tuple[int, str, int]] = []
    now = 0
    for step, reporter, amount in charges:
        now += step
        origin = REPORTERS[reporter]
        recent = [row for row in paid if row[0] > now - DAY_MS]
        fits = (
            sum(row[2] for row in recent) + amount <= 100_000
            and sum(row[2] for row in recent if row[1] == origin.site) + amount <= 65_536
        )
        charged = budgets.charge(
            amount, context_site="https://c.test", reporting_origin=origin, source=None, now_ms=now
        )
        assert charged == fits
        if fits:
            paid.append((now, origin.site, amount))


@given(
    st.lists(
        st.tuples(st.integers(0, 20 * DAY_MS), st.integers(0, 3), st.integers(1, 40_000), st.booleans()), max_size=30
    )
)
def test_debug_budgets_equal_scans_when_the_clock_leaves_and_returns(charges: list[tuple[int, int, int, bool]]) -> None:
    budgets = DebugBudgets(VENDOR)
    paid: list[tuple[int, Origin, int]] = []
    for now, reporter, amount, forget in charges:
        origin = REPORTERS[reporter]
        if forget:
            budgets.forget(origin, 0, now)
            paid = [row for row in paid if row[1] != origin or row[0] > now]
        spent = sum(row[2] for row in paid if row[0] > now - DAY_MS and row[1].site == origin.site)
        charged = budgets.charge(
            amount, context_site="https://c.test", reporting_origin=origin, source=None, now_ms=now
        )
        assert charged == (spent + amount <= 65_536)
        if charged:
            paid.append((now, origin, amount))


def _debugged(budget: int) -> StoredSource:
    text = f"""{{"destination": "https://d.test", "aggregatable_debug_reporting": {{"budget": {budget},
        "key_piece": "0x1", "debug_data": [{{"types": ["source-success"], "key_piece": "0x2", "value": 1}}]}}}}"""
    registration = parse_source(text, "navigation", VENDOR).value
    assert registration is not None
    return StoredSource(
        id=1,
        registration=registration,
        origin=parse_suitable_origin("https://s.test"),
        reporting_origin=REPORTERS[0],
        source_type="navigation",
        time_ms=0,
        cookie_debug_allowed=False,
        fenced=False,
    )


def test_the_debug_reports_of_a_source_spend_its_budget_once_for_all_sites_and_days() -> None:
    """Each site and day has room for Λ₁: only the source's own budget binds, to the last unit."""
    source, budgets = _debugged(1_000), DebugBudgets(VENDOR)

    def charge(amount: int, day: int) -> bool:
        return budgets.charge(
            amount,
            context_site=f"https://c{day}.test",
            reporting_origin=REPORTERS[0],
            source=source,
            now_ms=2 * day * DAY_MS,
        )

    assert source.remaining_budget == 65_536 - 1_000
    assert charge(600, 0) and source.debug_budget == 400
    assert not charge(401, 1) and source.debug_budget == 400
    assert charge(400, 2) and source.debug_budget == 0
    assert not charge(1, 3)


def test_a_source_sends_at_most_five_debug_reports_that_count() -> None:
    source, budgets = _debugged(1_000), DebugBudgets(VENDOR)
    granted = [
        budgets.charge(
            1,
            context_site=f"https://c{day}.test",
            reporting_origin=REPORTERS[0],
            source=source,
            now_ms=2 * day * DAY_MS,
        )
        for day in range(7)
    ]
    most = VENDOR.max_aggregatable_debug_reports_per_source
    assert granted == [True] * most + [False] * (7 - most)
    assert source.debug_budget == 1_000 - most


def test_debug_records_are_dropped_a_month_after_they_stopped_counting() -> None:
    budgets = DebugBudgets(VENDOR)
    for day in range(100):
        assert budgets.charge(
            65_536, context_site="https://c.test", reporting_origin=REPORTERS[0], source=None, now_ms=day * DAY_MS
        )
    assert 30 <= len(budgets._spending["https://c.test"].records) <= 64


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-2, 2)), max_size=30), st.data())
def test_the_store_finds_sources_by_priority_then_time(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    store = SourceStore()
    held = []
    for identity, (reporter, place, priority) in enumerate(rows):
        text = f'{{"destination": "{SITES[place]}", "priority": "{priority}", "expiry": {86400 * (1 + identity % 3)}}}'
        registration = parse_source(text, "event", VENDOR).value
        assert registration is not None
        source = replace_registration(_source(identity, identity, reporter, (0,), 0, 1), registration)
        store.add(source)
        held.append(source)
    for source in held:
        if data.draw(st.booleans()):
            store.remove(source)
            store.remove(source)
    now = data.draw(st.sampled_from([0, DAY_MS, 2 * DAY_MS + 1]))
    store.expire(now)
    store._check()
    kept = [source for source in held if source in store]
    assert all(source.expiry_time_ms > now for source in kept)
    for origin in REPORTERS:
        for site in SITES:
            wanted = [s for s in kept if s.reporting_origin == origin and site in s.registration.destinations]
            wanted.sort(key=lambda s: (s.registration.priority, s.time_ms), reverse=True)
            assert store.with_target(origin, site) == wanted


def replace_registration(source: StoredSource, registration: object) -> StoredSource:
    """Return a like source with another registration."""
    return StoredSource(
        id=source.id,
        registration=registration,  # type: ignore[arg-type]
        origin=source.origin,
        reporting_origin=source.reporting_origin,
        source_type="event",
        time_ms=source.time_ms,
        cookie_debug_allowed=False,
        fenced=False,
    )
