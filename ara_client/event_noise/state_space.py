"""The states of a source: every combination of event-level reports it can send, counted and numbered.

A report has one of the source's trigger data; it is sent at the end of one of that trigger data's windows, for one of
its summary buckets. The *valid combinations* in both forms:

* Full-flexible (Algorithm 4 of Ghazi et al., WICG's ``flexible_event_config.md``): the buckets of a trigger data are
  crossed in increasing order and each at most once, so its reports are for its first j buckets, in windows that
  never go back; all trigger data together send at most ``max_reports``.
* Deployed (Chromium, WICG "obtain a set of possible trigger states"): a multiset of at most ``max_reports`` pairs
  of trigger data and window. That is the same set with as many buckets as ``max_reports``: ``buckets=None``.

Nothing is enumerated. A trigger data with w windows can send j reports in C(j+w-1, j) ways; sums over the trigger
data are a truncated product of those polynomials, in exact integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import comb
from typing import NamedTuple

from aggservice.mechanisms import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerDataSpec:
    """One trigger data of a source: its numbers of windows and of summary buckets.

    ``buckets=None`` is the deployed form: only the source's maximum of reports limits it.
    """

    trigger_data: int
    windows: int
    buckets: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.trigger_data < 1 << 64:
            raise ParameterError(f"trigger data is an unsigned 64-bit integer, got {self.trigger_data}")
        if not self.windows >= 0:
            raise ParameterError(f"windows of trigger data {self.trigger_data} must be 0 or more, got {self.windows}")
        if self.buckets is not None and not self.buckets >= 0:
            raise ParameterError(f"buckets of trigger data {self.trigger_data} must be 0 or more, got {self.buckets}")

    def most(self, max_reports: int) -> int:
        """Return how many reports this trigger data alone can send."""
        if self.windows == 0:
            return 0
        return max_reports if self.buckets is None else min(self.buckets, max_reports)


class StateReport(NamedTuple):
    """One report of a state. The buckets of a trigger data are in increasing order, from 0."""

    trigger_data: int
    window_index: int
    bucket_index: int


class StateSpace:
    """The states of one source, numbered without listing them.

    Ranks run from 0 to ``count - 1``; ``at`` and ``rank`` are inverse to each other. Rank 0 is the state without
    reports. Building costs O(D·R²) integer operations for D trigger data and R reports, ``at`` and
    ``rank`` O(D·R + windows·R).
    """

    __slots__ = ("_prefix", "_suffix", "_ways", "max_reports", "specs")

    def __init__(self, specs: Iterable[TriggerDataSpec], max_reports: int) -> None:
        self.specs = tuple(specs)
        self.max_reports = max_reports
        if not max_reports >= 0:
            raise ParameterError(f"max_reports must be 0 or more, got {max_reports}")
        listed = [spec.trigger_data for spec in self.specs]
        if len(set(listed)) != len(listed):
            raise ParameterError("a trigger data is listed twice: merge its specifications into one")
        # ways[i][j]: how spec i alone sends exactly j reports.
        self._ways = [
            [comb(j + spec.windows - 1, j) for j in range(spec.most(max_reports) + 1)] if spec.windows else [1]
            for spec in self.specs
        ]
        # suffix[i][c]: how specs i, i+1, … together send at most c reports; prefix[i][c]: specs before i, exactly c.
        self._suffix = [[1] * (max_reports + 1)]
        for ways in reversed(self._ways):
            after = self._suffix[-1]
            self._suffix.append([_weighted(ways, after, cap) for cap in range(max_reports + 1)])
        self._suffix.reverse()
        nothing = [1] + [0] * max_reports
        self._prefix = list(accumulate(self._ways, _product, initial=nothing))

    @property
    def count(self) -> int:
        """The number of states, |O| in the paper."""
        return self._suffix[0][self.max_reports]

    def at(self, rank: int) -> list[StateReport]:
        """Return the state with the given rank, its reports ordered by trigger data (as listed) and bucket."""
        if not 0 <= rank < self.count:
            raise ParameterError(f"rank must be in 0..{self.count - 1}, got {rank}")
        reports: list[StateReport] = []
        left = self.max_reports
        for spec, ways, after in zip(self.specs, self._ways, self._suffix[1:], strict=True):
            sent = 0
            while rank >= (block := ways[sent] * after[left - sent]):
                rank -= block
                sent += 1
            own, rank = divmod(rank, after[left - sent])
            left -= sent
            windows = _multiset_at(own, sent, spec.windows)
            reports += [StateReport(spec.trigger_data, window, bucket) for bucket, window in enumerate(windows)]
        return reports

    def rank(self, reports: Iterable[StateReport | tuple[int, int, int]]) -> int:
        """Return the rank of the state with exactly these reports, given in any order."""
        windows: dict[int, dict[int, int]] = {spec.trigger_data: {} for spec in self.specs}
        for trigger_data, window, bucket in reports:
            if trigger_data not in windows or bucket in windows[trigger_data]:
                raise ParameterError(f"not a state: trigger data {trigger_data} is not listed, or sends a bucket twice")
            windows[trigger_data][bucket] = window
        rank, left = 0, self.max_reports
        for spec, ways, after in zip(self.specs, self._ways, self._suffix[1:], strict=True):
            by_bucket = windows[spec.trigger_data]
            sent = len(by_bucket)
            if sent > left or sent >= len(ways):
                raise ParameterError(f"not a state: too many reports with trigger data {spec.trigger_data}: {sent}")
            order = [by_bucket[bucket] for bucket in sorted(by_bucket)]
            prefix = sorted(by_bucket) == list(range(sent))
            if not (prefix and order == sorted(order) and all(0 <= window < spec.windows for window in order)):
                raise ParameterError(f"not a state: trigger data {spec.trigger_data} has wrong buckets or windows")
            rank += sum(ways[j] * after[left - j] for j in range(sent))
            left -= sent
            rank += _multiset_rank(order, spec.windows) * after[left]
        return rank

    def report_counts(
        self, trigger_data: int, *, window: int | None = None, bucket: int | None = None
    ) -> tuple[Fraction, ...]:
        """Return the distribution of the number of reports of one kind in a uniformly drawn state.

        Entry m is the exact probability of m reports with this trigger data and, if given, window and bucket.
        """
        index = next((i for i, spec in enumerate(self.specs) if spec.trigger_data == trigger_data), None)
        if index is None:
            raise ParameterError(f"trigger data {trigger_data} is not in the specification")
        spec, ways = self.specs[index], self._ways[index]
        if window is not None and not 0 <= window < spec.windows:
            raise ParameterError(f"trigger data {trigger_data} has no window {window}")
        if bucket is not None and not 0 <= bucket < spec.most(self.max_reports):
            raise ParameterError(f"trigger data {trigger_data} has no bucket {bucket}")
        masses = [0] * len(ways)
        for sent in range(len(ways)):
            others = self._others(index, self.max_reports - sent)
            for m, own in enumerate(_kinds(sent, spec.windows, window, bucket)):
                masses[m] += own * others
        while len(masses) > 1 and masses[-1] == 0:
            masses.pop()
        return tuple(Fraction(mass, self.count) for mass in masses)

    def _others(self, index: int, cap: int) -> int:
        """Return how many ways the trigger data other than the one at ``index`` send at most ``cap`` reports."""
        before, after = self._prefix[index], self._suffix[index + 1]
        return sum(before[c] * after[cap - c] for c in range(cap + 1))


def count_states(specs: Iterable[TriggerDataSpec], max_reports: int) -> int:
    """Return the number of states of a source.

    >>> count_states([TriggerDataSpec(trigger_data=d, windows=3) for d in range(8)], 3)
    2925
    >>> count_states([TriggerDataSpec(trigger_data=d, windows=2, buckets=2) for d in range(2)], 3)
    27
    """
    return space_of(tuple(specs), max_reports).count


@lru_cache(maxsize=1024)
def space_of(specs: tuple[TriggerDataSpec, ...], max_reports: int) -> StateSpace:
    """Return the state space of a specification, cached for later sources."""
    return StateSpace(specs, max_reports)


def _weighted(ways: Sequence[int], after: Sequence[int], cap: int) -> int:
    return sum(ways[j] * after[cap - j] for j in range(min(len(ways) - 1, cap) + 1))


def _product(sums: list[int], ways: list[int]) -> list[int]:
    return [_weighted(ways, sums, degree) for degree in range(len(sums))]


def _multiset_at(rank: int, size: int, windows: int) -> list[int]:
    """Return the nondecreasing sequence of ``size`` windows with the given rank, in lexicographic order."""
    out: list[int] = []
    window = 0
    for left in range(size - 1, -1, -1):
        while rank >= (block := comb(left + windows - window - 1, left)):
            rank -= block
            window += 1
        out.append(window)
    return out


def _multiset_rank(order: Sequence[int], windows: int) -> int:
    rank, window = 0, 0
    for index, chosen in enumerate(order):
        left = len(order) - 1 - index
        rank += sum(comb(left + windows - w - 1, left) for w in range(window, chosen))
        window = chosen
    return rank


def _kinds(sent: int, windows: int, window: int | None, bucket: int | None) -> list[int]:
    """Count the ways to send ``sent`` reports; entry m counts those where exactly m have this window and bucket."""
    ways = comb(sent + windows - 1, sent) if windows else int(sent == 0)
    if bucket is not None:
        if bucket >= sent:
            return [ways]
        if window is None:
            return [0, ways]
        # The reports before it lie in windows up to this one, the reports after it in this one or later.
        after = sent - 1 - bucket
        hit = comb(bucket + window, bucket) * comb(after + windows - window - 1, after)
        return [ways - hit, hit]
    if window is None:
        return [0] * sent + [ways]
    if windows == 1:
        return [0] * sent + [1]
    return [comb(sent - m + windows - 2, sent - m) for m in range(sent + 1)]
