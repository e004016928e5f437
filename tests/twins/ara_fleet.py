"""The plain twin of ``fleet_kernels``: the same attribution with lists and dictionaries, one row at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ara_client import SourceColumns, TriggerColumns
from ara_client.fleet import kernels
from ara_client.fleet.columns import Flags
from ara_client.fleet.kernels import NONE

Contribution = tuple[int, int, int]


class TwinResult(NamedTuple):
    """What became of one trigger: the outcome, and if it was attributed the source and the contributions sent."""

    outcome: int
    source: int
    contributions: tuple[Contribution, ...]


class Twin:
    """Attribution without columns. Sources of a group are a list in order of registration."""

    def __init__(self, *, paper: bool, matches: Flags, contribution_budget: int, max_reports: int) -> None:
        self.paper, self.matches = paper, matches
        self.contribution_budget, self.max_reports = contribution_budget, max_reports
        self.groups: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.sources: list[tuple[SourceColumns, int]] = []
        self.spent: list[int] = []
        self.counted: list[int] = []
        self.dedup: set[tuple[int, int]] = set()

    def register(self, sources: SourceColumns, triggers: TriggerColumns) -> list[TwinResult]:
        """Register a batch in order and say what became of each trigger."""
        rows = sorted(
            [(int(order), False, row) for row, order in enumerate(sources.order)]
            + [(int(order), True, row) for row, order in enumerate(triggers.order)]
        )
        results = []
        for _, is_trigger, row in rows:
            columns: SourceColumns | TriggerColumns = triggers if is_trigger else sources
            group = (int(columns.device[row]), int(columns.reporter[row]), int(columns.destination[row]))
            if is_trigger:
                results.append(self._attribute(self.groups[group], triggers, row))
            else:
                self.groups[group].append(len(self.sources))
                self.sources.append((sources, row))
                self.spent.append(0)
                self.counted.append(0)
        return results

    def _attribute(self, group: list[int], triggers: TriggerColumns, row: int) -> TwinResult:
        if triggers.offset[row] == triggers.offset[row + 1]:
            return TwinResult(kernels.NO_CONTRIBUTIONS, NONE, ())
        now = triggers.time_ms[row]
        group[:] = [at for at in group if self._cell(at, "expiry_ms") > now]
        if self.paper:
            return self._attribute_paper(group, triggers, row)
        if not group:
            return TwinResult(kernels.NO_SOURCE, NONE, ())
        at = max(group, key=lambda at: (self._cell(at, "priority"), at))
        if not self._matches(at, triggers, row):
            return TwinResult(kernels.FILTERED, NONE, ())
        group[:] = [at]
        contributions = self._contributions(at, triggers, row)
        total = sum(value for _, value, _ in contributions)
        counts = not triggers.has_context_id[row]
        key = (at, int(triggers.dedup_key[row]))
        outcome = kernels.ATTRIBUTED
        if now >= self._cell(at, "report_until_ms"):
            outcome = kernels.WINDOW_PASSED
        elif triggers.has_dedup_key[row] and key in self.dedup:
            outcome = kernels.DEDUPLICATED
        elif not contributions:
            outcome = kernels.NO_CONTRIBUTIONS
        elif counts and self.counted[at] >= self.max_reports:
            outcome = kernels.TOO_MANY_REPORTS
        elif self.spent[at] + total > self.contribution_budget:
            outcome = kernels.BUDGET_SPENT
        if outcome != kernels.ATTRIBUTED:
            return TwinResult(outcome, NONE, ())
        self.spent[at] += total
        self.counted[at] += int(counts)
        if triggers.has_dedup_key[row]:
            self.dedup.add(key)
        return TwinResult(outcome, at, contributions)

    def _attribute_paper(self, group: list[int], triggers: TriggerColumns, row: int) -> TwinResult:
        """Algorithm 2 on columns. The outcome of a null report tells how far the search came."""
        outcome = kernels.NO_SOURCE
        for at in reversed(group):
            if self.counted[at] >= self.max_reports or self.spent[at] >= self.contribution_budget:
                continue
            if not self._matches(at, triggers, row):
                outcome = max(outcome, kernels.FILTERED)
                continue
            contributions = self._contributions(at, triggers, row)
            total = sum(value for _, value, _ in contributions)
            if total == 0:
                return TwinResult(kernels.NO_CONTRIBUTIONS, NONE, ())
            if self.spent[at] + total <= self.contribution_budget:
                self.spent[at] += total
                self.counted[at] += 1
                return TwinResult(kernels.ATTRIBUTED, at, contributions)
            outcome = kernels.BUDGET_SPENT
        return TwinResult(outcome, NONE, ())

    def _cell(self, at: int, column: str) -> int:
        sources, row = self.sources[at]
        return int(getattr(sources, column)[row])

    def _matches(self, at: int, triggers: TriggerColumns, row: int) -> bool:
        return bool(self.matches[self._cell(at, "filter"), triggers.filter[row]])

    def _contributions(self, at: int, triggers: TriggerColumns, row: int) -> tuple[Contribution, ...]:
        sources, own = self.sources[at]
        pieces = {
            int(sources.name[i]): int(sources.key_high[i]) << 64 | int(sources.key_low[i])
            for i in range(int(sources.offset[own]), int(sources.offset[own + 1]))
        }
        return tuple(
            (
                pieces[int(triggers.name[i])] | int(triggers.key_high[i]) << 64 | int(triggers.key_low[i]),
                int(triggers.value[i]),
                int(triggers.filtering_id[i]),
            )
            for i in range(int(triggers.offset[row]), int(triggers.offset[row + 1]))
            if int(triggers.name[i]) in pieces
        )
