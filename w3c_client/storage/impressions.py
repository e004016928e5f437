"""Stored impressions, grouped by epoch so that a conversion searches only the epochs that it may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from w3c_client.storage.epochs import Epochs


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
    caller: str
    until_ms: int
    rank: tuple[int, int]

    @classmethod
    def saved(
        cls,
        *,
        match_value: int,
        impression_site: str,
        intermediary: str | None,
        conversion_sites: frozenset[str],
        conversion_callers: frozenset[str],
        time_ms: int,
        lifetime_ms: int,
        histogram_index: int,
        priority: int,
    ) -> Impression:
        """Return an impression; its caller, its last moment and its rank are computed from the arguments."""
        return cls(
            match_value=match_value,
            impression_site=impression_site,
            intermediary=intermediary,
            conversion_sites=conversion_sites,
            conversion_callers=conversion_callers,
            time_ms=time_ms,
            lifetime_ms=lifetime_ms,
            histogram_index=histogram_index,
            priority=priority,
            caller=intermediary or impression_site,
            until_ms=time_ms + lifetime_ms,
            rank=(priority, time_ms),
        )


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
        group = self._groups.get(epoch)
        if group is None:
            group = self._groups[epoch] = _Group(self._per_site)
        return group

    def _check(self) -> None:
        for group in (self._waiting, *self._groups.values()):
            assert Counter(entry.impression_site for entry in group.held) == group.counts
            assert self._per_site is None or max(group.counts.values(), default=0) <= self._per_site
        for epoch, group in self._groups.items():
            assert all(self._epochs.index(entry.time_ms) == epoch for entry in group.held)
