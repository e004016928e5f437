"""Budgets of one device in the kernels of a fleet: columns of ``ent``, newest searched first; and sites per action."""

from __future__ import annotations

from numba import njit

from w3c_client.fleet.layout import (
    ABSENT,
    ACTION_CAP,
    CAPACITY,
    CONVERSION_QUOTA,
    E_KEY,
    E_LEFT,
    EPOCH_ZERO,
    GLOBAL,
    I_SITE,
    IMPRESSION_QUOTA,
    KIND_BITS,
    MATCHES,
    ROWS,
    RUNS,
    SITE,
    SITE_BITS,
    SITES,
    SITES_PER_ACTION,
)


@njit(cache=True)
def entry_key(kind, epoch, site):  # type: ignore[no-untyped-def]
    """Return the key of a budget; the global budget has site 0."""
    return ((epoch + EPOCH_ZERO) << (SITE_BITS + KIND_BITS)) | (site << KIND_BITS) | kind


@njit(cache=True)
def find(ent, base, count, key):  # type: ignore[no-untyped-def]
    for row in range(count - 1, base - 1, -1):
        if ent[E_KEY, row] == key:
            return row
    return ABSENT


@njit(cache=True)
def deduct(ent, row, count, key, capacity, cost):  # type: ignore[no-untyped-def]
    """Subtract ``cost`` from the budget at ``row``, or add the budget if it is absent; return the number of rows."""
    if row == ABSENT:
        ent[E_KEY, count] = key
        ent[E_LEFT, count] = capacity - cost
        return count + 1
    ent[E_LEFT, row] -= cost
    return count


@njit(cache=True)
def admit(action, epoch, site, rules, actions, count):  # type: ignore[no-untyped-def]
    """Record that a site uses an epoch after a user's action.

    Returns whether the cap on sites per action allows it, and the number of recorded sites.
    """
    if not rules[RUNS + ACTION_CAP] or action < 0:
        return True, count
    others = 0
    for row in range(count):
        if actions[row, 0] == action and actions[row, 1] == epoch:
            if actions[row, 2] == site:
                return True, count
            others += 1
    if others >= rules[SITES_PER_ACTION]:
        return False, count
    actions[count, 0] = action
    actions[count, 1] = epoch
    actions[count, 2] = site
    return True, count + 1


@njit(cache=True)
def pay(own, shared, quota, epoch, first, stop, imp, site, action, rules, ent, base, count, room, actions, acted):  # type: ignore[no-untyped-def]
    """Charge an epoch for its matches ``first`` to ``stop``.

    Returns the filter that refuses or -1, the number of budgets, and the number of recorded sites per action.
    """
    at_site = at_global = at_quota = ABSENT
    if rules[RUNS + SITE]:
        at_site = find(ent, base, count, entry_key(SITE, epoch, site))
        if own > (rules[CAPACITY + SITE] if at_site == ABSENT else ent[E_LEFT, at_site]):
            return SITE, count, acted
    if rules[RUNS + GLOBAL]:
        at_global = find(ent, base, count, entry_key(GLOBAL, epoch, 0))
        if shared > (rules[CAPACITY + GLOBAL] if at_global == ABSENT else ent[E_LEFT, at_global]):
            return GLOBAL, count, acted
    if rules[RUNS + CONVERSION_QUOTA]:
        at_quota = find(ent, base, count, entry_key(CONVERSION_QUOTA, epoch, site))
        if shared > (rules[CAPACITY + CONVERSION_QUOTA] if at_quota == ABSENT else ent[E_LEFT, at_quota]):
            return CONVERSION_QUOTA, count, acted
    distinct = 0
    if rules[RUNS + IMPRESSION_QUOTA]:
        for match in range(first, stop):
            other = imp[room[MATCHES, match], I_SITE]
            earlier = distinct - 1
            while earlier >= 0 and room[SITES, earlier] != other:
                earlier -= 1
            if earlier < 0:
                row = find(ent, base, count, entry_key(IMPRESSION_QUOTA, epoch, other))
                if quota > (rules[CAPACITY + IMPRESSION_QUOTA] if row == ABSENT else ent[E_LEFT, row]):
                    return IMPRESSION_QUOTA, count, acted
                room[SITES, distinct] = other
                room[ROWS, distinct] = row
                distinct += 1
    admitted, acted = admit(action, epoch, site, rules, actions, acted)
    if not admitted:
        return ACTION_CAP, count, acted
    if rules[RUNS + SITE]:
        count = deduct(ent, at_site, count, entry_key(SITE, epoch, site), rules[CAPACITY + SITE], own)
    if rules[RUNS + GLOBAL]:
        count = deduct(ent, at_global, count, entry_key(GLOBAL, epoch, 0), rules[CAPACITY + GLOBAL], shared)
    if rules[RUNS + CONVERSION_QUOTA]:
        key = entry_key(CONVERSION_QUOTA, epoch, site)
        count = deduct(ent, at_quota, count, key, rules[CAPACITY + CONVERSION_QUOTA], shared)
    for known in range(distinct):
        key = entry_key(IMPRESSION_QUOTA, epoch, room[SITES, known])
        count = deduct(ent, room[ROWS, known], count, key, rules[CAPACITY + IMPRESSION_QUOTA], quota)
    return ABSENT, count, acted
