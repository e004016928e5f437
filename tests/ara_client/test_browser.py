"""The browser from outside: delivery, retries, being offline, clearing, sealing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits, SystemClock
from aggservice.wire import AggregatableReport as WireReport
from aggservice.wire import KeySet, decode_payload, open_report
from aggservice.wire.device import DeviceConfigError, SendResult, UnsealedReportError
from ara_client import (
    AggregatableAttributionReport,
    Browser,
    Config,
    EventLevelReport,
    FixedChoices,
    Request,
    Response,
    VerboseDebugReport,
)
from ara_client.constants import DAY_MS, HOUR_MS, MINUTE_MS
from ara_client.origins import RequestError
from ara_client.reports import AggregatableDebugReport, OutgoingReport

SOURCE, TRIGGER = "Attribution-Reporting-Register-Source", "Attribution-Reporting-Register-Trigger"
REPORTER = "https://reporter.test/x"
KEYED = {"destination": "https://shop.test", "aggregation_keys": {"a": "0x1"}, "debug_key": "7"}
SUMMED = {"aggregatable_trigger_data": [{"key_piece": "0x10", "source_keys": ["a"]}], "aggregatable_values": {"a": 5}}
EVENT = {"event_trigger_data": [{"trigger_data": "3"}]}


class Net:
    """A network that does as it is told."""

    def __init__(self) -> None:
        self.result = SendResult.SENT
        self.tried: list[OutgoingReport] = []

    def __call__(self, report: OutgoingReport) -> SendResult:
        self.tried.append(report)
        return self.result


def make(config: Config | None = None, **changes: Any) -> tuple[Browser, ManualClock, Net]:
    config = replace(config or Config(), **changes)
    clock, net = ManualClock(0), Net()
    browser = Browser(clock=clock, bits=SeededBits("test"), config=config, draws=FixedChoices(config), send=net)
    return browser, clock, net


def click(
    browser: Browser, fields: dict[str, Any], *, debug: bool = False, url: str = REPORTER
) -> list[OutgoingReport]:
    request = Request(context="https://news.test", eligible="navigation-source")
    return browser.register(request, Response(url=url, headers={SOURCE: json.dumps(fields)}, debug_allowed=debug))


def buy(browser: Browser, fields: dict[str, Any], *, debug: bool = False, url: str = REPORTER) -> list[OutgoingReport]:
    request = Request(context="https://shop.test")
    return browser.register(request, Response(url=url, headers={TRIGGER: json.dumps(fields)}, debug_allowed=debug))


def test_a_source_and_a_trigger_make_two_reports() -> None:
    browser, _, _ = make()
    assert click(browser, KEYED) == []
    assert buy(browser, SUMMED | EVENT) == []
    summed, event = browser.advance(3 * DAY_MS)
    assert isinstance(summed, AggregatableAttributionReport)
    assert summed.time_ms == 10 * MINUTE_MS
    assert [(c.bucket, c.value) for c in summed.contributions] == [(0x11, 5)]
    assert isinstance(event, EventLevelReport)
    assert (event.time_ms, event.trigger_data) == (2 * DAY_MS, 3)
    assert json.loads(event.to_json())["source_type"] == "navigation"
    assert browser.pending == []
    browser.check()


def test_aggregatable_reports_are_sealed_to_their_coordinator() -> None:
    config = Config()
    clock, bits = ManualClock(1_700_000_000_000), SecureBits()
    mine, other = (KeySet.create(bits, clock) for _ in range(2))
    first, second = map(str, config.aggregation_coordinators)
    keys = {first: mine.public(clock), second: other.public(clock)}
    browser = Browser(clock=clock, bits=bits, config=config, draws=FixedChoices(config), keys=keys)
    debug = {"aggregatable_debug_reporting": {"key_piece": "0x100", "debug_data": [
        {"types": ["trigger-event-deduplicated"], "key_piece": "0x4", "value": 65}]}}  # fmt: skip
    click(browser, KEYED, debug=True)
    fields = SUMMED | debug | {"aggregation_coordinator_origin": second, "trigger_context_id": "me", "debug_key": "9"}
    copy, told, report = buy(browser, fields, debug=True)
    assert copy.url.endswith("/debug/report-aggregate-attribution")
    assert isinstance(report, AggregatableAttributionReport) and report.time_ms == clock.now_ms()
    body = WireReport.from_json(report.to_json())
    assert body.trigger_context_id == "me"
    assert (body.source_debug_key, body.trigger_debug_key) == (7, 9)
    payload = decode_payload(open_report(body, other))
    assert [(c.bucket, c.value) for c in payload.contributions if c.value] == [(0x11, 5)]
    assert len(payload.contributions) == 20
    assert isinstance(told, AggregatableDebugReport) and told.contributions == ()
    assert len(decode_payload(open_report(WireReport.from_json(told.to_json()), mine)).contributions) == 2


def test_without_keys_reports_have_contributions_but_no_body() -> None:
    browser, _, _ = make()
    click(browser, KEYED)
    buy(browser, SUMMED)
    (report,) = browser.advance(DAY_MS)
    with pytest.raises(UnsealedReportError, match="pass Browser the keys"):
        report.to_json()


def test_a_coordinator_without_keys_is_tried_again_and_given_up() -> None:
    config = Config()
    clock = ManualClock(0)
    browser = Browser(clock=clock, bits=SecureBits(), config=config, draws=FixedChoices(config), keys={})
    click(browser, KEYED)
    buy(browser, SUMMED)
    assert browser.advance(10 * MINUTE_MS) == []
    assert [report.time_ms for report in browser.pending] == [15 * MINUTE_MS]
    assert browser.advance(DAY_MS) == []
    assert browser.pending == []


def test_retries_after_five_and_fifteen_minutes_then_never() -> None:
    browser, _, net = make()
    click(browser, KEYED)
    buy(browser, EVENT)
    net.result = SendResult.TRANSIENT_FAILURE
    assert browser.advance(5 * DAY_MS) == []
    times = [report.time_ms for report in net.tried]
    assert times == [2 * DAY_MS, 2 * DAY_MS + 5 * MINUTE_MS, 2 * DAY_MS + 20 * MINUTE_MS]
    assert browser.pending == []


def test_a_retry_that_succeeds_sends_the_same_report() -> None:
    browser, _, net = make()
    click(browser, KEYED)
    buy(browser, EVENT)
    net.result = SendResult.TRANSIENT_FAILURE
    browser.advance(2 * DAY_MS)
    net.result = SendResult.SENT
    (report,) = browser.advance(3 * DAY_MS)
    assert report.time_ms == 2 * DAY_MS + 5 * MINUTE_MS
    assert report.to_dict() == net.tried[0].to_dict()


def test_an_answer_that_is_an_error_is_final() -> None:
    browser, _, net = make()
    click(browser, KEYED)
    buy(browser, EVENT)
    net.result = SendResult.FAILURE
    assert browser.advance(5 * DAY_MS) == []
    assert len(net.tried) == 1


def test_debug_reports_are_not_tried_again() -> None:
    browser, _, net = make()
    net.result = SendResult.TRANSIENT_FAILURE
    assert click(browser, KEYED | {"debug_reporting": True}, debug=True) == []
    assert isinstance(net.tried[0], VerboseDebugReport)
    assert browser.pending == []


@pytest.mark.parametrize(("attempt", "tried"), [(1, [0]), (2, [0, 5]), (3, [0, 5, 20])])
def test_the_last_attempt_may_wait_for_a_navigation(attempt: int, tried: list[int]) -> None:
    browser, _, net = make(navigation_retry_attempt=attempt, offline_delay_ms=(MINUTE_MS, MINUTE_MS))
    click(browser, KEYED)
    buy(browser, EVENT)
    net.result = SendResult.TRANSIENT_FAILURE
    browser.advance(3 * DAY_MS)
    assert [report.time_ms for report in net.tried] == [2 * DAY_MS + minutes * MINUTE_MS for minutes in tried]
    assert [report.time_ms for report in browser.pending] == [32 * DAY_MS]
    net.result = SendResult.SENT
    browser.navigate()
    (report,) = browser.advance(4 * DAY_MS)
    assert report.time_ms == 3 * DAY_MS + MINUTE_MS
    browser.navigate()
    assert browser.advance(40 * DAY_MS) == []


def test_without_a_navigation_the_last_attempt_is_at_expiry() -> None:
    browser, _, net = make(navigation_retry_attempt=1)
    click(browser, KEYED)
    buy(browser, EVENT)
    net.result = SendResult.TRANSIENT_FAILURE
    assert browser.advance(60 * DAY_MS) == []
    assert [report.time_ms for report in net.tried] == [2 * DAY_MS, 32 * DAY_MS]


def test_reports_missed_while_offline_are_delayed() -> None:
    browser, _, net = make(offline_delay_ms=(0, 30_000))
    click(browser, KEYED)
    buy(browser, EVENT)
    browser.go_offline()
    assert browser.advance(5 * DAY_MS) == []
    assert net.tried == []
    browser.go_online()
    (report,) = browser.advance(6 * DAY_MS)
    assert report.time_ms == 5 * DAY_MS + 30_000
    assert report.to_dict()["scheduled_report_time"] == str(2 * 86400)


def test_debug_reports_of_the_time_offline_are_lost() -> None:
    browser, _, net = make()
    browser.go_offline()
    assert click(browser, KEYED | {"debug_reporting": True}, debug=True) == []
    browser.go_online()
    assert browser.advance(DAY_MS) == net.tried == []
    assert len(click(browser, KEYED | {"debug_reporting": True}, debug=True)) == len(net.tried) == 1


def test_reports_expire_after_a_month_offline() -> None:
    browser, _, net = make()
    click(browser, KEYED)
    buy(browser, EVENT)
    browser.go_offline()
    browser.advance(40 * DAY_MS)
    browser.go_online()
    assert browser.advance(41 * DAY_MS) == []
    assert net.tried == []
    assert browser.pending == []


def test_advance_needs_a_manual_clock_for_a_time() -> None:
    browser = Browser(clock=SystemClock(), bits=SecureBits())
    assert browser.advance() == []
    with pytest.raises(DeviceConfigError, match="ManualClock"):
        browser.advance(1)


@pytest.mark.parametrize(
    ("context", "eligible"), [("http://news.test", None), ("https://a.test", "navigation-source, trigger"), ("a", "")]
)
def test_requests_no_browser_makes_are_errors(context: str, eligible: str | None) -> None:
    browser, _, _ = make()
    with pytest.raises(RequestError):
        browser.register(Request(context=context, eligible=eligible))


def test_clearing_a_sites_data_keeps_its_rate_limits() -> None:
    browser, _, _ = make(max_attributions=1)
    click(browser, KEYED)
    buy(browser, EVENT)
    browser.clear("https://other.test")
    assert (len(browser._state.sources), len(browser.pending)) == (1, 1)
    browser.clear("https://reporter.test")
    assert (len(browser._state.sources), len(browser.pending)) == (0, 0)
    click(browser, KEYED)
    buy(browser, EVENT)
    assert browser.pending == []
    browser.clear(rate_limits=True)
    click(browser, KEYED)
    buy(browser, EVENT)
    assert len(browser.pending) == 1
    browser.check()


def test_clearing_keeps_the_debug_budgets_until_they_are_forgotten_by_name() -> None:
    """Neither a site that clears nor a user who has rate limits forgotten starts the day's debug budget anew."""
    browser, clock, _ = make()
    told = {"types": ["trigger-no-matching-source"], "key_piece": "0x4", "value": 65_536}
    asked = SUMMED | {"aggregatable_debug_reporting": {"key_piece": "0x100", "debug_data": [told]}}

    def contributed() -> int:
        (report,) = (one for one in buy(browser, asked) if isinstance(one, AggregatableDebugReport))
        return sum(contribution.value for contribution in report.contributions)

    assert contributed() == 65_536
    browser.clear("https://reporter.test")
    assert contributed() == 0
    browser.clear(rate_limits=True)
    assert contributed() == 0
    browser.forget_debug_budgets("https://other.test")
    browser.forget_debug_budgets(begin_ms=1)
    assert contributed() == 0
    browser.forget_debug_budgets("https://reporter.test", end_ms=0)
    assert contributed() == 65_536
    browser.forget_debug_budgets()
    assert contributed() == 65_536
    clock.advance(DAY_MS)
    assert contributed() == 65_536


