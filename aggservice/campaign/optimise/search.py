"""``optimise``: a coordinate search over scales, clipping bounds and ε, on one population, judged on another.

The search runs on people that the judgement never sees: another simulated population, or the other half of a log's
devices. Aksu et al., "Summary Reports Optimization in the Privacy Sandbox Attribution Reporting API" (PoPETs 2024),
choose scales and clipping bounds for the same error; they optimise a bound, this one the exact expected error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.optimise.bound import lower_bound, noise_lab
from aggservice.campaign.optimise.choices import Choice, split_epsilon
from aggservice.campaign.optimise.errors import Errors, Taus, default_taus, expected, judge
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.stages.store import StageStore

_STEPS = (4.0, 2.0, 2**0.5, 2**0.25, 2**0.125)
_MAX_EVALUATIONS = 400
_POPULATIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The error of one choice: to expect on the half that chose and on the half that judges, and as releases show."""

    choice: Choice
    chosen_on: float
    expected: float
    judged: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What ``optimise`` proposes, beside the file as it is and Noise Lab's rule. ``bound`` is below the error of every
    choice on the half that judges; None if there is no bound.
    """

    campaign: Campaign
    proposed: Figures
    as_is: Figures
    noise_lab: Figures
    bound: float | None
    taus: Taus
    repetitions: int
    evaluations: int

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
    # A log has one half to choose on; simulated people can be drawn again, so that the choice fits no single draw.
    draws = 1 if campaign.population.log is not None else _POPULATIONS
    learn = [Chain.seeded(f"{seed} choose {number}", store=store) for number in range(draws)]
    test = Chain.seeded(f"{seed} judge", store=store)
    if campaign.client.kind == "event-level":
        raise CampaignError("event-level reports carry their noise already: there is no budget to divide")
    if campaign.client.api == "w3c":
        raise CampaignError("W3C browsers divide their own budgets: optimise the campaign with another API")
    rule = noise_lab(choosing, learn[0])
    taus = default_taus(rule.apply(choosing))
    search = _Search(choosing, learn, taus, progress)
    now = Choice.of(campaign)
    search.begin([one for one in (now, rule) if one.fits(campaign)])
    search.run()

    def figures(choice: Choice) -> Figures:
        made = choice.apply(judging)
        judged = judge(made, test, taus, repetitions).rmsre if repetitions else None
        return Figures(
            choice=choice,
            chosen_on=search.error(choice).rmsre,
            expected=expected(made, test, taus).rmsre,
            judged=judged,
        )

    best = search.best
    found = {choice: figures(choice) for choice in dict.fromkeys((best, now, rule))}
    return Proposal(
        campaign=campaign,
        proposed=found[best],
        as_is=found[now],
        noise_lab=found[rule],
        bound=lower_bound(judging, test, taus),
        taus=taus,
        repetitions=repetitions,
        evaluations=search.evaluations,
    )


class _Search:
    """Coordinate search by factors that shrink; every expected error is computed once."""

    def __init__(
        self, campaign: Campaign, chains: list[Chain], taus: Taus, progress: Callable[[int], None] | None
    ) -> None:
        self._campaign, self._chains, self._taus = campaign, chains, taus
        self._progress = progress
        self._known: dict[Choice, Errors] = {}
        self.best: Choice

    @property
    def evaluations(self) -> int:
        """How many choices were computed."""
        return len(self._known)

    def error(self, choice: Choice) -> Errors:
        """Return the expected error of a choice on the half that chooses."""
        if choice not in self._known:
            made = choice.apply(self._campaign)
            total = Errors()
            for chain in self._chains:
                total.include(expected(made, chain, self._taus))
            self._known[choice] = total
            self._chains[0].store.forget_unused()
            if self._progress is not None:
                self._progress(self.evaluations)
        return self._known[choice]

    def begin(self, starts: list[Choice]) -> None:
        """Start from the best of some choices."""
        self.best = min(starts, key=lambda one: self.error(one).rmsre)

    def _try(self, choice: Choice) -> bool:
        if self.evaluations >= _MAX_EVALUATIONS or not choice.fits(self._campaign):
            return False
        if self.error(choice).rmsre < self.error(self.best).rmsre * (1 - 1e-9):
            self.best = choice
            return True
        return False

    def run(self) -> None:
        """Improve one coordinate after the other, in steps from large to small, until none helps."""
        for step in _STEPS:
            improved = True
            while improved:
                improved = any([self._try(choice) for choice in self._neighbours(step)])
            self._divide_epsilon()

    def _neighbours(self, step: float) -> Iterator[Choice]:
        if self._campaign.client.kind in ("reach", "frequency"):
            for cap in (self.best.cap + max(1, round(step) - 1), self.best.cap - max(1, round(step) - 1)):
                yield replace(self.best, cap=cap)
            return
        for place, measure in enumerate(self._campaign.measures):
            for factor in (step, 1 / step):
                # The scale with its clipping bound as it is, the bound alone, and both against each other.
                scale = max(1, round(self.best.scales[place] * factor))
                yield replace(self.best, scales=_with(self.best.scales, place, scale))
                if measure.of != "value":
                    continue
                most = max(1, round(self.best.most[place] * factor))
                yield replace(self.best, most=_with(self.best.most, place, most))
                against = max(1, math.floor(self.best.scales[place] / factor))
                yield replace(
                    self.best, most=_with(self.best.most, place, most), scales=_with(self.best.scales, place, against)
                )

    def _divide_epsilon(self) -> None:
        """Divide the total ε over the queries by the noise that each has now."""
        noise = self.error(self.best).noise
        if len(noise) < 2:
            return
        made = self.best.apply(self._campaign)
        self._try(replace(self.best, epsilons=split_epsilon(made, noise)))


def _with(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
