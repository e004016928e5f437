"""Protected Audience: who may contribute when, signals filled in after the auction, events of the ad's frame."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire.device import CallError
from paa_client import Auction, BaseValue, Bid, Browser, Config, InterestGroup, Score, Signal, chromium, specification
from paa_client.auction.participants import MAX_BUCKET, MAX_VALUE, Measurements, RejectReason, resolve_signal
from paa_client.config import GCP_COORDINATOR, ContextType, Rules
from paa_client.effects import WorkletTypeError
from paa_client.reporting.contributions import Cause

SELLER = "https://seller.example"
BUYERS = ["https://one.example", "https://two.example", "https://three.example"]


def make_browser(config: Config | None = None, bits: Any = None) -> Browser:
    return Browser(
        clock=ManualClock(1_700_000_040_000), bits=bits or SeededBits("auction"), config=config or specification()
    )


def contents(browser: Browser) -> dict[str, list[tuple[int, int]]]:
    """Contributions by reporting origin, of everything that is queued and not a debug copy."""
    made: dict[str, list[tuple[int, int]]] = {}
    for _, _, delivery in sorted(browser._queue, key=lambda item: item[1]):
        assert delivery.report.api is ContextType.PROTECTED_AUDIENCE
        if not delivery.debug_copy:
            rows = made.setdefault(delivery.report.reporting_origin, [])
            rows += [(c.bucket, c.value) for c in delivery.report.contributions]
    return made


def bidder(owner: str, bid: float | None, body: Any = None, **arguments: Any) -> InterestGroup:
    def generate_bid(aggregation: Any, signals: Any) -> float | None:
        if body is not None:
            body(aggregation)
        return bid

    return InterestGroup(owner=owner, name=f"{owner} {bid}", generate_bid=generate_bid, **arguments)


def score_by_bid(aggregation: Any, signals: Any) -> float:
    return float(signals.bid)


def on_all_events(aggregation: Any) -> None:
    aggregation.contribute_to_histogram(bucket=0, value=1)
    for number, event in enumerate(["reserved.win", "reserved.loss", "reserved.always", "click", "reserved.new"], 1):
        aggregation.contribute_to_histogram_on_event(event, bucket=number, value=10)


def test_win_loss_always_and_the_frames_own_events() -> None:
    browser = make_browser()
    scored = []

    def score_ad(aggregation: Any, signals: Any) -> float:
        on_all_events(aggregation)
        scored.append(signals)
        return float(signals.bid)

    def report(aggregation: Any, signals: Any) -> dict[str, float]:
        on_all_events(aggregation)
        return {"price": signals.highest_scoring_other_bid}

    winners = []

    def report_win(aggregation: Any, signals: Any) -> None:
        on_all_events(aggregation)
        winners.append(signals)

    bids = zip(BUYERS, [1, 3, 2], strict=True)
    groups = [bidder(owner, bid, on_all_events, report_win=report_win) for owner, bid in bids]
    groups.append(bidder(BUYERS[0], None, on_all_events))
    frame = browser.run_ad_auction(
        Auction(seller=SELLER, score_ad=score_ad, report_result=report, interest_groups=groups)
    )
    made = {origin: Counter(rows) for origin, rows in contents(browser).items()}
    # One bid and lost and one did not bid: both lost. Reports of a buyer are one report.
    assert made[BUYERS[0]] == {(0, 2): 1, (2, 20): 1, (3, 20): 1}
    assert made[BUYERS[2]] == {(0, 1): 1, (2, 10): 1, (3, 10): 1}
    # Two won; generateBid and reportWin contributed.
    assert made[BUYERS[1]] == {(0, 2): 1, (1, 20): 1, (3, 20): 1}
    # The seller scored three, of which one won, and reported one; its own events do not exist.
    assert made[SELLER] == {(0, 4): 1, (1, 20): 1, (2, 20): 1, (3, 40): 1}
    assert [signals.interest_group_owner for signals in scored] == BUYERS
    (won,) = winners
    assert (won.bid, won.highest_scoring_other_bid, won.signals_for_winner) == (3, 2, {"price": 2.0})
    assert frame is not None
    before = contents(browser)
    frame.report_event("view")
    assert contents(browser) == before
    frame.report_event("click")
    frame.report_event("click")
    assert contents(browser)[BUYERS[1]] == [*before[BUYERS[1]], (4, 20)], "once, in a report of its own"
    with pytest.raises(CallError):
        frame.report_event("reserved.win")


def test_no_winner_no_frame_but_losses_and_always_are_reported() -> None:
    browser = make_browser()
    auction = Auction(
        seller=SELLER,
        score_ad=lambda aggregation, signals: Score(desirability=0),
        interest_groups=[bidder(BUYERS[0], 5, on_all_events)],
    )
    assert browser.run_ad_auction(auction) is None
    assert contents(browser) == {BUYERS[0]: [(0, 1), (2, 10), (3, 10)]}
    assert make_browser().run_ad_auction(Auction(seller=SELLER, score_ad=score_by_bid, interest_groups=[])) is None


def test_signals_are_filled_in_with_the_outcome() -> None:
    """The explainer's two examples: the gap to the winning bid, and the reason a bid was rejected."""
    browser = make_browser()

    def gap(aggregation: Any) -> None:
        aggregation.contribute_to_histogram_on_event(
            "reserved.loss", bucket=1596, value=Signal(base_value="winning-bid", scale=2, offset=-100 * 2)
        )
        aggregation.contribute_to_histogram_on_event(
            "reserved.loss", bucket=Signal(base_value="bid-reject-reason", offset=500), value=1
        )
        aggregation.contribute_to_histogram_on_event(
            "reserved.always",
            bucket=Signal(base_value="highest-scoring-other-bid", offset=10_000),
            value=Signal(base_value="script-run-time", scale=10),
        )
        aggregation.contribute_to_histogram_on_event(
            "reserved.always", bucket=20_000, value=Signal(base_value="signals-fetch-time")
        )

    def score_ad(aggregation: Any, signals: Any) -> Score:
        if signals.bid == 100:
            return Score(desirability=-1, reject_reason=RejectReason.BID_BELOW_AUCTION_FLOOR)
        return Score(desirability=signals.bid)

    groups = [
        bidder(BUYERS[0], 100, gap, generate_bid_ms=1.25, signals_fetch_ms=30.9),
        bidder(BUYERS[1], 200),
        bidder(BUYERS[2], 150),
    ]
    browser.run_ad_auction(Auction(seller=SELLER, score_ad=score_ad, interest_groups=groups))
    assert contents(browser) == {BUYERS[0]: [(1596, 200), (502, 1), (10_150, 12), (20_000, 30)]}


