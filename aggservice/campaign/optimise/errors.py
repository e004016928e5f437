"""Errors of a choice: expected ones by formula, and those that releases show, with the same τ for every choice.

The error is RMSRE_τ over all slices of all paid jobs and measures: the root mean square of (estimate − truth) /
max(truth, τ). Or it is the share of slices that miss: those whose estimate is not within x of max(truth, τ). With key
discovery both are over all keys that have a true value; a key that is left out counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from aggservice.campaign.assess.expected import SliceSums, expected_errors, laplace_of_query, slice_sums
from aggservice.campaign.assess.job_truth import JobTruth, job_truth
from aggservice.campaign.assess.slices import Comparison
from aggservice.campaign.columns import Floats, Ints
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.noise_sums import chance_between
from aggservice.campaign.metrics import RMSRE
from aggservice.campaign.service.jobs import QueryAnswer, QueryJob, jobs_of, windows_of
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain
from aggservice.campaign.sweep.draws import releases_of
from aggservice.campaign.world.truth import simulate_reports
from aggservice.mechanisms import DiscreteLaplace

Taus = Mapping[tuple[str, str], float]
"""τ by (query, measure), in natural units."""

_DISCOVERY_RELEASES = 3
"""How often a query with discovery, which has no formula, is released to estimate its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTarget:
    """What is minimised: RMSRE_τ, or with ``within`` the share of slices that are not within that part of the truth."""

    taus: Taus
    within: Fraction | None = None

    @property
    def name(self) -> str:
        """What ``shown`` is."""
        return "error (RMSRE_τ)" if self.within is None else f"share within {float(100 * self.within):g} %"

    def error_of(self, errors: Errors) -> float:
        """Return what is minimised."""
        if self.within is None:
            return errors.rmsre
        return errors.missed / errors.slices if errors.slices else 1.0

    def shown(self, error: float) -> float:
        """Return an error as users read it: RMSRE_τ, or the share of slices within."""
        return error if self.within is None else 1 - error

    def text(self, error: float) -> str:
        """Return what is shown as text."""
        return f"{error:.4f}" if self.within is None else f"{100 * self.shown(error):.1f} %"

    def allowed(self, truth: Floats, query: str, measure: str) -> Floats:
        """Return how far the estimate of each slice may be from its truth; what binary fractions miss is added."""
        assert self.within is not None
        return float(self.within) * (1 + 1e-12) * np.maximum(truth, self.taus[query, measure])


@dataclass(slots=True)
class Errors:
    """Sums over slices: squared relative errors, slices that miss, and slices that are 0 in truth.

    ``noise`` has each paid query's part: of the squares what its noise adds, or its slices that miss.
    """

    squares: float = 0.0
    slices: float = 0.0
    missed: float = 0.0
    empty: float = 0.0
    noise: dict[str, float] = field(default_factory=dict)

    @property
    def rmsre(self) -> float:
        """The root mean square over all slices."""
        return math.sqrt(self.squares / self.slices) if self.slices else math.inf

    def add(self, other: Errors) -> None:
        """Add the sums of other slices."""
        self.squares += other.squares
        self.slices += other.slices
        self.missed += other.missed
        self.empty += other.empty
        for query, noise in other.noise.items():
            self.noise[query] = self.noise.get(query, 0.0) + noise


def total_of(parts: Iterable[Errors], count: int = 1) -> Errors:
    """Return the sums over all parts, divided by ``count``."""
    total = Errors()
    for one in parts:
        total.add(one)
    return Errors(
        squares=total.squares / count,
        slices=total.slices / count,
        missed=total.missed / count,
        empty=total.empty / count,
        noise={query: noise / count for query, noise in total.noise.items()},
    )


def payable_windows(campaign: Campaign, closes_ms: Sequence[int]) -> list[QueryJob]:
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
        or float(laplace_of_query(campaign, query).variance()) ** 0.5 / float(measure.scale)
        for query in campaign.queries
        for measure in campaign.measures
    }


def target_of(campaign: Campaign, rule: Campaign, within: Fraction | None) -> ErrorTarget:
    """Return RMSRE_τ with the τ of Noise Lab's ``rule``; or the share within a part of the truth.

    For the share, τ is the file's or 0: an estimate is within 10 % of the truth, or it is not. So a slice that is 0 in
    truth misses, unless its query has a ``tau``.
    """
    if within is None:
        return ErrorTarget(taus=default_taus(rule))
    taus = {(query.name, measure.name): query.tau for query in campaign.queries for measure in campaign.measures}
    return ErrorTarget(taus=taus, within=within)


