"""Attribution: from stored impressions to a histogram whose budgets are charged (specification, "Attribution Logic").

This is the repaired algorithm: the histogram is made once, and a window within one epoch is charged for that histogram.
The draft of May 2026 drew it twice, so a conversion could report a value and pay nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from w3c_client.allocation import allocate_exactly, allocate_in_doubles, integer_weights
from w3c_client.budgets import COSTS, BudgetStores, Charge
from w3c_client.calls.options import CheckedConversion, ConversionOptions
from w3c_client.config import Arithmetic, Config, Filter, SharedCost
from w3c_client.randomness import Draws
from w3c_client.sites import Caller
from w3c_client.storage.epochs import Epochs
from w3c_client.storage.impressions import Impression, ImpressionStore, Wanted

_rank = attrgetter("rank")
_site = attrgetter("impression_site")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutcome:
    """The result for one epoch with matching impressions. For the simulator only: no page may learn it.

    ``refused_by`` is the first filter with too little budget, in which case ``charge`` was not deducted; or None.
    """

    epoch: int
    matched: int
    impression_sites: frozenset[str]
    charge: Charge
    refused_by: Filter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """A histogram, and the result for each epoch that it used.

    ``outside`` is the part of the value whose index lies beyond the histogram. ``single_epoch`` says that the window
    lay within one epoch.
    """

    histogram: tuple[int, ...]
    outside: int
    single_epoch: bool
    epochs: tuple[EpochOutcome, ...]


class Attributor:
    """Does attribution over the stores of one browser."""

    def __init__(
        self, config: Config, draws: Draws, epochs: Epochs, impressions: ImpressionStore, budgets: BudgetStores
    ) -> None:
        self._config = config
        self._draws = draws
        self._epochs = epochs
        self._impressions = impressions
        self._budgets = budgets
        self._cost = COSTS[config.arithmetic]

    def attribute(self, conversion: CheckedConversion, caller: Caller, now_ms: int, action: int | None) -> Attributed:
        """Charge the epochs of a conversion and return its histogram.

        Each epoch is charged by itself. The impressions of an epoch that cannot pay are not used for this conversion.
        """
        options = conversion.options
        current = self._epochs.index(now_ms)
        first = self._epochs.starting(now_ms)
        wanted = Wanted(
            site=caller.top_level,
            caller=caller.site,
            now_ms=now_ms,
            earliest_ms=now_ms - conversion.lookback_ms,
            match_values=conversion.match_values,
            impression_sites=conversion.impression_sites,
            impression_callers=conversion.impression_callers,
        )
        if self._epochs.index(wanted.earliest_ms) == current:
            return self._within_one_epoch(conversion, wanted, first, current, action)
        whole = self._cost(2 * options.value, options.max_value, options.epsilon)
        charge = Charge(whole, whole, whole)
        kept: list[Impression] = []
        outcomes = []
        for epoch in range(first, current + 1):
            matches = self._impressions.matching(epoch, wanted)
            if matches:
                outcome = self._pay(epoch, matches, charge, wanted.site, action)
                outcomes.append(outcome)
                if outcome.refused_by is None:
                    kept += matches
        histogram, outside = self._fill(kept, options)
        return Attributed(histogram=histogram, outside=outside, single_epoch=False, epochs=tuple(outcomes))

    def _within_one_epoch(
        self, conversion: CheckedConversion, wanted: Wanted, first: int, epoch: int, action: int | None
    ) -> Attributed:
        options = conversion.options
        zeros = (0,) * options.histogram_size
        matches = self._impressions.matching(epoch, wanted)
        if not matches:
            return Attributed(histogram=zeros, outside=0, single_epoch=True, epochs=())
        histogram, outside = self._fill(matches, options)
        if first > epoch:  # history was cleared in this epoch: nothing is paid, nothing is reported
            return Attributed(histogram=zeros, outside=0, single_epoch=True, epochs=())
        norm = options.value - outside
        own = self._cost(norm, options.max_value, options.epsilon)
        shared = quota = self._cost(2 * options.value, options.max_value, options.epsilon)
        if self._config.shared_cost is SharedCost.INDIVIDUAL:
            shared = own
            quota = own if len(conversion.impression_sites) == 1 else quota
        outcome = self._pay(epoch, matches, Charge(own, shared, quota), wanted.site, action)
        if outcome.refused_by is not None:
            histogram, outside = zeros, 0
        return Attributed(histogram=histogram, outside=outside, single_epoch=True, epochs=(outcome,))

    def _pay(
        self, epoch: int, matches: Sequence[Impression], charge: Charge, site: str, action: int | None
    ) -> EpochOutcome:
        sites = frozenset(map(_site, matches))
        refused_by = self._budgets.pay(epoch, site, sites, charge, action)
        return EpochOutcome(
            epoch=epoch, matched=len(matches), impression_sites=sites, charge=charge, refused_by=refused_by
        )

    def _fill(self, matches: Sequence[Impression], options: ConversionOptions) -> tuple[tuple[int, ...], int]:
        """Return the histogram of last-n-touch attribution, and the value that falls outside it.

        An impression whose index lies outside still takes its place and its amount; the amount is not given to others.
        """
        histogram = [0] * options.histogram_size
        if not matches:
            return tuple(histogram), 0
        count = min(len(options.credit), len(matches))
        if count == 1:
            chosen, amounts = [max(matches, key=_rank)], [options.value]
        else:
            chosen = sorted(matches, key=_rank, reverse=True)[:count]
            amounts = self._allocate(tuple(options.credit[:count]), options.value)
        outside = 0
        for impression, amount in zip(chosen, amounts, strict=True):
            if impression.histogram_index < options.histogram_size:
                histogram[impression.histogram_index] += amount
            else:
                outside += amount
        return tuple(histogram), outside

    def _allocate(self, credit: tuple[float, ...], value: int) -> list[int]:
        if self._config.arithmetic is Arithmetic.SPEC:
            amounts = allocate_in_doubles(credit, value, self._draws.fraction)
            if amounts is not None:
                return amounts
        return allocate_exactly(integer_weights(credit), value, self._draws.coin)