def test_clearing_a_range_takes_the_source_of_a_cleared_report_too() -> None:
    browser, _, _ = make()
    click(browser, KEYED)
    browser.advance(HOUR_MS)
    buy(browser, EVENT)
    browser.advance(2 * HOUR_MS)
    buy(browser, EVENT)
    assert len(browser.pending) == 2
    browser.clear(begin_ms=HOUR_MS + 1, end_ms=3 * HOUR_MS)
    assert (len(browser._state.sources), len(browser.pending)) == (0, 0)


def test_clearing_a_range_takes_the_reports_of_a_source_that_gave_way() -> None:
    """The older source is held no more once the newer one is attributed; its report waits all the same."""
    browser, _, _ = make()
    for day in range(2):
        browser.advance(day * DAY_MS)
        click(browser, KEYED | {"source_event_id": str(day)})
        browser.advance(day * DAY_MS + 2 * HOUR_MS)
        buy(browser, EVENT)
    assert [report.to_dict()["source_event_id"] for report in browser.pending] == ["0", "1"]
    browser.clear(end_ms=HOUR_MS)
    assert [report.to_dict()["source_event_id"] for report in browser.pending] == ["1"]
    browser.check()


@pytest.mark.parametrize("way", ["deactivated", "cleared"])
@pytest.mark.parametrize("asked", [{"trigger_context_id": "order"}, {"aggregatable_filtering_id_max_bytes": 2}])
def test_a_report_that_is_sent_without_a_source_too_outlives_its_source(way: str, asked: dict[str, Any]) -> None:
    """The ad tech fails the first attempt, and the source is removed: 20 of 20 arrive, attributed or not."""

    def attempts(*, attributed: bool, **rules: Any) -> list[AggregatableAttributionReport]:
        browser, clock, net = make(max_destinations_per_source_site_and_reporting_site=1, **rules)
        for number in range(20):
            if attributed:
                click(browser, KEYED)
            browser.advance(clock.now_ms() + HOUR_MS)
            net.result = SendResult.TRANSIENT_FAILURE
            buy(browser, SUMMED | asked | {"aggregatable_source_registration_time": "exclude"})
            net.result = SendResult.SENT
            if way == "deactivated":
                click(browser, {"destination": f"https://shop-{number}.test", "destination_limit_priority": "9"})
            else:
                browser.clear(end_ms=clock.now_ms() - 1)
            browser.check()
            browser.advance(clock.now_ms() + 31 * DAY_MS)
        return [report for report in net.tried if isinstance(report, AggregatableAttributionReport)]

    def seen(reports: list[AggregatableAttributionReport]) -> list[tuple[str, int, str | None]]:
        return [(one.report_id, one.scheduled_time_ms, one.trigger_context_id) for one in reports]

    for attributed in (False, True):
        tried = attempts(attributed=attributed)
        assert len(tried) == 40
        assert seen(tried[::2]) == seen(tried[1::2])
        assert [one.is_null for one in tried] == [not attributed, True] * 20
        assert not any(one.contributions for one in tried[1::2])
    assert len(attempts(attributed=True, removed_reports_become_null=False)) == 20  # Chromium: none of them arrives


