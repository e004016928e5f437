"""Reading a TOML table strictly: every key is taken by name and type, and what nobody took is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from aggservice.service.errors import ConfigError


class Table:
    """A table of a configuration file that remembers which of its keys have been read."""

    def __init__(self, values: dict[str, Any], path: str = "", folder: Path | None = None) -> None:
        self._values = values
        self._path = path
        self._folder = folder or Path()
        self._taken: set[str] = set()

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _take(self, key: str, kind: type | tuple[type, ...], what: str) -> Any:
        self._taken.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{self._name(key)} must be {what}, not {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the key must be there."""
        value = self._take(key, str, "a string")
        if value is None:
            if default is None:
                raise ConfigError(f"{self._name(key)} is missing: it is a string")
            return default
        return str(value)

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None when the key is absent."""
        value = self._take(key, str, "a string")
        return None if value is None else str(value)

    def whole(self, key: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        value = self._take(key, int, f"a whole number from {least} to {most}")
        number = default if value is None else int(value)
        if not least <= number <= most:
            raise ConfigError(f"{self._name(key)} must be a whole number from {least} to {most}, not {number}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._take(key, bool, "true or false")
        return default if value is None else bool(value)

    def path(self, key: str) -> Path | None:
        """Return a path; a relative one is relative to the configuration file."""
        value = self._take(key, str, "a path")
        return None if value is None else self._folder / str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty when absent."""
        value = self._take(key, list, "a list of strings")
        found = value or []
        if not all(isinstance(one, str) for one in found):
            raise ConfigError(f"{self._name(key)} must be a list of strings")
        return tuple(found)

    def time_ms(self, key: str) -> int | None:
        """Return a date and time with its offset from UTC, in milliseconds; None when absent."""
        value = self._take(key, datetime.datetime, "a date and time such as 2027-01-01T00:00:00Z")
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigError(f"{self._name(key)} needs an offset from UTC, such as the Z of 2027-01-01T00:00:00Z")
        return round(value.timestamp() * 1000)

    def table(self, key: str) -> Table:
        """Return a table; an empty one when absent."""
        value = self._take(key, dict, "a table")
        return Table(value or {}, self._name(key), self._folder)

    def tables(self, key: str) -> list[Table]:
        """Return an array of tables; empty when absent."""
        value = self._take(key, list, "an array of tables") or []
        if not all(isinstance(one, dict) for one in value):
            raise ConfigError(f"{self._name(key)} must be an array of tables: write [[{self._name(key)}]]")
        return [Table(one, f"{self._name(key)}[{index}]", self._folder) for index, one in enumerate(value)]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def done(self) -> None:
        """Refuse keys that nobody asked for."""
        unknown = sorted(set(self._values) - self._taken)
        if unknown:
            known = ", ".join(sorted(self._taken))
            raise ConfigError(f"{self._name(unknown[0])} is not a setting; known here: {known}")


def read_secret(path: Path, what: str) -> bytes:
    """Return the bytes of a secret file; refused when others can read it. The bytes never appear in a message."""
    try:
        mode = path.stat().st_mode
        raw = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{what}: cannot read {path}: {problem.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{what}: others can read {path}; run 'chmod 600 {path}'")
    if not raw.strip():
        raise ConfigError(f"{what}: {path} is empty")
    return raw
