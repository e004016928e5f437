"""Randomized response over the states of a source: its rate, its capacity, and the draw at registration.

Two kinds of numbers are used. Limits on a registration and the rate in a report are doubles, computed as in Chromium
(components/attribution_reporting/privacy_math.cc) to agree with the browser to the last bit. The draw uses no double:
the bias of the coin is an exact real number and the state is a uniform integer, so the mechanism is exactly Algorithm 8
of Ghazi et al.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import exp as double_exp
from math import log2

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, ParameterError, Real, bernoulli_batch, exp, uniform_below, uniform_below_batch

#: The result of a draw if the source reports truthfully.
TRUTHFUL = -1

_BATCH_LIMIT = 1 << 63


def response_rate(states: int, epsilon: float) -> float:
    """Return the probability that a source with this many states reports a random one: |O| / (|O| − 1 + e^ε).

    This is the double that Chromium computes and puts in ``randomized_trigger_rate`` (WICG "obtain a randomized
    source response pick rate").

    >>> response_rate(2925, 14)
    0.0024263221679834087
    """
    _check(states)
    if not 0 <= epsilon < float("inf"):
        raise ParameterError(f"epsilon must be 0 or more and finite, got {epsilon}")
    try:
        return states / (states - 1.0 + double_exp(epsilon))
    except OverflowError:  # beyond the largest double, C++ computes e^ε as infinity and the rate as 0
        return 0.0


def channel_capacity(states: int, rate: float) -> float:
    """Return the capacity in bits of a channel that outputs a random state with probability ``rate``.

    The capacity of a q-ary symmetric channel with q states (WICG "compute the channel capacity of a source"), in
    Chromium's order of operations.

    >>> channel_capacity(2925, response_rate(2925, 14))
    11.461727965384876
    """
    _check(states)
    if not 0 <= rate <= 1:
        raise ParameterError(f"rate must lie in [0, 1], got {rate}")
    if states == 1 or rate == 1:
        return 0.0
    alphabet = float(states)
    wrong = rate * (alphabet - 1) / alphabet
    return log2(alphabet) - binary_entropy(wrong) - wrong * log2(alphabet - 1)


def scopes_channel_capacity(states: int, max_event_states: int, scope_limit: int) -> float:
    """Return the bound in bits for a source with attribution scopes (WICG "compute the scopes channel capacity").

    Counts the states of the source, plus the states of an event source for each other scope.

    >>> scopes_channel_capacity(2925, 5, 20)
    11.560332834212442
    """
    _check(states)
    if not (scope_limit >= 1 and max_event_states >= 0):
        raise ParameterError(f"scope_limit must be 1 or more, got {scope_limit} ({max_event_states} event states)")
    return log2(float(states) + float(max_event_states) * (float(scope_limit) - 1))


def binary_entropy(p: float) -> float:
    """Return −p·log₂ p − (1−p)·log₂(1−p), 0 at both ends."""
    if not 0 <= p <= 1:
        raise ParameterError(f"p must lie in [0, 1], got {p}")
    if p in (0, 1):
        return 0.0
    return -p * log2(p) - (1 - p) * log2(1 - p)


@lru_cache(maxsize=1024)
def exact_rate(states: int, epsilon: Fraction) -> Real | Fraction:
    """Return |O| / (|O| − 1 + e^ε) as an exact number, so that no rounding enters the draw.

    It is 1 minus the probability (e^ε − 1)/(e^ε + |O| − 1) of Algorithm 8. Computed from e^−ε, whose cost does not
    grow with ε: a header may give any ε.
    """
    shrunk = _shrunk(states, epsilon)
    return shrunk * states / (shrunk * (states - 1) + 1) if epsilon else Fraction(1)


def exact_truth(states: int, epsilon: Fraction) -> Real | Fraction:
    """Return (e^ε − 1)/(e^ε + |O| − 1), the probability of a truthful answer in Algorithm 8, as an exact number.

    It is 1 − ``exact_rate``, computed separately to stay precise if ``exact_rate`` is close to 1.
    """
    shrunk = _shrunk(states, epsilon)
    return (1 - shrunk) / (shrunk * (states - 1) + 1) if epsilon else Fraction(0)


def draw_states(bits: Bits, states: int, epsilon: Fraction, size: int) -> NDArray[np.int64]:
    """Return, for each of ``size`` registrations, ``TRUTHFUL`` or the rank of the state to send instead (Algorithm 8).

    Exact: each is ``TRUTHFUL`` with probability (e^ε − 1)/(e^ε + |O| − 1) and otherwise uniform over the ranks
    below ``states`` ≤ 2⁶³. Every registration uses this kernel. Pass an epsilon that a header gave as a double as
    ``Fraction(double)``, which is exact.
    """
    chosen = np.full(size, TRUTHFUL, dtype=np.int64)
    picked = np.flatnonzero(bernoulli_batch(bits, exact_rate(states, epsilon), size))
    if picked.size:
        chosen[picked] = uniform_below_batch(bits, states, picked.size)
    return chosen


def draw_state(bits: Bits, states: int, epsilon: Fraction) -> int | None:
    """Return one draw of ``draw_states``, None for ``TRUTHFUL``; also supports more than 2⁶³ states."""
    if states <= _BATCH_LIMIT:
        rank = int(draw_states(bits, states, epsilon, 1)[0])
        return None if rank == TRUTHFUL else rank
    if not bernoulli_batch(bits, exact_rate(states, epsilon), 1)[0]:
        return None
    return uniform_below(bits, states)


def _shrunk(states: int, epsilon: Fraction) -> Real:
    """Return e^−ε for a source with this many states."""
    _check(states)
    if not epsilon >= 0:
        raise ParameterError(f"epsilon must be 0 or more, got {epsilon}")
    return exp(-epsilon)


def _check(states: int) -> None:
    if not states >= 1:
        raise ParameterError(f"states must be 1 or more, got {states}")
