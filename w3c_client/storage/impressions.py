"""Stored impressions, grouped by epoch so that a conversion searches only the epochs that it may use."""

from __future__ import annotations

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
    """The impressions of one epoch in the order of saving, and bounds that make most checks unnecessary."""

    __slots__ = ("earliest_ms", "held", "restricted", "until_ms")

    def __init__(self) -> None:
        self.held: list[Impression] = []
        self.earliest_ms = self.until_ms = 1 << 62
        self.restricted = False

    def add(self, impression: Impression) -> None:
        self.held.append(impression)
        self.earliest_ms = min(self.earliest_ms, impression.time_ms)
        self.until_ms = min(self.until_ms, impression.until_ms)
        self.restricted |= bool(impression.conversion_sites or impression.conversion_callers)


class ImpressionStore:
    """Impressions in the order of saving. Saving is O(1), amortized; matching is O(impressions of the epoch).

    Impressions are grouped by epoch from the first call of ``matching`` on, because only a conversion may draw the
    start of epochs. If a site has more than ``per_site`` impressions, its oldest one is dropped. Expired impressions
    are dropped each time the store has doubled.
    """

    def __init__(self, epochs: Epochs, per_site: int | None) -> None:
        self._epochs = epochs
        self._per_site = per_site
        self._groups: dict[int, _Group] = {}
        self._ungrouped: list[Impression] = []
        self._counts: dict[str, int] = {}
        self._size = 0
        self._sweep_at = 1024

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Impression]:
        """Yield the stored impressions, in the order of saving within an epoch."""
        for epoch in sorted(self._groups):
            yield from self._groups[epoch].held
        yield from self._ungrouped

    def save(self, impression: Impression) -> None:
        """Store an impression."""
        if self._size >= self._sweep_at:
            self.keep(lambda held: held.until_ms >= impression.time_ms)
            self._sweep_at = max(1024, 2 * self._size)
        site = impression.impression_site
        count = self._counts.get(site, 0)
        if self._per_site is not None and count >= self._per_site:
            oldest = min((held for held in self if held.impression_site == site), key=lambda held: held.time_ms)
            self.keep(lambda held: held is not oldest)
            count -= 1
        self._counts[site] = count + 1
        self._size += 1
        if self._epochs.start_ms is None:
            self._ungrouped.append(impression)
        else:
            self._group(impression)

    def keep(self, wanted: Callable[[Impression], bool]) -> None:
        """Drop every impression for which ``wanted`` returns False."""
        self.replace([held for held in self if wanted(held)])

    def replace(self, impressions: Iterable[Impression]) -> None:
        """Replace all stored impressions by ``impressions``."""
        self._groups, self._ungrouped, self._counts, self._size = {}, [], {}, 0
        for impression in impressions:
            self._counts[impression.impression_site] = self._counts.get(impression.impression_site, 0) + 1
            self._size += 1
            if self._epochs.start_ms is None:
                self._ungrouped.append(impression)
            else:
                self._group(impression)

    def matching(self, epoch: int, wanted: Wanted) -> list[Impression]:
        """Return the matching impressions of an epoch, in the order of saving.

        Impressions at the very end of their lifetime or of the lookback still match (specification, "common matching
        logic").
        """
        if self._ungrouped:
            for impression in self._ungrouped:
                self._group(impression)
            self._ungrouped = []
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
            return frozenset(held.impression_site for held in self._ungrouped)
        current = self._epochs.index(now_ms)
        group = self._groups.get(current)
        waiting = [held for held in self._ungrouped if self._epochs.index(held.time_ms) == current]
        return frozenset(held.impression_site for held in (*(group.held if group else ()), *waiting))

    def _group(self, impression: Impression) -> None:
        epoch = self._epochs.index(impression.time_ms)
        group = self._groups.get(epoch)
        if group is None:
            group = self._groups[epoch] = _Group()
        group.add(impression)

    def _check(self) -> None:
        held = list(self)
        assert len(held) == self._size == sum(self._counts.values())
        for epoch, group in self._groups.items():
            assert all(self._epochs.index(entry.time_ms) == epoch for entry in group.held)
