"""Reach: how many devices saw something at least once, over all sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire.device import DeviceConfigError
from paa_client.recipes.estimates import DEFAULT_LEVEL, CappedRecipe, RecipeEstimate, Summary, estimate
from paa_client.storage import WorkletStorage
from paa_client.worklet import PrivateAggregation

SLICE_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach(CappedRecipe):
    """Direct reach: a device contributes to a slice (campaign, campaign × region, …) at its first view only.

    ``cap`` is how many slices of one level a device may report in ten minutes, ``levels`` how many levels of slices
    are measured at once; each contribution is budget / (cap · levels) (reach white paper, "Multiple Reach
    Measurements with Capping").
    """

    levels: int = 1
    prefix: str = "reach"

    @property
    def parts(self) -> int:
        return self.cap * self.levels

    def bucket(self, slice_id: int, level: int = 0) -> int:
        """Return the bucket of a slice: its id in the low 64 bits, its level above."""
        if not (0 <= slice_id < 1 << SLICE_BITS and 0 <= level < self.levels):
            raise DeviceConfigError(
                f"slice_id must be an id of {SLICE_BITS} bits, got {slice_id}; "
                f"level must be from 0 to {self.levels - 1}, got {level}"
            )
        return level << SLICE_BITS | slice_id

    def domain(self, slices: Iterable[int], level: int = 0) -> list[int]:
        """Return the buckets to ask the service for."""
        return [self.bucket(slice_id, level) for slice_id in slices]

    def operation(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Any) -> None:
        """Run on each view. ``data`` is a slice id, or a sequence with one id per level."""
        slices: Sequence[int] = [data] if isinstance(data, int) else data
        for level, slice_id in enumerate(slices):
            bucket = self.bucket(slice_id, level)
            key = f"{self.prefix}-{bucket}"
            if storage.get(key) is None:
                aggregation.contribute_to_histogram(bucket=bucket, value=self.value, filtering_id=self.filtering_id)
                storage.set(key, "1")

    def estimate(
        self,
        summary: Summary,
        slice_id: int,
        noise: DiscreteLaplace,
        *,
        level: int = 0,
        confidence: Fraction = DEFAULT_LEVEL,
    ) -> RecipeEstimate:
        """Estimate the reach of a slice."""
        return estimate(summary[self.bucket(slice_id, level)], self.value, noise, level=confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class CumulativeReach(CappedRecipe):
    """Reach up to each of ``horizon`` steps, by point contributions: a device counts in the step of its first view.

    The sum up to step t has the noise of t + 1 buckets. With one bucket per sum instead, a device would divide its
    budget among up to ``horizon`` buckets (reach white paper, "Point Contribution").
    """

    horizon: int
    prefix: str = "cumulative-reach"

    def __post_init__(self) -> None:
        CappedRecipe.__post_init__(self)
        if not self.horizon > 0:
            raise DeviceConfigError(f"horizon must be at least 1, got {self.horizon}")

    def bucket(self, slice_id: int, step: int) -> int:
        """Return the bucket of a slice and step."""
        if not (0 <= slice_id < 1 << SLICE_BITS and 0 <= step < self.horizon):
            raise DeviceConfigError(
                f"slice_id must be an id of {SLICE_BITS} bits, got {slice_id}; "
                f"step must be from 0 to {self.horizon - 1}, got {step}"
            )
        return slice_id * self.horizon + step

    def domain(self, slices: Iterable[int]) -> list[int]:
        """Return the buckets to ask the service for."""
        return [self.bucket(slice_id, step) for slice_id in slices for step in range(self.horizon)]

    def operation(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Mapping[str, int]) -> None:
        """Run on each view with ``data`` = {"slice": id, "step": number of the current time step}."""
        key = f"{self.prefix}-{data['slice']}"
        if storage.get(key) is None:
            bucket = self.bucket(data["slice"], data["step"])
            aggregation.contribute_to_histogram(bucket=bucket, value=self.value, filtering_id=self.filtering_id)
            storage.set(key, "1")

    def estimate(
        self, summary: Summary, slice_id: int, noise: DiscreteLaplace, *, confidence: Fraction = DEFAULT_LEVEL
    ) -> list[RecipeEstimate]:
        """Estimate the reach of a slice up to each step."""
        total = 0
        estimates = []
        for step in range(self.horizon):
            total += summary[self.bucket(slice_id, step)]
            estimates.append(estimate(total, self.value, noise, level=confidence, terms=step + 1))
        return estimates
