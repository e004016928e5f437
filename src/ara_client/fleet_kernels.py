"""Attribution over columns: the loops behind ``Fleet``, and the structures they keep.

Sources of one device, reporter and destination are a group, found through a hash table. In the deployed form the
live sources of a group are a pairing heap by priority and then by age, newest first: registering is O(1), finding
the best O(1), dropping an expired best O(log n) amortized, and forgetting all others when one is attributed O(1). In
the paper's form they are a list, newest first, from which expired and spent sources are dropped when met.

Plain loops: no validation, nothing random. Sums cannot overflow: a row has at most 20 values below 2³². The plain
twin is ``ara_client.fleet_twin``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ara_client.fleet_columns import Flags, Ints, Words

ATTRIBUTED: Final = 0
NO_SOURCE: Final = 1
FILTERED: Final = 2
WINDOW_PASSED: Final = 3
DEDUPLICATED: Final = 4
NO_CONTRIBUTIONS: Final = 5
TOO_MANY_REPORTS: Final = 6
BUDGET_SPENT: Final = 7

NONE: Final = -1
_EMPTY: Final = -1


class NewSources(NamedTuple):
    """The columns of a batch of sources that say where each belongs; ``first`` is the number of its first row."""

    first: int
    order: Ints
    device: Ints
    reporter: Ints
    destination: Ints


class Triggers(NamedTuple):
    """The columns of a batch of triggers."""

    order: Ints
    time_ms: Ints
    device: Ints
    reporter: Ints
    destination: Ints
    filter: Ints
    has_dedup_key: Flags
    dedup_key: Words
    has_context_id: Flags
    offset: Ints
    name: Ints
    key_high: Words
    key_low: Words
    value: Ints
    filtering_id: Words


class Store(NamedTuple):
    """Every source the fleet was given: what it registered, what it has left, and its links within its group."""

    priority: Ints
    expiry_ms: Ints
    report_until_ms: Ints
    filter: Ints
    offset: Ints
    name: Ints
    key_high: Words
    key_low: Words
    spent: Ints
    counted: Ints
    child: Ints
    sibling: Ints


class Groups(NamedTuple):
    """Hash table of groups: ``table`` holds numbers of groups, ``head`` the best (or newest) source of each."""

    table: Ints
    device: Ints
    reporter: Ints
    destination: Ints
    head: Ints
    used: Ints


class DedupKeys(NamedTuple):
    """Hash set of (source, dedup key)."""

    source: Ints
    key: Words


class Out(NamedTuple):
    """Per trigger: the outcome, the source, and where its contributions end; and the contributions."""

    outcome: NDArray[np.int8]
    source: Ints
    end: Ints
    key_high: Words
    key_low: Words
    value: Ints
    filtering_id: Words


class Caps(NamedTuple):
    """Λ₁, and the cap on counted reports (deployed) or on contributions (Λ₀, paper)."""

    contribution_budget: int
    reports: int


@njit(cache=True)
def run(
    paper: bool,
    sources: NewSources,
    triggers: Triggers,
    store: Store,
    groups: Groups,
    dedup: DedupKeys,
    matches: Flags,
    caps: Caps,
    out: Out,
) -> int:
    """Register a batch in order; return the number of contributions written.

    ``groups.table`` and ``dedup`` must have at least as many empty slots as the batch can fill, plus one.
    """
    written = 0
    i = 0
    j = 0
    while i < sources.order.size or j < triggers.order.size:
        if j == triggers.order.size or (i < sources.order.size and sources.order[i] < triggers.order[j]):
            at = sources.first + i
            slot = _slot(groups, sources.device[i], sources.reporter[i], sources.destination[i])
            group = groups.table[slot]
            if group == _EMPTY:
                group = groups.used[0]
                groups.used[0] += 1
                groups.table[slot] = group
                groups.device[group] = sources.device[i]
                groups.reporter[group] = sources.reporter[i]
                groups.destination[group] = sources.destination[i]
                groups.head[group] = NONE
            if paper:
                store.sibling[at] = groups.head[group]
                groups.head[group] = at
            else:
                groups.head[group] = _merged(store, groups.head[group], at)
            i += 1
            continue
        group = groups.table[_slot(groups, triggers.device[j], triggers.reporter[j], triggers.destination[j])]
        before = written
        if triggers.offset[j] == triggers.offset[j + 1]:
            outcome = NO_CONTRIBUTIONS
            at = NONE
        elif group == _EMPTY:
            outcome = NO_SOURCE
            at = NONE
        elif paper:
            at, outcome, written = _attribute_paper(triggers, j, store, groups, group, matches, caps, out, written)
        else:
            at, outcome, written = _attribute_deployed(
                triggers, j, store, groups, group, dedup, matches, caps, out, written
            )
        if outcome != ATTRIBUTED:
            written = before
            at = NONE
        out.outcome[j] = outcome
        out.source[j] = at
        out.end[j] = written
        j += 1
    return written


@njit(cache=True)
def _attribute_deployed(
    triggers: Triggers,
    j: int,
    store: Store,
    groups: Groups,
    group: int,
    dedup: DedupKeys,
    matches: Flags,
    caps: Caps,
    out: Out,
    written: int,
) -> tuple[int, int, int]:
    """Attribute trigger j in Chromium's order of checks; return source, outcome and the end of what it wrote."""
    now = triggers.time_ms[j]
    at = groups.head[group]
    while at != NONE and store.expiry_ms[at] <= now:
        at = _without_root(store, at)
    groups.head[group] = at
    if at == NONE:
        return at, NO_SOURCE, written
    if not matches[store.filter[at], triggers.filter[j]]:
        return at, FILTERED, written
    # From here on the trigger belongs to this source, and the others are gone, whether or not a report comes of it.
    store.child[at] = NONE
    if now >= store.report_until_ms[at]:
        return at, WINDOW_PASSED, written
    if triggers.has_dedup_key[j] and _dedup_slot(dedup, at, triggers.dedup_key[j])[1]:
        return at, DEDUPLICATED, written
    end, total = _contribute(triggers, j, store, at, out, written)
    if end == written:
        return at, NO_CONTRIBUTIONS, end
    if not triggers.has_context_id[j] and store.counted[at] >= caps.reports:
        return at, TOO_MANY_REPORTS, end
    if store.spent[at] + total > caps.contribution_budget:
        return at, BUDGET_SPENT, end
    store.spent[at] += total
    if not triggers.has_context_id[j]:
        store.counted[at] += 1
    if triggers.has_dedup_key[j]:
        slot = _dedup_slot(dedup, at, triggers.dedup_key[j])[0]
        dedup.source[slot] = at
        dedup.key[slot] = triggers.dedup_key[j]
    return at, ATTRIBUTED, end


