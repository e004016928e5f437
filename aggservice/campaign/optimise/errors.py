"""Errors of a choice: expected ones by formula, and those that releases show, with the same τ for every choice.

The error is RMSRE_τ over all slices of all paid jobs and measures: the root mean square of (estimate − truth) /
max(truth, τ). With key discovery it is over all keys that have a true value; a key that is left out counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from aggservice.campaign.assess.expected import expected_errors, noise_of_query, slice_sums
from aggservice.campaign.assess.job_truth import JobTruth, job_truth
from aggservice.campaign.assess.slices import Comparison
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.service.jobs import Job, JobResult, jobs_of, windows_of
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.sweep.draws import releases_of
from aggservice.campaign.world.truth import simulate_reports

Taus = Mapping[tuple[str, str], float]
"""τ by (query, measure), in natural units."""

_DISCOVERY_RELEASES = 3
"""How often a query with discovery, which has no formula, is released to estimate its error."""


@dataclass(slots=True)
class Errors:
    """Sums of squared relative errors and numbers of slices; ``noise`` is the part due to each query's noise."""

    squares: float = 0.0
    slices: float = 0.0
    noise: dict[str, float] = field(default_factory=dict)

    @property
    def rmsre(self) -> float:
        """The root mean square over all slices."""
        return math.sqrt(self.squares / self.slices) if self.slices else math.inf

    def add(self, squares: float, slices: float, query: str = "", noise: float = 0.0) -> None:
        """Add the slices of one job and measure."""
        self.squares += squares
        self.slices += slices
        if query:
            self.noise[query] = self.noise.get(query, 0.0) + noise


def total_of(populations: Iterable[Errors]) -> Errors:
    """Return the errors over the slices of several populations."""
    total = Errors()
    for one in populations:
        total.add(one.squares, one.slices)
        for query, noise in one.noise.items():
            total.noise[query] = total.noise.get(query, 0.0) + noise
    return total


def payable_windows(campaign: Campaign, closes_ms: Sequence[int]) -> list[Job]:
    """Return the windows that the ledger will pay: every batch of their jobs has ε left when its turn comes."""
    left = [Fraction(campaign.service.epsilon)] * campaign.batches
    paid = set()
    for job in jobs_of(campaign, closes_ms):
        price = Fraction(job.query.epsilon) + Fraction(job.query.others_epsilon)
        if all(left[batch] >= price for batch in job.batches):
            paid.add(job.name)
            for batch in job.batches:
                left[batch] -= price
    return [window for window in windows_of(campaign, closes_ms) if paid.issuperset(window.parts or (window.name,))]


def default_taus(campaign: Campaign) -> dict[tuple[str, str], float]:
    """Return τ of each query and measure: the file's, or the standard deviation of the noise on one key."""
    return {
        (query.name, measure.name): query.tau
        or float(noise_of_query(campaign, query).variance()) ** 0.5 / float(measure.scale)
        for query in campaign.queries
        for measure in campaign.measures
    }


def expected(campaign: Campaign, chain: Chain, taus: Taus) -> Errors:
    """Return the error to expect on the reports of a chain: exact for declared keys (noise, clipping, rounding, caps
    and losses), by a few releases where keys are discovered.
    """
    if campaign.client.kind == "event-level":
        raise CampaignError("event-level reports carry their noise already: there is no budget to divide")
    truth = simulate_reports(campaign, chain)
    windows = payable_windows(campaign, truth.collected.closes_ms)
    found = Errors()
    for window in windows:
        if window.query.discovery:
            continue
        noise = noise_of_query(campaign, window.query)
        for sums in slice_sums(campaign, chain, truth, window):
            errors = expected_errors(sums, noise, taus[window.query.name, sums.measure])
            squares = errors.rmsre**2 * errors.slices
            found.add(squares, errors.slices, window.query.name, squares * errors.noise_share)
    discovering = [window for window in windows if window.query.discovery]
    if discovering:
        judged = _by_releases(campaign, chain, taus, discovering, _DISCOVERY_RELEASES)
        found.add(judged.squares, judged.slices)
    return found


def judge(campaign: Campaign, chain: Chain, taus: Taus, repetitions: int) -> Errors:
    """Return the squares and slices of ``repetitions`` releases from the reports of a chain, averaged per release."""
    truth = simulate_reports(campaign, chain)
    return _by_releases(campaign, chain, taus, windows_of(campaign, truth.collected.closes_ms), repetitions)


def _by_releases(campaign: Campaign, chain: Chain, taus: Taus, chosen: Sequence[Job], repetitions: int) -> Errors:
    truth = simulate_reports(campaign, chain)
    truths = {window.name: job_truth(campaign, chain, truth, window) for window in chosen}
    found = Errors()
    for answers in releases_of(campaign, chain, truth, repetitions):
        for answer in answers:
            if answer.paid and answer.job.name in truths:
                _add(found, campaign, answer, truths[answer.job.name], taus)
    return Errors(squares=found.squares / repetitions, slices=found.slices / repetitions)


def _add(found: Errors, campaign: Campaign, answer: JobResult, truth: JobTruth, taus: Taus) -> None:
    compared = Comparison(campaign, answer, truth)
    query = answer.job.query
    for place, measure in enumerate(campaign.measures):
        tau, scale = taus[query.name, measure.name], float(measure.scale)
        if query.discovery:
            mine = np.flatnonzero((truth.measure == place) & (truth.truth > 0))
            true, estimate = truth.truth[mine], np.where(compared.released[mine], compared.metric[mine], 0) / scale
        else:
            mine = compared.shown(place)
            true, estimate = truth.slice_truth[mine], compared.estimate[mine] / scale
        off = (estimate - true) / np.maximum(true, tau)
        found.add(float((off**2).sum()), mine.size)
