"""Every random choice of a browser, in one object: noise, null reports, delays, ids and order.

``DrawnChoices`` draws them from ``Bits``. For a run with known results, pass the browser another ``RandomChoices``;
``FixedChoices`` makes the choices that interoperability cases assume: no noise, longest delays, nothing shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isinf
from typing import Protocol, TypeVar
from uuid import UUID

from aggservice.mechanisms import Bits, bernoulli, uniform_below
from ara_client.config import Config
from ara_client.event_noise.response import draw_state
from ara_client.event_noise.state_space import StateReport, StateSpace

T = TypeVar("T")


class RandomChoices(Protocol):
    """The random choices of a browser."""

    def response(self, space: StateSpace, epsilon: float) -> Sequence[StateReport] | None:
        """Return the fake reports that a new source sends instead of true ones, or None to send true ones."""

    def null_report(self, lookback_day: int, *, includes_source_time: bool) -> bool:
        """Return whether a trigger makes a null report for a day before it."""

    def aggregatable_delay_ms(self) -> int:
        """Return the delay between a trigger and its aggregatable report."""

    def offline_delay_ms(self) -> int:
        """Return the delay of an overdue report after the browser comes back online."""

    def report_id(self) -> str:
        """Return a fresh version-4 UUID."""

    def shuffle(self, items: list[T]) -> None:
        """Reorder the list randomly."""


class DrawnChoices(RandomChoices):
    """The choices of a browser as shipped, drawn from ``bits``; no probability is rounded to a double."""

    def __init__(self, bits: Bits, config: Config) -> None:
        self._bits = bits
        self._config = config
        self._null_rates = {
            True: Fraction(str(config.null_rate_including_source_time)),
            False: Fraction(str(config.null_rate_excluding_source_time)),
        }

    def response(self, space: StateSpace, epsilon: float) -> Sequence[StateReport] | None:
        """Draw the randomized response (WICG, "obtain a randomized source response")."""
        if isinf(epsilon):
            return None
        rank = draw_state(self._bits, space.count, Fraction(epsilon))
        return None if rank is None else space.at(rank)

    def null_report(self, lookback_day: int, *, includes_source_time: bool) -> bool:
        return bernoulli(self._bits, self._null_rates[includes_source_time])

    def aggregatable_delay_ms(self) -> int:
        span = self._config.aggregatable_delay_span_ms
        return self._config.aggregatable_min_delay_ms + (uniform_below(self._bits, span) if span else 0)

    def offline_delay_ms(self) -> int:
        least, most = self._config.offline_delay_ms
        return least + uniform_below(self._bits, most - least + 1)

    def report_id(self) -> str:
        return str(UUID(bytes=self._bits.read(16), version=4))

    def shuffle(self, items: list[T]) -> None:
        """Draw an order, each equally likely."""
        for last in range(len(items) - 1, 0, -1):
            other = uniform_below(self._bits, last + 1)
            items[last], items[other] = items[other], items[last]


class FixedChoices(RandomChoices):
    """Fixed choices: true reports, no null reports and the longest delays, unless the attributes say otherwise.

    ``fake_reports`` (pairs of trigger data and window) and ``null_days`` apply until they are set again.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._reports = 0
        self.fake_reports: Sequence[tuple[int, int]] | None = None
        self.null_days: frozenset[int] = frozenset()

    def response(self, space: StateSpace, epsilon: float) -> Sequence[StateReport] | None:
        """Return ``fake_reports``, numbered by bucket, or None if it is not set."""
        if self.fake_reports is None:
            return None
        seen: dict[int, int] = {}
        chosen = []
        for data, window in sorted(self.fake_reports):
            bucket = seen[data] = seen.get(data, -1) + 1
            chosen.append(StateReport(data, window, bucket))
        return chosen

    def null_report(self, lookback_day: int, *, includes_source_time: bool) -> bool:
        return lookback_day in self.null_days

    def aggregatable_delay_ms(self) -> int:
        return self._config.aggregatable_min_delay_ms + self._config.aggregatable_delay_span_ms

    def offline_delay_ms(self) -> int:
        return self._config.offline_delay_ms[1]

    def report_id(self) -> str:
        self._reports += 1
        return str(UUID(int=self._reports << 80 | 4 << 76 | 8 << 60))

    def shuffle(self, items: list[T]) -> None:
        """Keep the order."""