def expected(campaign: Campaign, chain: RunChain, target: ErrorTarget) -> Errors:
    """Return the error to expect on the reports of a chain: exact for declared keys (noise, clipping, rounding, caps
    and losses), by a few releases where keys are discovered.
    """
    if not campaign.client.aggregatable:
        raise CampaignError("event-level reports carry their noise already: there is no budget to divide")
    truth = simulate_reports(campaign, chain)
    windows = payable_windows(campaign, truth.collected.closes_ms)
    found = Errors()
    for window in windows:
        if window.query.discovery:
            continue
        noise = laplace_of_query(campaign, window.query)
        for sums in slice_sums(campaign, chain, truth, window):
            found.add(_expected_of(sums, noise, window.query.name, target))
    discovering = [window for window in windows if window.query.discovery]
    if discovering:
        found.add(_by_releases(campaign, chain, target, discovering, _DISCOVERY_RELEASES))
    return found


def _expected_of(sums: SliceSums, noise: DiscreteLaplace, query: str, target: ErrorTarget) -> Errors:
    empty = float((sums.truth == 0).sum())
    if target.within is not None:
        allowed = target.allowed(sums.truth, query, sums.measure)
        chance = chance_within(sums.sent, sums.keys, allowed, truth=sums.truth, scale=sums.scale, noise=noise)
        missed = float((1 - chance).sum())
        return Errors(slices=sums.truth.size, missed=missed, empty=empty, noise={query: missed})
    errors = expected_errors(sums, noise, target.taus[query, sums.measure])
    squares = (RMSRE.expected(errors.laws) or 0.0) ** 2 * errors.slices
    return Errors(squares=squares, slices=errors.slices, empty=empty, noise={query: squares * errors.noise_share})


def chance_within(
    sent: Ints | Floats,
    keys: Ints,
    allowed: Floats,
    *,
    truth: Floats,
    scale: float | Floats,
    noise: DiscreteLaplace,
) -> Floats:
    """Return for each slice P[|(sent + noise of its keys) / scale − truth| ≤ allowed], exactly."""
    low, high = np.ceil(scale * (truth - allowed) - sent), np.floor(scale * (truth + allowed) - sent)
    found = np.empty(truth.size)
    for terms in np.unique(keys).tolist():
        mine = keys == terms
        found[mine] = chance_between(noise, terms, low[mine], high[mine])
    return found


def judge(campaign: Campaign, chain: RunChain, target: ErrorTarget, repetitions: int) -> Errors:
    """Return the errors of ``repetitions`` releases from the reports of a chain, averaged per release."""
    truth = simulate_reports(campaign, chain)
    return _by_releases(campaign, chain, target, windows_of(campaign, truth.collected.closes_ms), repetitions)


def _by_releases(
    campaign: Campaign, chain: RunChain, target: ErrorTarget, chosen: Sequence[QueryJob], repetitions: int
) -> Errors:
    truth = simulate_reports(campaign, chain)
    truths = {window.name: job_truth(campaign, chain, truth, window) for window in chosen}
    return total_of(
        (
            _released(campaign, answer, truths[answer.job.name], target)
            for answers in releases_of(campaign, chain, truth, repetitions)
            for answer in answers
            if answer.paid and answer.job.name in truths
        ),
        repetitions,
    )


def _released(campaign: Campaign, answer: QueryAnswer, truth: JobTruth, target: ErrorTarget) -> Errors:
    compared = Comparison(campaign, answer, truth)
    query, found = answer.job.query, Errors()
    for place, measure in enumerate(campaign.measures):
        scale = float(measure.scale)
        if query.discovery:
            mine = np.flatnonzero((truth.measure == place) & (truth.truth > 0))
            true, estimate = truth.truth[mine], np.where(compared.released[mine], compared.metric[mine], 0) / scale
        else:
            mine = compared.shown(place)
            true, estimate = truth.slice_truth[mine], compared.estimate[mine] / scale
        found.slices += mine.size
        found.empty += float((true == 0).sum())
        if target.within is None:
            off = (estimate - true) / np.maximum(true, target.taus[query.name, measure.name])
            found.squares += float((off**2).sum())
        else:
            allowed = target.allowed(true.astype(np.float64), query.name, measure.name)
            found.missed += float((np.abs(estimate - true) > allowed).sum())
    return found
