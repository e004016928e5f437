"""The types of option members: what WebIDL would convert, and what is refused instead of wrapped.

WebIDL wraps an unsigned long modulo 2³². That helps nobody in a simulator: a number out of its type's range is a
``TypeError`` here, as a missing required member and a non-finite double are.
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
"""From a member's name and value to the value as stored; raises ``TypeError`` of the platform."""


def refuse(name: str, value: object, wanted: str) -> CallError:
    """Return the error of a member with the wrong type."""
    shown = repr(value) if isinstance(value, (int, float, bool, type(None))) else type(value).__name__
    return CallError(ErrorName.TYPE, f"{name} must be {wanted}, not {shown}")


def integer(least: int, most: int) -> Convert:
    """Return a conversion to an integer of a range."""

    def convert(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise refuse(name, value, f"an integer from {least} to {most}")
        return int(value)

    return convert


def double(name: str, value: Any) -> float | int:
    """Return a finite number; an integer stays one."""
    if isinstance(value, Decimal):
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise refuse(name, value, "a number")
    try:
        finite = isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise refuse(name, "a number without a double", "a finite number")
    return value


def string(name: str, value: Any) -> str:
    """Return text."""
    if not isinstance(value, str):
        raise refuse(name, value, "a string")
    return value


def listed(item: Convert) -> Convert:
    """Return a conversion of a list, item by item, to a tuple."""

    def convert(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise refuse(name, value, "a list")
        return tuple(item(f"{name}[{index}]", entry) for index, entry in enumerate(value))

    return convert


u32, i32, days = integer(0, UINT32_MAX), integer(-(1 << 31), (1 << 31) - 1), integer(0, _MAX_DAYS)


def read_members(given: object, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of a dictionary by field name; unknown members and None (undefined) are left out.

    Days of a dictionary are unsigned longs; only a header can give more.
    """
    if not isinstance(given, Mapping):
        raise refuse("options", given, "a dictionary")
    found = {field: given[member] for member, field in names.items() if given.get(member) is not None}
    for member, field in names.items():
        if field.endswith("_days") and field in found:
            u32(member, found[field])
    return found