@njit(cache=True)
def _attribute_paper(
    triggers: Triggers,
    j: int,
    store: Store,
    groups: Groups,
    group: int,
    matches: Flags,
    caps: Caps,
    out: Out,
    written: int,
) -> tuple[int, int, int]:
    """Attribute trigger j as Algorithm 2 does: newest first, on to the next source where a budget does not allow it."""
    outcome = NO_SOURCE
    previous = NONE
    at = groups.head[group]
    while at != NONE:
        after = store.sibling[at]
        gone = (
            store.expiry_ms[at] <= triggers.time_ms[j]
            or store.counted[at] >= caps.reports
            or store.spent[at] >= caps.contribution_budget
        )
        if gone:
            if previous == NONE:
                groups.head[group] = after
            else:
                store.sibling[previous] = after
        elif not matches[store.filter[at], triggers.filter[j]]:
            outcome = max(outcome, FILTERED)
            previous = at
        else:
            end, total = _contribute(triggers, j, store, at, out, written)
            if total == 0:
                return at, NO_CONTRIBUTIONS, end
            if store.spent[at] + total <= caps.contribution_budget:
                store.spent[at] += total
                store.counted[at] += 1
                return at, ATTRIBUTED, end
            outcome = BUDGET_SPENT
            previous = at
        at = after
    return at, outcome, written