def test_redirects_register_one_by_one_and_navigations_agree_on_scopes() -> None:
    browser, _, _ = make()
    fields = {"destination": "https://shop.test", "debug_reporting": True}
    scoped = fields | {"attribution_scopes": {"limit": 2, "values": ["x"]}}

    def response(body: dict[str, Any]) -> Response:
        return Response(url=REPORTER, headers={SOURCE: json.dumps(body)}, debug_allowed=True)

    request = Request(context="https://news.test", eligible="navigation-source")
    told = browser.register(request, response(scoped), response(fields), response(scoped))
    assert len(told) == 2
    first = browser.start(replace(request, navigation="nav"))
    second = browser.start(replace(request, navigation="nav"))
    assert len(browser.respond(first, response(fields))) == 1
    assert browser.finish(first) == []
    assert browser.respond(second, response(scoped)) == []
    assert browser.finish(second) == []
    assert len(browser.register(replace(request, navigation="nav"), response(scoped))) == 1


def test_sources_handed_to_the_system_wait_for_the_end_of_their_navigation() -> None:
    browser, clock, _ = make(os_registration_supported=True)
    header = ", ".join(f'"https://os{n}.test/x";debug-reporting' for n in range(12))
    response = Response(url=REPORTER, headers={"Attribution-Reporting-Register-OS-Source": header})
    exchange = browser.start(Request(context="https://news.test", eligible="navigation-source"))
    assert browser.respond(exchange, response) == []
    clock.advance(10)
    assert len(browser.respond(exchange, response)) == 20
    clock.advance(10)
    rest = browser.finish(exchange)
    assert [report.time_ms for report in rest] == [20] * 4
    assert rest[0].to_dict()[0]["type"] == "os-source-delegated"
    event = Request(context="https://news.test", eligible="event-source")
    assert len(browser.register(event, response)) == 12
    assert browser.register(replace(event, fenced=True), response) == []


