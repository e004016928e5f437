"""From the contributions of a batching scope to those of a report: events, truncation, budget, merging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paa_client.config import Config, Rules
from paa_client.origins import site_of
from paa_client.reporting.budgets import Budgeter, BudgetRequest
from paa_client.reporting.contributions import Cause, ErrorEvent, HistogramContribution, RecordLoss
from paa_client.reporting.scopes import BatchingScope, CacheEntry

_MAX_VALUE = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects the contributions of one report of a scope; ``record_loss`` is called with each that is left out."""

    config: Config
    scope: BatchingScope
    budgeter: Budgeter
    record_loss: RecordLoss
    now_ms: int
    pending_limit_reached: bool

    @property
    def max_contributions(self) -> int:
        """How many contributions fit in the report."""
        return self.scope.parameters.max_contributions

    def select(self, entries: Sequence[CacheEntry]) -> list[HistogramContribution]:
        """Return the contributions of the report after charging the budget for them."""
        return self._as_a_whole(entries) if self.config.all_or_nothing else self._one_by_one(entries)

    def _one_by_one(self, entries: Sequence[CacheEntry]) -> list[HistogramContribution]:
        """Return what the specification selects ("compile all unmerged contributions"), each approved by itself."""
        kept, _ = self._approved(self._keep_first_keys(self._compile(entries)), consume=True)
        contributions = [request.contribution for request in kept]
        return merge_contributions(contributions) if self.config.merging else contributions

    def _compile(self, entries: Sequence[CacheEntry]) -> list[BudgetRequest]:
        """Decide which error events happened; return their contributions, then the unconditional ones.

        Unconditional contributions that the budget would deny are left out. So are, by the specification, those that
        exceed the report's size before others join them; in Chromium one of them may still share the key of a
        contribution that waited for an event.
        """
        unconditional = [entry.request for entry in entries if entry.event is None]
        provisional, denied = self._approved(unconditional, consume=False)
        too_many = len({request.contribution.merge_key for request in provisional}) > self.max_contributions
        cuts_first = self.config.rules is Rules.SPECIFICATION
        kept = self._keep_first_keys(provisional) if cuts_first else provisional
        empty = not self.scope.parameters.deterministic and not provisional
        triggered = {
            ErrorEvent.CONTRIBUTION_TIMEOUT_REACHED: self.scope.timed_out,
            ErrorEvent.INSUFFICIENT_BUDGET: denied,
            ErrorEvent.PENDING_REPORT_LIMIT_REACHED: self.pending_limit_reached,
            ErrorEvent.EMPTY_REPORT_DROPPED: empty,
            ErrorEvent.TOO_MANY_CONTRIBUTIONS: too_many,
            ErrorEvent.REPORT_SUCCESS: not (empty or too_many or denied or self.pending_limit_reached),
            ErrorEvent.ALREADY_TRIGGERED_EXTERNAL_ERROR: True,
        }
        waiting = [entry for entry in entries if entry.event is not None]
        happened = [event for event in ErrorEvent if triggered[event]] if waiting else []
        return [entry.request for event in happened for entry in waiting if entry.event is event] + kept

    def _as_a_whole(self, entries: Sequence[CacheEntry]) -> list[HistogramContribution]:
        """Return the contributions that Chromium without error reporting selects: all or none are approved.

        Contributions are merged as they arrive, up to the limit, and sorted by bucket and filtering ID. Without
        merging the first ones are kept in order of arrival, zeros included. This browser has no error events, so
        contributions that wait for one are ignored.
        """
        requests = [entry.request for entry in entries if entry.event is None]
        if self.config.merging:
            for request in requests:
                if request.contribution.value == 0:
                    self.record_loss(Cause.ZERO_VALUE, request.contribution)
            requests = self._keep_first_keys([request for request in requests if request.contribution.value])
        else:
            for request in requests[self.max_contributions :]:
                self.record_loss(Cause.TOO_MANY, request.contribution)
            requests = requests[: self.max_contributions]
        by_name: dict[str | None, list[BudgetRequest]] = {}
        for request in requests:
            by_name.setdefault(request.contribution.named_budget, []).append(request)
        sums = [
            BudgetRequest(
                HistogramContribution(0, sum(r.contribution.value for r in group), 0, name), group[0].reservations
            )
            for name, group in by_name.items()
        ]
        denial = next(filter(None, self._query(sums, consume=False)), None)
        if denial is not None:
            for request in requests:
                self.record_loss(denial, request.contribution)
            return []
        self._query(sums, consume=True)
        contributions = [request.contribution for request in requests]
        if not self.config.merging:
            return contributions
        return sorted(merge_contributions(contributions), key=lambda merged: merged.merge_key)

    def _query(self, requests: Sequence[BudgetRequest], *, consume: bool) -> list[Cause | None]:
        return self.budgeter.query(
            requests, site_of(self.scope.reporting_origin), self.scope.api, self.now_ms, consume=consume
        )

    def _approved(self, requests: list[BudgetRequest], *, consume: bool) -> tuple[list[BudgetRequest], bool]:
        """Return the approved requests with a value above 0, and whether any was denied."""
        results = self._query(requests, consume=consume)
        kept = []
        for request, denial in zip(requests, results, strict=True):
            if denial is not None:
                self.record_loss(denial, request.contribution)
            elif request.contribution.value == 0:
                self.record_loss(Cause.ZERO_VALUE, request.contribution)
            else:
                kept.append(request)
        return kept, any(results)

    def _keep_first_keys(self, requests: list[BudgetRequest]) -> list[BudgetRequest]:
        """Return the requests whose (bucket, filtering ID) is among the first distinct ones that fit in the report."""
        if len(requests) <= self.max_contributions:
            return requests
        keys: set[tuple[int, int]] = set()
        kept = []
        for request in requests:
            key = request.contribution.merge_key
            if len(keys) == self.max_contributions and key not in keys:
                self.record_loss(Cause.TOO_MANY, request.contribution)
                continue
            keys.add(key)
            kept.append(request)
        return kept


def merge_contributions(contributions: Iterable[HistogramContribution]) -> list[HistogramContribution]:
    """Return one contribution for each (bucket, filtering ID), in order of appearance, with the sum of the values."""
    merged: dict[tuple[int, int], HistogramContribution] = {}
    for contribution in contributions:
        key = contribution.merge_key
        present = merged.get(key)
        if present is None:
            merged[key] = contribution
        else:
            total = min(present.value + contribution.value, _MAX_VALUE)
            merged[key] = HistogramContribution(
                contribution.bucket, total, contribution.filtering_id, present.named_budget
            )
    return list(merged.values())
