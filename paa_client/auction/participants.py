"""The participants of a Protected Audience auction, and the arguments and results of their functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Unpack

from paa_client.auction.aggregation import AuctionAggregation
from paa_client.auction.signals import BaseValue, RejectReason
from paa_client.config import Api, Config
from paa_client.reporting.contributions import Cause, Contribution
from paa_client.reporting.scopes import BatchingScope, ReportOptions, ReportParameters


class AuctionHost(Protocol):
    """What an auction needs of the browser that runs it; ``Browser`` provides it."""

    config: Config

    def report_parameters(self, api: Api, **options: Unpack[ReportOptions]) -> ReportParameters:
        """Check the options that a page gives for a report; return them as parameters."""

    def process(self, scope: BatchingScope) -> None:
        """Make the reports of a scope that has ended."""

    def record_loss(self, scope: BatchingScope, cause: Cause, contribution: Contribution) -> None:
        """Count a contribution that enters no report."""

    def log(self, origin: str, operation: str, message: str) -> None:
        """Write a line to the console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """The result of ``generate_bid``: an amount, and data about the ad for the seller (plain values)."""

    bid: float
    ad: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of ``score_ad``. A bid can win only with a positive desirability; a reason may explain a rejection."""

    desirability: float
    reject_reason: RejectReason = RejectReason.NOT_AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BidSignals:
    """The information that ``generate_bid`` receives."""

    interest_group: str
    seller: str
    user_bidding_signals: object
    auction_signals: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSignals:
    """The information that ``score_ad`` receives."""

    bid: float
    ad: object
    interest_group_owner: str
    auction_signals: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSignals:
    """The information that ``report_result`` and ``report_win`` receive.

    ``signals_for_winner`` is the result of ``report_result``.
    """

    bid: float
    highest_scoring_other_bid: float
    interest_group_owner: str
    seller: str
    ad: object
    desirability: float | None = None
    interest_group: str | None = None
    signals_for_winner: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterestGroup:
    """A buyer's interest group with its functions. Its run and fetch times are parameters, not measurements."""

    owner: str
    name: str
    generate_bid: Callable[[AuctionAggregation, BidSignals], Bid | float | None]
    report_win: Callable[[AuctionAggregation, ResultSignals], object] | None = None
    user_bidding_signals: object = None
    aggregation_coordinator_origin: str | None = None
    generate_bid_ms: float = 0.0
    report_win_ms: float = 0.0
    signals_fetch_ms: float = 0.0
    code_fetch_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Auction:
    """A single-level auction. The four report parameters are the seller's ``privateAggregationConfig``.

    ``measured`` gives, per participant, base values that the simulator does not compute (quotas, cumulative times).
    """

    seller: str
    score_ad: Callable[[AuctionAggregation, ScoreSignals], Score | float]
    interest_groups: Sequence[InterestGroup]
    report_result: Callable[[AuctionAggregation, ResultSignals], object] | None = None
    auction_signals: object = None
    context_id: str | None = None
    filtering_id_max_bytes: int = 1
    max_contributions: int | None = None
    aggregation_coordinator_origin: str | None = None
    score_ad_ms: float = 0.0
    report_result_ms: float = 0.0
    scoring_signals_fetch_ms: float = 0.0
    code_fetch_ms: float = 0.0
    measured: Mapping[str, Mapping[BaseValue, float]] = field(default_factory=dict)
