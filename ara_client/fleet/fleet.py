"""Many browsers at once, in columns: from millions of sources and triggers to aggregatable reports.

A fleet covers what campaigns mostly use: sources with one destination, top-level filters, priorities, expiry and report
windows, aggregation keys, dedup keys, the contribution budget Λ₁ and the cap on reports. docs/fleet.md lists what only
``Browser`` has, above all rate limits and event-level reports. Within that subset a fleet sends the same reports as one
``Browser`` per device (form ``deployed``) or one Algorithm 2 of Ghazi et al. per device (form ``paper``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, ParameterError, bernoulli_batch, uniform_below_batch
from ara_client.config import Config
from ara_client.constants import AGGREGATABLE_BUDGET
from ara_client.fleet import kernels
from ara_client.fleet.columns import TIME_LIMIT_MS, Flags, FleetReports, Ints, SourceColumns, TriggerColumns

_SMALLEST_TABLE = 1 << 10

SourceFilter = TypeVar("SourceFilter")
TriggerFilter = TypeVar("TriggerFilter")
Scalar = TypeVar("Scalar", bound=np.generic)


class TriggerOutcome(IntEnum):
    """The outcome of a trigger. In the paper's form every outcome except ``ATTRIBUTED`` sends a null report."""

    ATTRIBUTED = kernels.ATTRIBUTED
    NO_SOURCE = kernels.NO_SOURCE
    FILTERED = kernels.FILTERED
    WINDOW_PASSED = kernels.WINDOW_PASSED
    DEDUPLICATED = kernels.DEDUPLICATED
    NO_CONTRIBUTIONS = kernels.NO_CONTRIBUTIONS
    TOO_MANY_REPORTS = kernels.TOO_MANY_REPORTS
    BUDGET_SPENT = kernels.BUDGET_SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    """The rules of every browser of a fleet.

    ``max_reports`` is the cap on counted reports of a source (``deployed``) or Λ₀ (``paper``). Reports without a
    context ID are delayed by ``min_delay_ms`` plus a uniform time below ``delay_span_ms``; a trigger without a report
    sends a null report with probability ``null_rate``.
    """

    form: Literal["deployed", "paper"] = "deployed"
    contribution_budget: int = AGGREGATABLE_BUDGET
    max_reports: int = 20
    min_delay_ms: int = 0
    delay_span_ms: int = 600_000
    null_rate: Fraction = Fraction(1, 20)

    def __post_init__(self) -> None:
        if self.form not in ("deployed", "paper"):
            raise ParameterError(f"form must be 'deployed' or 'paper', got {self.form!r}")
        whole = (self.contribution_budget, self.max_reports, self.min_delay_ms, self.delay_span_ms)
        if not all(isinstance(number, int) for number in whole):
            raise ParameterError("contribution_budget, max_reports and delays must be integers")
        if not (1 <= self.contribution_budget < 1 << 40 and 1 <= self.max_reports < 1 << 40):
            raise ParameterError("contribution_budget and max_reports must be at least 1 and below 2^40")
        if not (0 <= self.min_delay_ms <= TIME_LIMIT_MS and 0 <= self.delay_span_ms <= TIME_LIMIT_MS):
            raise ParameterError(f"delays must be from 0 to {TIME_LIMIT_MS} ms")
        if not 0 <= self.null_rate <= 1:
            raise ParameterError(f"null_rate must be a probability, got {self.null_rate}")

    @classmethod
    def deployed(cls, config: Config) -> FleetRules:
        """Return the rules of a browser with these vendor values, restricted to what a fleet supports."""
        return cls(
            contribution_budget=AGGREGATABLE_BUDGET,
            max_reports=config.max_aggregatable_reports_per_source,
            min_delay_ms=config.aggregatable_min_delay_ms,
            delay_span_ms=config.aggregatable_delay_span_ms,
            null_rate=Fraction(str(config.null_rate_excluding_source_time)),
        )

    @classmethod
    def paper(cls, *, contribution_budget: int, sparsity_budget: int) -> FleetRules:
        """Return the rules of Algorithm 2 with Λ₁ and Λ₀: every trigger sends a report, without delay."""
        return cls(
            form="paper",
            contribution_budget=contribution_budget,
            max_reports=sparsity_budget,
            delay_span_ms=0,
            null_rate=Fraction(1),
        )