def test_per_participant_signals() -> None:
    browser = make_browser()

    def measure(aggregation: Any) -> None:
        for number, base in enumerate(BaseValue):
            aggregation.contribute_to_histogram_on_event(
                "reserved.once", bucket=number, value=Signal(base_value=base.value, offset=1)
            )

    def score_ad(aggregation: Any, signals: Any) -> float:
        measure(aggregation)
        return 1.0

    numbers = list(BaseValue)
    auction = Auction(
        seller=SELLER,
        score_ad=score_ad,
        interest_groups=[bidder(BUYERS[0], 1, measure, code_fetch_ms=ms) for ms in (10, 20, 60)],
        code_fetch_ms=7,
        measured={
            BUYERS[0]: {BaseValue.REGULAR_IGS_COUNT: 12, BaseValue.CUMULATIVE_BUYER_TIME: 99},
            SELLER: {BaseValue.REGULAR_IGS_COUNT: 12},
        },
    )
    browser.run_ad_auction(auction)
    made = contents(browser)
    buyer, seller = dict(made[BUYERS[0]]), dict(made[SELLER])
    assert len(made[BUYERS[0]]) == len(numbers), "one of the three invocations only"
    assert buyer[numbers.index(BaseValue.PARTICIPATING_IG_COUNT)] == 4
    assert buyer[numbers.index(BaseValue.AVERAGE_CODE_FETCH_TIME)] == 31
    assert buyer[numbers.index(BaseValue.REGULAR_IGS_COUNT)] == 13
    assert buyer[numbers.index(BaseValue.CUMULATIVE_BUYER_TIME)] == 100
    assert seller[numbers.index(BaseValue.AVERAGE_CODE_FETCH_TIME)] == 8
    assert seller[numbers.index(BaseValue.REGULAR_IGS_COUNT)] == 1, "a seller has none"
    assert seller[numbers.index(BaseValue.PARTICIPATING_IG_COUNT)] == 1


