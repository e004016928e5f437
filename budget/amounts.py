"""Amounts of privacy loss: integers on a fixed grid, read from decimal text, never through a float.

ε and ρ count in 10⁻⁶ (``micro``), δ in 10⁻¹⁸ (``atto``). A requested amount off its grid is refused; a limit off its
grid rounds down (docs/design.md, semantics 2). The types refuse what no job may ask for, so that no caller needs to.
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
"""The largest ε one job may ask for."""
LIMIT_MAX_MICRO: Final = 10**15
"""The largest total ε* or ρ* an operator may set, so that a sum of two amounts stays far inside 63 bits."""

_TEXT_MAX = 64
_EXPONENT_MAX = 40
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?\Z")


def _parse(what: str, text: object) -> Fraction:
    """Return the exact value of decimal text, refusing by name whatever is not a finite number ≥ 0."""
    if isinstance(text, float):
        if text != text:  # noqa: PLR0124 - the one value that differs from itself
            raise NotANumberError(f"{what} is NaN: give decimal text such as '0.5'")
        if text in (float("inf"), float("-inf")):
            raise InfiniteAmountError(f"{what} is infinite: give decimal text such as '0.5'")
        raise NotANumberError(f"{what} is a float, which is not exact: give decimal text such as {str(text)!r}")
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise NegativeAmountError(f"{what} is negative")
        return Fraction(text)
    if not isinstance(text, str):
        raise NotANumberError(f"{what} must be decimal text, not {type(text).__name__}")
    if len(text) > _TEXT_MAX:
        raise AmountTooLongError(f"{what} has {len(text)} characters; no amount needs more than {_TEXT_MAX}")
    bare = text.lower().lstrip("+-")
    if bare in ("inf", "infinity"):
        raise InfiniteAmountError(f"{what} is infinite")
    found = _NUMBER.match(text)
    if found is None or not (found[2] or found[3]):
        raise NotANumberError(f"{what} {text!r} is not a decimal number")
    digits = (found[2] or "") + (found[3] or "")
    exponent = int(found[4] or 0) - len(found[3] or "")
    mantissa = int(digits)
    if mantissa == 0:
        return Fraction(0)
    if found[1] == "-":
        raise NegativeAmountError(f"{what} {text} is negative")
    if exponent > _EXPONENT_MAX:
        raise AmountTooLargeError(f"{what} {text} is too large")
    if exponent < -2 * _TEXT_MAX:
        raise OffGridError(f"{what} {text} is finer than any grid here")
    return Fraction(mantissa * 10**exponent) if exponent >= 0 else Fraction(mantissa, 10**-exponent)


def _on_grid(what: str, text: object, places: int) -> int:
    scaled = _parse(what, text) * 10**places
    if scaled.denominator != 1:
        raise OffGridError(f"{what} {text} is not a whole number of 1e-{places}")
    return scaled.numerator


def decimal_text(value: int, places: int) -> str:
    """Return ``value``·10^-``places`` as the one canonical decimal text: no exponent, no trailing zero.

    >>> decimal_text(10_500_000, 6), decimal_text(0, 18), decimal_text(10**10, 18)
    ('10.5', '0', '0.00000001')
    """
    whole, part = divmod(value, 10**places)
    return f"{whole}.{part:0{places}d}".rstrip("0").rstrip(".") if part else str(whole)


def limit_units(what: str, text: str | int, places: int, maximum: int, minimum: int = 1) -> int:
    """Read an operator's limit from decimal text, rounding down to the grid, into [minimum, maximum] grid steps.

    >>> limit_units("epsilon limit", "0.0000019", 6, 10**15)
    1
    """
    value = int(_parse(what, text) * 10**places)
    if not minimum <= value:
        raise ZeroAmountError(f"{what} {text} is zero once rounded down to a whole number of 1e-{places}")
    if not value <= maximum:
        raise AmountTooLargeError(f"{what} {text} is above {decimal_text(maximum, places)}")
    return value


def _whole(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotANumberError(f"{what} counts whole grid steps; got {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Epsilon:
    """ε of one mechanism, 0 < ε ≤ 64, a whole number of 10⁻⁶.

    >>> Epsilon.parse("10"), str(Epsilon.parse("0.250000"))
    (Epsilon(micro=10000000), '0.25')
    """

    micro: int

    def __post_init__(self) -> None:
        _whole("epsilon", self.micro)
        if self.micro < 0:
            raise NegativeAmountError("epsilon is negative")
        if self.micro == 0:
            raise ZeroAmountError("epsilon must be above 0")
        if not self.micro <= EPSILON_MAX_MICRO:
            raise AmountTooLargeError(f"epsilon is above {decimal_text(EPSILON_MAX_MICRO, MICRO_PLACES)}")

    @classmethod
    def parse(cls, text: str | int) -> Epsilon:
        """Read ε from decimal text, refusing by name what is off the grid or out of range."""
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
        _whole("delta", self.atto)
        if self.atto < 0:
            raise NegativeAmountError("delta is negative")
        if not self.atto <= ATTO:
            raise AmountTooLargeError("delta is above 1")

    @classmethod
    def parse(cls, text: str | int) -> Delta:
        """Read δ from decimal text, refusing by name what is off the grid or out of range."""
        return cls(atto=_on_grid("delta", text, ATTO_PLACES))

    def __str__(self) -> str:
        return decimal_text(self.atto, ATTO_PLACES)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rho:
    """ρ of one mechanism under zero-concentrated DP, 0 < ρ ≤ 2048 (what ε = 64 costs), a whole number of 10⁻⁶."""

    micro: int

    def __post_init__(self) -> None:
        _whole("rho", self.micro)
        if self.micro < 0:
            raise NegativeAmountError("rho is negative")
        if self.micro == 0:
            raise ZeroAmountError("rho must be above 0")
        if not self.micro <= zcdp_of_pure(EPSILON_MAX_MICRO):
            raise AmountTooLargeError("rho is above 2048")

    @classmethod
    def parse(cls, text: str | int) -> Rho:
        """Read ρ from decimal text, refusing by name what is off the grid or out of range."""
        return cls(micro=_on_grid("rho", text, MICRO_PLACES))

    def __str__(self) -> str:
        return decimal_text(self.micro, MICRO_PLACES)


def zcdp_of_pure(epsilon_micro: int) -> int:
    """Return ρ = ε²/2 in 10⁻⁶, rounded up: what an ε-DP release costs in zCDP (Appendix B; Bun and Steinke 2016,
    Proposition 1.4; an (ε, δ)-DP release is δ-approximate ε²/2-zCDP, their section 8).

    >>> zcdp_of_pure(1_000_000), zcdp_of_pure(1)
    (500000, 1)
    """
    return -(-(epsilon_micro * epsilon_micro) // (2 * MICRO))
