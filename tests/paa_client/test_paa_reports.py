"""Reports: when there is one, when it leaves, what stands in the clear, and where it goes."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import pytest

from aggservice import wire
from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits, SeededBits
from aggservice.wire.device import DeviceConfigError
from paa_client import Browser, Config, HistogramContribution, chromium, specification
from paa_client.config import AWS_COORDINATOR, GCP_COORDINATOR, ContextType, Rules
from paa_client.reporting import reports

ORIGIN = "https://sub.ad.example:8443"
START_MS = 1_700_000_040_000
MINUTE_MS = 60_000


def contribute(storage: Any, aggregation: Any, data: Any) -> None:
    for bucket, value in data or []:
        aggregation.contribute_to_histogram(bucket=bucket, value=value)


def debug(storage: Any, aggregation: Any, data: Any) -> None:
    contribute(storage, aggregation, [(1, 1)])
    aggregation.enable_debug_mode(debug_key=data)


def make_browser(config: Config | None = None, **arguments: Any) -> tuple[Browser, ManualClock]:
    clock = ManualClock(START_MS)
    arguments.setdefault("bits", SeededBits("reports"))
    browser = Browser(clock=clock, config=config or specification(), **arguments)
    browser.register(ORIGIN, "contribute", contribute)
    browser.register(ORIGIN, "debug", debug)
    return browser, clock


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ({}, 0),
        ({"context_id": ""}, 1),
        ({"context_id": "x" * 64}, 1),
        ({"filtering_id_max_bytes": 1}, 0),
        ({"filtering_id_max_bytes": 2}, 1),
        ({"max_contributions": 20}, 0),
        ({"max_contributions": 21}, 1),
        ({"max_contributions": 1}, 1),
    ],
)
def test_a_run_that_contributes_nothing_sends_a_null_report_only_if_the_page_asked_for_something(
    arguments: dict[str, Any], sent: int
) -> None:
    """A context ID, another width of filtering IDs, another number of contributions: all chosen outside."""
    browser, clock = make_browser()
    browser.run(ORIGIN, "contribute", None, **arguments)
    browser.run(ORIGIN, "contribute", [(1, 0)], **arguments)
    assert browser.next_report_time_ms() == (START_MS + 5_000 if sent else None)
    clock.advance(5_000)
    deliveries = browser.take_due()
    assert len(deliveries) == 2 * sent
    assert all(delivery.report.is_null for delivery in deliveries)


def test_delays_are_uniform_between_ten_and_sixty_minutes_without_a_context_id() -> None:
    """Mean within 6 standard errors, for a false-alarm rate below 10⁻⁸; the bounds always."""
    browser, clock = make_browser(bits=SecureBits())
    runs = 4_000
    for _ in range(runs):
        browser.run(ORIGIN, "contribute", [(1, 1)])
    clock.advance(3 * 60 * MINUTE_MS)
    deliveries = browser.take_due()
    delays = [delivery.time_ms - START_MS for delivery in deliveries]
    assert len(delays) == runs
    assert delays == sorted(delays)
    assert min(delays) >= 10 * MINUTE_MS and max(delays) < 60 * MINUTE_MS
    error = 50 * MINUTE_MS / math.sqrt(12 * runs)
    assert abs(sum(delays) / runs - 35 * MINUTE_MS) < 6 * error
    assert len({delivery.report.report_id for delivery in deliveries}) == runs
    assert all(UUID(delivery.report.report_id).version == 4 for delivery in deliveries)
    assert all(delivery.report.scheduled_report_time_ms == delivery.time_ms for delivery in deliveries)


def test_chromium_adds_a_tenth_of_a_second_and_local_testing_no_delay_at_all() -> None:
    browser, _ = make_browser(chromium())
    browser.run(ORIGIN, "contribute", [(1, 1)], context_id="c")
    assert browser.next_report_time_ms() == START_MS + 5_100
    browser, _ = make_browser(specification(local_testing_mode=True))
    browser.run(ORIGIN, "contribute", [(1, 1)])
    assert browser.next_report_time_ms() == START_MS


def test_contributions_after_the_timeout_are_in_no_report_and_the_report_is_on_time() -> None:
    """An operation that takes simulated time: the clock moves while it runs."""
    browser, clock = make_browser()

    def slow(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.contribute_to_histogram(bucket=1, value=1)
        aggregation.contribute_to_histogram_on_event("reserved.contribution-timeout-reached", bucket=3, value=1)
        clock.advance(data)
        aggregation.contribute_to_histogram(bucket=2, value=1)

    browser.register(ORIGIN, "slow", slow)
    for duration_ms, expected in ((4_999, [1, 2]), (5_000, [3, 1]), (60_000, [3, 1])):
        started_ms = clock.now_ms()
        browser.run(ORIGIN, "slow", duration_ms, context_id="c")
        clock.advance_to(max(clock.now_ms(), started_ms + 5_000))
        (delivery,) = browser.take_due()
        assert delivery.time_ms == started_ms + 5_000
        assert [made.bucket for made in delivery.report.contributions] == expected
    browser.run(ORIGIN, "slow", 60_000)
    clock.advance(60 * MINUTE_MS)
    (delivery,) = browser.take_due()
    assert [made.bucket for made in delivery.report.contributions] == [1, 2], "no timeout without a context ID"


def test_sealed_reports_open_and_say_in_the_clear_only_what_they_must() -> None:
    clock = ManualClock(START_MS)
    keys = {
        AWS_COORDINATOR: wire.KeySet.create(SeededBits("aws"), clock, count=3),
        GCP_COORDINATOR: wire.KeySet.create(SeededBits("gcp"), clock),
    }
    public = {origin: pairs.public(clock) for origin, pairs in keys.items()}
    for bits in (SecureBits(), SeededBits("sealed")):
        browser, clock = make_browser(bits=bits, keys=public)
        browser.run(ORIGIN, "contribute", [(2**100, 7), (3, 8)], context_id="abc")
        browser.run(
            ORIGIN,
            "contribute",
            [(1, 1)],
            context_id="gcp",
            filtering_id_max_bytes=8,
            max_contributions=2,
            aggregation_coordinator_origin=GCP_COORDINATOR + "/some/path",
        )
        clock.advance(5_000)
        first, second = browser.send_due()
        assert browser.send_due() == []
        assert first.url == second.url == f"{ORIGIN}/.well-known/private-aggregation/report-shared-storage"
        assert set(first.sealed.to_dict()) == {
            "aggregation_coordinator_origin",
            "aggregation_service_payloads",
            "context_id",
            "shared_info",
        }
        assert first.sealed.context_id == "abc"
        info = wire.SharedInfo.parse(first.sealed.shared_info)
        assert (info.api, info.reporting_origin, info.version) == (wire.Api.SHARED_STORAGE, ORIGIN, "1.0")
        assert info.scheduled_report_time_s == (START_MS + 5_000) // 1000
        opened = wire.decode_payload(wire.open_report(first.sealed, keys[AWS_COORDINATOR]))
        assert len(opened.contributions) == 20
        assert [(c.bucket, c.value) for c in opened.contributions[:3]] == [(2**100, 7), (3, 8), (0, 0)]
        assert second.sealed.aggregation_coordinator_origin == GCP_COORDINATOR
        opened = wire.decode_payload(wire.open_report(second.sealed, keys[GCP_COORDINATOR]))
        assert (len(opened.contributions), opened.filtering_id_bytes) == (2, 8)
        parsed = wire.AggregatableReport.from_json(first.sealed.to_json())
        assert parsed == first.sealed


def test_reports_need_the_keys_of_their_coordinator() -> None:
    browser, clock = make_browser()
    browser.run(ORIGIN, "contribute", [(1, 1)], context_id="c")
    clock.advance(5_000)
    with pytest.raises(DeviceConfigError, match="pass them as Browser"):
        browser.send_due()


@pytest.mark.parametrize("context_id", [None, "c"])
@pytest.mark.parametrize("allowed", [True, False])
def test_debug_mode_reveals_the_report_and_sends_a_copy_at_once(allowed: bool, context_id: str | None) -> None:
    clock = ManualClock(START_MS)
    pairs = wire.KeySet.create(SeededBits("debug"), clock)
    browser, clock = make_browser(
        specification(debug_mode_allowed=allowed), keys={AWS_COORDINATOR: pairs.public(clock)}
    )
    browser.run(ORIGIN, "debug", 2**64 - 1, context_id=context_id)
    browser.run(ORIGIN, "debug", None, context_id=context_id)
    immediate = browser.send_due()
    clock.advance(60 * MINUTE_MS)
    later = browser.send_due()
    assert len(immediate) == (2 if allowed else 0)
    assert len(later) == 2
    for sent in immediate + later:
        (payload,) = sent.sealed.payloads
        assert wire.SharedInfo.parse(sent.sealed.shared_info).debug_mode is allowed
        assert (payload.debug_cleartext_payload is not None) is allowed
        if allowed:
            assert payload.debug_cleartext_payload == wire.open_report(sent.sealed, pairs)
    assert {sent.sealed.debug_key for sent in later} == ({2**64 - 1, None} if allowed else {None})
    assert {"/debug/report-shared-storage" in sent.url for sent in immediate} <= {True}
    assert not any("/debug/" in sent.url for sent in later)
    copies = {sent.sealed.shared_info for sent in immediate}
    assert copies <= {sent.sealed.shared_info for sent in later}, "the copy is of the same report"


@pytest.mark.parametrize("rules", list(Rules))
@pytest.mark.parametrize("error_reporting", [True, False])
def test_a_browser_as_shipped_shows_nothing_that_an_operation_computed(rules: Rules, error_reporting: bool) -> None:
    """Without the permission nothing stands beside the context ID: no debug key, no cleartext, no second report."""

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        secret = storage.get("secret")
        if secret is not None:
            aggregation.enable_debug_mode(debug_key=int(secret))
            aggregation.contribute_to_histogram(bucket=int(secret), value=1)

    seen = []
    for secret in (None, "1", str(2**64 - 1)):
        pairs = wire.KeySet.create(SeededBits("shipped"), ManualClock(START_MS))
        browser, clock = make_browser(
            Config(rules=rules, error_reporting=error_reporting),
            keys={AWS_COORDINATOR: pairs.public(ManualClock(START_MS))},
        )
        browser.register(ORIGIN, "reveal", operation)
        if secret is not None:
            browser.storage(ORIGIN).set("secret", secret)
        for number in range(5):
            browser.run(ORIGIN, "reveal", context_id=f"visit {number}")
        clock.advance(60 * MINUTE_MS)
        bodies = [(sent.time_ms, sent.url, sent.sealed.to_dict()) for sent in browser.send_due()]
        for _, _, body in bodies:
            assert set(body["aggregation_service_payloads"][0]) == {"key_id", "payload"}
            body["aggregation_service_payloads"][0]["payload"] = ""
        seen.append(bodies)
    assert len(seen[0]) == 5
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("rules", list(Rules))
def test_a_null_report_of_an_operation_that_contributed_nothing_is_not_a_debug_report(rules: Rules) -> None:
    """Chromium counts a contribution of 0 as nothing; the specification as something."""
    for values, zero_counts in (([], False), ([0], True)):
        browser, clock = make_browser(specification(rules=rules, debug_mode_allowed=True))

        def operation(storage: Any, aggregation: Any, data: list[int]) -> None:
            aggregation.enable_debug_mode()
            for value in data:
                aggregation.contribute_to_histogram(bucket=1, value=value)

        browser.register(ORIGIN, "null", operation)
        browser.run(ORIGIN, "null", values, context_id="c")
        clock.advance(5_000)
        enabled = zero_counts and rules is Rules.SPECIFICATION
        assert [d.report.debug.enabled for d in browser.take_due()] == [enabled] * (2 if enabled else 1)


def test_a_report_of_the_first_version_has_no_filtering_ids() -> None:
    browser, clock = make_browser(specification(report_version="0.1"))
    browser.run(ORIGIN, "contribute", [(1, 1)], context_id="c")
    clock.advance(5_000)
    (delivery,) = browser.take_due()
    assert '"version":"0.1"' in delivery.report.shared_info
    assert wire.decode_payload(delivery.report.cleartext).filtering_id_bytes == 0


def test_clearing_deletes_storage_and_reports_and_keeps_what_was_spent() -> None:
    browser, clock = make_browser()
    other = "https://other.ad.example"
    elsewhere = "https://elsewhere.example"
    for origin in (other, elsewhere):
        browser.register(origin, "contribute", contribute)
    for origin in (ORIGIN, other, elsewhere):
        browser.storage(origin).set("a", "b")
        browser.run(origin, "contribute", [(1, 100)])
    assert browser.budget_used(ORIGIN) == (200, 200)
    browser.clear(ORIGIN)
    assert browser.budget_used(other) == (200, 200), "deleted reports stay paid for"
    clock.advance(60 * MINUTE_MS)
    assert {d.report.reporting_origin for d in browser.take_due()} == {other, elsewhere}
    browser.run(elsewhere, "contribute", [(1, 100)])
    browser.clear()
    assert browser.next_report_time_ms() is None
    assert browser.budget_used(elsewhere) == (100, 200)
    browser.run(elsewhere, "contribute", [(1, 100)])
    assert browser.next_report_time_ms() is not None, "modules stay registered"


def test_clearing_does_not_let_a_site_spend_its_budget_again() -> None:
    """A page sends ``Clear-Site-Data`` after each report that left: still Λ₁ in ten minutes for the whole site."""
    browser, clock = make_browser()
    other = "https://other.ad.example"
    browser.register(other, "contribute", contribute)
    sent = 0
    for origin in (ORIGIN, other, None):
        browser.run(origin or ORIGIN, "contribute", [(1, 1 << 16)], context_id="c")
        clock.advance(6_000)
        sent += sum(c.value for delivery in browser.take_due() for c in delivery.report.contributions)
        browser.clear(origin)
    assert sent == 1 << 16


def test_forgetting_budgets_is_a_call_of_its_own_for_a_site_or_all() -> None:
    browser, _ = make_browser()
    elsewhere = "https://elsewhere.example"
    browser.register(elsewhere, "contribute", contribute)
    for origin in (ORIGIN, elsewhere):
        browser.run(origin, "contribute", [(1, 100)])
    browser.forget_budgets("https://other.ad.example")
    assert browser.budget_used(ORIGIN) == (0, 0), "the whole site's"
    assert browser.budget_used(elsewhere) == (100, 100)
    assert browser.budget_used(elsewhere, ContextType.PROTECTED_AUDIENCE) == (0, 0)
    browser.forget_budgets()
    assert browser.budget_used(elsewhere) == (0, 0)
    assert browser.next_report_time_ms() is not None, "reports stay"


def test_configurations_that_no_browser_has_are_refused() -> None:
    bad: list[dict[str, Any]] = [
        {"smaller_budget": 0},
        {"smaller_budget": 1 << 21},
        {"default_max_contributions": {ContextType.SHARED_STORAGE: 20}},
        {"default_max_contributions": {ContextType.SHARED_STORAGE: 20, ContextType.PROTECTED_AUDIENCE: 1001}},
        {"minimum_delay_ms": -1},
        {"randomized_delay_ms": 0},
        {"deterministic_timeout_ms": 0},
        {"storage_lifetime_ms": float("nan")},
        {"storage_bytes_per_origin": 0},
        {"pending_report_limit": 0},
        {"operation_deadline_ms": 0},
        {"report_version": "2.0"},
        {"default_coordinator": "https://coordinator.example"},
    ]
    for arguments in bad:
        with pytest.raises(DeviceConfigError):
            specification(**arguments)


def test_journals_answer_what_was_cut_and_why() -> None:
    browser, _ = make_browser(specification(keep_losses=True))
    browser.run(ORIGIN, "contribute", [(1, 65_536), (2, 5), (3, 0)])
    counts = {cause.value: numbers for (_, _, cause), numbers in browser.journal.counts().items()}
    assert counts == {"ten-minute-budget": (1, 5), "zero-value": (1, 0)}
    assert browser.journal.count() == 2
    assert browser.journal.count(site="https://ad.example", api=ContextType.SHARED_STORAGE) == 2
    assert browser.journal.count(api=ContextType.PROTECTED_AUDIENCE) == 0
    assert [loss.contribution for loss in browser.journal.losses] == [
        HistogramContribution(2, 5),
        HistogramContribution(3, 0),
    ]


def test_reports_without_keys_stay_queued() -> None:
    """Keys that are missing are the simulation's fault, and no report is lost by it."""
    clock = ManualClock(1_700_000_040_000)
    keys = wire.KeySet.create(SeededBits("late keys"), clock).public(clock)
    browser = Browser(clock=clock, bits=SeededBits("queued"), keys={AWS_COORDINATOR: keys})
    browser.register("https://ad.example", "one", lambda storage, aggregation, data: None)
    for coordinator in (AWS_COORDINATOR, GCP_COORDINATOR):
        browser.run("https://ad.example", "one", context_id="c", aggregation_coordinator_origin=coordinator)
    clock.advance(10_000)
    for _ in range(2):
        with pytest.raises(DeviceConfigError, match="no public keys are known for"):
            browser.send_due()
    browser._keys[GCP_COORDINATOR] = keys
    assert len(browser.send_due()) == 2 and browser.send_due() == []


def test_a_report_may_be_sent_at_every_millisecond_of_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 to 60 minutes after the call, uniformly: a coarser delay would show the moment of the call."""
    config, now_ms = Config(), 123_456_789
    for drawn in (0, 1, 59_999, 60_001, 3_000_000 - 1):
        asked: list[int] = []

        def draw(bits: object, below: int, drawn: int = drawn, asked: list[int] = asked) -> int:
            asked.append(below)
            return drawn

        monkeypatch.setattr(reports, "uniform_below", draw)
        time_ms = reports.delivery_time_ms(config, ForbiddenBits(), now_ms, None)
        assert time_ms - now_ms - config.local_processing_ms == 600_000 + drawn
        assert asked == [3_000_000]
