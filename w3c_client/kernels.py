"""Attribution over columns: the layout of rows and the loops behind ``Fleet``, device by device.

A row of ``imp``, ``con`` and ``clears`` is an impression, a conversion or a clear, in order of device and time, so that
the impressions of a device are in order of epochs. The budgets of the current device are the last columns of ``ent``,
newest searched first. Plain loops without validation or randomness. Nothing overflows: ε in 10⁻⁶ is below 2³², twice a
value below 2³², weights add up to less than 2³⁰, epochs fit into 27 bits and sites into 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numba import njit

ATTRIBUTED, NO_MATCH, REFUSED, CLEARED, OFF = range(5)
IMPRESSIONS_FOR_SITE, SITE_DATA, FORGET_SITE, FORGET_ALL = range(4)
HOUR_MS: Final = 3_600_000
NEVER: Final = 1 << 62
"""The start of epochs of a device that never needed it."""
EPOCH_ZERO: Final = 1 << 26
SITE_BITS, RULE_BITS = 32, 4
ABSENT: Final = -1
UNSAVED, LIVE, GONE = range(3)

#: Columns of ``imp``. The last are the kernel's own: whether it is stored, its epoch, and (two columns of bits) which
#: items of its lists of conversion sites and callers were cleared.
(I_TIME, I_UNTIL, I_SITE, I_CALLER, I_INDEX, I_PRIORITY, I_MATCH_VALUE, I_SITES, I_CALLERS, I_ACTION, I_ENABLED,
 I_STATE, I_EPOCH, I_GONE) = range(14)  # fmt: skip
IMP_WIDTH: Final = 15
#: Columns of ``con``. ``C_WHOLE`` is what an epoch of a wide window costs; the coins of a row begin at ``C_WORD``.
(C_TIME, C_LOOKBACK, C_SITE, C_CALLER, C_SIZE, C_VALUE, C_MAX_VALUE, C_EPSILON, C_WHOLE, C_CREDIT, C_MATCH_VALUES,
 C_SITES, C_CALLERS, C_ACTION, C_ENABLED, C_WORD) = range(16)  # fmt: skip
CON_WIDTH: Final = 16
#: Columns of ``clears``.
K_TIME, K_KIND, K_SITE = range(3)
#: Columns of ``res``, the results of conversions.
R_OUTCOME, R_END, R_OUTSIDE, R_PAID, R_UNPAID, R_REFUSED, R_SINGLE = range(7)
RES_WIDTH: Final = 7
#: Rows of ``ent`` (budgets) and columns of ``seen`` (sites that a rule counts); from the last on, further columns of a
#: scope. Columns of ``sent`` (contributions) and of ``ends`` (devices).
E_KEY, E_LEFT, E_REST = range(3)
A_KEY, A_SITE, A_REST = range(3)
S_INDEX, S_AMOUNT = range(2)
D_START, D_ENTRIES = range(2)
#: Entries of ``values``; impressions per site and epoch: 0 for no limit.
EPOCH_MS, LOOKBACK_MS, COUNTED, PER_SITE = range(4)
#: Columns of ``limits``, one row per on-device rule: what it is, what the current conversion costs it (written by
#: the kernel), and the columns of its scope as places of ``who``. The first of them is a site, in the key; 0 is none.
L_CAPACITY, L_COUNTS, L_EMPTIED, L_ACTION, L_BY_SITE, L_COST, L_FIRST, L_SECOND = range(8)
LIMIT_WIDTH: Final = L_SECOND + 3
#: Places of ``who``, the parties of a call, in the order of ``ScopeColumn``.
NONE, W_SITE, W_OTHER, W_CALLER, W_ACTION = range(5)
#: What a rule charges by list of impression sites (``prices``): norms and values within one epoch, values else.
P_NORM, P_VALUE, P_WIDE = range(3)
#: Rows of ``room``: matches, distinct sites, and budgets to charge. Rows of ``top``: impressions by rank, amounts,
#: fractions.
MATCHES, SITES, DUE_ROW, DUE_RULE, DUE_SITE = range(5)
CREDITED, AMOUNTS, PARTS = range(3)


def key_columns(scope: Sequence[int]) -> list[int]:
    """Return the columns of a scope as a key holds them: a site first, or none, and the user's action last."""
    sites = [column for column in scope if column != W_ACTION] or [NONE]
    return sites + [column for column in scope if column == W_ACTION]


