"""``optimise``: a choice made on some people and judged on others, beside the file as it is and Noise Lab's rule.

The search runs on people that the judgement never sees: another simulated population, or the other half of a log's
devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.optimise.bound import lower_bound, noise_lab
from aggservice.campaign.optimise.choices import Choice, set_field, with_batch_hours
from aggservice.campaign.optimise.errors import Errors, ErrorTarget, expected, judge, target_of, total_of
from aggservice.campaign.optimise.question import fields_to_merge, finest, questions
from aggservice.campaign.optimise.search import Search
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain, StageStore

_PEOPLE, _MOST_DRAWS = 60_000, 12
"""Populations are drawn until they have this many people, but at most this often; as many again judge the choice."""
_LEAST_NUMBERS = 5000
"""A choice is judged by at least this many released numbers, unless ``repetitions`` of every population have fewer.

The mean of their squares then has a standard deviation of 3 %, and the error, which is its root, of 1.6 %.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The errors of one choice: expected on the half to choose on and on the half to judge on, and that of releases.

    ``slices`` is their number per population, and ``empty`` the share of them that is 0 in truth, where it is judged.
    """

    choice: Choice
    chosen_on: float
    expected: float
    judged: float | None
    slices: float
    empty: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What ``optimise`` proposes, beside the file as it is and Noise Lab's rule. ``bound`` is below the error of every
    choice with the same slices on the half to judge on; None if there is no bound. ``frontier`` has the best choice for
    each length of batches; ``limit`` is the error that is good enough, None if the file's own question is asked.
    """

    campaign: Campaign
    target: ErrorTarget
    proposed: Figures
    as_is: Figures
    noise_lab: Figures
    bound: float | None
    repetitions: int
    evaluations: int
    without: Mapping[str, float]
    """The error to expect where it is judged, by knob, if the proposal leaves that knob as it is in the file."""
    frontier: tuple[Figures, ...] = ()
    limit: float | None = None

    @property
    def gap(self) -> float | None:
        """How far the proposal is from the bound: relative to it, or as a difference of shares."""
        if self.target.within is not None:
            return None if self.bound is None else self.proposed.expected - self.bound
        return self.proposed.expected / self.bound - 1 if self.bound else None

    def gain_over(self, other: Figures) -> float:
        """Return what the proposal gains over another choice, as judged: the share of its error that is saved, or the
        difference of the shares of slices within.
        """
        mine, theirs = (one.judged if one.judged is not None else one.expected for one in (self.proposed, other))
        if self.target.within is not None:
            return theirs - mine
        return 1 - mine / theirs if theirs else 0.0


def halves(campaign: Campaign) -> tuple[Campaign, Campaign]:
    """Return the campaign over two disjoint sets of people: those that choose, and those that judge."""
    people = campaign.population
    one, other = (replace(people, model=people.model.half(which)) for which in (0, 1))
    return replace(campaign, population=one), replace(campaign, population=other)


