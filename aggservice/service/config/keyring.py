"""The private keys of a running service: read from a file, read again when the operator rotates them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from aggservice.mechanisms import Bits, Clock
from aggservice.service.errors import NoKeysError
from aggservice.wire import KeySet, PublicKeySet, read_key_set, write_key_set
from aggservice.wire.errors import KeySetError


class KeyRing:
    """The current keys, and callbacks for their change. Old keys open reports for as long as the file keeps them."""

    def __init__(self, keys: KeySet, clock: Clock, path: Path | None = None) -> None:
        self._keys = keys
        self._clock = clock
        self._path = path
        self._seen = self._stamp()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[KeySet], None]] = []
        self.unreadable = False

    @classmethod
    def load_or_create(cls, path: Path, bits: Bits, clock: Clock) -> KeyRing:
        """Read the keys in ``path``, or create them if there is no such file."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                write_key_set(path, KeySet.create(bits, clock))
            except KeySetError:
                if not path.exists():
                    raise
                # another service that shares the file was first: use its keys
        return cls(read_key_set(path), clock, path)

    @property
    def keys(self) -> KeySet:
        """The current keys."""
        return self._keys

    def public(self) -> PublicKeySet:
        """Return the public keys that clients may seal to now; raise ``NoKeysError`` if every key has expired."""
        if not self._keys.published(self._clock.now_ms()):
            raise NoKeysError("no key is published at this time")
        return self._keys.public(self._clock)

    def on_change(self, callback: Callable[[KeySet], None]) -> None:
        """Call ``callback`` with the keys whenever they change."""
        self._callbacks.append(callback)

    def replace(self, keys: KeySet) -> None:
        """Use other keys from now on."""
        self._keys = keys
        for callback in self._callbacks:
            callback(keys)

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether it has.

        While it cannot be read the old keys stay in use, ``unreadable`` is set, and the error is raised.
        """
        with self._lock:
            stamp = self._stamp()
            if self._path is None or (stamp == self._seen and not self.unreadable):
                return False
            self.unreadable = True
            self.replace(read_key_set(self._path))
            self.unreadable = False
            self._seen = stamp
            return True

    def _stamp(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino
