"""What a browser keeps: the time line of epochs, stored impressions, and how clearing changes them.

Impressions are grouped by epoch, so that a conversion searches only the epochs that it may use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor

from w3c_client.budgets import BudgetStores
from w3c_client.config import Config
from w3c_client.randomness import W3cChoices

HOUR_MS = 3_600_000


class Epochs:
    """Numbers epochs from a random start; epochs before it have negative numbers.

    ``last_clear_ms`` is the latest moment of a clear of browsing history: attribution starts after its epoch.
    """

    def __init__(self, config: Config, draws: W3cChoices) -> None:
        self._length_ms = config.epoch_ms
        self._lookback_ms = config.max_lookback_ms
        self.draws = draws
        self.start_ms: int | None = None
        self.last_clear_ms: int | None = None

    def index(self, time_ms: int) -> int:
        """Return the epoch of a moment (specification, "get the current epoch").

        The first call draws the start of epoch 0: a random moment within one epoch before ``time_ms``, rounded down to
        a whole hour. The specification rounds towards zero, which differs before 1970 and contradicts its vectors.
        """
        if self.start_ms is None:
            moment = time_ms - Fraction(self.draws.epoch_offset_ms(self._length_ms))
            self.start_ms = floor(moment / HOUR_MS) * HOUR_MS
        return (time_ms - self.start_ms) // self._length_ms

    def starting(self, now_ms: int) -> int:
        """Return the first epoch that attribution may use (specification, "get the starting epoch")."""
        earliest = self.index(now_ms - self._lookback_ms)
        if self.last_clear_ms is None:
            return earliest
        return max(earliest, self.index(self.last_clear_ms) + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Impression:
    """A saved impression (specification, "impression store"). Impressions are compared by identity.

    Empty ``conversion_sites`` and ``conversion_callers`` allow any. ``rank`` orders impressions for credit: higher
    priority first, then the later one.
    """

    match_value: int
    impression_site: str
    intermediary: str | None
    conversion_sites: frozenset[str]
    conversion_callers: frozenset[str]
    time_ms: int
    lifetime_ms: int
    histogram_index: int
    priority: int
    caller: str = field(init=False)
    until_ms: int = field(init=False)
    rank: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "caller", self.intermediary or self.impression_site)
        object.__setattr__(self, "until_ms", self.time_ms + self.lifetime_ms)
        object.__setattr__(self, "rank", (self.priority, self.time_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The conditions of a conversion on impressions; an empty set allows any."""

    site: str
    caller: str
    now_ms: int
    earliest_ms: int
    match_values: Collection[int] = frozenset()
    impression_sites: Collection[str] = frozenset()
    impression_callers: Collection[str] = frozenset()


class _Group:
    """The impressions of one epoch in the order of saving, and bounds that make most checks unnecessary.

    A site that has ``per_site`` of them loses the one that it saved first to the next.
    """

    __slots__ = ("counts", "earliest_ms", "held", "per_site", "restricted", "until_ms")

    def __init__(self, per_site: int | None) -> None:
        self.per_site = per_site
        self.held: list[Impression] = []
        self.counts: dict[str, int] = {}
        self.earliest_ms = self.until_ms = 1 << 62
        self.restricted = False

    def is_full(self, site: str) -> bool:
        return self.per_site is not None and self.counts.get(site, 0) >= self.per_site

    def add(self, impression: Impression) -> None:
        site = impression.impression_site
        if self.is_full(site):
            del self.held[next(at for at, held in enumerate(self.held) if held.impression_site == site)]
        else:
            self.counts[site] = self.counts.get(site, 0) + 1
        self.held.append(impression)
        self.earliest_ms = min(self.earliest_ms, impression.time_ms)
        self.until_ms = min(self.until_ms, impression.until_ms)
        self.restricted |= bool(impression.conversion_sites or impression.conversion_callers)


