"""``optimise``: a joint search over scales, clipping bounds and ε, on some populations, judged on another.

The search runs on people that the judgement never sees: another simulated population, or the other half of a log's
devices. Aksu et al., "Summary Reports Optimization in the Privacy Sandbox Attribution Reporting API" (PoPETs 2024),
choose scales and clipping bounds for the same error; they optimise a bound, this one the exact expected error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.optimise.bound import lower_bound, noise_lab
from aggservice.campaign.optimise.choices import Choice, round_scale, split_epsilon, windows_from_batches, with_value
from aggservice.campaign.optimise.errors import Errors, Taus, default_taus, expected, judge, total_of
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.stages.store import StageStore

_COARSE_STEPS = (4.0, 2.0)
_FINE_STEPS = (2**0.5, 2**0.25, 2**0.125, 2**0.0625)
_MAX_EVALUATIONS = 600
_PEOPLE, _MOST_DRAWS = 60_000, 12
"""Populations are drawn until they have this many people, but at most this often; as many again judge the choice."""
_COARSE_DRAWS = 3
"""Large steps use only this many of the populations; small steps, and the comparison of results, use all of them."""
_LEAST_NUMBERS = 5000
"""A choice is judged by at least this many released numbers, unless ``repetitions`` of every population have fewer.

The mean of their squares then has a standard deviation of 3 %, and the error, which is its root, of 1.6 %.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The errors of one choice: expected on the half to choose on and on the half to judge on, and that of releases."""

    choice: Choice
    chosen_on: float
    expected: float
    judged: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What ``optimise`` proposes, beside the file as it is and Noise Lab's rule. ``bound`` is below the error of every
    choice on the half to judge on; None if there is no bound.
    """

    campaign: Campaign
    proposed: Figures
    as_is: Figures
    noise_lab: Figures
    bound: float | None
    taus: Taus
    repetitions: int
    evaluations: int
    without: Mapping[str, float]
    """The error to expect where it is judged, by knob, if the proposal leaves that knob as it is in the file."""

    @property
    def gap(self) -> float | None:
        """How far the proposal is above the lower bound, relative to the bound."""
        return self.proposed.expected / self.bound - 1 if self.bound else None

    def gain_over(self, other: Figures) -> float:
        """Return the share of another choice's error that the proposal saves, as judged."""
        mine, theirs = (one.judged if one.judged is not None else one.expected for one in (self.proposed, other))
        return 1 - mine / theirs if theirs else 0.0


def halves(campaign: Campaign) -> tuple[Campaign, Campaign]:
    """Return the campaign over two disjoint sets of people: those that choose, and those that judge."""
    log = campaign.population.log
    if log is None:
        return campaign, campaign  # two seeds draw different people
    one, other = (replace(campaign.population, log=replace(log, half=half)) for half in (0, 1))
    return replace(campaign, population=one), replace(campaign, population=other)