@pytest.mark.parametrize(
    ("signal", "base", "largest", "specification", "in_chromium"),
    [
        (Signal(base_value="winning-bid"), 2.9, MAX_VALUE, 2, 2),
        (Signal(base_value="winning-bid", scale=-1.5, offset=3), 1.0, MAX_VALUE, 2, 1),
        (Signal(base_value="winning-bid", scale=0.5, offset=-1), 3.0, MAX_VALUE, 0, 0),
        (Signal(base_value="winning-bid", scale=-1), 5.0, MAX_VALUE, 0, 0),
        (Signal(base_value="winning-bid", offset=2**31), 5.0, MAX_VALUE, MAX_VALUE, MAX_VALUE),
        (Signal(base_value="winning-bid", scale=1e308), 50.0, MAX_VALUE, MAX_VALUE, MAX_VALUE),
        (Signal(base_value="winning-bid", scale=-1e308), 50.0, MAX_BUCKET, 0, 0),
        (Signal(base_value="winning-bid"), math.inf, MAX_VALUE, MAX_VALUE, MAX_VALUE),
        (Signal(base_value="winning-bid"), math.nan, MAX_BUCKET, None, None),
        (Signal(base_value="winning-bid", scale=0), math.inf, MAX_BUCKET, None, None),
        (Signal(base_value="winning-bid", scale=2.0**127, offset=2**127), 1.0, MAX_BUCKET, MAX_BUCKET, MAX_BUCKET),
        (Signal(base_value="winning-bid", offset=2**128 - 2), 1.5, MAX_BUCKET, MAX_BUCKET, MAX_BUCKET),
        (Signal(base_value="winning-bid", offset=-3), 5.5, MAX_BUCKET, 2, 2),
        (Signal(base_value="bid-reject-reason"), 5.0, MAX_BUCKET, 0, None),
    ],
)
def test_scale_offset_and_clamping(
    signal: Signal, base: float, largest: int, specification: int | None, in_chromium: int | None
) -> None:
    measured = Measurements(winning_bid=base)
    assert resolve_signal(signal, measured, largest, Rules.SPECIFICATION) == specification
    assert resolve_signal(signal, measured, largest, Rules.CHROMIUM) == in_chromium


@settings(max_examples=300, deadline=None)
@given(
    base=st.floats(allow_nan=True),
    scale=st.floats(allow_nan=False, allow_infinity=False),
    offset=st.integers(-(2**130), 2**130),
    largest=st.sampled_from([MAX_BUCKET, MAX_VALUE]),
    rules=st.sampled_from(Rules),
)
def test_any_signal_gives_a_number_in_range_or_none(
    base: float, scale: float, offset: int, largest: int, rules: Rules
) -> None:
    result = resolve_signal(
        Signal(base_value="winning-bid", scale=scale, offset=offset), Measurements(winning_bid=base), largest, rules
    )
    assert (result is None) == math.isnan(base * scale)
    assert result is None or 0 <= result <= largest


@pytest.mark.parametrize(("key", "approved"), [(9, (1, 700)), (None, (2, 65_536))])
def test_reports_of_one_scope_reach_the_budget_in_order_of_their_debug_details(
    key: int | None, approved: tuple[int, int]
) -> None:
    """As in Chromium 147: first without debug mode, then without a key, then by key; what comes later may not fit."""

    def generate(aggregation: Any) -> None:
        aggregation.enable_debug_mode()
        aggregation.contribute_to_histogram_on_event("reserved.always", bucket=1, value=700)

    def report_win(aggregation: Any, signals: Any) -> None:
        if key is not None:
            aggregation.enable_debug_mode(debug_key=key)
        aggregation.contribute_to_histogram(bucket=2, value=65_536)

    browser = make_browser(chromium(debug_mode_allowed=True))
    group = bidder("https://buyer.example", 1.0, generate, report_win=report_win)
    browser.run_ad_auction(Auction(seller="https://s.example", score_ad=score_by_bid, interest_groups=[group]))
    assert contents(browser) == {"https://buyer.example": [approved]}


def test_a_group_that_made_no_bid_was_not_rejected() -> None:
    """As in Chromium 147, where its reject reason is 0."""
    reason = Signal(base_value=BaseValue.BID_REJECT_REASON, offset=100)
    browser = make_browser(chromium())
    for bid in (None, 0.0, -1.0):
        group = bidder(
            "https://buyer.example",
            bid,
            lambda aggregation: aggregation.contribute_to_histogram_on_event("reserved.loss", bucket=reason, value=1),
        )
        browser.run_ad_auction(Auction(seller="https://s.example", score_ad=score_by_bid, interest_groups=[group]))
    assert contents(browser) == {"https://buyer.example": [(100, 1)] * 3}


