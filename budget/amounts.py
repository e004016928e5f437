"""Amounts of privacy loss: integers on a fixed grid, read from decimal text, never through a float.

ε and ρ count in 10⁻⁶ (``micro``), δ in 10⁻¹⁸ (``atto``). A requested amount between two steps is refused;
a limit is rounded down (docs/design.md, semantics 2). The types refuse amounts that no job may request, so that callers
need no checks of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from budget.errors import (
    AmountTooLargeError,
    AmountTooLongError,
    InfiniteAmountError,
    NegativeAmountError,
    NotANumberError,
    OffGridError,
    ZeroAmountError,
)

MICRO_PLACES: Final = 6
ATTO_PLACES: Final = 18
MICRO: Final = 10**MICRO_PLACES
ATTO: Final = 10**ATTO_PLACES
EPSILON_MAX_MICRO: Final = 64 * MICRO
"""The largest ε that one job may request."""
LIMIT_MAX_MICRO: Final = 10**15
"""The largest total ε* or ρ* an operator may set, so that a sum of two amounts stays far inside 63 bits."""

_TEXT_MAX = 64
_EXPONENT_MAX = 40
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?\Z")


def _parse(what: str, text: object) -> Fraction:
    """Return the exact value of decimal text; AmountError unless it is a finite number ≥ 0."""
    if isinstance(text, float):
        if text != text:  # noqa: PLR0124 - only NaN differs from itself
            raise NotANumberError(f"{what} is NaN: give decimal text such as '0.5'")
        if text in (float("inf"), float("-inf")):
            raise InfiniteAmountError(f"{what} is infinite: give decimal text such as '0.5'")
        raise NotANumberError(f"{what} is a float, which is not exact: give decimal text such as {str(text)!r}")
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise NegativeAmountError(f"{what} {text} is negative: give 0 or more")
        return Fraction(text)
    if not isinstance(text, str):
        raise NotANumberError(f"{what} must be decimal text, not {type(text).__name__}")
    if len(text) > _TEXT_MAX:
        raise AmountTooLongError(f"{what} has {len(text)} characters: give at most {_TEXT_MAX}")
    bare = text.lower().lstrip("+-")
    if bare in ("inf", "infinity"):
        raise InfiniteAmountError(f"{what} is infinite: give decimal text such as '0.5'")
    found = _NUMBER.match(text)
    if found is None or not (found[2] or found[3]):
        raise NotANumberError(f"{what} {text!r} is not a decimal number: give text such as '0.5' or '1e-8'")
    digits = (found[2] or "") + (found[3] or "")
    exponent = int(found[4] or 0) - len(found[3] or "")
    mantissa = int(digits)
    if mantissa == 0:
        return Fraction(0)
    if found[1] == "-":
        raise NegativeAmountError(f"{what} {text} is negative: give 0 or more")
    if exponent > _EXPONENT_MAX:
        raise AmountTooLargeError(f"{what} {text} is too large: its exponent is above {_EXPONENT_MAX}")
    if exponent < -2 * _TEXT_MAX:
        raise OffGridError(f"{what} {text} is too small: it has more decimal places than any amount here")
    return Fraction(mantissa * 10**exponent) if exponent >= 0 else Fraction(mantissa, 10**-exponent)


def _on_grid(what: str, text: object, places: int) -> int:
    scaled = _parse(what, text) * 10**places
    if scaled.denominator != 1:
        raise OffGridError(f"{what} {text} is not a multiple of 1e-{places}: give at most {places} decimal places")
    return scaled.numerator


def decimal_text(value: int, places: int) -> str:
    """Return ``value``·10^-``places`` as the one canonical decimal text: no exponent, no trailing zero.

    >>> decimal_text(10_500_000, 6), decimal_text(0, 18), decimal_text(10**10, 18)
    ('10.5', '0', '0.00000001')
    """
    whole, part = divmod(value, 10**places)
    return f"{whole}.{part:0{places}d}".rstrip("0").rstrip(".") if part else str(whole)


def limit_units(what: str, text: str | int, places: int, maximum: int, minimum: int = 1) -> int:
    """Return an operator's limit in grid steps, rounded down; AmountError if it is not in [minimum, maximum].

    >>> limit_units("epsilon limit", "0.0000019", 6, 10**15)
    1
    """
    value = int(_parse(what, text) * 10**places)
    if not minimum <= value:
        raise ZeroAmountError(f"{what} {text} rounds down to 0 multiples of 1e-{places}: give a larger limit")
    if not value <= maximum:
        raise AmountTooLargeError(f"{what} {text} is above {decimal_text(maximum, places)}: give at most that")
    return value


def _check(what: str, steps: object, places: int, maximum: int, minimum: int = 1) -> None:
    """Refuse an amount that is not an integer number of grid steps in [minimum, maximum]."""
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise NotANumberError(f"{what} must be an integer number of grid steps, not {type(steps).__name__}")
    if steps < 0:
        raise NegativeAmountError(f"{what} is negative: give 0 or more")
    if steps < minimum:
        raise ZeroAmountError(f"{what} must be above 0")
    if steps > maximum:
        raise AmountTooLargeError(f"{what} is above {decimal_text(maximum, places)}: give at most that")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Epsilon:
    """ε of one mechanism, 0 < ε ≤ 64, a whole number of 10⁻⁶.

    >>> Epsilon.parse("10"), str(Epsilon.parse("0.250000"))
    (Epsilon(micro=10000000), '0.25')
    """

    micro: int

    def __post_init__(self) -> None:
        _check("epsilon", self.micro, MICRO_PLACES, EPSILON_MAX_MICRO)

    @classmethod
    def parse(cls, text: str | int) -> Epsilon:
        """Read ε from decimal text; an AmountError names what is wrong with other text."""
        return cls(micro=_on_grid("epsilon", text, MICRO_PLACES))

    def __str__(self) -> str:
        return decimal_text(self.micro, MICRO_PLACES)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Delta:
    """δ of one mechanism, 0 ≤ δ ≤ 1, a whole number of 10⁻¹⁸.

    >>> str(Delta.parse("1e-8"))
    '0.00000001'
    """

    atto: int

    def __post_init__(self) -> None:
        _check("delta", self.atto, ATTO_PLACES, ATTO, minimum=0)

    @classmethod
    def parse(cls, text: str | int) -> Delta:
        """Read δ from decimal text; an AmountError names what is wrong with other text."""
        return cls(atto=_on_grid("delta", text, ATTO_PLACES))

    def __str__(self) -> str:
        return decimal_text(self.atto, ATTO_PLACES)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rho:
    """ρ of one mechanism under zero-concentrated DP, 0 < ρ ≤ 2048 (what ε = 64 costs), a whole number of 10⁻⁶."""

    micro: int

    def __post_init__(self) -> None:
        _check("rho", self.micro, MICRO_PLACES, zcdp_of_pure(EPSILON_MAX_MICRO))

    @classmethod
    def parse(cls, text: str | int) -> Rho:
        """Read ρ from decimal text; an AmountError names what is wrong with other text."""
        return cls(micro=_on_grid("rho", text, MICRO_PLACES))

    def __str__(self) -> str:
        return decimal_text(self.micro, MICRO_PLACES)


def zcdp_of_pure(epsilon_micro: int) -> int:
    """Return ρ = ε²/2 in 10⁻⁶, rounded up: what an ε-DP release costs in zCDP (the paper, Appendix B; Bun and
    Steinke 2016, Proposition 1.4). By their section 8, an (ε, δ)-DP release is δ-approximate ε²/2-zCDP.

    >>> zcdp_of_pure(1_000_000), zcdp_of_pure(1)
    (500000, 1)
    """
    return -(-(epsilon_micro * epsilon_micro) // (2 * MICRO))