def test_reporting_origins_of_a_pair_of_sites_are_limited() -> None:
    browser, _, _ = make(max_attribution_reporting_origins=1)
    other = "https://other.test/x"
    for url in (REPORTER, other):
        click(browser, KEYED, url=url)
    for url, made in ((REPORTER, 2), (other, 2), (REPORTER, 4)):
        buy(browser, SUMMED | EVENT, url=url)
        assert len(browser.pending) == made


@pytest.mark.parametrize(
    "change",
    [
        {"max_attributions": 0}, {"max_event_level_epsilon": float("nan")}, {"null_rate_excluding_source_time": 1.5},
        {"aggregatable_delay_span_ms": -1}, {"offline_delay_ms": (2, 1)}, {"navigation_retry_attempt": 4},
        {"aggregation_coordinators": ()}, {"retry_delays_ms": (5, -1)}, {"report_expiry_ms": -1},
        {"retry_delays_ms": (), "navigation_retry_attempt": 2},
    ],
)  # fmt: skip
def test_vendor_values_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(DeviceConfigError):
        Config(**change)


def test_no_capacity_at_all_refuses_every_source() -> None:
    browser, _, _ = make(max_channel_capacity_navigation=0.0, max_event_level_epsilon=14.0)
    (told,) = click(browser, KEYED | {"debug_reporting": True}, debug=True)
    assert told.to_dict()[0]["type"] == "source-channel-capacity-limit"
    silent, _, _ = make(max_channel_capacity_navigation=0.0, max_event_level_epsilon=0.0)
    (told,) = click(silent, KEYED | {"debug_reporting": True}, debug=True)
    assert told.to_dict()[0]["type"] == "source-success"


