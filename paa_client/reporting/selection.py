"""From the contributions of a batching scope to those of a report: events, truncation, budget, merging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paa_client.config import Api, Rules
from paa_client.journal import Cause
from paa_client.reporting.budgets import Budgeter, Denial, Request, Reservations
from paa_client.reporting.contributions import Contribution, ErrorEvent
from paa_client.reporting.scopes import Entry

Lose = Callable[[Cause, Contribution], None]

_CAUSE = {Denial.TEN_MINUTES: Cause.TEN_MINUTES, Denial.DAY: Cause.DAY, Denial.NAMED: Cause.NAMED}
_MAX_VALUE = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What selection depends on beside the contributions: who pays, when, and what the report may hold."""

    site: str
    api: Api
    now_ms: int
    max_contributions: int
    deterministic: bool
    timed_out: bool
    pending_limit_reached: bool
    merging: bool = True


def select(
    rules: Rules, entries: Sequence[Entry], budgeter: Budgeter, setting: Setting, lose: Lose
) -> list[Contribution]:
    """Return the contributions of the report, with budget spent for them; ``lose`` hears of every one that is cut."""
    if rules is Rules.CHROMIUM:
        return _all_or_nothing(entries, budgeter, setting, lose)
    return _one_by_one(entries, budgeter, setting, lose)


def _one_by_one(entries: Sequence[Entry], budgeter: Budgeter, setting: Setting, lose: Lose) -> list[Contribution]:
    """The specification's report creation and scheduling steps, from "compile all unmerged contributions" on."""
    unmerged = _keep_first_keys(_compile(entries, budgeter, setting, lose), setting.max_contributions, lose)
    kept, _ = _approved(unmerged, budgeter, setting, lose, consume=True)
    contributions = [request.contribution for request in kept]
    return merge(contributions) if setting.merging else contributions


def _compile(entries: Sequence[Entry], budgeter: Budgeter, setting: Setting, lose: Lose) -> list[Request]:
    """Decide which error events happened; return their contributions, then the unconditional ones.

    Unconditional contributions that the budget would deny, or that are beyond the report's size, are gone already.
    """
    unconditional = [entry.request for entry in entries if entry.event is None]
    provisional, denied = _approved(unconditional, budgeter, setting, lose, consume=False)
    kept = _keep_first_keys(provisional, setting.max_contributions, lose)
    empty = not setting.deterministic and not provisional
    too_many = len(kept) < len(provisional)
    triggered = {
        ErrorEvent.CONTRIBUTION_TIMEOUT_REACHED: setting.timed_out,
        ErrorEvent.INSUFFICIENT_BUDGET: denied,
        ErrorEvent.PENDING_REPORT_LIMIT_REACHED: setting.pending_limit_reached,
        ErrorEvent.EMPTY_REPORT_DROPPED: empty,
        ErrorEvent.TOO_MANY_CONTRIBUTIONS: too_many,
        ErrorEvent.REPORT_SUCCESS: not (empty or too_many or denied or setting.pending_limit_reached),
        ErrorEvent.ALREADY_TRIGGERED_EXTERNAL_ERROR: True,
    }
    waiting = [entry for entry in entries if entry.event is not None]
    happened = [event for event in ErrorEvent if triggered[event]] if waiting else []
    return [entry.request for event in happened for entry in waiting if entry.event is event] + kept


def _approved(
    requests: list[Request], budgeter: Budgeter, setting: Setting, lose: Lose, *, consume: bool
) -> tuple[list[Request], bool]:
    """Return the requests that are approved and are not of value 0, and whether any was denied."""
    results = budgeter.query(requests, setting.site, setting.api, setting.now_ms, consume=consume)
    kept = []
    for request, denial in zip(requests, results, strict=True):
        if denial is not None:
            lose(_CAUSE[denial], request.contribution)
        elif request.contribution.value == 0:
            lose(Cause.ZERO_VALUE, request.contribution)
        else:
            kept.append(request)
    return kept, any(results)


def _keep_first_keys(requests: list[Request], limit: int, lose: Lose) -> list[Request]:
    """Return the requests whose (bucket, filtering ID) is among the first ``limit`` distinct ones."""
    if len(requests) <= limit:
        return requests
    keys: set[tuple[int, int]] = set()
    kept = []
    for request in requests:
        key = request.contribution.merge_key
        if len(keys) == limit and key not in keys:
            lose(Cause.TOO_MANY, request.contribution)
            continue
        keys.add(key)
        kept.append(request)
    return kept


def merge(contributions: Iterable[Contribution]) -> list[Contribution]:
    """Return one contribution for each (bucket, filtering ID), in order of appearance, with the sum of the values."""
    merged: dict[tuple[int, int], Contribution] = {}
    for contribution in contributions:
        key = contribution.merge_key
        present = merged.get(key)
        if present is None:
            merged[key] = contribution
        else:
            total = min(present.value + contribution.value, _MAX_VALUE)
            merged[key] = Contribution(contribution.bucket, total, contribution.filtering_id, present.named_budget)
    return list(merged.values())


def _all_or_nothing(entries: Sequence[Entry], budgeter: Budgeter, setting: Setting, lose: Lose) -> list[Contribution]:
    """Chromium without error reporting: merge as contributions arrive, up to the limit; then approve all or none.

    Contributions that wait for an error event do not exist in this browser. Merged contributions are in order of
    bucket and filtering ID; without merging the first ones are kept as they came, zeros included.
    """
    requests = [entry.request for entry in entries if entry.event is None]
    if setting.merging:
        for request in requests:
            if request.contribution.value == 0:
                lose(Cause.ZERO_VALUE, request.contribution)
        requests = _keep_first_keys([r for r in requests if r.contribution.value], setting.max_contributions, lose)
    else:
        for request in requests[setting.max_contributions :]:
            lose(Cause.TOO_MANY, request.contribution)
        requests = requests[: setting.max_contributions]
    sums: dict[str | None, list[Request]] = {}
    for request in requests:
        sums.setdefault(request.contribution.named_budget, []).append(request)
    whole = [
        Request(Contribution(0, sum(r.contribution.value for r in group), 0, name), _reservations(group))
        for name, group in sums.items()
    ]
    denials = [d for d in budgeter.query(whole, setting.site, setting.api, setting.now_ms, consume=False) if d]
    if denials:
        for request in requests:
            lose(_CAUSE[denials[0]], request.contribution)
        return []
    budgeter.query(whole, setting.site, setting.api, setting.now_ms, consume=True)
    contributions = [request.contribution for request in requests]
    return sorted(merge(contributions), key=lambda made: made.merge_key) if setting.merging else contributions


def _reservations(group: Sequence[Request]) -> Reservations | None:
    return group[0].reservations if group else None
