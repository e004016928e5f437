"""On-device privacy budgets: integers of micro-epsilon (10⁻⁶ ε) per epoch, and what a conversion costs.

The service adds Laplace noise of scale b = 2 · maxValue / ε to every bucket. A window of several epochs costs each
epoch with matches 2 · value / b; a window within one epoch costs its site only ‖h‖₁ / b (specification, "deduct privacy
and safety budgets"). Costs round up, so that the charge covers the privacy loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from aggservice.wire.device import DeviceConfigError
from w3c_client.config import Arithmetic, Config
from w3c_client.rules import EpochUse, OnDeviceRule

MICRO: Final = 1_000_000

Key = tuple[int | str, ...]
"""The epoch, then a value per column of a rule's scope."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrices:
    """What one epoch of a conversion costs each rule, in micro-epsilon.

    ``norm`` is that of the histogram if the window lies within the epoch, else None.
    """

    config: Config
    value: int
    max_value: int
    epsilon: float
    named_sites: int
    norm: int | None = None
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def of(self, rule: OnDeviceRule) -> int:
        """Return what a rule is charged, whether this browser runs it or not; 0 for one that counts sites."""
        found = self._known.get(rule.name)
        if found is None:
            found = self._known[rule.name] = 0 if rule.counts_sites else self._of(rule)
        return found

    def _of(self, rule: OnDeviceRule) -> int:
        cost = rule.cost(self.config, one_epoch=self.norm is not None, named_sites=self.named_sites)
        if cost.norm and self.norm is None:
            raise DeviceConfigError(
                f"the on-device rule {rule.name} charges the norm of a window over several epochs, which is not known "
                "before they pay: charge the value"
            )
        sensitivity = cost.norm * (self.norm or 0) + cost.value * self.value
        return COSTS[self.config.arithmetic](sensitivity, self.max_value, self.epsilon)


class BudgetStores:
    """The remaining amount of every budget. A key that was never charged has the whole capacity of its rule.

    A call charges all rules or none, and each key at most once per rule, however many impressions it has.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._capacity = {rule.name: rule.capacity(config) for rule in config.rules}
        self._left: dict[str, dict[Key, int]] = {rule.name: {} for rule in config.rules if not rule.counts_sites}
        self._sites: dict[str, dict[Key, set[str]]] = {rule.name: {} for rule in config.rules if rule.counts_sites}

    def pay(self, use: EpochUse, cost: Callable[[OnDeviceRule], int]) -> str | None:
        """Charge one epoch of a conversion and return None, or return the name of the first rule that refuses.

        A refusal changes nothing. A cost equal to the remaining amount passes (specification, "check for available
        privacy budget").
        """
        due = []
        for rule in self._config.rules:
            name, capacity = rule.name, self._capacity[rule.name]
            if rule.counts_sites:
                if self._is_full(rule, use):
                    return name
                continue
            amount, left = cost(rule), self._left[name]
            for key in use.keys(rule.scope):
                if amount > left.get(key, capacity):
                    return name
                due.append((left, key, capacity, amount))
        self._count(use)
        for left, key, capacity, amount in due:
            left[key] = left.get(key, capacity) - amount
        return None

    @property
    def counts_sites(self) -> bool:
        """Whether a rule counts the sites that save impressions."""
        return bool(self._sites)

    def admit(self, use: EpochUse) -> bool:
        """Record that a site saves an impression in an epoch; return False if a rule that counts sites forbids it."""
        if any(self._is_full(rule, use) for rule in self._config.rules if rule.counts_sites):
            return False
        self._count(use)
        return True

    def _is_full(self, rule: OnDeviceRule, use: EpochUse) -> bool:
        counted = [self._sites[rule.name].get(key, ()) for key in use.keys(rule.scope)]
        return any(use.site not in sites and len(sites) >= self._capacity[rule.name] for sites in counted)

    def _count(self, use: EpochUse) -> None:
        for rule in self._config.rules:
            if rule.counts_sites:
                for key in use.keys(rule.scope):
                    self._sites[rule.name].setdefault(key, set()).add(use.site)

    def left(self, rule: OnDeviceRule, epoch: int, *scope: int | str) -> int:
        """Return the remaining amount of a budget, given a value per column of the rule's scope."""
        return self._left.get(rule.name, {}).get((epoch, *scope), rule.capacity(self._config))

    def entries(self, rule: OnDeviceRule) -> Iterator[tuple[Key, int]]:
        """Yield the key and the remaining amount of every budget that was charged or set."""
        return iter(self._left.get(rule.name, {}).items())

    def empty_site(self, site: str, epochs: range) -> None:
        """Set the budgets of a conversion site's data to zero in each of ``epochs``."""
        for rule in self._config.rules:
            if rule.emptied:
                self._left[rule.name].update(dict.fromkeys([(epoch, site) for epoch in epochs], 0))

    def forget(self, sites: Collection[str] | None, *, through: int) -> None:
        """Delete the budgets whose scope has one of some sites, never the global budget; with None delete everything.

        Epochs after ``through`` keep theirs: attribution may still use them.
        """
        for left in self._left.values():
            for key in list(left):
                if int(key[0]) <= through and (sites is None or any(value in sites for value in key[1:])):
                    del left[key]
        if sites is None:
            for name, counted in self._sites.items():
                self._sites[name] = {key: found for key, found in counted.items() if int(key[0]) > through}

    def _check(self) -> None:
        for name, left in self._left.items():
            assert all(0 <= amount <= self._capacity[name] for amount in left.values()), name
        for name, counted in self._sites.items():
            assert all(len(sites) <= self._capacity[name] for sites in counted.values()), name