@njit(cache=True)
def _contribute(triggers: Triggers, j: int, store: Store, at: int, out: Out, written: int) -> tuple[int, int]:
    """Write the contributions of trigger j to source ``at``: one a name that both have. Return their end and sum."""
    total = 0
    a = store.offset[at]
    b = triggers.offset[j]
    while a < store.offset[at + 1] and b < triggers.offset[j + 1]:
        if store.name[a] < triggers.name[b]:
            a += 1
        elif store.name[a] > triggers.name[b]:
            b += 1
        else:
            out.key_high[written] = store.key_high[a] | triggers.key_high[b]
            out.key_low[written] = store.key_low[a] | triggers.key_low[b]
            out.value[written] = triggers.value[b]
            out.filtering_id[written] = triggers.filtering_id[b]
            total += triggers.value[b]
            written += 1
            a += 1
            b += 1
    return written, total


@njit(cache=True)
def _merged(store: Store, a: int, b: int) -> int:
    """Return the better root of two heaps with the other under it. Later rows are newer."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    if store.priority[b] > store.priority[a] or (store.priority[b] == store.priority[a] and b > a):
        a, b = b, a
    store.sibling[b] = store.child[a]
    store.child[a] = b
    return a


@njit(cache=True)
def _without_root(store: Store, root: int) -> int:
    """Return the heap without its root: merge its children in pairs, then the pairs from the last."""
    pairs = NONE
    at = store.child[root]
    while at != NONE:
        other = store.sibling[at]
        after = NONE if other == NONE else store.sibling[other]
        store.sibling[at] = NONE
        if other != NONE:
            store.sibling[other] = NONE
        pair = _merged(store, at, other)
        store.sibling[pair] = pairs
        pairs = pair
        at = after
    heap = NONE
    while pairs != NONE:
        after = store.sibling[pairs]
        store.sibling[pairs] = NONE
        heap = _merged(store, heap, pairs)
        pairs = after
    return heap


@njit(cache=True)
def _mixed(state: np.uint64, word: np.uint64) -> np.uint64:
    """Return one step of a hash: multiply, xor, shift (the constants are splitmix64's)."""
    z = (np.uint64(state) ^ np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def _slot(groups: Groups, device: int, reporter: int, destination: int) -> int:
    """Return the slot that holds the group, or the empty one where it belongs."""
    mask = np.uint64(groups.table.size - 1)
    hashed = _mixed(np.uint64(0), np.uint64(device))
    slot = _mixed(_mixed(hashed, np.uint64(reporter)), np.uint64(destination)) & mask
    while True:
        group = groups.table[slot]
        if group == _EMPTY or (
            groups.device[group] == device
            and groups.reporter[group] == reporter
            and groups.destination[group] == destination
        ):
            return slot
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True)
def _dedup_slot(dedup: DedupKeys, source: int, key: int) -> tuple[int, bool]:
    """Return the slot of (source, key) or where it belongs, and whether it is there."""
    mask = np.uint64(dedup.source.size - 1)
    slot = _mixed(_mixed(np.uint64(1), np.uint64(source)), np.uint64(key)) & mask
    while True:
        if dedup.source[slot] == _EMPTY:
            return slot, False
        if dedup.source[slot] == source and dedup.key[slot] == key:
            return slot, True
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True)
def refill_groups(groups: Groups) -> None:
    """Enter every group into an empty, larger table."""
    for group in range(groups.used[0]):
        groups.table[_slot(groups, groups.device[group], groups.reporter[group], groups.destination[group])] = group


@njit(cache=True)
def refill_dedup(old: DedupKeys, new: DedupKeys) -> None:
    """Enter every dedup key into an empty, larger set."""
    for index in range(old.source.size):
        if old.source[index] != _EMPTY:
            slot = _dedup_slot(new, old.source[index], old.key[index])[0]
            new.source[slot] = old.source[index]
            new.key[slot] = old.key[index]
