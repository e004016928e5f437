"""A pattern search over scales, clipping bounds and ε for the least expected error.

Aksu et al., "Summary Reports Optimization in the Privacy Sandbox Attribution Reporting API" (PoPETs 2024), choose
scales and clipping bounds for the same error; they optimise a bound, this one the exact expected error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, permutations

from aggservice.campaign.optimise.choices import (
    Choice,
    decimal_epsilon,
    jobs_per_batch,
    round_scale,
    split_epsilon,
    windows_from_batches,
    with_value,
)
from aggservice.campaign.optimise.errors import Errors, ErrorTarget, expected, total_of
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain

_COARSE_STEPS = (4.0, 2.0)
_FINE_STEPS = (2**0.5, 2**0.25, 2**0.125, 2**0.0625)
_MAX_EVALUATIONS = 600
"""How many choices one search computes at most."""
_COARSE_DRAWS = 3
"""Large steps use only this many of the populations; small steps, and the comparison of results, use all of them."""


class Search:
    """A pattern search by factors that shrink; every expected error is computed once.

    One coordinate at a time would stop where measures share Λ₁: a larger scale of one helps only while the other gives
    way. So besides single coordinates it moves pairs of them and all of them at once.
    """

    def __init__(
        self,
        campaign: Campaign,
        chains: list[RunChain],
        target: ErrorTarget,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.campaign, self.target = campaign, target
        self._chains, self._draws = chains, len(chains)
        self._progress = progress
        self._known: dict[tuple[Choice, int], Errors] = {}
        self._limit = 0
        self._best: Choice

    @property
    def evaluations(self) -> int:
        """How many times a choice was computed."""
        return len(self._known)

    def errors(self, choice: Choice) -> Errors:
        """Return the expected errors of a choice on the half that chooses, per population."""
        at = choice, self._draws
        if at not in self._known:
            made, chains = choice.apply(self.campaign), self._chains[: self._draws]
            self._known[at] = total_of((expected(made, one, self.target) for one in chains), self._draws)
            chains[0].store.forget_unused()
            if self._progress is not None:
                self._progress(self.evaluations)
        return self._known[at]

    def error(self, choice: Choice) -> float:
        """Return the expected error of a choice on the half that chooses."""
        return self.target.error_of(self.errors(choice))

    def run(self, starts: Sequence[Choice]) -> Choice:
        """Search from every start in large steps, then from the best result in small ones, until no step helps."""
        found = list[Choice]()
        self._limit = self.evaluations + _MAX_EVALUATIONS
        self._draws = min(_COARSE_DRAWS, len(self._chains))
        for start in starts:
            self._best = start
            self._descend(_COARSE_STEPS)
            found.append(self._best)
        self._draws = len(self._chains)
        self._best = min((*found, *starts), key=self.error)
        self._descend(_FINE_STEPS)
        return self._best

    def refine(self, start: Choice) -> Choice:
        """Search from one start in small steps."""
        self._limit, self._best = self.evaluations + _MAX_EVALUATIONS, start
        self._descend(_FINE_STEPS)
        return self._best

    def _descend(self, steps: Sequence[float]) -> None:
        for step in steps:
            improved = True
            while improved:
                before = self._best
                improved = any([self._try(one) for one in chain(self._neighbours(step), self._epsilons(step))])
                while improved and self._try(_onward(before, self._best)):
                    pass
            self._ask_batches()
            self._divide_epsilon()

    def _try(self, choice: Choice) -> bool:
        if self.evaluations >= self._limit or not choice.fits(self.campaign):
            return False
        if self.error(choice) < self.error(self._best) * (1 - 1e-9):
            self._best = choice
            return True
        return False

    def _neighbours(self, step: float) -> Iterator[Choice]:
        """Yield choices around the best one; each starts from the best that was found until then."""
        if not self.campaign.client.sums_conversions:
            for cap in (self._best.cap + max(1, round(step) - 1), self._best.cap - max(1, round(step) - 1)):
                yield replace(self._best, cap=cap)
            return
        places = range(len(self.campaign.measures))
        for factor in (step, 1 / step):
            for place in places:
                yield self._scaled({place: factor})
                if self.campaign.measures[place].of != "value":
                    continue
                # The clipping bound alone, and against the scale, so that Λ₁ of one contribution stays as it is.
                most = with_value(self._best.most, place, max(1, round(self._best.most[place] * factor)))
                yield replace(self._best, most=most)
                yield replace(self._scaled({place: self._best.most[place] / most[place]}), most=most)
            if len(places) > 1:
                yield self._scaled(dict.fromkeys(places, factor))
        for taker, giver in permutations(places, 2):
            # What one measure takes of Λ₁, the other gives.
            amounts = [float(scale * most) for scale, most in zip(self._best.scales, self._best.most, strict=True)]
            left = amounts[giver] - amounts[taker] * (step - 1)
            if left > 0:
                yield self._scaled({taker: step, giver: left / amounts[giver]})

    def _epsilons(self, step: float) -> Iterator[Choice]:
        """Yield choices in which one query takes ε of another; for the share of slices no formula divides it."""
        if self.target.within is None:
            return
        queries = self._best.apply(self.campaign).queries
        paid = [place for place, query in enumerate(queries) if query.name in self.errors(self._best).noise]
        for taker, giver in permutations(paid, 2):
            more = Fraction(self._best.epsilons[taker]) * Fraction(step - 1)
            less = more * jobs_per_batch(queries[taker]) / jobs_per_batch(queries[giver])
            left = Fraction(self._best.epsilons[giver]) - less
            if left > 0:
                taken = decimal_epsilon(Fraction(self._best.epsilons[taker]) + more)
                epsilons = with_value(self._best.epsilons, taker, taken)
                yield replace(self._best, epsilons=with_value(epsilons, giver, decimal_epsilon(left)))

    def _scaled(self, factors: Mapping[int, float]) -> Choice:
        """Return the best choice with the scales of some measures multiplied."""
        scales = self._best.scales
        for place, factor in factors.items():
            scales = with_value(scales, place, round_scale(scales[place] * Fraction(factor)))
        return replace(self._best, scales=scales)

    def _ask_batches(self) -> None:
        """Ask each batch once instead of each rolling window, where that gives windows less noise."""
        for place, query in enumerate(self._best.apply(self.campaign).queries):
            made = windows_from_batches(self.campaign, query)
            if made is not None:
                epsilons = with_value(self._best.epsilons, place, made.epsilon)
                job_per = with_value(self._best.job_per, place, made.job_per)
                self._try(replace(self._best, epsilons=epsilons, job_per=job_per))

    def _divide_epsilon(self) -> None:
        """Divide the total ε over the queries by the noise that each has now."""
        noise = self.errors(self._best).noise
        if len(noise) < 2:
            return
        made = self._best.apply(self.campaign)
        self._try(replace(self._best, epsilons=split_epsilon(made, noise)))


def _onward(before: Choice, now: Choice) -> Choice:
    """Return the choice that is as far from ``now`` as ``now`` is from ``before`` (Hooke and Jeeves' pattern move)."""

    scales = tuple(round_scale(b * b / a) for a, b in zip(before.scales, now.scales, strict=True))
    most = tuple(max(1, round(b * b / a)) for a, b in zip(before.most, now.most, strict=True))
    return replace(now, scales=scales, most=most)