def optimise(
    campaign: Campaign,
    *,
    seed: str = "optimise",
    repetitions: int = 200,
    store: StageStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> Proposal:
    """Choose scales, clipping bounds and ε for the least RMSRE_τ at the file's total ε, and judge the choice.

    Every choice is compared at the same τ: the file's, or the noise under Noise Lab's rule.
    """
    store = store or StageStore()
    choosing, judging = halves(campaign)
    # A log has one half to choose on and one to judge; simulated people can be drawn again.
    draws = 1 if campaign.population.log is not None else min(_MOST_DRAWS, max(2, _PEOPLE // campaign.population.size))
    learn, test = (
        [Chain.seeded(f"{seed} {what} {number}", store=store) for number in range(draws)]
        for what in ("choose", "judge")
    )
    if campaign.client.kind == "event-level":
        raise CampaignError("event-level reports carry their noise already: there is no budget to divide")
    if campaign.client.api == "w3c":
        raise CampaignError("W3C browsers divide their own budgets: optimise the campaign with another API")
    rule = noise_lab(choosing, learn[0])
    taus = default_taus(rule.apply(choosing))
    search = _Search(choosing, learn, taus, progress)
    now = Choice.of(campaign)
    search.run([one for one in dict.fromkeys((now, rule)) if one.fits(campaign)])

    def figures(choice: Choice) -> Figures:
        made = choice.apply(judging)
        found = total_of(expected(made, chain, taus) for chain in test)
        needed = math.ceil(_LEAST_NUMBERS / found.slices) if found.slices else 0
        releases = max(-(-repetitions // draws), min(repetitions, needed))
        judged = total_of(judge(made, chain, taus, releases) for chain in test if releases)
        return Figures(
            choice=choice,
            chosen_on=search.error(choice).rmsre,
            expected=found.rmsre,
            judged=judged.rmsre if releases else None,
        )

    best = search.best
    figured = {choice: figures(choice) for choice in dict.fromkeys((best, now, rule))}
    return Proposal(
        campaign=campaign,
        proposed=figured[best],
        as_is=figured[now],
        noise_lab=figured[rule],
        bound=lower_bound(best.apply(judging), test, taus, judging.queries),
        taus=taus,
        repetitions=repetitions,
        evaluations=search.evaluations,
        without={
            name: total_of(expected(choice.apply(judging), chain, taus) for chain in test).rmsre
            for name, choice in best.without_each_knob(campaign).items()
        },
    )


class _Search:
    """A pattern search by factors that shrink; every expected error is computed once.

    One coordinate at a time would stop where measures share Λ₁: a larger scale of one helps only while the other gives
    way. So besides single coordinates it moves pairs of them and all of them at once.
    """

    def __init__(
        self, campaign: Campaign, chains: list[Chain], taus: Taus, progress: Callable[[int], None] | None
    ) -> None:
        self._campaign, self._chains, self._taus = campaign, chains, taus
        self._progress = progress
        self._known: dict[Choice, Errors] = {}
        self._tried: set[Choice] = set()
        self.best: Choice

    @property
    def evaluations(self) -> int:
        """How many choices were computed."""
        return len(self._tried | set(self._known))

    def error(self, choice: Choice) -> Errors:
        """Return the expected error of a choice on the half that chooses."""
        if choice not in self._known:
            made = choice.apply(self._campaign)
            self._known[choice] = total_of(expected(made, chain, self._taus) for chain in self._chains)
            self._chains[0].store.forget_unused()
            if self._progress is not None:
                self._progress(self.evaluations)
        return self._known[choice]

    def run(self, starts: list[Choice]) -> None:
        """Search from every start in large steps, then from the best result in small ones, until no step helps."""
        found, everyone = list[Choice](), self._chains
        self._chains = everyone[:_COARSE_DRAWS]
        for start in starts:
            self.best = start
            self._descend(_COARSE_STEPS)
            found.append(self.best)
        if len(everyone) > len(self._chains):
            self._tried, self._known, self._chains = self._tried | set(self._known), {}, everyone
        self.best = min((*found, *starts), key=lambda one: self.error(one).rmsre)
        self._descend(_FINE_STEPS)

    def _descend(self, steps: Sequence[float]) -> None:
        for step in steps:
            improved = True
            while improved:
                before = self.best
                improved = any([self._try(choice) for choice in self._neighbours(step)])
                while improved and self._try(_onward(before, self.best)):
                    pass
            self._ask_batches()
            self._divide_epsilon()

    def _try(self, choice: Choice) -> bool:
        if self.evaluations >= _MAX_EVALUATIONS or not choice.fits(self._campaign):
            return False
        if self.error(choice).rmsre < self.error(self.best).rmsre * (1 - 1e-9):
            self.best = choice
            return True
        return False

    def _neighbours(self, step: float) -> Iterator[Choice]:
        """Yield choices around the best one; each starts from the best that was found until then."""
        if self._campaign.client.kind in ("reach", "frequency"):
            for cap in (self.best.cap + max(1, round(step) - 1), self.best.cap - max(1, round(step) - 1)):
                yield replace(self.best, cap=cap)
            return
        places = range(len(self._campaign.measures))
        for factor in (step, 1 / step):
            for place in places:
                yield self._scaled({place: factor})
                if self._campaign.measures[place].of != "value":
                    continue
                # The clipping bound alone, and against the scale, so that Λ₁ of one contribution stays as it is.
                most = with_value(self.best.most, place, max(1, round(self.best.most[place] * factor)))
                yield replace(self.best, most=most)
                yield replace(self._scaled({place: self.best.most[place] / most[place]}), most=most)
            if len(places) > 1:
                yield self._scaled(dict.fromkeys(places, factor))
        for taker, giver in permutations(places, 2):
            # What one measure takes of Λ₁, the other gives.
            amounts = [float(scale * most) for scale, most in zip(self.best.scales, self.best.most, strict=True)]
            left = amounts[giver] - amounts[taker] * (step - 1)
            if left > 0:
                yield self._scaled({taker: step, giver: left / amounts[giver]})

    def _scaled(self, factors: Mapping[int, float]) -> Choice:
        """Return the best choice with the scales of some measures multiplied."""
        scales = self.best.scales
        for place, factor in factors.items():
            scales = with_value(scales, place, round_scale(scales[place] * Fraction(factor)))
        return replace(self.best, scales=scales)

    def _ask_batches(self) -> None:
        """Ask each batch once instead of each rolling window, where that gives windows less noise."""
        for place, query in enumerate(self.best.apply(self._campaign).queries):
            made = windows_from_batches(self._campaign, query)
            if made is not None:
                epsilons = with_value(self.best.epsilons, place, made.epsilon)
                job_per = with_value(self.best.job_per, place, made.job_per)
                self._try(replace(self.best, epsilons=epsilons, job_per=job_per))

    def _divide_epsilon(self) -> None:
        """Divide the total ε over the queries by the noise that each has now."""
        noise = self.error(self.best).noise
        if len(noise) < 2:
            return
        made = self.best.apply(self._campaign)
        self._try(replace(self.best, epsilons=split_epsilon(made, noise)))


def _onward(before: Choice, now: Choice) -> Choice:
    """Return the choice that is as far from ``now`` as ``now`` is from ``before`` (Hooke and Jeeves' pattern move)."""

    scales = tuple(round_scale(b * b / a) for a, b in zip(before.scales, now.scales, strict=True))
    most = tuple(max(1, round(b * b / a)) for a, b in zip(before.most, now.most, strict=True))
    return replace(now, scales=scales, most=most)
