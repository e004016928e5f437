"""A pool of database connections per process; a forked child never uses its parent's connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from budget.errors import BudgetError


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class _Process(Generic[C]):
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.writer = threading.Lock()
        self.idle: list[C] = []


class Connections(Generic[C]):
    """A pool of idle connections; ``connect`` opens one if the pool is empty. Thread-safe."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._process: _Process[C] = _Process()
        self._inherited: list[_Process[C]] = []

    def _here(self) -> _Process[C]:
        if self._process.pid != os.getpid():
            # Kept, not dropped: closing a parent's connection in the child would end it for the parent too.
            self._inherited.append(self._process)
            self._process = _Process()
        return self._process

    @property
    def writer(self) -> threading.Lock:
        """A lock for the writers of this process: threads wait here instead of polling the database."""
        return self._here().writer

    def take(self) -> C:
        """Return an idle connection or a new one."""
        here = self._here()
        with here.lock:
            if here.idle:
                return here.idle.pop()
        return self._connect()

    def give_back(self, connection: C) -> None:
        """Put back a connection that is in no transaction."""
        here = self._here()
        with here.lock:
            here.idle.append(connection)

    @contextmanager
    def lend(self, roll_back: Callable[[C], object]) -> Iterator[C]:
        """Lend a connection for one transaction; keep it afterwards unless the transaction failed.

        After a BudgetError, ``roll_back`` ends the transaction and the connection is kept; other errors close it.
        """
        connection = self.take()
        clean = False
        try:
            yield connection
            clean = True
        except BudgetError:
            roll_back(connection)
            clean = True
            raise
        finally:
            if clean:
                self.give_back(connection)
            else:
                connection.close()  # which rolls back

    def close(self) -> None:
        """Close this process's idle connections."""
        here = self._here()
        with here.lock:
            while here.idle:
                here.idle.pop().close()
