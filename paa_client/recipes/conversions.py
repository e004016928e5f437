"""Cross-site conversions: counts and amounts of purchases, by the campaign that the buyer saw last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire.device import DeviceConfigError
from paa_client.config import DAY_MS
from paa_client.recipes.estimates import (
    CONTRIBUTION_BUDGET,
    DEFAULT_LEVEL,
    RecipeEstimate,
    Summary,
    budget_share,
    estimate,
)
from paa_client.storage import WorkletStorage
from paa_client.worklet import PrivateAggregation

_CAMPAIGN_BITS = 64
_COUNT, _AMOUNT = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossSiteConversion:
    """Counts and amounts of conversions, by the campaign seen last (last touch) within a lookback window.

    A conversion makes two contributions: a count under ``count_filtering_id`` and an amount under
    ``amount_filtering_id``, so that the two can be aggregated at different times. Amounts are clipped at
    ``max_amount``. ``cap`` is how many conversions a device may have in ten minutes; ``count_share`` is the part of
    the budget that goes to counts. An order is counted once.
    """

    max_amount: int
    cap: int = 1
    count_share: Fraction = Fraction(1, 2)
    lookback_ms: int = 7 * DAY_MS
    budget: int = CONTRIBUTION_BUDGET
    count_filtering_id: int = 1
    amount_filtering_id: int = 2
    prefix: str = "conversion"

    def __post_init__(self) -> None:
        if not 0 < self.count_share < 1:
            raise DeviceConfigError(f"count_share must lie strictly between 0 and 1, got {self.count_share}")
        if not (self.max_amount > 0 and self.lookback_ms > 0):
            raise DeviceConfigError(f"must be positive: max_amount {self.max_amount}, lookback_ms {self.lookback_ms}")
        budget_share(int(self.budget * self.count_share), self.cap)
        if self.largest_amount < 1:
            raise DeviceConfigError("less than 1 is left for the amount of a conversion: lower cap or count_share")

    @property
    def count_value(self) -> int:
        """The value that a conversion contributes to the count."""
        return budget_share(int(self.budget * self.count_share), self.cap)

    @property
    def largest_amount(self) -> int:
        """The value that a conversion of ``max_amount`` or more contributes to the amount."""
        return (self.budget - self.cap * self.count_value) // self.cap

    @property
    def amount_scale(self) -> Fraction:
        """The value contributed per unit of amount."""
        return Fraction(self.largest_amount, self.max_amount)

    def bucket(self, campaign: int, *, amount: bool = False) -> int:
        """Return the bucket of a campaign's count or, with ``amount``, of its amount."""
        if not 0 <= campaign < 1 << _CAMPAIGN_BITS:
            raise DeviceConfigError(f"campaign must be an id of {_CAMPAIGN_BITS} bits, got {campaign}")
        return (_AMOUNT if amount else _COUNT) << _CAMPAIGN_BITS | campaign

    def domain(self, campaigns: Iterable[int], *, amount: bool = False) -> list[int]:
        """Return the buckets of counts or, with ``amount``, of amounts; query each kind with its filtering ID."""
        return [self.bucket(campaign, amount=amount) for campaign in campaigns]

    def view(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Mapping[str, int]) -> None:
        """Store the campaign as the one seen last; ``data`` = {"campaign": id, "time_ms": now}."""
        storage.set(f"{self.prefix}-touch", json.dumps([data["campaign"], data["time_ms"]]))

    def convert(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Mapping[str, int]) -> None:
        """Contribute a conversion; ``data`` = {"order": id, "amount": price paid, "time_ms": now}."""
        touch = storage.get(f"{self.prefix}-touch")
        order = f"{self.prefix}-order-{data['order']}"
        if touch is None or storage.get(order) is not None:
            return
        campaign, seen_ms = json.loads(touch)
        if data["time_ms"] - seen_ms >= self.lookback_ms:
            return
        aggregation.contribute_to_histogram(
            bucket=self.bucket(campaign), value=self.count_value, filtering_id=self.count_filtering_id
        )
        amount = round(min(max(data["amount"], 0), self.max_amount) * self.amount_scale)
        aggregation.contribute_to_histogram(
            bucket=self.bucket(campaign, amount=True), value=amount, filtering_id=self.amount_filtering_id
        )
        storage.set(order, "1")

    def estimate_count(
        self, counts: Summary, campaign: int, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> RecipeEstimate:
        """Estimate how many conversions the campaign had."""
        return estimate(counts[self.bucket(campaign)], self.count_value, noise, level=confidence)

    def estimate_amount(
        self, amounts: Summary, campaign: int, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> RecipeEstimate:
        """Estimate the sum of the campaign's amounts, each clipped and rounded to a unit of the scale."""
        noisy = amounts[self.bucket(campaign, amount=True)]
        return estimate(noisy, float(self.amount_scale), noise, level=confidence)
