"""Data that a user may see: stored impressions, budgets and past reports (specification, "Visibility").

A page sees none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from w3c_client.config import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEntry:
    """The remaining amount of one budget in one epoch; ``site`` is empty for the global budget."""

    filter: Filter
    epoch: int
    site: str
    left_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReport:
    """A report that this browser made: its time, the site and caller, and the parameters that the page gave."""

    time_ms: int
    conversion_site: str
    caller: str
    aggregation_service: str
    histogram_size: int
    value: int
    max_value: int
    epsilon_micro: int
