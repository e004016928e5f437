"""On-device privacy budgets: integers of micro-epsilon (10⁻⁶ ε) per epoch, and what a conversion costs.

The service adds Laplace noise of scale b = 2 · maxValue / ε to every bucket. A window of several epochs costs each
epoch with matches 2 · value / b; a window within one epoch costs its site only ‖h‖₁ / b (specification, "deduct privacy
and safety budgets"). Costs round up, so that the charge covers the privacy loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from w3c_client.config import Arithmetic, Config, Filter

MICRO: Final = 1_000_000
_SHARED: Final = (Filter.GLOBAL, Filter.CONVERSION_QUOTA, Filter.IMPRESSION_QUOTA)

Key = tuple[int, str]
"""An epoch and a site; the global budget has the site ""."""


@lru_cache(maxsize=4096)
def epsilon_micro(epsilon: float) -> int:
    """Return ε as a whole number of micro-epsilon, rounded up: the number in the report to the service.

    A double means the decimal that it prints as, so 0.013 is 13,000 and not 13,001.
    """
    return ceil(Fraction(str(epsilon)) * MICRO)


def exact_cost(sensitivity: int, max_value: int, epsilon: float) -> int:
    """Return ⌈ε · sensitivity / (2 · maxValue)⌉ in micro-epsilon, exactly.

    ε is rounded to whole micro-epsilon first, because the service scales its noise by that number. No cost exceeds the
    rounded-up loss: three conversions at ε = 0.013 fit a budget of 0.039.
    """
    return -(-epsilon_micro(epsilon) * sensitivity // (2 * max_value))


def spec_cost(sensitivity: int, max_value: int, epsilon: float) -> int:
    """Return the cost in IEEE doubles, in the specification's order of operations; rounding can make it 1 too high."""
    scale = (2 * max_value) / epsilon
    return ceil(sensitivity / scale * MICRO)


COSTS: Final[dict[Arithmetic, Callable[[int, int, float], int]]] = {
    Arithmetic.EXACT: exact_cost,
    Arithmetic.SPEC: spec_cost,
}


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of one epoch of a conversion for each kind of filter, in micro-epsilon."""

    site: int
    shared: int
    impression_quota: int


class BudgetStores:
    """The remaining amount of every budget. A key that was never charged has the whole capacity of its filter.

    A call charges all filters or none, and each key at most once per filter, however many impressions it has.
    """

    def __init__(self, config: Config) -> None:
        self._capacity = {
            Filter.SITE: config.site_budget_micro,
            Filter.GLOBAL: config.global_budget_micro,
            Filter.CONVERSION_QUOTA: config.conversion_quota_micro,
            Filter.IMPRESSION_QUOTA: config.impression_quota_micro,
        }
        self._sites_per_action = config.sites_per_action if Filter.ACTION_CAP in config.filters else None
        self._filters = tuple(name for name in self._capacity if name in config.filters)
        self._left: dict[Filter, dict[Key, int]] = {name: {} for name in self._capacity}
        self._sites_of_action: dict[tuple[int, int], set[str]] = {}

    def pay(
        self, epoch: int, site: str, impression_sites: Collection[str], charge: Charge, action: int | None = None
    ) -> Filter | None:
        """Charge one epoch of a conversion on ``site`` and return None, or return the first filter that refuses.

        A refusal changes nothing. A cost equal to the remaining amount passes (specification, "check for available
        privacy budget").
        """
        amounts = [
            (name, cost, keys)
            for name in self._filters
            for cost, keys in (self._bill(name, epoch, site, impression_sites, charge),)
        ]
        for name, cost, keys in amounts:
            left, capacity = self._left[name], self._capacity[name]
            for key in keys:
                if cost > left.get(key, capacity):
                    return name
        if not self.admit(epoch, site, action):
            return Filter.ACTION_CAP
        for name, cost, keys in amounts:
            left, capacity = self._left[name], self._capacity[name]
            for key in keys:
                left[key] = left.get(key, capacity) - cost
        return None

    def admit(self, epoch: int, site: str, action: int | None) -> bool:
        """Record that a site uses an epoch after a user's action; return False if the cap of Big Bird forbids it."""
        if self._sites_per_action is None or action is None:
            return True
        sites = self._sites_of_action.setdefault((action, epoch), set())
        if site not in sites and len(sites) >= self._sites_per_action:
            return False
        sites.add(site)
        return True

    @staticmethod
    def _bill(
        name: Filter, epoch: int, site: str, impression_sites: Collection[str], charge: Charge
    ) -> tuple[int, list[Key]]:
        if name is Filter.SITE:
            return charge.site, [(epoch, site)]
        if name is Filter.GLOBAL:
            return charge.shared, [(epoch, "")]
        if name is Filter.CONVERSION_QUOTA:
            return charge.shared, [(epoch, site)]
        return charge.impression_quota, [(epoch, other) for other in impression_sites]

    def left(self, name: Filter, epoch: int, site: str = "") -> int:
        """Return the remaining amount of a budget; omit ``site`` for the global budget."""
        return self._left[name].get((epoch, site), self._capacity[name])

    def entries(self, name: Filter) -> Iterator[tuple[int, str, int]]:
        """Yield the epoch, site and remaining amount of every budget that was charged or set."""
        return ((epoch, site, left) for (epoch, site), left in self._left[name].items())

    def empty_site(self, site: str, epochs: range) -> None:
        """Set a site's budget to zero in each of ``epochs``."""
        for epoch in epochs:
            self._left[Filter.SITE][epoch, site] = 0

    def forget(self, sites: Collection[str] | None, *, through: int) -> None:
        """Delete the budgets and quotas of some sites, never the global budget; with None delete everything.

        Epochs after ``through`` keep theirs: attribution may still use them.
        """
        for name, left in self._left.items():
            for epoch, site in list(left):
                if epoch <= through and (sites is None or (name is not Filter.GLOBAL and site in sites)):
                    del left[epoch, site]
        if sites is None:
            kept = {key: found for key, found in self._sites_of_action.items() if key[1] > through}
            self._sites_of_action = kept

    def _check(self) -> None:
        for name, left in self._left.items():
            assert all(0 <= amount <= self._capacity[name] for amount in left.values()), name
            assert not left or name in self._filters or name is Filter.SITE, name
