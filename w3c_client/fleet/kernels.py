"""Attribution over columns: the loops behind ``Fleet``, device by device.

A row of ``imp``, ``con`` and ``clears`` is an impression, a conversion or a clear, in order of device and time, so that
the impressions of a device are in order of epochs. The budgets of the current device are the last columns of ``ent``,
newest searched first. Plain loops without validation or randomness. Nothing overflows: ε in 10⁻⁶ is below 2³², twice a
value below 2³², weights add up to less than 2³⁰, epochs fit into 27 bits and sites into 32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from w3c_client.fleet.charging import admit, deduct, entry_key, find, pay
from w3c_client.fleet.crediting import credit
from w3c_client.fleet.layout import (
    ABSENT,
    ACTION_CAP,
    ATTRIBUTED,
    C_ACTION,
    C_CALLER,
    C_CALLERS,
    C_ENABLED,
    C_EPSILON,
    C_LOOKBACK,
    C_MATCH_VALUES,
    C_MAX_VALUE,
    C_SITE,
    C_SITES,
    C_TIME,
    C_VALUE,
    C_WHOLE,
    CLEARED,
    D_ENTRIES,
    D_START,
    E_KEY,
    E_LEFT,
    EPOCH_MS,
    FORGET_SITE,
    GLOBAL,
    GONE,
    HOUR_MS,
    I_ACTION,
    I_CALLER,
    I_CALLERS,
    I_ENABLED,
    I_EPOCH,
    I_GONE,
    I_MATCH_VALUE,
    I_SITE,
    I_SITES,
    I_STATE,
    I_TIME,
    I_UNTIL,
    IMPRESSIONS_FOR_SITE,
    INDIVIDUAL,
    K_KIND,
    K_SITE,
    K_TIME,
    KIND_BITS,
    LIVE,
    LOOKBACK_MS,
    MATCHES,
    NEVER,
    NO_MATCH,
    OFF,
    PER_SITE,
    R_END,
    R_OUTCOME,
    R_OUTSIDE,
    R_PAID,
    R_REFUSED,
    R_SINGLE,
    R_UNPAID,
    REFUSED,
    RUNS,
    SITE,
    SITE_BITS,
    SITE_DATA,
    UNSAVED,
)


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
    con, c, res, head, i, current, first, single, imp, list_offset, items, credit_offset, weights, words, rules,
    ent, base, count, sent, written, room, top, actions, acted,
):  # fmt: skip
    """Attribute one conversion to the device's impressions ``head`` to ``i``.

    Returns the numbers of budgets, of written contributions and of recorded sites per action.
    """
    now, since = con[c, C_TIME], con[c, C_TIME] - con[c, C_LOOKBACK]
    site, action, whole = con[c, C_SITE], con[c, C_ACTION], con[c, C_WHOLE]
    matched, missed = 0, False
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
            end, inside = credit(matched, imp, con, c, credit_offset, weights, words, sent, written, room, top)
            divisor = np.uint64(2 * con[c, C_MAX_VALUE])
            loss = np.uint64(con[c, C_EPSILON]) * np.uint64(inside)
            own = np.int64((loss + divisor - np.uint64(1)) // divisor)
            shared = own if rules[INDIVIDUAL] else whole
            one_site = list_offset[con[c, C_SITES] + 1] - list_offset[con[c, C_SITES]] == 1
            quota = own if rules[INDIVIDUAL] and one_site else whole
            by, count, acted = pay(
                own,
                shared,
                quota,
                current,
                0,
                matched,
                imp,
                site,
                action,
                rules,
                ent,
                base,
                count,
                room,
                actions,
                acted,
            )
            if by == ABSENT:
                kept, written, paid = matched, end, 1
            else:
                refused, unpaid = 1 << by, 1
        elif matched:
            missed = True
    else:
        at = 0
        while at < matched:
            epoch, stop = imp[room[MATCHES, at], I_EPOCH], at + 1
            while stop < matched and imp[room[MATCHES, stop], I_EPOCH] == epoch:
                stop += 1
            if epoch < first:
                missed = True
            else:
                by, count, acted = pay(
                    whole, whole, whole, epoch, at, stop, imp, site, action, rules, ent, base, count, room, actions,
                    acted,
                )  # fmt: skip
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
            written, inside = credit(kept, imp, con, c, credit_offset, weights, words, sent, written, room, top)
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
def _forget(site, from_, to, imp, ent, base, count):  # type: ignore[no-untyped-def]
    """Remove the impressions and budgets of a site, or with -1 of the whole device; return the number of budgets."""
    for r in range(from_, to):
        if imp[r, I_STATE] == LIVE and (site < 0 or imp[r, I_SITE] == site):
            imp[r, I_STATE] = GONE
    if site < 0:
        return base
    row = base
    while row < count:
        key = ent[E_KEY, row]
        if key & 3 != GLOBAL and (key >> KIND_BITS) & ((1 << SITE_BITS) - 1) == site:
            count -= 1
            ent[E_KEY, row] = ent[E_KEY, count]
            ent[E_LEFT, row] = ent[E_LEFT, count]
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
def _make_room(imp, i0, i, offset_ms, start, rules):  # type: ignore[no-untyped-def]
    """Drop the first impression of this epoch that the site of row ``i`` has, if it has as many as it may.

    Returns the start of epochs, which is drawn when a site has that many impressions before it is known.
    """
    now = imp[i, I_TIME]
    if start == NEVER:
        held, first = _held(imp, i0, i, imp[i0, I_TIME])
        if held < rules[PER_SITE]:
            return start
        start = _begin(now, offset_ms, i0, i, imp, rules[EPOCH_MS])
    held, first = _held(imp, i0, i, now - (now - start) % rules[EPOCH_MS])
    if held >= rules[PER_SITE]:
        imp[first, I_STATE] = UNSAVED
    return start


@njit(cache=True)
def _first_epoch(time_ms, start, last_clear, rules):  # type: ignore[no-untyped-def]
    """Return the first epoch that attribution may use (specification, "get the starting epoch")."""
    first = (time_ms - rules[LOOKBACK_MS] - start) // rules[EPOCH_MS]
    if last_clear != NEVER:
        first = max(first, (last_clear - start) // rules[EPOCH_MS] + 1)
    return first


@njit(cache=True)
def run(  # type: ignore[no-untyped-def]
    firsts, imp, con, clears, list_offset, items, credit_offset, weights, words, rules, offset_ms, res, ent, sent,
    ends, room, top, actions,
):  # fmt: skip
    """Run devices; return the numbers of budgets and contributions. The caller provides enough room for both.

    The events of device d are rows ``firsts[n, d]`` to ``firsts[n, d + 1]`` of ``imp`` (n = 0), ``con`` and ``clears``.
    At the same moment impressions come first, then conversions, then clears.
    """
    epoch_ms = rules[EPOCH_MS]
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
                    if rules[RUNS + ACTION_CAP]:
                        if start == NEVER:
                            start = _begin(at_i, offset_ms[d], i0, i, imp, epoch_ms)
                        epoch = (at_i - start) // epoch_ms
                        saved, acted = admit(imp[i, I_ACTION], epoch, imp[i, I_SITE], rules, actions, acted)
                    if saved:
                        if 0 < rules[PER_SITE] < i1 - i0:
                            start = _make_room(imp, i0, i, offset_ms[d], start, rules)
                        imp[i, I_STATE] = LIVE
                        if start != NEVER:
                            imp[i, I_EPOCH] = (at_i - start) // epoch_ms
                i += 1
            elif c < c1 and at_c <= at_k:
                if con[c, C_ENABLED]:
                    if start == NEVER:
                        start = _begin(at_c, offset_ms[d], i0, i, imp, epoch_ms)
                    while head < i and imp[head, I_TIME] < at_c - rules[LOOKBACK_MS]:
                        head += 1
                    current = (at_c - start) // epoch_ms
                    single = (at_c - con[c, C_LOOKBACK] - start) // epoch_ms == current
                    first = _first_epoch(at_c, start, last_clear, rules)
                    count, written, acted = _convert(
                        con, c, res, head, i, current, first, single, imp, list_offset, items, credit_offset,
                        weights, words, rules, ent, base, count, sent, written, room, top, actions, acted,
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
                        start = _begin(at_k - rules[LOOKBACK_MS], offset_ms[d], i0, i, imp, epoch_ms)
                    for epoch in range(_first_epoch(at_k, start, last_clear, rules), (at_k - start) // epoch_ms + 1):
                        key = entry_key(SITE, epoch, site)
                        row = find(ent, base, count, key)
                        count = deduct(ent, row, count, key, 0, 0 if row == ABSENT else ent[E_LEFT, row])
                else:
                    count = _forget(site if kind == FORGET_SITE else -1, i0, i, imp, ent, base, count)
                    acted = acted if kind == FORGET_SITE else 0
                    last_clear = at_k
                k += 1
        ends[d, D_START] = start
        ends[d, D_ENTRIES] = count
    return count, written