class ImpressionStore:
    """Impressions in the order of saving. Saving is O(1) while a site has room; matching is O(those of the epoch).

    Epochs are privacy units, so nothing that one of them stores may change another: ``per_site`` is a limit per site
    *and epoch*, and nothing is dropped because it has expired. What matches follows from what was saved and the clock.
    Impressions wait in one group until the start of epochs is drawn: by a conversion, or when a site has ``per_site``
    of them there. The law of the epochs' bounds is the same whenever it is drawn.
    """

    def __init__(self, epochs: Epochs, per_site: int | None) -> None:
        self._epochs = epochs
        self._per_site = per_site
        self._groups: dict[int, _Group] = {}
        self._waiting = _Group(per_site)

    def __iter__(self) -> Iterator[Impression]:
        """Yield the stored impressions, in the order of saving within an epoch."""
        for epoch in sorted(self._groups):
            yield from self._groups[epoch].held
        yield from self._waiting.held

    def save(self, impression: Impression) -> None:
        """Store an impression."""
        if self._epochs.start_ms is None and not self._waiting.is_full(impression.impression_site):
            self._waiting.add(impression)
            return
        epoch = self._epochs.index(impression.time_ms)
        self._end_waiting()
        self._group(epoch).add(impression)

    def keep(self, wanted: Callable[[Impression], bool]) -> None:
        """Drop every impression for which ``wanted`` returns False."""
        self.replace([held for held in self if wanted(held)])

    def replace(self, impressions: Iterable[Impression]) -> None:
        """Replace all stored impressions by ``impressions``."""
        self._groups, self._waiting = {}, _Group(self._per_site)
        for impression in impressions:
            waits = self._epochs.start_ms is None
            group = self._waiting if waits else self._group(self._epochs.index(impression.time_ms))
            group.add(impression)

    def matching(self, epoch: int, wanted: Wanted) -> list[Impression]:
        """Return the matching impressions of an epoch, in the order of saving.

        Impressions at the very end of their lifetime or of the lookback still match (specification, "common matching
        logic").
        """
        self._end_waiting()
        group = self._groups.get(epoch)
        if group is None:
            return []
        found, now_ms = group.held, wanted.now_ms
        if group.until_ms < now_ms:
            found = [held for held in found if held.until_ms >= now_ms]
        if group.earliest_ms < wanted.earliest_ms:
            earliest_ms = wanted.earliest_ms
            found = [held for held in found if held.time_ms >= earliest_ms]
        if group.restricted:
            site, caller = wanted.site, wanted.caller
            found = [
                held
                for held in found
                if (not held.conversion_sites or site in held.conversion_sites)
                and (not held.conversion_callers or caller in held.conversion_callers)
            ]
        if wanted.match_values:
            found = [held for held in found if held.match_value in wanted.match_values]
        if wanted.impression_sites:
            found = [held for held in found if held.impression_site in wanted.impression_sites]
        if wanted.impression_callers:
            found = [held for held in found if held.caller in wanted.impression_callers]
        return found

    def sites_of_epoch(self, now_ms: int) -> frozenset[str]:
        """Return the sites with stored impressions of the epoch at ``now_ms``; of any epoch, if none is drawn yet."""
        if self._epochs.start_ms is None:
            return frozenset(held.impression_site for held in self._waiting.held)
        self._end_waiting()
        group = self._groups.get(self._epochs.index(now_ms))
        return frozenset(held.impression_site for held in (group.held if group else ()))

    def _end_waiting(self) -> None:
        """Put impressions that wait into the groups of their epochs. The start of epochs is known."""
        if self._waiting.held:
            self.replace(self._waiting.held)

    def _group(self, epoch: int) -> _Group:
        return self._groups.setdefault(epoch, _Group(self._per_site))

    def _check(self) -> None:
        for group in (self._waiting, *self._groups.values()):
            assert Counter(entry.impression_site for entry in group.held) == group.counts
            assert self._per_site is None or max(group.counts.values(), default=0) <= self._per_site
        for epoch, group in self._groups.items():
            assert all(self._epochs.index(entry.time_ms) == epoch for entry in group.held)


def clear_impressions_for_site(impressions: ImpressionStore, site: str) -> None:
    """Remove a site's impressions, and its name from those of others (specification, ``Clear-Site-Data``).

    An impression that loses its last conversion site or conversion caller is removed. Budgets stay as they are, so a
    site cannot refill them.
    """
    impressions.replace([left for held in impressions if (left := _without(held, site)) is not None])


def _without(impression: Impression, site: str) -> Impression | None:
    if impression.caller == site:
        return None
    changed = impression
    if site in impression.conversion_sites:
        changed = replace(changed, conversion_sites=impression.conversion_sites - {site})
        if not changed.conversion_sites:
            return None
    if site in impression.conversion_callers:
        changed = replace(changed, conversion_callers=impression.conversion_callers - {site})
        if not changed.conversion_callers:
            return None
    return changed


def exhaust_sites(budgets: BudgetStores, epochs: Epochs, sites: Collection[str], now_ms: int) -> None:
    """Empty the budgets of sites whose data the user clears while keeping the visits in history.

    This covers every epoch that attribution can still use. Nothing else changes (``forgetVisits`` false).
    """
    if not sites:
        return
    first = epochs.starting(now_ms)
    reachable = range(first, epochs.index(now_ms) + 1)
    for site in sites:
        budgets.empty_site(site, reachable)


def forget_visits(
    impressions: ImpressionStore, budgets: BudgetStores, epochs: Epochs, sites: Collection[str] | None, now_ms: int
) -> None:
    """Forget the user's visits to some sites, or with None to all (``forgetVisits`` true).

    The start of epochs stays. The global budgets stay unless all visits are forgotten. All past impressions become
    unreachable, because attribution starts with the epoch after this moment. The specification's prose would also
    drop impressions by conversion site; its algorithm and vectors do not.

    Only budgets of epochs that become unreachable are deleted, and no epoch becomes reachable again: otherwise a clock
    that is set back, and forward again, would give an epoch its budgets twice.
    """
    if sites is None:
        impressions.replace(())
    else:
        impressions.keep(lambda held: held.impression_site not in sites)
    epochs.last_clear_ms = now_ms if epochs.last_clear_ms is None else max(epochs.last_clear_ms, now_ms)
    if epochs.start_ms is not None:  # without epochs nothing was charged
        budgets.forget(sites, through=epochs.index(epochs.last_clear_ms))
