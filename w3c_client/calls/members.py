"""The types of option members: their values are converted as in WebIDL, except that numbers never wrap.

WebIDL wraps an unsigned long modulo 2³². Here a number outside the range of its type is a ``TypeError``, because
wrapping would hide mistakes in a simulation. A missing required member and a non-finite double are one too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from w3c_client.config import UINT32_MAX
from w3c_client.errors import CallError, ErrorName

#: The largest integer of a structured field (RFC 9651): a header may ask for that many days, which are then clamped.
_MAX_DAYS: Final = 999_999_999_999_999

Convert = Callable[[str, Any], Any]
"""A function of a member's name and value that returns the converted value or raises the platform's ``TypeError``."""


def refuse(name: str, value: object, wanted: str) -> CallError:
    """Return the error of a member with the wrong type."""
    shown = repr(value) if isinstance(value, (int, float, bool, type(None))) else type(value).__name__
    return CallError(ErrorName.TYPE, f"{name} must be {wanted}, not {shown}")


def integer(least: int, most: int) -> Convert:
    """Return a conversion that accepts integers from ``least`` to ``most``."""

    def convert(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise refuse(name, value, f"an integer from {least} to {most}")
        return int(value)

    return convert


def double(name: str, value: Any) -> float | int:
    """Return a finite number; an integer stays an integer."""
    if isinstance(value, Decimal):
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise refuse(name, value, "a number")
    try:
        finite = isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise CallError(ErrorName.TYPE, f"{name} must be a finite number that fits in a double")
    return value


def string(name: str, value: Any) -> str:
    """Return ``value`` if it is a string; otherwise raise the platform's ``TypeError``."""
    if not isinstance(value, str):
        raise refuse(name, value, "a string")
    return value


def listed(item: Convert) -> Convert:
    """Return a conversion of a list to a tuple that converts each entry by ``item``."""

    def convert(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise refuse(name, value, "a list")
        return tuple(item(f"{name}[{index}]", entry) for index, entry in enumerate(value))

    return convert


u32, i32, days = integer(0, UINT32_MAX), integer(-(1 << 31), (1 << 31) - 1), integer(0, _MAX_DAYS)


def read_members(given: object, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of a dictionary by field name; unknown members and None (undefined) are left out.

    A number of days must be an unsigned long here; only a header may give more.
    """
    if not isinstance(given, Mapping):
        raise refuse("options", given, "a dictionary")
    found = {field: given[member] for member, field in names.items() if given.get(member) is not None}
    for member, field in names.items():
        if field.endswith("_days") and field in found:
            u32(member, found[field])
    return found