def test_indexes_agree_after_many_operations() -> None:
    browser, clock, net = make(max_sources_per_origin=40, max_reporting_origins_per_source_reporting_site=9)
    rng = SeededBits("operations")
    actions: list[Callable[[], object]] = [
        lambda: click(browser, KEYED | {"priority": str(rng.read(1)[0]), "expiry": 86400}, url=_reporter(rng)),
        lambda: buy(browser, SUMMED | EVENT, url=_reporter(rng)),
        lambda: browser.advance(clock.now_ms() + rng.word() % (3 * HOUR_MS)),
        lambda: browser.clear(_reporter(rng)) if rng.read(1)[0] < 10 else None,
        lambda: setattr(net, "result", list(SendResult)[rng.word() % 3]),
    ]
    for _ in range(1500):
        actions[rng.word() % len(actions)]()
    browser.check()
    assert net.tried


def _reporter(rng: SeededBits) -> str:
    return f"https://r{rng.word() % 4}.test/x"


@pytest.mark.parametrize("moment_ms", [2 * DAY_MS - 1, 2 * DAY_MS, 2 * DAY_MS + 1])
@pytest.mark.parametrize("way", ["scopes", "destinations"])
def test_a_removed_source_leaves_no_report_that_only_noise_can_have_made(way: str, moment_ms: int) -> None:
    """A source that is removed gets no more triggers: a report of a later window would show that it is fake.

    Windows end after 2, 7 and 30 days. A report of the window that begins at the moment of removal is fake too.
    """
    browser, clock, _ = make(max_destinations_per_source_site_and_reporting_site=1)
    draws = browser._state.draws
    assert isinstance(draws, FixedChoices)
    draws.fake_reports = [(0, 0), (1, 1), (2, 2)]
    noised = {"destination": "https://shop.test"}
    newer = {"destination": "https://shop.test" if way == "scopes" else "https://other.test"}
    if way == "scopes":
        noised |= {"attribution_scopes": {"limit": 1, "values": ["x"]}}
        newer |= {"attribution_scopes": {"limit": 2, "values": ["x"]}}
    click(browser, noised)
    fake = [(one.trigger_time_ms, one.due_ms) for one in browser._state.pending]
    assert fake == [(0, 2 * DAY_MS), (2 * DAY_MS, 7 * DAY_MS), (7 * DAY_MS, 30 * DAY_MS)]
    draws.fake_reports = None
    browser.go_offline()
    clock.advance(moment_ms)
    click(browser, newer)
    assert [(one.trigger_time_ms, one.due_ms) for one in browser._state.pending] == [
        one for one in fake if one[0] < moment_ms
    ]
