"""Shared Storage: a key-value store per origin; its pages may write, only worklets may read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aggservice.mechanisms import Clock
from aggservice.wire.device import CallError
from paa_client.effects import Effect, Emit, WorkletNotAllowedError, WorkletTypeError

_BYTES_PER_UNIT = 2


def code_units(text: str) -> int:
    """Return the length of ``text`` in UTF-16 code units, the platform's measure of strings."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // _BYTES_PER_UNIT


class Database:
    """The entries of one origin. An entry lives ``lifetime_ms`` from its last write; sizes count UTF-16 bytes.

    Shared Storage specification, "The Shared Storage Database". ``set``, ``append``, ``get``, ``delete`` are O(1);
    entries that have expired are removed when they are met, or all of them when room is needed.
    """

    def __init__(self, *, clock: Clock, lifetime_ms: int, max_bytes: int) -> None:
        self._clock = clock
        self._lifetime_ms = lifetime_ms
        self._max_bytes = max_bytes
        self._entries: dict[str, tuple[str, int]] = {}
        self._bytes = 0

    def get(self, key: str) -> str | None:
        """Return the value of ``key``, or None (retrieve an entry from the database)."""
        self._check_key(key)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] + self._lifetime_ms <= self._clock.now_ms():
            self._remove(key)
            return None
        return entry[0]

    def set(self, key: str, value: str, *, ignore_if_present: bool = False) -> bool:
        """Store ``value``; return whether there was room. ``ignore_if_present`` keeps an unexpired entry."""
        self._check_value(value)
        current = self.get(key)
        if ignore_if_present and current is not None:
            return True
        return self._store(key, value)

    def append(self, key: str, value: str) -> bool:
        """Append ``value`` to the current value of ``key``; return whether there was room."""
        self._check_value(value)
        current = self.get(key)
        return self._store(key, value if current is None else current + value)

    def delete(self, key: str) -> None:
        """Remove ``key`` if it is there."""
        self._check_key(key)
        if key in self._entries:
            self._remove(key)

    def clear(self) -> None:
        """Remove everything."""
        self._entries.clear()
        self._bytes = 0

    def entries(self) -> list[tuple[str, str]]:
        """Return the unexpired entries, in the order in which their keys were first stored."""
        self._purge()
        return [(key, value) for key, (value, _) in self._entries.items()]

    def _store(self, key: str, value: str) -> bool:
        size = self._size(key, value)
        old = self._entries.get(key)
        change = size - (self._size(key, old[0]) if old is not None else 0)
        if self._bytes + change > self._max_bytes:
            self._purge()
            if self._bytes + change > self._max_bytes:
                return False
        self._entries[key] = (value, self._clock.now_ms())
        self._bytes += change
        return True

    def _remove(self, key: str) -> None:
        value, _ = self._entries.pop(key)
        self._bytes -= self._size(key, value)

    def _purge(self) -> None:
        now = self._clock.now_ms()
        for key in [key for key, (_, written) in self._entries.items() if written + self._lifetime_ms <= now]:
            self._remove(key)

    @staticmethod
    def _size(key: str, value: str) -> int:
        return _BYTES_PER_UNIT * (code_units(key) + code_units(value))

    def _check_key(self, key: str) -> None:
        if not isinstance(key, str):
            raise WorkletTypeError(f"key must be a string, not {type(key).__name__}")
        units, most = code_units(key), self._max_bytes // _BYTES_PER_UNIT
        if not 0 < units <= most:
            raise WorkletTypeError(f"key must have 1 to {most} UTF-16 code units, got {units}")

    def _check_value(self, value: str) -> None:
        if not isinstance(value, str):
            raise WorkletTypeError(f"value must be a string, not {type(value).__name__}: write str(...) or JSON")
        units, most = code_units(value), self._max_bytes // _BYTES_PER_UNIT
        if units > most:
            raise WorkletTypeError(f"value must have at most {most} UTF-16 code units, got {units}")

    def _check(self) -> None:
        """Assert that the counted size is the size of the entries, and within the limit."""
        assert self._bytes == sum(self._size(key, value) for key, (value, _) in self._entries.items())
        assert self._bytes <= self._max_bytes


@contextmanager
def _for_page() -> Iterator[None]:
    """Convert an error of a worklet to the exception that a page gets."""
    try:
        yield
    except WorkletTypeError as error:
        raise CallError("TypeError", str(error)) from None


class WindowStorage:
    """A page's access to its origin's Shared Storage: it writes, never reads (interface ``SharedStorage``, Window).

    An invalid key or value raises ``CallError``; the page does not learn whether there was room.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, key: str, value: str, *, ignore_if_present: bool = False) -> None:
        """Store ``value`` under ``key``."""
        with _for_page():
            self._database.set(key, value, ignore_if_present=ignore_if_present)

    def append(self, key: str, value: str) -> None:
        """Store the present value of ``key`` with ``value`` after it."""
        with _for_page():
            self._database.append(key, value)

    def delete(self, key: str) -> None:
        """Remove ``key``."""
        with _for_page():
            self._database.delete(key)

    def clear(self) -> None:
        """Remove every entry of the origin."""
        self._database.clear()


class WorkletStorage:
    """An operation's access to Shared Storage while it runs (interface ``SharedStorage``, worklet).

    ``emit``, if given, is called with each write; a child process uses it to pass writes to its parent.
    """

    def __init__(self, database: Database, emit: Emit | None = None) -> None:
        self._database: Database | None = database
        self._emit = emit if emit is not None else lambda effect: None

    def get(self, key: str) -> str | None:
        """Return the value of ``key``, or None."""
        return self._live().get(key)

    def set(self, key: str, value: str, *, ignore_if_present: bool = False) -> None:
        """Store ``value`` under ``key``."""
        self._live().set(key, value, ignore_if_present=ignore_if_present)
        self._emit(("set", key, value, bool(ignore_if_present)))

    def append(self, key: str, value: str) -> None:
        """Store the present value of ``key`` with ``value`` after it."""
        self._live().append(key, value)
        self._emit(("append", key, value))

    def delete(self, key: str) -> None:
        """Remove ``key``."""
        self._live().delete(key)
        self._emit(("delete", key))

    def clear(self) -> None:
        """Remove every entry of the origin."""
        self._live().clear()
        self._emit(("clear",))

    def length(self) -> int:
        """Return the number of entries."""
        return len(self._live().entries())

    def keys(self) -> Iterator[str]:
        """Iterate over the keys stored at the time of the call."""
        return iter([key for key, _ in self._live().entries()])

    def entries(self) -> Iterator[tuple[str, str]]:
        """Iterate over the keys and values stored at the time of the call."""
        return iter(self._live().entries())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self.entries()

    def close(self) -> None:
        """End the operation's access."""
        self._database = None

    def _live(self) -> Database:
        if self._database is None:
            raise WorkletNotAllowedError("sharedStorage was used after its operation had ended")
        return self._database


def replay(database: Database, effect: Effect) -> bool:
    """Apply a write of a child process to ``database``; return False if ``effect`` is not a write."""
    match effect:
        case ("set", str(key), str(value), bool(ignore)):
            database.set(key, value, ignore_if_present=ignore)
        case ("append", str(key), str(value)):
            database.append(key, value)
        case ("delete", str(key)):
            database.delete(key)
        case ("clear",):
            database.clear()
        case _:
            return False
    return True