def test_signals_without_a_number_are_dropped_and_counted() -> None:
    browser = make_browser(chromium())

    def report_result(aggregation: Any, signals: Any) -> None:
        aggregation.contribute_to_histogram_on_event(
            "reserved.always", bucket=Signal(base_value="bid-reject-reason"), value=1
        )

    groups = [bidder(BUYERS[0], 1)]
    browser.run_ad_auction(
        Auction(seller=SELLER, score_ad=score_by_bid, report_result=report_result, interest_groups=groups)
    )
    assert contents(browser) == {}
    assert browser.journal.count(cause=Cause.NO_SIGNAL) == 1


def test_bad_calls_throw_type_errors() -> None:
    thrown: list[int] = []

    def tries(calls: list[tuple[str, dict[str, Any]]]) -> Any:
        def body(aggregation: Any, *rest: Any) -> float:
            for number, (event, arguments) in enumerate(calls):
                try:
                    aggregation.contribute_to_histogram_on_event(event, **arguments)
                except WorkletTypeError:
                    thrown.append(number)
            return 1.0

        return body

    bad: list[tuple[str, dict[str, Any]]] = [
        ("reserved.win", {"bucket": -1, "value": 1}),
        ("reserved.win", {"bucket": 2**128, "value": 1}),
        ("reserved.win", {"bucket": 1, "value": -1}),
        ("reserved.win", {"bucket": 1.0, "value": 1}),
        ("reserved.win", {"bucket": 1, "value": 1, "filtering_id": 256}),
        ("reserved.win", {"bucket": 1, "value": 1, "named_budget": "none"}),
        (5, {"bucket": 1, "value": 1}),  # type: ignore[list-item]
    ]
    browser = make_browser()
    once = [("reserved.once", {"bucket": 1, "value": 1})]
    auction = Auction(
        seller=SELLER,
        score_ad=tries(once),
        report_result=tries(once),
        interest_groups=[InterestGroup(owner=BUYERS[0], name="g", generate_bid=tries(bad), report_win=tries(once))],
    )
    browser.run_ad_auction(auction)
    assert thrown == [0, 1, 2, 3, 4, 5, 6, 0, 0], "seven bad calls; reserved.once in both reporting functions"
    assert contents(browser) == {SELLER: [(1, 1)]}
    for arguments in ({"base_value": "no"}, {"base_value": "winning-bid", "scale": "1"}):
        with pytest.raises(WorkletTypeError):
            Signal(**arguments)  # type: ignore[arg-type]
    with pytest.raises(WorkletTypeError):
        Signal(base_value="winning-bid", offset=1.5)  # type: ignore[arg-type]


def test_scopes_are_per_origin_and_coordinator_and_debug_details_split_reports() -> None:
    browser = make_browser(specification(debug_mode_allowed=True))

    def with_key(key: int | None) -> Any:
        def body(aggregation: Any) -> None:
            aggregation.contribute_to_histogram(bucket=1, value=1)
            if key is not None:
                aggregation.enable_debug_mode(debug_key=key)

        return body

    groups = [
        bidder(BUYERS[0], 1, with_key(None)),
        bidder(BUYERS[0], 2, with_key(7)),
        bidder(BUYERS[0], 3, with_key(7)),
        bidder(BUYERS[0], 4, with_key(None)),
        bidder(BUYERS[0], 5, with_key(None), aggregation_coordinator_origin=GCP_COORDINATOR),
    ]
    browser.run_ad_auction(Auction(seller=SELLER, score_ad=score_by_bid, interest_groups=groups))
    reports = [d.report for _, _, d in sorted(browser._queue, key=lambda item: item[1]) if not d.debug_copy]
    assert [(r.coordinator == GCP_COORDINATOR, r.debug.key, [c.value for c in r.contributions]) for r in reports] == [
        (False, None, [2]),
        (False, 7, [2]),
        (True, None, [1]),
    ]
    assert {r.max_contributions for r in reports} == {100}


