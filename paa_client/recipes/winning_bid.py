"""The price of winning bids: how much each buyer owes a seller, and by how much a losing buyer bid too little."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire.device import DeviceConfigError
from paa_client.auction.participants import LOSS, AuctionAggregation, ResultSignals, Signal
from paa_client.recipes.estimates import DEFAULT_LEVEL, CappedRecipe, RecipeEstimate, Summary, estimate

_BUYER_BITS = 64
_COUNT, _PRICE = 0, 1


class _CountAndSum(CappedRecipe):
    """The base of a recipe whose events contribute to a count and to a sum, with half of the budget each."""

    __slots__ = ()

    @property
    def parts(self) -> int:
        return 2 * self.cap


@dataclass(frozen=True, slots=True, kw_only=True)
class WinningBidPrice(_CountAndSum):
    """Wins and prices by buyer, contributed in ``reportResult()`` (README, "Protected Audience reporting").

    ``cap`` is how many auctions of this seller a device may have in ten minutes. Prices are clipped at
    ``max_price``; half of the budget goes to counts. Buyers that are not listed share number 0.
    """

    buyers: Sequence[str]
    max_price: float

    def __post_init__(self) -> None:
        if not self.max_price > 0:
            raise DeviceConfigError(f"max_price must be positive, got {self.max_price}")
        CappedRecipe.__post_init__(self)

    @property
    def price_scale(self) -> float:
        """The value contributed per unit of price."""
        return self.value / self.max_price

    def number(self, buyer: str) -> int:
        """Return the number of a buyer in buckets."""
        return 1 + list(self.buyers).index(buyer) if buyer in self.buyers else 0

    def bucket(self, buyer: str, *, price: bool = False) -> int:
        """Return the bucket of a buyer's wins or, with ``price``, of their prices."""
        return (_PRICE if price else _COUNT) << _BUYER_BITS | self.number(buyer)

    def domain(self, buyers: Iterable[str]) -> list[int]:
        """Return the buckets to ask the service for."""
        return [self.bucket(buyer, price=price) for buyer in buyers for price in (False, True)]

    def report_result(self, aggregation: AuctionAggregation, signals: ResultSignals) -> None:
        """Contribute the win and its price. Pass this method as ``Auction(report_result=...)``."""
        buyer = signals.interest_group_owner
        price = min(max(signals.bid, 0.0), self.max_price)
        aggregation.contribute_to_histogram(bucket=self.bucket(buyer), value=self.value, filtering_id=self.filtering_id)
        aggregation.contribute_to_histogram(
            bucket=self.bucket(buyer, price=True), value=round(price * self.price_scale), filtering_id=self.filtering_id
        )

    def estimate(
        self, summary: Summary, buyer: str, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> tuple[RecipeEstimate, RecipeEstimate]:
        """Estimate how many auctions the buyer won, and the sum of the prices."""
        return (
            estimate(summary[self.bucket(buyer)], self.value, noise, level=confidence),
            estimate(summary[self.bucket(buyer, price=True)], self.price_scale, noise, level=confidence),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGap(_CountAndSum):
    """The sum of the gaps between the winning bid and a buyer's own bid, over the auctions that the buyer lost.

    ``generateBid()`` contributes a signal value, which the browser fills in after the auction: the gap times the scale
    (Extended Private Aggregation Reporting, "Getting the average bid gap for an ad"). The budget limits each gap.
    """

    bucket: int
    count_bucket: int
    max_gap: float

    def __post_init__(self) -> None:
        if not self.max_gap > 0:
            raise DeviceConfigError(f"max_gap must be positive, got {self.max_gap}")
        CappedRecipe.__post_init__(self)

    @property
    def scale(self) -> float:
        """The value contributed per unit of gap."""
        return self.value / self.max_gap

    def contribute(self, aggregation: AuctionAggregation, bid: float) -> None:
        """Call from ``generate_bid`` with the bid that it returns."""
        gap = Signal(base_value="winning-bid", scale=self.scale, offset=-round(bid * self.scale))
        for bucket, value in ((self.bucket, gap), (self.count_bucket, self.value)):
            aggregation.contribute_to_histogram_on_event(
                LOSS, bucket=bucket, value=value, filtering_id=self.filtering_id
            )

    def estimate(
        self, summary: Summary, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> tuple[RecipeEstimate, RecipeEstimate]:
        """Estimate how many auctions were lost, and the sum of the gaps."""
        return (
            estimate(summary[self.count_bucket], self.value, noise, level=confidence),
            estimate(summary[self.bucket], self.scale, noise, level=confidence),
        )
