"""Events of auctions: which ones a browser knows, what their arguments must be, and in which calls they count."""

from __future__ import annotations

from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Auction, Browser, Config, InterestGroup, Signal, chromium, specification
from paa_client.effects import WorkletTypeError

from .test_paa_auction import BUYERS, SELLER, bidder, contents, make_browser, score_by_bid


def test_of_an_unknown_event_only_the_types_are_checked() -> None:
    """Protected Audience specification: an unknown reserved event returns before anything is found out of range."""
    thrown: list[str] = []

    def generate_bid(aggregation: Any, signals: Any) -> float:
        future = "reserved.future"
        for event, bucket, value in ((future, -1, 1), (future, 1, -1), (future, "x", 1), ("reserved.win", -1, 1)):
            try:
                aggregation.contribute_to_histogram_on_event(event, bucket=bucket, value=value)
            except WorkletTypeError:
                thrown.append(f"{event} {bucket} {value}")
        return 1

    browser = Browser(clock=ManualClock(1_700_000_040_000), bits=SeededBits("unknown"), config=specification())
    group = InterestGroup(owner="https://buyer.example", name="group", generate_bid=generate_bid)
    browser.run_ad_auction(
        Auction(seller="https://seller.example", score_ad=lambda aggregation, signals: 1, interest_groups=[group])
    )
    assert thrown == ["reserved.future x 1", "reserved.win -1 1"]


def on_errors(aggregation: Any) -> None:
    """Ask for the error events of an auction, one with a signal; then for a contribution without conditions."""
    winning = Signal(base_value="winning-bid", scale=10.0)
    aggregation.contribute_to_histogram_on_event("reserved.report-success", bucket=1, value=100)
    aggregation.contribute_to_histogram_on_event("reserved.uncaught-error", bucket=2, value=winning)
    aggregation.contribute_to_histogram_on_event("reserved.always", bucket=3, value=1)
    aggregation.contribute_to_histogram(bucket=4, value=1)


def test_error_events_of_an_auction_are_those_of_chromium() -> None:
    """Each buyer and the seller count them in one call; exceptions trigger an event; others are in order of calls."""

    def fails(aggregation: Any) -> None:
        on_errors(aggregation)
        raise ValueError

    def score_ad(aggregation: Any, signals: Any) -> float:
        on_errors(aggregation)
        return float(signals.bid)

    groups = [bidder(BUYERS[0], 1, on_errors), bidder(BUYERS[0], 2, on_errors), bidder(BUYERS[1], 3, fails)]
    browser = make_browser(chromium(error_reporting=True))
    browser.run_ad_auction(Auction(seller=SELLER, score_ad=score_ad, interest_groups=groups))
    assert contents(browser) == {
        SELLER: [(1, 100), (3, 2), (4, 2)],
        BUYERS[0]: [(1, 100), (3, 2), (4, 2)],
        BUYERS[1]: [(1, 100), (2, 20), (3, 1), (4, 1)],
    }


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (chromium(), set()),
        (chromium(error_reporting=True), {"report-success", "uncaught-error"}),
        (specification(), {"report-success", "uncaught-error", "contribution-timeout-reached"}),
    ],
)
def test_arguments_of_an_event_are_checked_if_the_browser_knows_it(config: Config, known: set[str]) -> None:
    refused = set()

    def tries(aggregation: Any) -> None:
        for name in ("report-success", "uncaught-error", "contribution-timeout-reached", "uncaught-exception"):
            try:
                aggregation.contribute_to_histogram_on_event(f"reserved.{name}", bucket=-1, value=1)
            except WorkletTypeError:
                refused.add(name)

    auction = Auction(seller=SELLER, score_ad=score_by_bid, interest_groups=[bidder(BUYERS[0], 1, tries)])
    make_browser(config).run_ad_auction(auction)
    assert refused == known


def test_once_counts_one_call_per_buyer_in_chromium() -> None:
    def once(aggregation: Any) -> None:
        aggregation.contribute_to_histogram_on_event("reserved.once", bucket=1, value=1)

    groups = [bidder(owner, number + 1, once) for number, owner in enumerate([BUYERS[0], BUYERS[0], BUYERS[1]])]
    auction = Auction(seller=SELLER, score_ad=score_by_bid, interest_groups=groups)
    for config, reports in ((chromium(), 2), (specification(), 1)):
        browser = make_browser(config)
        browser.run_ad_auction(auction)
        made = contents(browser)
        assert len(made) == reports and all(rows == [(1, 1)] for rows in made.values())
