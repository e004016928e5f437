"""A store in the memory of this process: for tests, demos and dry runs."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

from budget.errors import StoreError
from budget.store import Store, T, Transaction
from budget.stores.sqlite import MIGRATIONS, SqliteTransaction


class MemoryStore(Store):
    """The tables of ``SqliteStore`` in an SQLite database that has no file, behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in (text for step in MIGRATIONS for text in step):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self._run(name, "COMMIT", work)

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self._run(name, "ROLLBACK", work)

    def _run(self, name: str, end: str, work: Callable[[Transaction], T]) -> T:
        with self._lock:
            try:
                self._db.execute("BEGIN")
                result = work(SqliteTransaction(self._db))
                self._db.execute(end)
            except sqlite3.Error as problem:
                raise StoreError(f"transaction {name!r} in memory failed: {problem}") from problem
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            return result

    def close(self) -> None:
        """Do nothing: the tables exist as long as this object."""
