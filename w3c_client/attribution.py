"""Attribution: from stored impressions to a histogram whose budgets are charged (specification, "Attribution Logic").

This is the repaired algorithm: the histogram is made once, and a window within one epoch is charged for that histogram.
The draft of May 2026 drew it twice, so a conversion could report a value and pay nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from w3c_client.budgets import BudgetStores, EpochPrices
from w3c_client.config import Arithmetic, Config
from w3c_client.credit import NOBODY, allocate_exactly, allocate_in_doubles, credited
from w3c_client.options import CallSites, CheckedConversion, ConversionOptions
from w3c_client.randomness import W3cChoices
from w3c_client.rules import EpochUse
from w3c_client.storage import Epochs, Impression, ImpressionStore, Wanted

_rank = attrgetter("rank")
_site = attrgetter("impression_site")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutcome:
    """The result for one epoch with matching impressions. For the simulator only: no page may learn it.

    ``refused_by`` names the first rule that refused, in which case nothing was deducted; or None.
    """

    epoch: int
    matched: int
    impression_sites: frozenset[str]
    prices: EpochPrices
    refused_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """A histogram, and the result for each epoch that it used.

    ``outside`` is the part of the value that no index of the histogram gets. ``single_epoch`` says that the window
    lay within one epoch.
    """

    histogram: tuple[int, ...]
    outside: int
    single_epoch: bool
    epochs: tuple[EpochOutcome, ...]


class Attributor:
    """Does attribution over the stores of one browser."""

    def __init__(
        self, config: Config, draws: W3cChoices, epochs: Epochs, impressions: ImpressionStore, budgets: BudgetStores
    ) -> None:
        self._config = config
        self._draws = draws
        self._epochs = epochs
        self._impressions = impressions
        self._budgets = budgets

    def attribute(self, conversion: CheckedConversion, sites: CallSites, now_ms: int, action: int | None) -> Attributed:
        """Charge the epochs of a conversion and return its histogram.

        Each epoch is charged by itself. The impressions of an epoch that cannot pay are not used for this conversion.
        """
        options = conversion.options
        current = self._epochs.index(now_ms)
        first = self._epochs.starting(now_ms)
        wanted = Wanted(
            site=sites.top_level,
            caller=sites.caller,
            now_ms=now_ms,
            earliest_ms=now_ms - conversion.lookback_ms,
            match_values=conversion.match_values,
            impression_sites=conversion.impression_sites,
            impression_callers=conversion.impression_callers,
        )
        use = EpochUse(epoch=current, site=wanted.site, caller=wanted.caller, action=action)
        if self._epochs.index(wanted.earliest_ms) == current:
            return self._within_one_epoch(conversion, wanted, first, use)
        prices = self._prices(conversion)
        kept: list[Impression] = []
        outcomes = []
        for epoch in range(first, current + 1):
            matches = self._impressions.matching(epoch, wanted)
            if matches:
                outcome = self._pay(use, epoch, matches, prices)
                outcomes.append(outcome)
                if outcome.refused_by is None:
                    kept += matches
        histogram, outside = self._fill(kept, options)
        return Attributed(histogram=histogram, outside=outside, single_epoch=False, epochs=tuple(outcomes))

    def _within_one_epoch(self, conversion: CheckedConversion, wanted: Wanted, first: int, use: EpochUse) -> Attributed:
        options = conversion.options
        zeros = (0,) * options.histogram_size
        matches = self._impressions.matching(use.epoch, wanted)
        if not matches:
            return Attributed(histogram=zeros, outside=0, single_epoch=True, epochs=())
        histogram, outside = self._fill(matches, options)
        if first > use.epoch:  # history was cleared in this epoch: nothing is paid, nothing is reported
            return Attributed(histogram=zeros, outside=0, single_epoch=True, epochs=())
        outcome = self._pay(use, use.epoch, matches, self._prices(conversion, norm=options.value - outside))
        if outcome.refused_by is not None:
            histogram, outside = zeros, 0
        return Attributed(histogram=histogram, outside=outside, single_epoch=True, epochs=(outcome,))

    def _prices(self, conversion: CheckedConversion, norm: int | None = None) -> EpochPrices:
        options = conversion.options
        return EpochPrices(
            config=self._config,
            value=options.value,
            max_value=options.max_value,
            epsilon=options.epsilon,
            named_sites=len(conversion.impression_sites),
            norm=norm,
        )

    def _pay(self, use: EpochUse, epoch: int, matches: Sequence[Impression], prices: EpochPrices) -> EpochOutcome:
        sites = frozenset(map(_site, matches))
        paying = EpochUse(epoch=epoch, site=use.site, caller=use.caller, action=use.action, impression_sites=sites)
        refused_by = self._budgets.pay(paying, prices.of)
        return EpochOutcome(
            epoch=epoch, matched=len(matches), impression_sites=sites, prices=prices, refused_by=refused_by
        )

    def _fill(self, matches: Sequence[Impression], options: ConversionOptions) -> tuple[tuple[int, ...], int]:
        """Return the histogram of the attribution rule, and the value that falls outside it.

        An impression whose index lies outside still takes its place and its amount; the amount is not given to others.
        """
        histogram = [0] * options.histogram_size
        if not matches:
            return tuple(histogram), 0
        rule, touches, credit = self._config.attribution, len(matches), tuple(options.credit)
        ranks, weights = credited(rule, touches, credit, self._config.max_credits)
        best = [max(matches, key=_rank)] if ranks == (0,) else sorted(matches, key=_rank, reverse=True)
        amounts = None
        if len(ranks) == 1:
            amounts = [options.value]
        elif self._config.arithmetic is Arithmetic.SPEC and (doubles := rule.doubles(touches, credit)) is not None:
            amounts = allocate_in_doubles(doubles, options.value, self._draws.fraction)
        if amounts is None:
            amounts = allocate_exactly(weights, options.value, self._draws.coin)
        outside = options.value
        for rank, amount in zip(ranks, amounts, strict=True):
            if rank != NOBODY and best[rank].histogram_index < options.histogram_size:
                histogram[best[rank].histogram_index] += amount
                outside -= amount
        return tuple(histogram), outside
