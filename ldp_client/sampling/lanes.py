"""Sixty-four exact coins at a time: each bit of a word is flipped by its own coin, without floats or rounding.

A coin of bias p is U < p for a uniform U: compare the bits of U and p from the top until they differ. Here a random
word holds one bit of U for each of 64 lanes. Eight rounds leave one lane in 256 undecided; each of those compares one
more word with the next 64 bits of p; a tie there, once in 2^72 lanes, is decided by ``settle_ties``, which draws as
many bits as needed. So the outcome has probability exactly p, for any ``Real`` p.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real
from aggservice.mechanisms.words import Tape, below
from ldp_client.estimation.steps import Step
from ldp_client.sampling.packed import live_mask

Words = NDArray[np.uint64]

ROUNDS = 8
_ONES = (1 << 64) - 1
_BLOCK = 4096


class LaneCoins:
    """Flips every bit of packed rows: a set bit stays set with probability p, a clear bit becomes set with q.

    Both must lie strictly between 0 and 1.
    """

    def __init__(self, step: Step) -> None:
        self._p, self._q = step.p, step.q
        self._masks = np.array([round_masks(step.p), round_masks(step.q)], dtype=np.uint64)
        self._next = np.array([next_word(step.p), next_word(step.q)], dtype=np.uint64)

    def flip(self, bits: Bits, rows: Words, size: int) -> Words:
        """Return rows of ``size`` bits, each bit drawn from the coin that its bit in ``rows`` selects."""
        base = np.ascontiguousarray(rows).reshape(-1)
        live = np.broadcast_to(live_mask(size), rows.shape).reshape(-1)
        out = np.empty_like(base)
        for start in range(0, base.size, _BLOCK):
            stop = min(start + _BLOCK, base.size)
            self._flip_block(bits, base[start:stop], live[start:stop], out[start:stop])
        return out.reshape(rows.shape)

    def _flip_block(self, bits: Bits, base: Words, live: Words, out: Words) -> None:
        open_lanes = live.copy()
        words = bits.words(ROUNDS * base.size).reshape(ROUNDS, base.size)
        decide_kernel(words, base, self._masks, open_lanes, out)
        further = bits.words(int(np.bitwise_count(open_lanes).sum()))
        if settle_kernel(further, base, self._next, open_lanes, out):
            settle_ties(Tape(bits), base, (self._p, self._q), open_lanes, out)


def round_masks(p: Real) -> list[int]:
    """Return one word per round: all ones if that bit of p is 1, else zero."""
    prefix = p.floor(ROUNDS)
    return [_ONES if (prefix >> (ROUNDS - 1 - index)) & 1 else 0 for index in range(ROUNDS)]


def next_word(p: Real) -> int:
    """Return the 64 bits of p that follow those of the rounds."""
    return p.floor(ROUNDS + 64) & _ONES


def settle_ties(tape: Tape, base: Words, step: tuple[Real, Real], open_lanes: Words, out: Words) -> None:
    """Draw further bits for each lane whose first 72 bits equal those of its threshold."""
    p, q = step
    width = ROUNDS + 64
    for index in np.flatnonzero(open_lanes):
        lanes = int(open_lanes[index])
        while lanes:
            lane = lanes & -lanes
            lanes ^= lane
            threshold = p if int(base[index]) & lane else q
            if below(tape, threshold.floor(width), width, threshold):
                out[index] |= np.uint64(lane)


@njit(cache=True, inline="always")
def _round(left: int, word: int, threshold: int, result: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """Decide the open lanes whose bits of word and threshold differ; return the result and the lanes left open."""
    differ = left & (word ^ threshold)
    return result | (differ & threshold), left & ~differ


@njit(cache=True)
def decide_kernel(
    words: Words, base: Words, masks: Words, open_lanes: Words, out: Words
) -> None:  # pragma: no cover - compiled
    """Run eight rounds over every word; leave in ``open_lanes`` the lanes that equalled their threshold in all of them.

    ``words`` has one row per round; ``masks`` has the rounds of p and of q. Unrolled so that it runs in vectors.
    """
    w0, w1, w2, w3, w4, w5, w6, w7 = (
        words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7],
    )  # fmt: skip
    p, q = masks[0], masks[1]
    p0, p1, p2, p3, p4, p5, p6, p7 = p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]
    q0, q1, q2, q3, q4, q5, q6, q7 = q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]
    for index in range(base.size):
        x = base[index]
        left = open_lanes[index]
        result, left = _round(left, w0[index], (x & p0) | (~x & q0), np.uint64(0))
        result, left = _round(left, w1[index], (x & p1) | (~x & q1), result)
        result, left = _round(left, w2[index], (x & p2) | (~x & q2), result)
        result, left = _round(left, w3[index], (x & p3) | (~x & q3), result)
        result, left = _round(left, w4[index], (x & p4) | (~x & q4), result)
        result, left = _round(left, w5[index], (x & p5) | (~x & q5), result)
        result, left = _round(left, w6[index], (x & p6) | (~x & q6), result)
        result, left = _round(left, w7[index], (x & p7) | (~x & q7), result)
        out[index] = result
        open_lanes[index] = left


@njit(cache=True)
def settle_kernel(
    further: Words, base: Words, thresholds: Words, open_lanes: Words, out: Words
) -> bool:  # pragma: no cover - compiled
    """Compare one further word per open lane, lowest lane first; leave ties open, and return whether there are any."""
    used = 0
    tied = False
    for index in range(base.size):
        left = open_lanes[index]
        while left != 0:
            lane = left & (~left + np.uint64(1))
            left ^= lane
            threshold = thresholds[0] if base[index] & lane != 0 else thresholds[1]
            if further[used] < threshold:
                out[index] |= lane
            if further[used] == threshold:
                tied = True
            else:
                open_lanes[index] ^= lane
            used += 1
    return tied