@njit(cache=True)
def key_of(limits, r, epoch, who):  # type: ignore[no-untyped-def]
    """Return the key of a budget of rule ``r``: the epoch, the first site of the scope and the rule."""
    return ((epoch + EPOCH_ZERO) << (SITE_BITS + RULE_BITS)) | (who[limits[r, L_FIRST]] << RULE_BITS) | r


@njit(cache=True)
def find(ent, base, count, key, limits, r, who):  # type: ignore[no-untyped-def]
    for row in range(count - 1, base - 1, -1):
        if ent[E_KEY, row] == key:
            same = True
            for n in range(ent.shape[0] - E_REST):
                same &= ent[E_REST + n, row] == who[limits[r, L_SECOND + n]]
            if same:
                return row
    return ABSENT


@njit(cache=True)
def charge(ent, row, count, key, left, limits, r, who):  # type: ignore[no-untyped-def]
    """Set what the budget at ``row`` has left, or add the budget if it is absent; return the number of rows."""
    if row == ABSENT:
        row, count = count, count + 1
        ent[E_KEY, row] = key
        for n in range(ent.shape[0] - E_REST):
            ent[E_REST + n, row] = who[limits[r, L_SECOND + n]]
    ent[E_LEFT, row] = left
    return count


@njit(cache=True)
def sites_seen(epoch, limits, r, who, seen, count):  # type: ignore[no-untyped-def]
    """Return how many sites a counting rule has seen in a scope, and whether this one is among them."""
    key, others, known = key_of(limits, r, epoch, who), 0, False
    for row in range(count):
        same = seen[row, A_KEY] == key
        for n in range(seen.shape[1] - A_REST):
            same &= seen[row, A_REST + n] == who[limits[r, L_SECOND + n]]
        if same:
            others += 1
            known |= seen[row, A_SITE] == who[W_SITE]
    return others, known


@njit(cache=True)
def admit(epoch, limits, who, seen, count):  # type: ignore[no-untyped-def]
    """Record that a site uses an epoch. Returns the counting rule that refuses or -1, and the number of records."""
    for r in range(limits.shape[0]):
        if limits[r, L_COUNTS] and not (limits[r, L_ACTION] and who[W_ACTION] < 0):
            others, known = sites_seen(epoch, limits, r, who, seen, count)
            if not known and others >= limits[r, L_CAPACITY]:
                return r, count
    for r in range(limits.shape[0]):
        if limits[r, L_COUNTS] and not (limits[r, L_ACTION] and who[W_ACTION] < 0):
            _, known = sites_seen(epoch, limits, r, who, seen, count)
            if not known:
                seen[count, A_KEY] = key_of(limits, r, epoch, who)
                seen[count, A_SITE] = who[W_SITE]
                for n in range(seen.shape[1] - A_REST):
                    seen[count, A_REST + n] = who[limits[r, L_SECOND + n]]
                count += 1
    return ABSENT, count


@njit(cache=True)
def distinct_sites(first, stop, imp, room):  # type: ignore[no-untyped-def]
    """Write the impression sites of the matches ``first`` to ``stop``; return their number."""
    distinct = 0
    for match in range(first, stop):
        other = imp[room[MATCHES, match], I_SITE]
        earlier = distinct - 1
        while earlier >= 0 and room[SITES, earlier] != other:
            earlier -= 1
        if earlier < 0:
            room[SITES, distinct] = other
            distinct += 1
    return distinct


