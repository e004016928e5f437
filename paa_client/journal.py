"""Records for the simulator only: lost contributions with their causes, and the console of operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from paa_client.config import Api
from paa_client.reporting.contributions import Cause, Contribution


@dataclass(frozen=True, slots=True, kw_only=True)
class LostContribution:
    """One contribution that entered no report."""

    time_ms: int
    reporting_origin: str
    site: str
    api: Api
    cause: Cause
    contribution: Contribution


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLine:
    """One line in the console of a worklet: an exception, a deadline, an unknown operation."""

    time_ms: int
    reporting_origin: str
    operation: str
    message: str


class Journal:
    """Counts of lost contributions by site, API and cause; with ``keep`` also the contributions themselves.

    Only the simulation reads it, never a page, a worklet or a report.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._counts: Counter[tuple[str, Api, Cause]] = Counter()
        self._values: Counter[tuple[str, Api, Cause]] = Counter()
        self.losses: list[LostContribution] = []
        self.console: list[ConsoleLine] = []

    def record_loss(
        self, time_ms: int, reporting_origin: str, site: str, api: Api, cause: Cause, contribution: Contribution
    ) -> None:
        """Count a contribution that enters no report."""
        key = (site, api, cause)
        self._counts[key] += 1
        self._values[key] += contribution.value
        if self._keep:
            self.losses.append(
                LostContribution(
                    time_ms=time_ms,
                    reporting_origin=reporting_origin,
                    site=site,
                    api=api,
                    cause=cause,
                    contribution=contribution,
                )
            )

    def log(self, time_ms: int, reporting_origin: str, operation: str, message: str) -> None:
        """Write a line to the console."""
        self.console.append(
            ConsoleLine(time_ms=time_ms, reporting_origin=reporting_origin, operation=operation, message=message)
        )

    def count(self, *, site: str | None = None, api: Api | None = None, cause: Cause | None = None) -> int:
        """Return how many contributions were lost; each argument, if given, selects by site, API or cause."""
        return sum(
            number
            for (of_site, of_api, of_cause), number in self._counts.items()
            if site in (None, of_site) and api in (None, of_api) and cause in (None, of_cause)
        )

    def counts(self) -> dict[tuple[str, Api, Cause], tuple[int, int]]:
        """Return, by site, API and cause, how many contributions were lost and the sum of their values."""
        return {key: (number, self._values[key]) for key, number in self._counts.items()}
