"""Keys as W3C Attribution sees them: fields of impressions make a histogram index, the rest makes tasks.

An index is known when an ad is shown. What only the conversion knows (its own fields, the measure, the site) is known
to the page that calls, which keeps one batch per combination: a *task*, with a job of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyField, KeyLayout, Words

Ints = NDArray[np.int64]


def mixed_radix(fields: tuple[KeyField, ...], codes: Mapping[str, Ints], size: int) -> Ints:
    """Return the codes of each row as one number, the last field counting fastest."""
    number = np.zeros(size, dtype=np.int64)
    for field in fields:
        number = number * len(field.values) + codes[field.name]
    return number


def codes_of(fields: tuple[KeyField, ...], numbers: Ints) -> dict[str, Ints]:
    """Return the codes from which ``mixed_radix`` made these numbers."""
    codes = {}
    for field in reversed(fields):
        codes[field.name] = numbers % len(field.values)
        numbers = numbers // len(field.values)
    return codes


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLayout:
    """How keys divide into an index and a task. ``size`` is the number of indexes."""

    keys: KeyLayout
    of_impression: tuple[KeyField, ...]
    of_conversion: tuple[KeyField, ...]
    measures: int
    destinations: int

    @classmethod
    def of(cls, campaign: Campaign) -> IndexLayout:
        """Return the layout of a campaign's keys."""
        fields = campaign.keys.fields
        return cls(
            keys=campaign.keys,
            of_impression=tuple(field for field in fields if field.of_source),
            of_conversion=tuple(field for field in fields if field.origin == "conversion"),
            measures=len(campaign.measures),
            destinations=len(campaign.population.destinations),
        )

    @property
    def size(self) -> int:
        """The number of combinations of what impressions know."""
        return prod(len(field.values) for field in self.of_impression)

    @property
    def kinds(self) -> int:
        """The number of combinations of what conversions know."""
        return prod(len(field.values) for field in self.of_conversion)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.measures * self.destinations * self.kinds

    def task(self, measure: Ints, destination: Ints, codes: Mapping[str, Ints]) -> Ints:
        """Return the task of each call."""
        kind = mixed_radix(self.of_conversion, codes, measure.size)
        return (measure * self.destinations + destination) * self.kinds + kind

    def parts(self, task: int) -> tuple[int, int]:
        """Return the measure and the destination of a task."""
        return task // (self.kinds * self.destinations), task // self.kinds % self.destinations

    def indexes(self, high: Words, low: Words) -> Ints:
        """Return the index of each key."""
        codes = {field.name: field.decode(high, low) for field in self.of_impression}
        return mixed_radix(self.of_impression, codes, high.size)

    def key(self, task: Ints, index: Ints) -> tuple[Words, Words]:
        """Return the keys of indexes in tasks."""
        codes = codes_of(self.of_impression, index)
        codes.update(codes_of(self.of_conversion, task % self.kinds))
        for field in self.keys.fields:
            if field.origin == "measure":
                codes[field.name] = task // (self.kinds * self.destinations)
        return self.keys.keys(codes, index.size)