def optimise(
    campaign: Campaign,
    *,
    within: Fraction | None = None,
    hours: Sequence[int] = (),
    merge: Sequence[str] = (),
    reach: float | None = None,
    seed: str = "optimise",
    repetitions: int = 200,
    store: StageStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> Proposal:
    """Choose scales, clipping bounds and ε at the file's total ε, and judge the choice.

    The target is the least RMSRE_τ, or with ``within`` the largest share of slices within that part of the truth. Every
    choice is compared at the same τ: the file's, or the noise under Noise Lab's rule. ``hours`` are other lengths of
    batches and ``merge`` names key fields whose values may be merged; of these, the finest question is chosen whose
    error or share reaches ``reach``.
    """
    if not campaign.client.aggregatable:
        raise CampaignError("event-level reports carry their noise already: there is no budget to divide")
    if campaign.client.task_jobs:
        raise CampaignError(
            f"{campaign.client.short} browsers divide their own budgets: optimise the campaign with another API"
        )
    limit = _limit(within, reach, bool(hours or merge))
    fields = fields_to_merge(campaign, merge)
    store = store or StageStore()
    choosing, judging = halves(campaign)
    # Given events have one half to choose on and one to judge; drawn people can be drawn again.
    people = campaign.population
    draws = min(_MOST_DRAWS, max(2, _PEOPLE // people.size)) if people.model.drawn else 1
    learn, test = (
        [RunChain.seeded(f"{seed} {what} {number}", store=store) for number in range(draws)]
        for what in ("choose", "judge")
    )
    now, rule = Choice.of(campaign), noise_lab(choosing, learn[0])
    target = target_of(choosing, rule.apply(choosing), within)
    for length in hours:
        _check_length(campaign, now, length)
    search = Search(choosing, learn, target, progress)
    starts = [one for one in dict.fromkeys((now, rule)) if one.fits(campaign)]
    lengths = (now.batch_hours, *hours)
    found = questions(search, starts, lengths, fields, learn, math.inf if limit is None else limit)
    best = finest(search, found, math.inf if limit is None else limit)

    def expect(choice: Choice) -> Errors:
        return total_of((expected(choice.apply(judging), chain, target) for chain in test), draws)

    def figures(choice: Choice, releases: int = repetitions) -> Figures:
        errors = expect(choice)
        needed = math.ceil(_LEAST_NUMBERS / (errors.slices * draws)) if errors.slices else 0
        each = max(-(-releases // draws), min(releases, needed))
        judged = total_of(judge(choice.apply(judging), chain, target, each) for chain in test if each)
        return Figures(
            choice=choice,
            chosen_on=search.error(choice),
            expected=target.error_of(errors),
            judged=target.error_of(judged) if each else None,
            slices=errors.slices,
            empty=errors.empty / errors.slices if errors.slices else 0.0,
        )

    figured = {choice: figures(choice) for choice in dict.fromkeys((best, now, rule))}
    queries = with_batch_hours(judging, now, best.batch_hours).apply(judging).queries
    return Proposal(
        campaign=campaign,
        target=target,
        proposed=figured[best],
        as_is=figured[now],
        noise_lab=figured[rule],
        bound=lower_bound(best.apply(judging), test, target, queries),
        repetitions=repetitions,
        evaluations=search.evaluations,
        without={name: target.error_of(expect(choice)) for name, choice in best.without_each_knob(campaign).items()},
        frontier=tuple(figured.get(choice) or figures(choice, 0) for choice in found) if len(found) > 1 else (),
        limit=limit,
    )


def _limit(within: Fraction | None, reach: float | None, asked: bool) -> float | None:
    """Return the error that is good enough, from what users write; None if the file's own question is asked."""
    if not asked:
        if reach is not None:
            raise CampaignError("--reach needs something to choose: give --batch-hours or --merge, or leave it out")
        return None
    if within is not None:
        share = 0.9 if reach is None else reach
        if not 0 < share < 1:
            raise CampaignError(f"--reach is {share:g}: give a share of slices above 0 and below 1")
        return 1 - share
    if reach is None:
        raise CampaignError(
            "with --target rmsre, --batch-hours and --merge need to know which error is good enough: give --reach"
        )
    if not 0 < reach < math.inf:
        raise CampaignError(f"--reach is {reach:g}: give an error above 0")
    return reach


def _check_length(campaign: Campaign, choice: Choice, hours: int) -> None:
    """Refuse a length of batches with which the campaign file would be refused."""
    days = campaign.population.days
    if not 1 <= hours <= days * 24:
        raise CampaignError(f"batches cannot have {hours} hours: choose 1 to {days * 24}, the hours of the campaign")
    document = deepcopy(dict(campaign.document))
    for path, value in with_batch_hours(campaign, choice, hours).changes(campaign).items():
        set_field(document, campaign, path, value)
    campaign_of(document, folder=campaign.folder, files=campaign.files, file=campaign.file)