@njit(cache=True)
def pay(epoch, first, stop, imp, counted, limits, who, ent, base, count, room, seen, acted):  # type: ignore[no-untyped-def]
    """Charge an epoch for its matches ``first`` to ``stop``: all rules or none.

    Returns the rule that refuses or -1, the number of budgets, and the number of recorded sites.
    """
    owed, distinct = 0, 0
    for r in range(limits.shape[0]):
        if limits[r, L_ACTION] and who[W_ACTION] < 0:
            continue
        if limits[r, L_COUNTS]:
            others, known = sites_seen(epoch, limits, r, who, seen, acted)
            if not known and others >= limits[r, L_CAPACITY]:
                return r, count, acted
            continue
        keys = 1
        if limits[r, L_BY_SITE]:
            distinct = distinct or distinct_sites(first, stop, imp, room)
            keys = distinct
        cost = limits[r, L_COST]
        for n in range(keys):
            who[W_OTHER] = room[SITES, n]
            row = find(ent, base, count, key_of(limits, r, epoch, who), limits, r, who)
            if cost > (limits[r, L_CAPACITY] if row == ABSENT else ent[E_LEFT, row]):
                return r, count, acted
            room[DUE_ROW, owed], room[DUE_RULE, owed], room[DUE_SITE, owed] = row, r, who[W_OTHER]
            owed += 1
    if counted:
        _, acted = admit(epoch, limits, who, seen, acted)
    for n in range(owed):
        row, r = room[DUE_ROW, n], room[DUE_RULE, n]
        if row != ABSENT:
            ent[E_LEFT, row] -= limits[r, L_COST]
        else:
            who[W_OTHER] = room[DUE_SITE, n]
            left = limits[r, L_CAPACITY] - limits[r, L_COST]
            count = charge(ent, ABSENT, count, key_of(limits, r, epoch, who), left, limits, r, who)
    return ABSENT, count, acted


