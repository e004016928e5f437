"""Attribution rules, which divide one conversion over its touches, and fair allocation of a value by their shares.

A rule is one class; ``ATTRIBUTION_RULES`` names it. Allocation is dependent randomised rounding of shares to integers:
the amounts always add up to the value, and each is within 1 of its share; the expectation of each is its share
(specification, "fairly allocate credit"; Srinivasan 2001). N shares need at most N − 1 draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor, gcd, isfinite, lcm
from typing import ClassVar, Final

from aggservice.kinds import Kinds
from aggservice.wire.device import DeviceConfigError

Coin = Callable[[int, int], bool]
"""Whether an event of probability ``favourable / total`` happened."""
NOBODY: Final = -1
"""The rank of the part of a value that a rule gives to no touch."""


@dataclass(frozen=True)
class AttributionRule:
    """How one conversion's value is divided over its touches: the matching impressions of the epochs that paid.

    Touches are ranked by priority, then the later one first; of equals the one saved first. ``Browser`` asks the rule
    once per conversion; ``Fleet`` asks it for every number of touches and compiles the answers to a table.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        """Return the share of each touch by rank, at most one unit in all; touches beyond the answer get nothing.

        ``credit`` is the call's list of credits. At most ``most`` shares may be above 0: a report has no more room.
        """
        raise NotImplementedError

    def doubles(self, touches: int, credit: Sequence[float]) -> Sequence[float] | None:
        """Return the numbers that the specification's arithmetic divides by; None if it has none for this rule."""
        return None


class LastTouches(AttributionRule):
    """Last-n-touch with the credits of the call: the n-th credit goes to the touch of rank n (specification)."""

    name = "last-n-touch"
    title = "the call's credits over the last touches"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        """Return the first credits in proportion; a credit means the decimal that it prints as."""
        exact = [Fraction(str(item)) for item in credit[:touches]]
        return [item / sum(exact) for item in exact]

    def doubles(self, touches: int, credit: Sequence[float]) -> Sequence[float]:
        """Return the first credits."""
        return credit[:touches]


class PositionBased(AttributionRule):
    """40 % each to the touch ranked first and to the one ranked last, and the rest equally to those between.

    Of more touches than a report has room for, those between with the highest ranks count. Credits are not used.
    """

    name = "position-based"
    title = "40 % to the first touch, 40 % to the last, 20 % between"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        """Return halves for two touches, and everything for one."""
        if min(touches, most) < 3:
            return [Fraction(1, min(touches, most))] * min(touches, most)
        end, between = Fraction(2, 5), min(touches, most) - 2
        return [end, *[Fraction(1, 5 * between)] * between, *[Fraction(0)] * (touches - 2 - between), end]


ATTRIBUTION_RULES: Final[Kinds[type[AttributionRule] | AttributionRule]] = Kinds(
    "attribution rule", base=AttributionRule, builtin={rule.name: rule for rule in (LastTouches, PositionBased)}
)
"""Every attribution rule by its name."""


def attribution_rule_of(given: AttributionRule | type[AttributionRule] | str) -> AttributionRule:
    """Return a rule itself, or the rule of a name or class."""
    found = ATTRIBUTION_RULES[given] if isinstance(given, str) else given
    return found() if isinstance(found, type) else found


@lru_cache(maxsize=65_536)
def credited(
    rule: AttributionRule, touches: int, credit: tuple[float, ...], most: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that get a share, and integer weights in proportion to the shares.

    What a rule gives to no touch goes to ``NOBODY``, the last rank. Raises ``DeviceConfigError`` if the shares are
    below 0, too many, or more than one unit.

    >>> credited(LastTouches(), 3, (0.5, 0.25), 20)
    ((0, 1), (2, 1))
    """
    shares = rule.shares(touches, credit, most)
    given = [(rank, share) for rank, share in enumerate(shares) if share]
    total = sum((share for _, share in given), Fraction(0))
    if len(shares) > touches or len(given) > most or total > 1 or any(share < 0 for _, share in given):
        raise DeviceConfigError(
            f"the attribution rule {rule.name} gives {touches} touches the shares {[*map(str, shares)]}: give at most "
            f"{most} of them shares above 0, at most 1 in all"
        )
    if total < 1:
        given.append((NOBODY, 1 - total))
    return tuple(rank for rank, _ in given), integer_weights([share for _, share in given])


def integer_weights(shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Return the smallest integers in the same proportion.

    >>> integer_weights([Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)])
    (1, 1, 2)
    """
    scale = lcm(*(item.denominator for item in shares))
    whole = [int(item * scale) for item in shares]
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
    """Divide ``value`` by ``credit`` in IEEE doubles, in the specification's order; None if a double overflows."""
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