def test_a_sellers_report_is_deterministic_if_it_asks_and_error_events_work() -> None:
    browser = make_browser()

    def score_ad(aggregation: Any, signals: Any) -> float:
        aggregation.contribute_to_histogram_on_event("reserved.report-success", bucket=5, value=5, filtering_id=300)
        return 0.0

    browser.run_ad_auction(
        Auction(seller=SELLER, score_ad=score_ad, interest_groups=[], context_id="verify", filtering_id_max_bytes=2)
    )
    ((_, _, delivery),) = browser._queue
    assert delivery.report.is_null
    assert (delivery.report.context_id, delivery.report.filtering_id_max_bytes) == ("verify", 2)
    delay_ms = delivery.time_ms - 1_700_000_040_000
    assert 600_000 <= delay_ms < 3_600_000, "a seller's report keeps its random delay (report verification explainer)"
    browser = make_browser()
    browser.run_ad_auction(
        Auction(
            seller=SELLER,
            score_ad=score_ad,
            interest_groups=[bidder(BUYERS[0], 1)],
            context_id="verify",
            filtering_id_max_bytes=2,
            max_contributions=1_000,
        )
    )
    assert contents(browser) == {SELLER: [(5, 5)]}
    assert browser._queue[0][2].report.max_contributions == 1_000


def test_ties_fall_at_random() -> None:
    """200 auctions of two equal bids: both win some (false-alarm rate 2·2⁻²⁰⁰)."""
    browser = make_browser(bits=SecureBits())
    winners = set()

    def report_win(aggregation: Any, signals: Any) -> None:
        winners.add(signals.interest_group_owner)

    groups = [bidder(owner, 1, report_win=report_win) for owner in BUYERS[:2]]
    for _ in range(200):
        browser.run_ad_auction(Auction(seller=SELLER, score_ad=score_by_bid, interest_groups=groups))
    assert winners == set(BUYERS[:2])


def test_functions_cannot_reach_back_through_what_they_are_given() -> None:
    browser = make_browser()
    shared: dict[str, list[int]] = {"list": [1]}

    def generate_bid(aggregation: Any, signals: Any) -> Bid:
        signals.auction_signals["list"].append(2)
        signals.user_bidding_signals["list"].append(3)
        return Bid(bid=1, ad=signals.auction_signals)

    def score_ad(aggregation: Any, signals: Any) -> float:
        signals.ad["list"].append(4)
        signals.auction_signals["list"].append(5)
        return 1.0

    group = InterestGroup(owner=BUYERS[0], name="g", generate_bid=generate_bid, user_bidding_signals=shared)
    browser.run_ad_auction(Auction(seller=SELLER, score_ad=score_ad, interest_groups=[group], auction_signals=shared))
    assert shared == {"list": [1]}
    assert browser.journal.console == []


IMPOSSIBLE: list[tuple[str, Any]] = [
    ("bid", 10**400),
    ("bid", float("inf")),
    ("ad", threading.Lock()),
    ("score", 10**400),
    ("score", -(10**400)),
    ("scale", 10**400),
    ("scale", float("nan")),
    ("scale", float("inf")),
    ("offset", 10**5000),
    ("offset", -(10**5000)),
]


@pytest.mark.parametrize("deadline_ms", [None, 60_000])
@pytest.mark.parametrize(
    ("what", "value"), IMPOSSIBLE, ids=[f"{what}-{place}" for place, (what, _) in enumerate(IMPOSSIBLE)]
)
def test_what_functions_return_never_throws_at_the_page(what: str, value: Any, deadline_ms: int | None) -> None:
    """Numbers beyond a double, and what cannot be copied: no bid, no score, or a signal at the end of its range."""

    def generate_bid(aggregation: Any, signals: Any) -> Any:
        if what in ("scale", "offset"):
            signal = Signal(base_value="winning-bid", **{what: value})
            aggregation.contribute_to_histogram_on_event("reserved.always", bucket=signal, value=1)
        return Bid(bid=value if what == "bid" else 5, ad=value if what == "ad" else None)

    config = specification(operation_deadline_ms=deadline_ms)
    clock = ManualClock(1_700_000_040_000)
    browser = Browser(clock=clock, bits=SeededBits("impossible"), config=config)
    group = InterestGroup(owner="https://buyer.example", name="group", generate_bid=generate_bid)
    score = (lambda aggregation, signals: value) if what == "score" else (lambda aggregation, signals: signals.bid)
    frame = browser.run_ad_auction(Auction(seller="https://seller.example", score_ad=score, interest_groups=[group]))
    assert (frame is not None) == (what == "offset")
    clock.advance(3_600_000)
    buckets = [made.bucket for due in browser.take_due() for made in due.report.contributions]
    assert buckets == ([2**128 - 1 if value > 0 else 0] if what == "offset" else [])
