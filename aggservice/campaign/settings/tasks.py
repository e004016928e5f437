"""Keys of reports that hold a histogram: fields of impressions make its index, the rest makes tasks.

An index is known when an ad is shown. What only the conversion knows (its own fields, the measure, the site) is known
to the page that calls, which keeps one batch per combination: a *task*, with a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from aggservice.campaign.columns import Ints, Words
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyField, KeyLayout


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
class TaskLayout:
    """How keys divide into an index and a task. ``size`` is the number of indexes.

    Every report of a task has ``slots`` contributions and a histogram of ``histogram_size``; ``epsilon`` is that of
    every call, and ``max_values`` the largest value of each measure's calls.
    """

    keys: KeyLayout
    of_impression: tuple[KeyField, ...]
    of_conversion: tuple[KeyField, ...]
    measures: int
    destinations: int
    histogram_size: int
    slots: int
    epsilon: str
    max_values: tuple[int, ...]

    @classmethod
    def of(
        cls, campaign: Campaign, *, histogram_size: int | None, slots: Callable[[int], int], epsilon: str
    ) -> TaskLayout:
        """Return the layout of a campaign's keys; without a ``histogram_size`` there is room for every index."""
        fields = campaign.keys.fields
        of_impression = tuple(field for field in fields if field.of_source)
        size = histogram_size or prod(len(field.values) for field in of_impression)
        return cls(
            keys=campaign.keys,
            of_impression=of_impression,
            of_conversion=tuple(field for field in fields if field.origin == "conversion"),
            measures=len(campaign.measures),
            destinations=len(campaign.population.destinations),
            histogram_size=size,
            slots=slots(size),
            epsilon=epsilon,
            max_values=tuple(max(1, int(one.most * one.scale + Fraction(1, 2))) for one in campaign.measures),
        )

    def shared_info(self, measure: int) -> dict[str, int]:
        """Return the public numbers of a measure's reports, by their names in ``SharedInfo``."""
        return {
            "histogram_size": self.histogram_size,
            "max_value": self.max_values[measure],
            "epsilon_micro": int(Fraction(self.epsilon) * 1_000_000),
        }

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