@njit(cache=True)
def price(con, c, norm_times, value_times, norm):  # type: ignore[no-untyped-def]
    """Return ⌈ε · sensitivity / (2 · maxValue)⌉; the sensitivity is at most twice the value."""
    if norm_times == 0 and value_times == 2:
        return con[c, C_WHOLE]
    divisor = np.uint64(2 * con[c, C_MAX_VALUE])
    loss = np.uint64(con[c, C_EPSILON]) * np.uint64(norm_times * norm + value_times * con[c, C_VALUE])
    return np.int64((loss + divisor - np.uint64(1)) // divisor)


@njit(cache=True)
def allocate(weights, first, count, value, words, word, top):  # type: ignore[no-untyped-def]
    """Divide ``value`` by the ``count`` weights from ``first`` on (``w3c_client.credit``), into ``AMOUNTS``.

    A coin of probability f / t, unless certain, compares one random word w: w · t < f · 2⁶⁴. Its error is below 2⁻⁶⁴.
    """
    total = np.int64(0)
    for n in range(count):
        total += weights[first + n]
    for n in range(count):
        share = value * weights[first + n]
        top[AMOUNTS, n] = share // total
        top[PARTS, n] = share % total
    open_ = 0
    for other in range(1, count):
        a, b = top[PARTS, open_], top[PARTS, other]
        if a == 0 and b == 0:
            continue
        up = a + b > total
        favourable = total - b if up else b
        of = (total - a if up else a) + favourable
        chosen = favourable == of
        if 0 < favourable < of:
            low = (words[word] & np.uint64(0xFFFFFFFF)) * np.uint64(of)
            high = (words[word] >> np.uint64(32)) * np.uint64(of)
            chosen = (high + (low >> np.uint64(32))) >> np.uint64(32) < np.uint64(favourable)
            word += 1
        whole, rest = (open_, other) if chosen else (other, open_)
        left = a + b - total if up else a + b
        top[AMOUNTS, whole] += 1 if up else 0
        top[PARTS, whole] = 0
        top[AMOUNTS, rest] += left // total
        top[PARTS, rest] = left % total
        open_ = rest


@njit(cache=True)
def credit(kept, imp, con, c, share_offset, ranks, weights, words, sent, written, room, top):  # type: ignore[no-untyped-def]
    """Write the histogram of the attribution rule over the first ``kept`` matches; return where it ends and its sum.

    The shares of a list of credits and n touches are rows of ``ranks`` and ``weights``: from ``share_offset[list, n]``
    to ``share_offset[list, n + 1]``. Rank -1 is nobody's.
    """
    first, stop = share_offset[con[c, C_CREDIT], kept], share_offset[con[c, C_CREDIT], kept + 1]
    most = 0
    for row in range(first, stop):
        if ranks[row] >= most:
            most = ranks[row] + 1
    count = 0
    for match in range(kept):
        i = room[MATCHES, match]
        place = count
        while place > 0:
            other = top[CREDITED, place - 1]
            if imp[i, I_PRIORITY] < imp[other, I_PRIORITY] or (
                imp[i, I_PRIORITY] == imp[other, I_PRIORITY] and imp[i, I_TIME] <= imp[other, I_TIME]
            ):
                break
            place -= 1
        if place >= most:
            continue
        count = min(count + 1, most)
        for later in range(count - 1, place, -1):
            top[CREDITED, later] = top[CREDITED, later - 1]
        top[CREDITED, place] = i
    if stop - first == 1:
        top[AMOUNTS, 0] = con[c, C_VALUE]
    else:
        allocate(weights, first, stop - first, con[c, C_VALUE], words, con[c, C_WORD], top)
    start, inside = written, np.int64(0)
    for n in range(stop - first):
        if ranks[first + n] < 0:
            continue
        index, amount = imp[top[CREDITED, ranks[first + n]], I_INDEX], top[AMOUNTS, n]
        if amount == 0 or index >= con[c, C_SIZE]:
            continue
        inside += amount
        for row in range(start, written):
            if sent[row, S_INDEX] == index:
                sent[row, S_AMOUNT] += amount
                amount = 0
                break
        if amount:
            sent[written, S_INDEX] = index
            sent[written, S_AMOUNT] = amount
            written += 1
    return written, inside


@njit(cache=True)
def _listed(offset, items, number, item, gone):  # type: ignore[no-untyped-def]
    """Return whether list ``number`` has an item; entries whose bit is set in ``gone`` do not count."""
    at = start = offset[number]
    stop = offset[number + 1]
    while at < stop and (items[at] != item or (gone >> (at - start)) & 1):
        at += 1
    return at < stop


@njit(cache=True)
def _matches(imp, i, con, c, offset, items, cleared):  # type: ignore[no-untyped-def]
    """Return whether an impression matches a conversion (specification, "common matching logic").

    The caller has checked the times. List 0 is empty and allows any. With ``cleared``, earlier clears are ignored.
    """
    if imp[i, I_SITES] and not _listed(
        offset, items, imp[i, I_SITES], con[c, C_SITE], 0 if cleared else imp[i, I_GONE]
    ):
        return False
    if imp[i, I_CALLERS] and not _listed(
        offset, items, imp[i, I_CALLERS], con[c, C_CALLER], 0 if cleared else imp[i, I_GONE + 1]
    ):
        return False
    if con[c, C_MATCH_VALUES] and not _listed(offset, items, con[c, C_MATCH_VALUES], imp[i, I_MATCH_VALUE], 0):
        return False
    if con[c, C_SITES] and not _listed(offset, items, con[c, C_SITES], imp[i, I_SITE], 0):
        return False
    return not con[c, C_CALLERS] or _listed(offset, items, con[c, C_CALLERS], imp[i, I_CALLER], 0)


@njit(cache=True)
def _convert(  # type: ignore[no-untyped-def]
    con, c, res, head, i, current, first, single, imp, list_offset, items, share_offset, ranks, weights, words, values,
    limits, prices, who, ent, base, count, sent, written, room, top, seen, acted,
):  # fmt: skip
    """Attribute one conversion to the device's impressions ``head`` to ``i``.

    Returns the numbers of budgets, of written contributions and of recorded sites per action.
    """
    now, since = con[c, C_TIME], con[c, C_TIME] - con[c, C_LOOKBACK]
    who[W_SITE], who[W_CALLER], who[W_ACTION] = con[c, C_SITE], con[c, C_CALLER], con[c, C_ACTION]
    matched, missed, named = 0, False, con[c, C_SITES]
    for r in range(head, i):
        state = imp[r, I_STATE]
        if state == UNSAVED or imp[r, I_TIME] < since or imp[r, I_UNTIL] < now:
            continue
        if not _matches(imp, r, con, c, list_offset, items, state == GONE):
            continue
        if state == GONE:
            missed = True
        else:
            room[MATCHES, matched] = r
            matched += 1
    kept = refused = paid = unpaid = 0
    inside = np.int64(0)
    if single:
        if matched and first <= current:
            end, inside = credit(matched, imp, con, c, share_offset, ranks, weights, words, sent, written, room, top)
            for r in range(limits.shape[0]):
                limits[r, L_COST] = price(con, c, prices[r, named, P_NORM], prices[r, named, P_VALUE], inside)
            by, count, acted = pay(
                current, 0, matched, imp, values[COUNTED], limits, who, ent, base, count, room, seen, acted
            )
            if by == ABSENT:
                kept, written, paid = matched, end, 1
            else:
                refused, unpaid = 1 << by, 1
        elif matched:
            missed = True
    else:
        for r in range(limits.shape[0]):
            limits[r, L_COST] = price(con, c, 0, prices[r, named, P_WIDE], 0)
        at = 0
        while at < matched:
            epoch, stop = imp[room[MATCHES, at], I_EPOCH], at + 1
            while stop < matched and imp[room[MATCHES, stop], I_EPOCH] == epoch:
                stop += 1
            if epoch < first:
                missed = True
            else:
                by, count, acted = pay(
                    epoch, at, stop, imp, values[COUNTED], limits, who, ent, base, count, room, seen, acted
                )
                if by == ABSENT:
                    paid += 1
                    for match in range(at, stop):
                        room[MATCHES, kept] = room[MATCHES, match]
                        kept += 1
                else:
                    refused |= 1 << by
                    unpaid += 1
            at = stop
        if kept:
            written, inside = credit(kept, imp, con, c, share_offset, ranks, weights, words, sent, written, room, top)
    res[c, R_SINGLE] = single
    res[c, R_PAID] = paid
    res[c, R_UNPAID] = unpaid
    res[c, R_REFUSED] = refused
    res[c, R_OUTSIDE] = con[c, C_VALUE] - inside if kept else 0
    if kept:
        res[c, R_OUTCOME] = ATTRIBUTED
    elif refused:
        res[c, R_OUTCOME] = REFUSED
    else:
        res[c, R_OUTCOME] = CLEARED if missed else NO_MATCH
    return count, written, acted


@njit(cache=True)
def _forget(site, from_, to, imp, limits, ent, base, count):  # type: ignore[no-untyped-def]
    """Remove the impressions of a site and the budgets that name it, or with -1 all; return the number of budgets."""
    for r in range(from_, to):
        if imp[r, I_STATE] == LIVE and (site < 0 or imp[r, I_SITE] == site):
            imp[r, I_STATE] = GONE
    if site < 0:
        return base
    row = base
    while row < count:
        key = ent[E_KEY, row]
        r = key & ((1 << RULE_BITS) - 1)
        named = limits[r, L_FIRST] != NONE and (key >> RULE_BITS) & ((1 << SITE_BITS) - 1) == site
        for n in range(ent.shape[0] - E_REST):
            named |= NONE < limits[r, L_SECOND + n] < W_ACTION and ent[E_REST + n, row] == site
        if named:
            count -= 1
            ent[:, row] = ent[:, count]
        else:
            row += 1
    return count


@njit(cache=True)
def _strike(imp, r, column, number, site, offset, items):  # type: ignore[no-untyped-def]
    """Remove a site from one list of an impression; return whether that makes the list empty."""
    start = offset[number]
    left, found = 0, False
    for at in range(start, offset[number + 1]):
        bit = 1 << (at - start)
        if imp[r, column] & bit:
            continue
        if items[at] == site:
            imp[r, column] |= bit
            found = True
        else:
            left += 1
    return found and left == 0


@njit(cache=True)
def _clear_for_site(site, from_, to, imp, offset, items):  # type: ignore[no-untyped-def]
    for r in range(from_, to):
        if imp[r, I_STATE] == LIVE and (
            imp[r, I_CALLER] == site
            or _strike(imp, r, I_GONE, imp[r, I_SITES], site, offset, items)
            or _strike(imp, r, I_GONE + 1, imp[r, I_CALLERS], site, offset, items)
        ):
            imp[r, I_STATE] = GONE


@njit(cache=True)
def _begin(time_ms, offset_ms, from_, to, imp, epoch_ms):  # type: ignore[no-untyped-def]
    """Return the start of epoch 0 as drawn at ``time_ms``, and set the epochs of the impressions so far."""
    start = (time_ms - offset_ms) // HOUR_MS * HOUR_MS
    for r in range(from_, to):
        imp[r, I_EPOCH] = (imp[r, I_TIME] - start) // epoch_ms
    return start


@njit(cache=True)
def _held(imp, i0, i, since_ms):  # type: ignore[no-untyped-def]
    """Return how many impressions the site of row ``i`` has from ``since_ms`` on, and the first of them."""
    held, first = 0, ABSENT
    r = i - 1
    while r >= i0 and imp[r, I_TIME] >= since_ms:
        if imp[r, I_STATE] == LIVE and imp[r, I_SITE] == imp[i, I_SITE]:
            held, first = held + 1, r
        r -= 1
    return held, first


@njit(cache=True)
def _make_room(imp, i0, i, offset_ms, start, values):  # type: ignore[no-untyped-def]
    """Drop the first impression of this epoch that the site of row ``i`` has, if it has as many as it may.

    Returns the start of epochs, which is drawn when a site has that many impressions before it is known.
    """
    now = imp[i, I_TIME]
    if start == NEVER:
        held, first = _held(imp, i0, i, imp[i0, I_TIME])
        if held < values[PER_SITE]:
            return start
        start = _begin(now, offset_ms, i0, i, imp, values[EPOCH_MS])
    held, first = _held(imp, i0, i, now - (now - start) % values[EPOCH_MS])
    if held >= values[PER_SITE]:
        imp[first, I_STATE] = UNSAVED
    return start


@njit(cache=True)
def _first_epoch(time_ms, start, last_clear, values):  # type: ignore[no-untyped-def]
    """Return the first epoch that attribution may use (specification, "get the starting epoch")."""
    first = (time_ms - values[LOOKBACK_MS] - start) // values[EPOCH_MS]
    if last_clear != NEVER:
        first = max(first, (last_clear - start) // values[EPOCH_MS] + 1)
    return first


@njit(cache=True)
def run(  # type: ignore[no-untyped-def]
    firsts, imp, con, clears, list_offset, items, share_offset, ranks, weights, words, values, limits, prices,
    offset_ms, res, ent, sent, ends, room, top, seen,
):  # fmt: skip
    """Run devices; return the numbers of budgets and contributions. The caller provides enough room for both.

    The events of device d are rows ``firsts[n, d]`` to ``firsts[n, d + 1]`` of ``imp`` (n = 0), ``con`` and ``clears``.
    At the same moment impressions come first, then conversions, then clears.
    """
    epoch_ms = values[EPOCH_MS]
    who = np.zeros(5, dtype=np.int64)
    count = written = 0
    for d in range(offset_ms.size):
        base, acted = count, 0
        i0, i1 = firsts[0, d], firsts[0, d + 1]
        c, c1 = firsts[1, d], firsts[1, d + 1]
        k, k1 = firsts[2, d], firsts[2, d + 1]
        i = head = i0
        start, last_clear = NEVER, NEVER
        while i < i1 or c < c1 or k < k1:
            at_i = imp[i, I_TIME] if i < i1 else NEVER
            at_c = con[c, C_TIME] if c < c1 else NEVER
            at_k = clears[k, K_TIME] if k < k1 else NEVER
            if i < i1 and at_i <= at_c and at_i <= at_k:
                if imp[i, I_ENABLED]:
                    saved = True
                    if values[COUNTED]:
                        if start == NEVER:
                            start = _begin(at_i, offset_ms[d], i0, i, imp, epoch_ms)
                        epoch = (at_i - start) // epoch_ms
                        who[W_SITE], who[W_CALLER], who[W_ACTION] = imp[i, I_SITE], imp[i, I_CALLER], imp[i, I_ACTION]
                        by, acted = admit(epoch, limits, who, seen, acted)
                        saved = by == ABSENT
                    if saved:
                        if 0 < values[PER_SITE] < i1 - i0:
                            start = _make_room(imp, i0, i, offset_ms[d], start, values)
                        imp[i, I_STATE] = LIVE
                        if start != NEVER:
                            imp[i, I_EPOCH] = (at_i - start) // epoch_ms
                i += 1
            elif c < c1 and at_c <= at_k:
                if con[c, C_ENABLED]:
                    if start == NEVER:
                        start = _begin(at_c, offset_ms[d], i0, i, imp, epoch_ms)
                    while head < i and imp[head, I_TIME] < at_c - values[LOOKBACK_MS]:
                        head += 1
                    current = (at_c - start) // epoch_ms
                    single = (at_c - con[c, C_LOOKBACK] - start) // epoch_ms == current
                    first = _first_epoch(at_c, start, last_clear, values)
                    count, written, acted = _convert(
                        con, c, res, head, i, current, first, single, imp, list_offset, items, share_offset, ranks,
                        weights, words, values, limits, prices, who, ent, base, count, sent, written, room, top,
                        seen, acted,
                    )  # fmt: skip
                else:
                    res[c, R_OUTCOME] = OFF
                res[c, R_END] = written
                c += 1
            else:
                site, kind = clears[k, K_SITE], clears[k, K_KIND]
                if kind == IMPRESSIONS_FOR_SITE:
                    _clear_for_site(site, head, i, imp, list_offset, items)
                elif kind == SITE_DATA:
                    if start == NEVER:
                        start = _begin(at_k - values[LOOKBACK_MS], offset_ms[d], i0, i, imp, epoch_ms)
                    who[W_SITE] = site
                    for epoch in range(_first_epoch(at_k, start, last_clear, values), (at_k - start) // epoch_ms + 1):
                        for r in range(limits.shape[0]):
                            if limits[r, L_EMPTIED]:
                                key = key_of(limits, r, epoch, who)
                                row = find(ent, base, count, key, limits, r, who)
                                count = charge(ent, row, count, key, 0, limits, r, who)
                else:
                    count = _forget(site if kind == FORGET_SITE else -1, i0, i, imp, limits, ent, base, count)
                    acted = acted if kind == FORGET_SITE else 0
                    last_clear = at_k
                k += 1
        ends[d, D_START] = start
        ends[d, D_ENTRIES] = count
    return count, written
