"""The same Protected Audience auction in a real Chromium and in ``paa_client``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paa_client import Auction, Bid, InterestGroup, Score

from .private_aggregation import PERFORM, SCRIPT_HEADERS, Call, RealWorklets, SimulatedWorklets
from .site import Answer, Site

Calls = tuple[Call, ...]

BIDDING = (
    PERFORM
    + """
function generateBid(group) {
  perform(group.userBiddingSignals.calls);
  return {bid: group.userBiddingSignals.bid, render: group.ads[0].renderURL};
}
function reportWin(auctionSignals, perBuyerSignals, signalsForWinner, browserSignals) {
  perform(auctionSignals[browserSignals.interestGroupOwner]);
}
"""
)
DECISION = (
    PERFORM
    + """
function scoreAd(ad, bid, config) { perform(config.sellerSignals.score); return {desirability: bid}; }
function reportResult(config) { perform(config.sellerSignals.result); }
"""
)
_JOIN = """((group) => navigator.joinAdInterestGroup(group, 86400).then(() => true))"""
_RUN = """(config => navigator.runAdAuction(config).then(chosen => {
  if (chosen === null) return false;
  const frame = document.createElement("fencedframe");
  frame.config = chosen; document.body.append(frame);
  return true;
}))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buyer:
    """A buyer with one interest group: what it bids, and what its functions call."""

    host: str
    bid: float
    generate_bid: Calls = ()
    report_win: Calls = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuctionRun:
    """One auction; the highest bid wins."""

    seller: str
    buyers: tuple[Buyer, ...]
    score_ad: Calls = ()
    report_result: Calls = ()


def run_real(real: RealWorklets, run: AuctionRun) -> bool:
    """Join the groups, run the auction and show the winning ad; return whether there was one."""
    site = real.site
    for buyer in run.buyers:
        _script(site, buyer.host, "bid.js", BIDDING)
        site.answers[f"{buyer.host}/ad"] = Answer(headers=(("Supports-Loading-Mode", "fenced-frame"),))
        group = {
            "owner": f"https://{buyer.host}",
            "name": "group",
            "biddingLogicURL": f"https://{buyer.host}/bid.js",
            "userBiddingSignals": {"calls": _json(buyer.generate_bid), "bid": buyer.bid},
            "ads": [{"renderURL": f"https://{buyer.host}/ad"}],
        }
        page = real.open_page(buyer.host)
        page.evaluate(f"{_JOIN}({json.dumps(group)})")
        page.close()
    _script(site, run.seller, "decide.js", DECISION)
    owners = [f"https://{buyer.host}" for buyer in run.buyers]
    config: dict[str, Any] = {
        "seller": f"https://{run.seller}",
        "decisionLogicURL": f"https://{run.seller}/decide.js",
        "interestGroupBuyers": owners,
        "resolveToConfig": True,
        # The longest that Chromium allows: the default of 50 ms ends a bid on a busy machine.
        "perBuyerTimeouts": {"*": 500},
        "sellerTimeout": 500,
        "reportingTimeout": 5000,
        "sellerSignals": {"score": _json(run.score_ad), "result": _json(run.report_result)},
        "auctionSignals": {owner: _json(buyer.report_win) for owner, buyer in zip(owners, run.buyers, strict=True)},
    }
    page = real.open_page(run.seller)
    real.auctions.append(page)
    page.call("Log.enable")
    return bool(page.evaluate(f"{_RUN}({json.dumps(config)})"))


def run_simulated(simulated: SimulatedWorklets, run: AuctionRun) -> bool:
    """Run the same auction in ``paa_client``."""
    simulated.tick()

    def group(buyer: Buyer) -> InterestGroup:
        def generate_bid(aggregation: Any, signals: Any) -> Bid:
            _perform(buyer.generate_bid, aggregation)
            return Bid(bid=buyer.bid)

        return InterestGroup(
            owner=f"https://{buyer.host}",
            name="group",
            generate_bid=generate_bid,
            report_win=lambda aggregation, signals: _perform(buyer.report_win, aggregation),
        )

    def score_ad(aggregation: Any, signals: Any) -> Score:
        _perform(run.score_ad, aggregation)
        return Score(desirability=signals.bid)

    auction = Auction(
        seller=f"https://{run.seller}",
        score_ad=score_ad,
        interest_groups=[group(buyer) for buyer in run.buyers],
        report_result=lambda aggregation, signals: _perform(run.report_result, aggregation),
    )
    return simulated.browser.run_ad_auction(auction) is not None


def _perform(calls: Calls, aggregation: Any) -> None:
    for call in calls:
        call.perform(aggregation)


def _json(calls: Calls) -> list[dict[str, Any]]:
    return [call.to_json() for call in calls]


def _script(site: Site, host: str, name: str, text: str) -> None:
    site.answers[f"{host}/{name}"] = Answer(body=text.encode(), content_type="text/javascript", headers=SCRIPT_HEADERS)
