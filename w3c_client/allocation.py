"""Fair allocation of a value to impressions: dependent randomised rounding of credits to integers.

The amounts always add up to the value, and each is within 1 of its share; the expectation of each is its share
(specification, "fairly allocate credit"; Srinivasan 2001). N credits need at most N − 1 draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import floor, gcd, isfinite, lcm

Coin = Callable[[int, int], bool]
"""Whether an event of probability ``favourable / total`` happened."""


@lru_cache(maxsize=4096)
def integer_weights(credit: tuple[float, ...]) -> tuple[int, ...]:
    """Return the smallest integers in the same proportion as the credits; a credit means the decimal that it prints as.

    >>> integer_weights((0.25, 0.25, 0.5)), integer_weights((0.1, 1e308))[0]
    ((1, 1, 2), 1)
    """
    exact = [Fraction(str(item)) for item in credit]
    scale = lcm(*(item.denominator for item in exact))
    whole = [int(item * scale) for item in exact]
    common = gcd(*whole)
    return tuple(item // common for item in whole)


def allocate_exactly(weights: Sequence[int], value: int, coin: Coin) -> list[int]:
    """Divide ``value`` by ``weights`` into integers, with exact rational shares and probabilities.

    ``coin`` is not called for a certain outcome. ``parts[i] / total`` is the fraction of amount i not yet rounded.
    """
    total = sum(weights)
    amounts, parts = [], []
    for weight in weights:
        whole, part = divmod(value * weight, total)
        amounts.append(whole)
        parts.append(part)
    first = 0
    for second in range(1, len(weights)):
        a, b = parts[first], parts[second]
        if a == 0 and b == 0:
            continue
        up = a + b > total
        # The steps to an integer, both up or both down. The chance to round one is proportional to the other's step.
        step_a, step_b = (total - a, total - b) if up else (a, b)
        favourable, of = step_b, step_a + step_b
        chosen = favourable == of or (favourable != 0 and coin(favourable, of))
        whole, open_ = (first, second) if chosen else (second, first)
        amounts[whole] += up
        parts[whole] = 0
        carry, parts[open_] = divmod(a + b - total if up else a + b, total)
        amounts[open_] += carry
        first = open_
    return amounts


def allocate_in_doubles(credit: Sequence[float], value: int, draw: Callable[[], float]) -> list[int] | None:
    """Divide ``value`` by ``credit`` into integers, in IEEE doubles and in the specification's order of operations.

    Returns None if a double overflows.
    """
    total = 0.0
    for item in credit:
        total += item
    shares = [value * float(item) / total if isfinite(total) else total for item in credit]
    if not all(map(isfinite, shares)):
        return None
    first = 0
    for n in range(1, len(shares)):
        second = n
        a = shares[first] - floor(shares[first])
        b = shares[second] - floor(shares[second])
        if a == 0 and b == 0:
            continue
        step_a, step_b = (1 - a, 1 - b) if a + b > 1 else (-a, -b)
        if draw() < step_b / (step_a + step_b):
            step = step_a
            first, second = second, first
        else:
            step = step_b
        shares[second] += step
        shares[first] -= step
    return [floor(share) + (share - floor(share) >= 0.5) for share in shares]
