"""What a request gives, read with types and limits; a wrong value is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from aggservice.studio.errors import StudioError

_MOST_TEXT = 1 << 20


class Given:
    """The members of a JSON object, or of a query string."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        """Whether a member is there."""
        return self._values.get(name) is not None

    def text(self, name: str, default: str | None = None, *, most: int = _MOST_TEXT) -> str:
        """Return a string of at most ``most`` characters."""
        value = self._values.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise StudioError(f"{name} must be a text of at most {most:,} characters")
        return value

    def choice(self, name: str, options: Sequence[str], default: str | None = None) -> str:
        """Return one of ``options``."""
        value = self.text(name, default, most=200)
        if value not in options:
            raise StudioError(f"{name} must be one of {', '.join(options)}")
        return value

    def whole(self, name: str, default: int | None = None, *, least: int, most: int) -> int:
        """Return an integer in a range; a query string may give its digits."""
        value = self._values.get(name, default)
        if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise StudioError(f"{name} must be a whole number from {least:,} to {most:,}")
        return value

    def micro(self, name: str, default: str | None = None, *, most: int) -> int:
        """Return an amount given as decimal text, in millionths."""
        value = self.text(name, default, most=30)
        try:
            found = Fraction(value) * 10**6
        except (ValueError, ZeroDivisionError):
            found = Fraction(-1)
        if found.denominator != 1 or not 0 < found <= most * 10**6:
            raise StudioError(f"{name} must be a decimal number above 0, at most {most}, with at most six places")
        return int(found)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise StudioError(f"{name} must be true or false")
        return value

    def texts(self, name: str, *, most: int = 100) -> list[str]:
        """Return a list of short strings; an absent member is an empty list."""
        value = self._values.get(name, [])
        if not isinstance(value, list) or len(value) > most or not all(isinstance(one, str) for one in value):
            raise StudioError(f"{name} must be a list of at most {most} texts")
        return value

    def members(self, name: str) -> dict[str, Any]:
        """Return a JSON object; an absent member is an empty one."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise StudioError(f"{name} must be an object")
        return value


def to_plain(value: Any) -> Any:
    """Return values that JSON has: dataclasses as objects, bytes in hexadecimal, fractions as text."""
    match value:
        case bool() | None | int() | str() if not isinstance(value, Enum):
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Enum():
            return value.value
        case bytes():
            return value.hex()
        case Fraction():
            return str(value)
        case Mapping():
            return {str(to_plain(key)): to_plain(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    return str(value)
