"""Credit in the kernels of a fleet: last-n-touch, and the division of a value by weights."""

from __future__ import annotations

import numpy as np
from numba import njit

from w3c_client.fleet.layout import (
    AMOUNTS,
    C_CREDIT,
    C_SIZE,
    C_VALUE,
    C_WORD,
    CREDITED,
    I_INDEX,
    I_PRIORITY,
    I_TIME,
    MATCHES,
    PARTS,
    S_AMOUNT,
    S_INDEX,
)


@njit(cache=True)
def allocate(weights, first, count, value, words, word, top):  # type: ignore[no-untyped-def]
    """Divide ``value`` by the ``count`` weights from ``first`` on (``w3c_client.allocation``), into ``AMOUNTS``.

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
def credit(kept, imp, con, c, credit_offset, weights, words, sent, written, room, top):  # type: ignore[no-untyped-def]
    """Write the histogram of last-n-touch over the first ``kept`` matches; return where it ends and its sum."""
    first = credit_offset[con[c, C_CREDIT]]
    most = credit_offset[con[c, C_CREDIT] + 1] - first
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
    if count == 1:
        top[AMOUNTS, 0] = con[c, C_VALUE]
    else:
        allocate(weights, first, count, con[c, C_VALUE], words, con[c, C_WORD], top)
    start, inside = written, np.int64(0)
    for n in range(count):
        index, amount = imp[top[CREDITED, n], I_INDEX], top[AMOUNTS, n]
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