def match_table(
    source_filters: Sequence[SourceFilter],
    trigger_filters: Sequence[TriggerFilter],
    matches: Callable[[SourceFilter, TriggerFilter], bool],
) -> Flags:
    """Return the match table of a fleet: entry (i, j) says whether source filter i matches trigger filter j.

    The columns ``filter`` of sources and triggers are indexes into these two lists. Any rule works, because a fleet
    only looks up the answer.
    """
    return np.array([[bool(matches(s, t)) for t in trigger_filters] for s in source_filters], dtype=np.bool_).reshape(
        len(source_filters), len(trigger_filters)
    )


#: The match table of a fleet without filters: number 0 matches number 0.
NO_FILTERS: Flags = np.ones((1, 1), dtype=np.bool_)


class ReportDraws:
    """The random choices of a fleet's reports in columns, drawn in this order: null reports, ids, delays."""

    def __init__(self, bits: Bits, rules: FleetRules) -> None:
        self._bits = bits
        self._rules = rules

    def nulls(self, triggers: TriggerColumns) -> Flags:
        """Return which triggers send a null report if they send no other."""
        if self._rules.form == "paper":
            return np.ones(len(triggers), dtype=np.bool_)
        drawn = triggers.has_context_id | bernoulli_batch(self._bits, self._rules.null_rate, len(triggers))
        # A trigger that requests no contribution sends no null report either.
        return drawn & (np.diff(triggers.offset) > 0)

    def ids(self, count: int) -> NDArray[np.uint8]:
        """Return the 16 bytes of each report's id; those of the deployed form are UUIDs of version 4."""
        ids = np.frombuffer(self._bits.read(16 * count) if count else b"", dtype=np.uint8).reshape(count, 16).copy()
        if self._rules.form == "deployed":
            ids[:, 6] = ids[:, 6] & 0x0F | 0x40
            ids[:, 8] = ids[:, 8] & 0x3F | 0x80
        return ids

    def delays_ms(self, at_once: Flags) -> Ints:
        """Return the delay of each report; those with a context ID are sent ``at_once``."""
        delays = np.full(at_once.size, self._rules.min_delay_ms, dtype=np.int64)
        if self._rules.delay_span_ms and at_once.size:
            delays += uniform_below_batch(self._bits, self._rules.delay_span_ms, at_once.size)
        delays[at_once] = 0
        return delays


