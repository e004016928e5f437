"""Frequency: how many devices saw something K times or more, and how many exactly f times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire.device import DeviceConfigError
from paa_client.recipes.estimates import DEFAULT_LEVEL, CappedRecipe, RecipeEstimate, Summary, estimate
from paa_client.storage import WorkletStorage
from paa_client.worklet import PrivateAggregation

SLICE_BITS = 56
_MARK = "1"


def _check_slice(slice_id: int) -> None:
    if not 0 <= slice_id < 1 << SLICE_BITS:
        raise DeviceConfigError(f"slice_id must be an id of {SLICE_BITS} bits, got {slice_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KPlusFrequency(CappedRecipe):
    """K+ frequency for one or more K: a device contributes to bucket (slice, K) when its count of views reaches K.

    The count is unary in Shared Storage (README, "K+ frequency measurement"). ``cap`` is how many such contributions a
    device may make in ten minutes.
    """

    thresholds: tuple[int, ...]
    prefix: str = "k-plus"

    def __post_init__(self) -> None:
        CappedRecipe.__post_init__(self)
        if not self.thresholds or list(self.thresholds) != sorted(set(self.thresholds)) or not self.thresholds[0] > 0:
            raise DeviceConfigError(f"thresholds must be positive and increasing, got {self.thresholds}")

    def bucket(self, slice_id: int, threshold: int) -> int:
        """Return the bucket of a slice and one of the thresholds."""
        _check_slice(slice_id)
        return slice_id * len(self.thresholds) + self.thresholds.index(threshold)

    def domain(self, slices: Iterable[int]) -> list[int]:
        """Return the buckets to ask the service for."""
        return [self.bucket(slice_id, threshold) for slice_id in slices for threshold in self.thresholds]

    def operation(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: int) -> None:
        """Run on each view; ``data`` is the slice id."""
        key = f"{self.prefix}-{data}"
        storage.append(key, _MARK)
        count = len(storage.get(key) or "")
        if count in self.thresholds:
            bucket = self.bucket(data, count)
            aggregation.contribute_to_histogram(bucket=bucket, value=self.value, filtering_id=self.filtering_id)

    def estimate(
        self, summary: Summary, slice_id: int, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> dict[int, RecipeEstimate]:
        """Estimate, for each K, how many devices saw the slice K times or more."""
        return {
            threshold: estimate(summary[self.bucket(slice_id, threshold)], self.value, noise, level=confidence)
            for threshold in self.thresholds
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyHistogram(CappedRecipe):
    """How many devices saw something exactly f times: views are counted, and reported once at the end.

    Each device contributes to one bucket only, so it can use the whole budget for it; in return, a page must run
    ``report`` when the count is final. The last bin holds ``bins`` views or more.
    """

    bins: int
    prefix: str = "frequency"

    def __post_init__(self) -> None:
        CappedRecipe.__post_init__(self)
        if not self.bins > 0:
            raise DeviceConfigError(f"bins must be at least 1, got {self.bins}")

    def bucket(self, slice_id: int, frequency: int) -> int:
        """Return the bucket of a slice and a frequency; frequencies above ``bins`` share the last."""
        _check_slice(slice_id)
        if not frequency > 0:
            raise DeviceConfigError(f"frequency must be at least 1, got {frequency}")
        return slice_id * self.bins + min(frequency, self.bins) - 1

    def domain(self, slices: Iterable[int]) -> list[int]:
        """Return the buckets to ask the service for."""
        return [self.bucket(slice_id, f) for slice_id in slices for f in range(1, self.bins + 1)]

    def view(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: int) -> None:
        """Count a view of the slice ``data``; nothing is contributed."""
        storage.append(f"{self.prefix}-{data}", _MARK)

    def report(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: int) -> None:
        """Contribute the count of the slice ``data``, if there is one, and delete the count."""
        key = f"{self.prefix}-{data}"
        count = len(storage.get(key) or "")
        if count:
            bucket = self.bucket(data, count)
            aggregation.contribute_to_histogram(bucket=bucket, value=self.value, filtering_id=self.filtering_id)
            storage.delete(key)

    def estimate(
        self, summary: Summary, slice_id: int, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> dict[int, RecipeEstimate]:
        """Estimate, for each frequency, how many devices had it."""
        return {
            f: estimate(summary[self.bucket(slice_id, f)], self.value, noise, level=confidence)
            for f in range(1, self.bins + 1)
        }


def mean_frequency(histogram: Mapping[int, Any]) -> float:
    """Return the mean frequency of an estimated histogram; negative estimates count as they are."""
    total = sum(part.value for part in histogram.values())
    return sum(f * part.value for f, part in histogram.items()) / total if total else 0.0
