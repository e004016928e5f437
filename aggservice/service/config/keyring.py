"""The private keys of a running service: read from a file, read again when the operator rotates them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aggservice.mechanisms import Bits, Clock
from aggservice.service.errors import NoKeysError
from aggservice.wire import KeySet, PublicKeySet, read_key_set, write_key_set
from aggservice.wire.errors import KeySetError
from aggservice.wire.hpke.key_sets import KeyAccount, sole_writer
from budget import Store
from budget.errors import LedgerRewoundError
from budget.witness import SeenLog, check_same, check_seen, seen_in


class KeyRing:
    """The current keys, and callbacks for their change. Old keys open reports for as long as the file keeps them.

    It is the witness of the ledger that the keys belong to (``budget.witness``): the key file names it, and the newest
    entry that was seen of it. Without a file, both are kept in memory, like the keys.
    """

    def __init__(self, keys: KeySet, clock: Clock, path: Path | None = None) -> None:
        self._keys = keys
        self._clock = clock
        self._path = path
        self._stamped = self._stamp()
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
    def seen(self) -> SeenLog | None:
        """The ledger that the keys belong to, and its newest entry that they have seen; None before the first one."""
        return None if self._keys.account is None else _seen(self._keys.account)

    def advance(self, seen: SeenLog) -> None:
        """Remember a newer entry in the key file. Several services may share the file: it keeps the newest entry.

        LedgerMismatchError if the file has come to belong to another ledger; OSError if it cannot be written. While it
        cannot be read, because somebody is changing it, the entry is kept in memory, and written with the next one or
        by ``refresh``.
        """
        with self._lock:
            self._keys = replace(self._keys, account=_account(seen))
            with suppress(KeySetError):
                self._take(self._bound())

    def _bound(self) -> KeySet:
        """Return the keys of the file, which remembers from now on what these keys have seen."""
        seen = self.seen
        if self._path is None:
            return self._keys
        with sole_writer(self._path):
            found = read_key_set(self._path)
            if seen is None:
                return found
            if found.account is not None:
                check_same(seen.ledger_id, _seen(found.account))
            if found.account is None or found.account.entries < seen.entries:
                found = replace(found, account=_account(seen))
                write_key_set(self._path, found, replace=True)
            return found

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
        changed = _names(keys) != _names(self._keys)
        self._keys = keys
        for callback in self._callbacks if changed else ():
            callback(keys)

    def _take(self, keys: KeySet) -> None:
        """Use what the file holds now."""
        self.replace(keys)
        self._stamped = self._stamp()

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether it has.

        While it cannot be read the old keys stay in use, ``unreadable`` is set, and the error is raised.
        """
        with self._lock:
            if self._path is None or (self._stamp() == self._stamped and not self.unreadable):
                return False
            self.unreadable = True
            before = _names(self._keys)
            self._take(self._bound())
            self.unreadable = False
            return _names(self._keys) != before

    def _stamp(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


def retire_keys(path: Path, ledger: Store, bits: Bits, clock: Clock) -> Path | None:
    """Replace the keys in ``path`` if they have seen what ``ledger`` lacks; return the file of the old ones, or None.

    Which reports paid for what is lost cannot be known, so none that these keys open may be opened again. The new keys
    belong to the ledger as it is. LedgerMismatchError if the keys belong to another ledger.
    """
    with sole_writer(path):
        keys = read_key_set(path)
        if keys.account is None:
            return None
        seen = _seen(keys.account)
        newest = seen_in(ledger)
        try:
            ledger.read("check_seen", lambda transaction: check_seen(transaction, newest.ledger_id, seen))
        except LedgerRewoundError:
            old = path.with_name(f"{path.stem}-retired-{seen.entries}-{seen.last.hex()[:8]}.json")
            write_key_set(old, keys, replace=True)
            count = max(1, len(keys.published(clock.now_ms())))
            new = replace(KeySet.create(bits, clock, count=count), account=_account(newest))
            write_key_set(path, new, replace=True)
            return old
        return None


def _account(seen: SeenLog) -> KeyAccount:
    return KeyAccount(ledger_id=seen.ledger_id, entries=seen.entries, last=seen.last)


def _seen(account: KeyAccount) -> SeenLog:
    return SeenLog(ledger_id=account.ledger_id, entries=account.entries, last=account.last)


def _names(keys: KeySet) -> list[tuple[str, int, int]]:
    """Return what tells two sets of keys apart. Their account is not part of it: it changes with every entry."""
    return [(pair.id, pair.not_before_ms, pair.expiry_ms) for pair in keys.pairs]