class Fleet:
    """Many browsers, one per ``device``. State is kept between batches.

    Registering costs O(1) per source and O(log n) per trigger, amortized, for n live sources of one device, reporter
    and destination (``paper``: O(n) if filters reject many sources). A source takes about 150 bytes and is never
    freed.
    """

    def __init__(self, *, bits: Bits, rules: FleetRules | None = None, matches: Flags = NO_FILTERS) -> None:
        self.rules = FleetRules() if rules is None else rules
        self._bits = bits
        self._matches = np.require(matches, dtype=np.bool_, requirements=["C", "W"])
        if self._matches.ndim != 2:
            raise ParameterError(f"the match table must have 2 dimensions, source by trigger, not {self._matches.ndim}")
        self._rows: _Growing[np.int64] = _Growing(np.int64, kernels.SOURCE_WIDTH)
        self._offset: _Growing[np.int64] = _Growing(np.int64)
        self._keys: _Growing[np.uint64] = _Growing(np.uint64, kernels.KEY_WIDTH)
        self._offset.extend(np.zeros(1, dtype=np.int64))
        self._groups = kernels.empty_groups(_SMALLEST_TABLE)
        self._dedup = kernels.empty_dedup_keys(_SMALLEST_TABLE)
        self._held = np.zeros(kernels.PROGRESS_WIDTH, dtype=np.int64)
        self._last = (-(1 << 62), -(1 << 62))

    def __len__(self) -> int:
        """Return the number of sources registered so far."""
        return self._rows.size

    @property
    def spent(self) -> Ints:
        """The part of Λ₁ that each source has spent so far."""
        return self._rows.view()[:, kernels.SPENT].copy()

    @property
    def counted(self) -> Ints:
        """How many reports (``paper``: contributions) of each source were counted so far."""
        return self._rows.view()[:, kernels.COUNTED].copy()

    def register(self, sources: SourceColumns, triggers: TriggerColumns) -> FleetReports:
        """Register a batch, interleaved by ``order``; between batches it must increase and time must not decrease."""
        self._check(sources, triggers)
        first = len(self)
        self._keep(sources)
        out = kernels.Out(
            np.empty(len(triggers), dtype=np.int8),
            np.empty(len(triggers), dtype=np.int64),
            np.empty(len(triggers), dtype=np.int64),
            np.empty((int(triggers.offset[-1]), kernels.CONTRIBUTION_WIDTH), dtype=np.uint64),
        )
        wanted = np.empty_like(out.sent)
        for column, name in enumerate(("name", "key_high", "key_low", "value", "filtering_id")):
            wanted[:, column] = getattr(triggers, name).view(np.uint64)
        new = kernels.NewSources(first, sources.order, sources.device, sources.reporter, sources.destination)
        rows = kernels.Triggers(*(getattr(triggers, name) for name in kernels.Triggers._fields))
        caps = kernels.Caps(self.rules.contribution_budget, self.rules.max_reports)
        store = kernels.SourceRows(self._rows.view(), self._offset.view(), self._keys.view())
        progress = self._held
        progress[[kernels.SOURCES, kernels.TRIGGERS, kernels.WRITTEN]] = 0
        paper = self.rules.form == "paper"
        while not kernels.register(
            paper, new, rows, wanted, store, self._groups, self._dedup, self._matches, caps, out, progress
        ):
            self._grow()
        return self._reports(triggers, out, int(progress[kernels.WRITTEN]))

    def _reports(self, triggers: TriggerColumns, out: kernels.Out, written: int) -> FleetReports:
        draws, real = ReportDraws(self._bits, self.rules), out.outcome == TriggerOutcome.ATTRIBUTED
        rows = np.flatnonzero(real | (draws.nulls(triggers) & ~real))
        return FleetReports(
            outcome=out.outcome,
            trigger=rows,
            source=out.source[rows],
            report_id=draws.ids(rows.size),
            scheduled_ms=triggers.time_ms[rows] + draws.delays_ms(triggers.has_context_id[rows]),
            # A null report has no contributions, so it ends where the report before it ends.
            offset=np.concatenate((np.zeros(1, dtype=np.int64), out.end[rows])),
            key_high=out.sent[:written, kernels.KEY_HIGH].copy(),
            key_low=out.sent[:written, kernels.KEY_LOW].copy(),
            value=out.sent[:written, kernels.VALUE].astype(np.int64),
            filtering_id=out.sent[:written, kernels.FILTERING_ID].copy(),
        )

    def _check(self, sources: SourceColumns, triggers: TriggerColumns) -> None:
        order, time = self._last
        for columns in (sources, triggers):
            if len(columns) and not (columns.order[0] > self._last[0] and columns.time_ms[0] >= self._last[1]):
                raise ParameterError("the batch begins before the previous one ends: sort batches by order and time_ms")
            if len(columns):
                order, time = max(order, int(columns.order[-1])), max(time, int(columns.time_ms[-1]))
        # In time, the source before each trigger must not be later, nor the source after it earlier.
        after_trigger = np.searchsorted(sources.order, triggers.order)
        before, after = after_trigger > 0, after_trigger < len(sources)
        if (
            not (sources.time_ms[after_trigger[before] - 1] <= triggers.time_ms[before]).all()
            or not (sources.time_ms[after_trigger[after]] >= triggers.time_ms[after]).all()
            or (sources.order[after_trigger[after]] == triggers.order[after]).any()
        ):
            raise ParameterError("order and time_ms disagree: number sources and triggers together, by time")
        for filters, limit in zip((sources.filter, triggers.filter), self._matches.shape, strict=True):
            if filters.size and not (filters.min() >= 0 and filters.max() < limit):
                raise ParameterError(f"column filter must index the match table, from 0 to {limit - 1}")
        if self.rules.form == "deployed":
            if triggers.value.size and not (triggers.value.min() >= 1 and triggers.value.max() <= AGGREGATABLE_BUDGET):
                raise ParameterError(f"column value must lie in [1, {AGGREGATABLE_BUDGET}] in the deployed form")
        elif not ((np.diff(sources.offset) == 1).all() and (np.diff(triggers.offset) == 1).all()):
            raise ParameterError("in the paper's form every source has one key and every trigger one contribution")
        elif sources.name.any() or triggers.name.any() or triggers.has_dedup_key.any():
            raise ParameterError("in the paper's form keys have no names (use 0) and triggers no dedup keys")
        self._last = (order, time)

    def _keep(self, sources: SourceColumns) -> None:
        rows = self._rows.extend_by(len(sources))
        rows[:, kernels.PRIORITY] = sources.priority
        rows[:, kernels.EXPIRY_MS] = sources.expiry_ms
        rows[:, kernels.REPORT_UNTIL_MS] = sources.report_until_ms
        rows[:, kernels.FILTER] = sources.filter
        rows[:, [kernels.SPENT, kernels.COUNTED]] = 0
        rows[:, [kernels.CHILD, kernels.SIBLING]] = kernels.NONE
        self._offset.extend(sources.offset[1:] + self._offset.view()[-1])
        keys = self._keys.extend_by(sources.name.size)
        keys[:, kernels.NAME] = sources.name.view(np.uint64)
        keys[:, kernels.KEY_HIGH] = sources.key_high
        keys[:, kernels.KEY_LOW] = sources.key_low

    def _grow(self) -> None:
        """Make each half-full table four times larger."""
        if 2 * self._held[kernels.GROUPS] >= len(self._groups):
            old, self._groups = self._groups, kernels.empty_groups(4 * len(self._groups))
            kernels.move_groups(old, self._groups)
        if 2 * self._held[kernels.DEDUP_KEYS] >= len(self._dedup):
            seen, self._dedup = self._dedup, kernels.empty_dedup_keys(4 * len(self._dedup))
            kernels.move_dedup(seen, self._dedup)


class _Growing(Generic[Scalar]):
    """An array that grows by rows: capacity doubles, so that n rows cost O(n) copies in all."""

    def __init__(self, kind: type[Scalar], *width: int) -> None:
        self._array: NDArray[Scalar] = np.empty((_SMALLEST_TABLE, *width), dtype=kind)
        self.size = 0

    def extend_by(self, count: int) -> NDArray[Scalar]:
        """Append ``count`` rows and return them for the caller to fill."""
        start, self.size = self.size, self.size + count
        if self.size > len(self._array):
            grown = np.empty((max(self.size, 2 * len(self._array)), *self._array.shape[1:]), dtype=self._array.dtype)
            grown[:start] = self._array[:start]
            self._array = grown
        return self._array[start : self.size]

    def extend(self, rows: NDArray[Scalar]) -> None:
        self.extend_by(rows.size)[:] = rows

    def view(self) -> NDArray[Scalar]:
        return self._array[: self.size]
