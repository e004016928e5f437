"""The algorithm of W3C Attribution Level 1 in its own words, as repaired after May 2026: a reference for the browser.

Every step of "do attribution and fill a histogram" is a plain function over plain values, in the order of the text:
nothing is indexed, cached or precomputed. Costs and credits are rational. ``rand(p)`` is True with probability p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor

Rand = Callable[[Fraction], bool]

DAY = 86_400
HOUR = 3_600


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedImpression:
    """An impression; times are in seconds. Sites are strings; an empty set means any."""

    match_value: int
    impression_site: str
    intermediary_site: str | None
    conversion_sites: frozenset[str]
    conversion_callers: frozenset[str]
    timestamp: int
    lifetime: int
    histogram_index: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A validated conversion."""

    epsilon: Fraction
    histogram_size: int
    lookback: int
    value: int
    max_value: int
    credit: tuple[Fraction, ...]
    match_values: frozenset[int] = frozenset()
    impression_sites: frozenset[str] = frozenset()
    impression_callers: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class UserAgent:
    """The state of one user agent. Budgets are micro-epsilon; a missing key holds the whole budget."""

    per_site_privacy_budget: int
    global_privacy_budget: int
    impression_site_quota: int
    maximum_lookback: int
    epoch_start: int
    period: int = 7 * DAY
    last_browsing_history_clear: int | None = None
    impression_store: list[SavedImpression] = field(default_factory=list)
    privacy_budget_store: dict[tuple[int, str], int] = field(default_factory=dict)
    global_privacy_budget_store: dict[int, int] = field(default_factory=dict)
    impression_site_quota_store: dict[tuple[int, str], int] = field(default_factory=dict)

    def do_attribution_and_fill_a_histogram(
        self, options: Question, top_level_site: str, intermediary_site: str | None, now: int, rand: Rand
    ) -> list[int]:
        current_epoch = self.get_epoch(now)
        start_epoch = self.get_starting_epoch(now)
        earliest_epoch = self.get_epoch(now - options.lookback)
        matched: list[SavedImpression] = []
        if current_epoch == earliest_epoch:
            impressions = self.common_matching_logic(options, top_level_site, intermediary_site, current_epoch, now)
            if not impressions:
                return [0] * options.histogram_size
            histogram = fill_a_histogram(impressions, options, rand)
            if start_epoch <= current_epoch and self.deduct(
                current_epoch, top_level_site, impressions, options, l1_norm=sum(histogram)
            ):
                return histogram
            return [0] * options.histogram_size
        for epoch in range(start_epoch, current_epoch + 1):
            impressions = self.common_matching_logic(options, top_level_site, intermediary_site, epoch, now)
            if impressions and self.deduct(epoch, top_level_site, impressions, options, l1_norm=None):
                matched += impressions
        if not matched:
            return [0] * options.histogram_size
        return fill_a_histogram(matched, options, rand)

    def deduct(
        self, epoch: int, site: str, impressions: Sequence[SavedImpression], options: Question, l1_norm: int | None
    ) -> bool:
        """Deduct from all budgets or none; return whether they sufficed. ``l1_norm`` is None for several epochs."""
        noise_scale = 2 * options.max_value / options.epsilon
        value_deduction = ceil(2 * options.value / noise_scale * 1_000_000)
        deduction = value_deduction if l1_norm is None else ceil(l1_norm / noise_scale * 1_000_000)
        quota_sites = {impression.impression_site for impression in impressions}
        budget = self.privacy_budget_store.get((epoch, site), self.per_site_privacy_budget)
        global_budget = self.global_privacy_budget_store.get(epoch, self.global_privacy_budget)
        quotas = {
            quota_site: self.impression_site_quota_store.get((epoch, quota_site), self.impression_site_quota)
            for quota_site in quota_sites
        }
        if deduction > budget or value_deduction > global_budget:
            return False
        if any(value_deduction > quota for quota in quotas.values()):
            return False
        self.privacy_budget_store[epoch, site] = budget - deduction
        self.global_privacy_budget_store[epoch] = global_budget - value_deduction
        for quota_site, quota in quotas.items():
            self.impression_site_quota_store[epoch, quota_site] = quota - value_deduction
        return True

    def common_matching_logic(
        self, options: Question, top_level_site: str, intermediary_site: str | None, epoch: int, now: int
    ) -> list[SavedImpression]:
        """Return the impressions of an epoch that the conversion may use."""
        matching = []
        for impression in self.impression_store:
            if self.get_epoch(impression.timestamp) != epoch:
                continue
            if now > impression.timestamp + impression.lifetime:
                continue
            if now > impression.timestamp + options.lookback:
                continue
            if impression.conversion_sites and top_level_site not in impression.conversion_sites:
                continue
            conversion_caller = top_level_site if intermediary_site is None else intermediary_site
            if impression.conversion_callers and conversion_caller not in impression.conversion_callers:
                continue
            if options.match_values and impression.match_value not in options.match_values:
                continue
            if options.impression_sites and impression.impression_site not in options.impression_sites:
                continue
            impression_caller = (
                impression.impression_site if impression.intermediary_site is None else impression.intermediary_site
            )
            if options.impression_callers and impression_caller not in options.impression_callers:
                continue
            matching.append(impression)
        return matching

    def get_epoch(self, moment: int) -> int:
        """Return the index of the epoch that holds a moment."""
        return floor(Fraction(moment - self.epoch_start, self.period))

    def get_starting_epoch(self, now: int) -> int:
        """Return the first epoch that attribution may use."""
        earliest = self.get_epoch(now - self.maximum_lookback)
        if self.last_browsing_history_clear is None:
            return earliest
        return max(earliest, self.get_epoch(self.last_browsing_history_clear) + 1)


def fill_a_histogram(matched: Sequence[SavedImpression], options: Question, rand: Rand) -> list[int]:
    """Fill a histogram with last-n-touch attribution."""
    ordered = sorted(matched, key=lambda impression: (-impression.priority, -impression.timestamp))
    n = min(len(options.credit), len(ordered))
    histogram = [0] * options.histogram_size
    for impression, amount in zip(
        ordered[:n], fairly_allocate_credit(options.credit[:n], options.value, rand), strict=True
    ):
        if impression.histogram_index < options.histogram_size:
            histogram[impression.histogram_index] += amount
    return histogram


def fairly_allocate_credit(credit: Sequence[Fraction], value: int, rand: Rand) -> list[int]:
    """Return integers that add up to ``value``; the expectation of each is its share."""
    rounded = [value * item / sum(credit) for item in credit]
    idx1 = 0
    for n in range(1, len(rounded)):
        idx2 = n
        frac1, frac2 = (rounded[idx] - floor(rounded[idx]) for idx in (idx1, idx2))
        if frac1 == 0 and frac2 == 0:
            continue
        incr1, incr2 = (1 - frac1, 1 - frac2) if frac1 + frac2 > 1 else (-frac1, -frac2)
        if rand(incr2 / (incr1 + incr2)):
            incr = incr1
            idx1, idx2 = idx2, idx1
        else:
            incr = incr2
        rounded[idx2] += incr
        rounded[idx1] -= incr
    assert all(item.denominator == 1 for item in rounded)
    return [int(item) for item in rounded]
