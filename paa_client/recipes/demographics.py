"""Demographics across sites: attributes that one site knows, counted over the visitors of another site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire.device import DeviceConfigError
from paa_client.recipes.estimates import (
    CONTRIBUTION_BUDGET,
    DEFAULT_LEVEL,
    RecipeEstimate,
    Summary,
    budget_share,
    estimate,
)
from paa_client.storage import WindowStorage, WorkletStorage
from paa_client.worklet import PrivateAggregation

UNKNOWN = "unknown"
_PUBLISHER_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Demographics:
    """Histograms of attributes (age range, language, …) over each publisher's visitors; a device counts once.

    The site that knows the attributes writes them when it is visited (README, "Measuring user demographics with
    cross-site information"); devices that never visited it count as unknown.
    """

    attributes: Mapping[str, tuple[str, ...]]
    budget: int = CONTRIBUTION_BUDGET
    filtering_id: int = 0
    key: str = "demo"

    def __post_init__(self) -> None:
        if not self.attributes or any(UNKNOWN in categories for categories in self.attributes.values()):
            raise DeviceConfigError(f"give at least one attribute, and remove the category {UNKNOWN!r}: it is built in")
        budget_share(self.budget, len(self.attributes))

    @property
    def value(self) -> int:
        """The value that a device contributes to each of its categories."""
        return budget_share(self.budget, len(self.attributes))

    def bucket(self, publisher: int, attribute: str, category: str) -> int:
        """Return the bucket: the bits of publisher, attribute and category (0 for unknown), in that order."""
        if not 0 <= publisher < 1 << _PUBLISHER_BITS:
            raise DeviceConfigError(f"publisher must be an id of {_PUBLISHER_BITS} bits, got {publisher}")
        index = list(self.attributes).index(attribute)
        number = 0 if category == UNKNOWN else 1 + self.attributes[attribute].index(category)
        return publisher << 32 | index << 16 | number

    def domain(self, publisher: int) -> list[int]:
        """Return the buckets to query from the service."""
        return [
            self.bucket(publisher, attribute, category)
            for attribute, categories in self.attributes.items()
            for category in (UNKNOWN, *categories)
        ]

    def remember(self, storage: WindowStorage, values: Mapping[str, str]) -> None:
        """Store the attributes that a site knows about its user; a page of that site calls this."""
        storage.set(self.key, json.dumps(dict(values)))

    def operation(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: int) -> None:
        """Run on the publisher's page; ``data`` is the publisher's id. A device contributes once per publisher."""
        flag = f"{self.key}-sent-{data}"
        if storage.get(flag) is not None:
            return
        known = json.loads(storage.get(self.key) or "{}")
        for attribute, categories in self.attributes.items():
            category = known.get(attribute)
            bucket = self.bucket(data, attribute, category if category in categories else UNKNOWN)
            aggregation.contribute_to_histogram(bucket=bucket, value=self.value, filtering_id=self.filtering_id)
        storage.set(flag, "1")

    def estimate(
        self, summary: Summary, publisher: int, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> dict[tuple[str, str], RecipeEstimate]:
        """Estimate how many visitors of the publisher are in each category of each attribute."""
        return {
            (attribute, category): estimate(
                summary[self.bucket(publisher, attribute, category)], self.value, noise, level=confidence
            )
            for attribute, categories in self.attributes.items()
            for category in (UNKNOWN, *categories)
        }
