"""Randomized response over the states of a source: its rate, its capacity, and the draw at registration.

Two kinds of number live here. Doubles, computed as Chromium computes them (components/attribution_reporting/
privacy_math.cc), are what a registration is judged by and what a report shows: they must agree with the browser to the
last bit. The draw itself never sees a double: the coin's bias is an exact real number and the state is a uniform
integer, so that the mechanism is the paper's Algorithm 8 and not an approximation of it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import exp as double_exp
from math import log2

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, ParameterError, Real, bernoulli_batch, exp, uniform_below, uniform_below_batch

#: What a draw answers when the source is to report truthfully.
TRUTHFUL = -1

_BATCH_LIMIT = 1 << 63


def response_rate(states: int, epsilon: float) -> float:
    """Return the probability that a source with this many states reports a random one: |O| / (|O| − 1 + e^ε).

    The double that Chromium computes and puts in ``randomized_trigger_rate`` (WICG "obtain a randomized source
    response pick rate").

    >>> response_rate(2925, 14)
    0.0024263221679834087
    """
    _check(states)
    if not 0 <= epsilon < float("inf"):
        raise ParameterError(f"epsilon must be 0 or more and finite, got {epsilon}")
    try:
        return states / (states - 1.0 + double_exp(epsilon))
    except OverflowError:  # where e^ε is past the greatest double C++ has infinity, and the rate is 0
        return 0.0


def channel_capacity(states: int, rate: float) -> float:
    """Return the capacity in bits of the channel that answers a random state with probability ``rate``.

    The capacity of a q-ary symmetric channel with q states (WICG "compute the channel capacity of a source"), in
    Chromium's order of operations.

    >>> channel_capacity(2925, response_rate(2925, 14))
    11.461727965384876
    """
    _check(states)
    if not 0 <= rate <= 1:
        raise ParameterError(f"a rate lies in [0, 1], got {rate}")
    if states == 1 or rate == 1:
        return 0.0
    alphabet = float(states)
    wrong = rate * (alphabet - 1) / alphabet
    return log2(alphabet) - binary_entropy(wrong) - wrong * log2(alphabet - 1)


def scopes_channel_capacity(states: int, max_event_states: int, scope_limit: int) -> float:
    """Return the bound in bits for a source with attribution scopes (WICG "compute the scopes channel capacity").

    The states of the source, and for each other scope the states of an event source.

    >>> scopes_channel_capacity(2925, 5, 20)
    11.560332834212442
    """
    _check(states)
    if not (scope_limit >= 1 and max_event_states >= 0):
        raise ParameterError(f"a scope limit is 1 or more, got {scope_limit} (event states {max_event_states})")
    return log2(float(states) + float(max_event_states) * (float(scope_limit) - 1))


def binary_entropy(p: float) -> float:
    """Return −p·log₂ p − (1−p)·log₂(1−p), 0 at both ends."""
    if not 0 <= p <= 1:
        raise ParameterError(f"a probability lies in [0, 1], got {p}")
    if p in (0, 1):
        return 0.0
    return -p * log2(p) - (1 - p) * log2(1 - p)


@lru_cache(maxsize=1024)
def exact_rate(states: int, epsilon: Fraction) -> Real | Fraction:
    """Return |O| / (|O| − 1 + e^ε) as an exact number: a coin tossed with it loses nothing to rounding.

    It is 1 minus the probability (e^ε − 1)/(e^ε + |O| − 1) of Algorithm 8. Worked out from e^−ε, which costs no more
    for a large ε than for a small one: a header may ask for any.
    """
    _check(states)
    if not epsilon >= 0:
        raise ParameterError(f"epsilon must be 0 or more, got {epsilon}")
    shrunk = exp(-epsilon)
    return shrunk * states / (shrunk * (states - 1) + 1) if epsilon else Fraction(1)


def exact_truth(states: int, epsilon: Fraction) -> Real | Fraction:
    """Return (e^ε − 1)/(e^ε + |O| − 1), the probability of a truthful answer in Algorithm 8, as an exact number.

    It is 1 − ``exact_rate``, and keeps its digits where that is close to 1.
    """
    _check(states)
    if not epsilon >= 0:
        raise ParameterError(f"epsilon must be 0 or more, got {epsilon}")
    shrunk = exp(-epsilon)
    return (1 - shrunk) / (shrunk * (states - 1) + 1) if epsilon else Fraction(0)


def draw_states(bits: Bits, states: int, epsilon: Fraction, size: int) -> NDArray[np.int64]:
    """Return, for each of ``size`` registrations, ``TRUTHFUL`` or the rank of the state to send instead (Algorithm 8).

    Exact: each is ``TRUTHFUL`` with probability (e^ε − 1)/(e^ε + |O| − 1) and otherwise uniform over the ranks
    below ``states`` ≤ 2⁶³. This is the kernel that every registration goes through. An epsilon that a header gave as a
    double comes in as ``Fraction(double)``, which is that double.
    """
    chosen = np.full(size, TRUTHFUL, dtype=np.int64)
    picked = np.flatnonzero(bernoulli_batch(bits, exact_rate(states, epsilon), size))
    if picked.size:
        chosen[picked] = uniform_below_batch(bits, states, picked.size)
    return chosen


def draw_state(bits: Bits, states: int, epsilon: Fraction) -> int | None:
    """Return None to report truthfully, or the rank of the state to send instead, for one registration.

    The same kernel as ``draw_states``; a specification may have more than 2⁶³ states, which only this one can number.
    """
    if states <= _BATCH_LIMIT:
        rank = int(draw_states(bits, states, epsilon, 1)[0])
        return None if rank == TRUTHFUL else rank
    if not bernoulli_batch(bits, exact_rate(states, epsilon), 1)[0]:
        return None
    return uniform_below(bits, states)


def _check(states: int) -> None:
    if not states >= 1:
        raise ParameterError(f"a source has at least one state, got {states}")
