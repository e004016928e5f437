"""Attribution over columns: the loops behind ``Fleet``.

Sources of one device, reporter and destination form a group, found through a hash table. In the deployed
form the live sources of a group are a pairing heap by priority and then by age, newest first: registering is O(1),
finding the best O(1), removing an expired best O(log n) amortized, and removing all others at an attribution O(1). In
the paper's form they are a list, newest first; the search removes expired and spent sources.

Plain loops without validation or randomness. Sums cannot overflow: a row has at most 20 values below 2³². The plain
twin is ``twins.ara_fleet`` of the tests.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ara_client.fleet.columns import Flags, Ints, Words

# The hash tables of a fleet: groups of sources by device, reporter and destination, and dedup keys by source.
#
# Open addressing with linear probing. Each entry is one row, so that a lookup touches one cache line.
# Tables stay at most half full: the caller replaces them by larger ones in time.

#: NONE is no source; EMPTY marks an empty row.
NONE: Final = -1
EMPTY: Final = -2

#: Columns of a table of groups; ``HEAD`` is the best (or newest) source, ``NONE``, or ``EMPTY``.
DEVICE, REPORTER, DESTINATION, HEAD = range(4)
GROUP_WIDTH: Final = 4

#: Columns of a set of dedup keys.
SOURCE, DEDUP_KEY = range(2)
DEDUP_WIDTH: Final = 2
_NO_SOURCE: Final = (1 << 64) - 1


@njit(cache=True)
def _mixed(state: np.uint64, word: np.uint64) -> np.uint64:
    """Return one step of a hash: multiply, xor, shift (the constants are splitmix64's)."""
    z = (np.uint64(state) ^ np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def group_slot(groups: Ints, device: int, reporter: int, destination: int) -> int:
    """Return the row of the group, or the empty row to put it in."""
    mask = np.uint64(groups.shape[0] - 1)
    hashed = _mixed(np.uint64(0), np.uint64(device))
    slot = _mixed(_mixed(hashed, np.uint64(reporter)), np.uint64(destination)) & mask
    while groups[slot, HEAD] != EMPTY and not (
        groups[slot, DEVICE] == device
        and groups[slot, REPORTER] == reporter
        and groups[slot, DESTINATION] == destination
    ):
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True)
def dedup_row(dedup: Words, source: int, key: int) -> tuple[int, bool]:
    """Return the row of (source, key), or the empty row to put it in, and whether it was found."""
    mask = np.uint64(dedup.shape[0] - 1)
    wanted = np.uint64(source)
    slot = _mixed(_mixed(np.uint64(1), wanted), np.uint64(key)) & mask
    while dedup[slot, SOURCE] != np.uint64(_NO_SOURCE):
        if dedup[slot, SOURCE] == wanted and dedup[slot, DEDUP_KEY] == key:
            return slot, True
        slot = (slot + np.uint64(1)) & mask
    return slot, False


@njit(cache=True)
def move_groups(old: Ints, new: Ints) -> None:
    """Copy every group into an empty, larger table."""
    for index in range(old.shape[0]):
        if old[index, HEAD] != EMPTY:
            slot = group_slot(new, old[index, DEVICE], old[index, REPORTER], old[index, DESTINATION])
            new[slot] = old[index]


@njit(cache=True)
def move_dedup(old: Words, new: Words) -> None:
    """Copy every dedup key into an empty, larger set."""
    for index in range(old.shape[0]):
        if old[index, SOURCE] != np.uint64(_NO_SOURCE):
            new[dedup_row(new, old[index, SOURCE], old[index, DEDUP_KEY])[0]] = old[index]


def empty_groups(size: int) -> Ints:
    """Return an empty table of groups; ``size`` is a power of two."""
    return np.full((size, GROUP_WIDTH), EMPTY, dtype=np.int64)


def empty_dedup_keys(size: int) -> Words:
    """Return an empty set of dedup keys; ``size`` is a power of two."""
    return np.full((size, DEDUP_WIDTH), _NO_SOURCE, dtype=np.uint64)


#: The outcomes of a trigger, as ``ara_client.fleet.fleet.TriggerOutcome`` names them.
ATTRIBUTED, NO_SOURCE, FILTERED, WINDOW_PASSED, DEDUPLICATED, NO_CONTRIBUTIONS, TOO_MANY_REPORTS, BUDGET_SPENT = range(
    8
)

#: Columns of ``SourceRows.rows``: a source's registration, its spending, and its links within its group.
PRIORITY, EXPIRY_MS, REPORT_UNTIL_MS, FILTER, SPENT, COUNTED, CHILD, SIBLING = range(8)
SOURCE_WIDTH: Final = 8

#: Indexes of ``progress``: sources, triggers and contributions processed; groups and dedup keys stored.
SOURCES, TRIGGERS, WRITTEN, GROUPS, DEDUP_KEYS = range(5)
PROGRESS_WIDTH: Final = 5

#: Columns of keys (the first three) and of requested or sent contributions, all 64-bit words.
NAME, KEY_HIGH, KEY_LOW, VALUE, FILTERING_ID = range(5)
KEY_WIDTH: Final = 3
CONTRIBUTION_WIDTH: Final = 5


class NewSources(NamedTuple):
    """The columns that give the group of each source of a batch; ``first`` is the number of its first row."""

    first: int
    order: Ints
    device: Ints
    reporter: Ints
    destination: Ints


class Triggers(NamedTuple):
    """The columns of a batch of triggers. Their contributions are in a separate table."""

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


class SourceRows(NamedTuple):
    """Every source of the fleet and its keys: those of row i are ``offset[i]`` to ``offset[i + 1]``."""

    rows: Ints
    offset: Ints
    keys: Words


class Out(NamedTuple):
    """Per trigger: the outcome, the source, and where its contributions end; and the contributions."""

    outcome: NDArray[np.int8]
    source: Ints
    end: Ints
    sent: Words


class Caps(NamedTuple):
    """Λ₁, and the cap on counted reports (deployed) or on contributions (Λ₀, paper)."""

    contribution_budget: int
    reports: int


@njit(cache=True)
def register(
    paper: bool,
    sources: NewSources,
    triggers: Triggers,
    wanted: Words,
    store: SourceRows,
    groups: Ints,
    dedup: Words,
    matches: Flags,
    caps: Caps,
    out: Out,
    progress: Ints,
) -> bool:
    """Register a batch in order, starting at ``progress``; return False if a half-full table must grow first."""
    i = progress[SOURCES]
    j = progress[TRIGGERS]
    written = progress[WRITTEN]
    room = True
    while i < sources.order.size or j < triggers.order.size:
        if 2 * progress[GROUPS] >= groups.shape[0] or 2 * progress[DEDUP_KEYS] >= dedup.shape[0]:
            room = False
            break
        if j == triggers.order.size or (i < sources.order.size and sources.order[i] < triggers.order[j]):
            at = sources.first + i
            group = group_slot(groups, sources.device[i], sources.reporter[i], sources.destination[i])
            if groups[group, HEAD] == EMPTY:
                groups[group, DEVICE] = sources.device[i]
                groups[group, REPORTER] = sources.reporter[i]
                groups[group, DESTINATION] = sources.destination[i]
                groups[group, HEAD] = at
                progress[GROUPS] += 1
            elif paper:
                store.rows[at, SIBLING] = groups[group, HEAD]
                groups[group, HEAD] = at
            else:
                groups[group, HEAD] = _merged(store.rows, groups[group, HEAD], at)
            i += 1
            continue
        group = group_slot(groups, triggers.device[j], triggers.reporter[j], triggers.destination[j])
        now = triggers.time_ms[j]
        start = triggers.offset[j]
        stop = triggers.offset[j + 1]
        at = NONE
        end = written
        if start == stop:
            outcome = NO_CONTRIBUTIONS
        elif groups[group, HEAD] == EMPTY:
            outcome = NO_SOURCE
        elif paper:
            at, outcome, end = _attribute_paper(
                now, triggers.filter[j], wanted, start, stop, store, groups, group, matches, caps, out.sent, written
            )
        else:
            at = _best(store.rows, groups, group, now)
            if at == NONE:
                outcome = NO_SOURCE
            elif not matches[store.rows[at, FILTER], triggers.filter[j]]:
                outcome = FILTERED
            else:
                # The trigger now belongs to this source and the others are removed, even if no report is made.
                store.rows[at, CHILD] = NONE
                slot = np.uint64(0)
                seen = False
                if triggers.has_dedup_key[j]:
                    slot, seen = dedup_row(dedup, at, triggers.dedup_key[j])
                if now >= store.rows[at, REPORT_UNTIL_MS]:
                    outcome = WINDOW_PASSED
                elif seen:
                    outcome = DEDUPLICATED
                else:
                    outcome, end = _charge(
                        wanted, start, stop, store, at, not triggers.has_context_id[j], caps, out.sent, written
                    )
                    if outcome == ATTRIBUTED and triggers.has_dedup_key[j]:
                        dedup[slot, SOURCE] = at
                        dedup[slot, DEDUP_KEY] = triggers.dedup_key[j]
                        progress[DEDUP_KEYS] += 1
        if outcome == ATTRIBUTED:
            written = end
        else:
            at = NONE
        out.outcome[j] = outcome
        out.source[j] = at
        out.end[j] = written
        j += 1
    progress[SOURCES] = i
    progress[TRIGGERS] = j
    progress[WRITTEN] = written
    return room


@njit(cache=True)
def _best(rows: Ints, groups: Ints, group: int, now: int) -> int:
    """Remove expired sources from the top of a group; return the best remaining one, or ``NONE``."""
    at = groups[group, HEAD]
    while at != NONE and rows[at, EXPIRY_MS] <= now:
        at = _without_root(rows, at)
    groups[group, HEAD] = at
    return at


@njit(cache=True)
def _charge(
    wanted: Words,
    start: int,
    stop: int,
    store: SourceRows,
    at: int,
    counts: bool,
    caps: Caps,
    sent: Words,
    written: int,
) -> tuple[int, int]:
    """Charge source ``at`` for its contributions; return the outcome and where the written contributions end.

    The cap on reports is checked before the budget, as in Chromium.
    """
    rows = store.rows
    end, total = _contribute(wanted, start, stop, store, at, sent, written)
    if end == written:
        return NO_CONTRIBUTIONS, end
    if counts and rows[at, COUNTED] >= caps.reports:
        return TOO_MANY_REPORTS, end
    if rows[at, SPENT] + total > caps.contribution_budget:
        return BUDGET_SPENT, end
    rows[at, SPENT] += total
    if counts:
        rows[at, COUNTED] += 1
    return ATTRIBUTED, end


@njit(cache=True)
def _attribute_paper(
    now: int,
    wanted_filter: int,
    wanted: Words,
    start: int,
    stop: int,
    store: SourceRows,
    groups: Ints,
    group: int,
    matches: Flags,
    caps: Caps,
    sent: Words,
    written: int,
) -> tuple[int, int, int]:
    """Attribute a trigger as in Algorithm 2: try the newest source first, then the next one if a budget is spent.

    Returns the source or ``NONE``, the outcome, and where the written contributions end.
    """
    rows = store.rows
    outcome = NO_SOURCE
    previous = NONE
    at = groups[group, HEAD]
    while at != NONE:
        after = rows[at, SIBLING]
        gone = (
            rows[at, EXPIRY_MS] <= now
            or rows[at, COUNTED] >= caps.reports
            or rows[at, SPENT] >= caps.contribution_budget
        )
        if gone:
            if previous == NONE:
                groups[group, HEAD] = after
            else:
                rows[previous, SIBLING] = after
        elif not matches[rows[at, FILTER], wanted_filter]:
            outcome = max(outcome, FILTERED)
            previous = at
        else:
            end, total = _contribute(wanted, start, stop, store, at, sent, written)
            if total == 0:
                return at, NO_CONTRIBUTIONS, end
            if rows[at, SPENT] + total <= caps.contribution_budget:
                rows[at, SPENT] += total
                rows[at, COUNTED] += 1
                return at, ATTRIBUTED, end
            outcome = BUDGET_SPENT
            previous = at
        at = after
    return at, outcome, written


@njit(cache=True)
def _contribute(
    wanted: Words, start: int, stop: int, store: SourceRows, at: int, sent: Words, written: int
) -> tuple[int, np.int64]:
    """Write the contributions for source ``at``, one per name that both have; return their end and sum."""
    keys = store.keys
    total = np.int64(0)
    a = store.offset[at]
    last = store.offset[at + 1]
    b = start
    while a < last and b < stop:
        if keys[a, NAME] < wanted[b, NAME]:
            a += 1
        elif keys[a, NAME] > wanted[b, NAME]:
            b += 1
        else:
            sent[written, NAME] = wanted[b, NAME]
            sent[written, KEY_HIGH] = keys[a, KEY_HIGH] | wanted[b, KEY_HIGH]
            sent[written, KEY_LOW] = keys[a, KEY_LOW] | wanted[b, KEY_LOW]
            sent[written, VALUE] = wanted[b, VALUE]
            sent[written, FILTERING_ID] = wanted[b, FILTERING_ID]
            total += np.int64(wanted[b, VALUE])
            written += 1
            a += 1
            b += 1
    return written, total


@njit(cache=True)
def _merged(rows: Ints, a: int, b: int) -> int:
    """Return the better root of two heaps, with the other as its child. Later rows are newer."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    if rows[b, PRIORITY] > rows[a, PRIORITY] or (rows[b, PRIORITY] == rows[a, PRIORITY] and b > a):
        a, b = b, a
    rows[b, SIBLING] = rows[a, CHILD]
    rows[a, CHILD] = b
    return a


@njit(cache=True)
def _without_root(rows: Ints, root: int) -> int:
    """Return the heap without its root: merge its children in pairs, then the pairs from the last."""
    pairs = NONE
    at = rows[root, CHILD]
    while at != NONE:
        other = rows[at, SIBLING]
        after = NONE if other == NONE else rows[other, SIBLING]
        rows[at, SIBLING] = NONE
        if other != NONE:
            rows[other, SIBLING] = NONE
        pair = _merged(rows, at, other)
        rows[pair, SIBLING] = pairs
        pairs = pair
        at = after
    heap = NONE
    while pairs != NONE:
        after = rows[pairs, SIBLING]
        rows[pairs, SIBLING] = NONE
        heap = _merged(rows, heap, pairs)
        pairs = after
    return heap
