"""What services reach over a network: a database server and object storage, with resets, lost answers and delays.

Transactions are the real ones, of the ledger over its memory store and of the queue over SQLite in memory. The network
before and after them is not: a request may be lost, and so may the answer of a transaction that was committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from aggservice.mechanisms import ManualClock
from aggservice.service.queue.databases import Execute, MemoryQueue
from budget import MemoryStore, Store
from budget.errors import StoreError
from budget.store import Transaction
from budget.stores.postgres import Guard

from .scheduler import Scheduler

T = TypeVar("T")
_ATTEMPTS = 4


class ServerClock:
    """The clock of the database server: the simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_ms(self) -> int:
        """Return the time."""
        return int(self._scheduler.loop.time() * 1000)


class LocalClock(ManualClock):
    """The clock of one service, which may jump."""

    def __init__(self, scheduler: Scheduler, start_ms: int) -> None:
        super().__init__(start_ms)
        self._scheduler = scheduler
        self._start_ms = start_ms
        self.offset_ms = 0

    def now_ms(self) -> int:
        """Return the service's idea of the time."""
        return self._start_ms + int(self._scheduler.loop.time() * 1000) + self.offset_ms


class Connection:
    """Runs transactions on a server over a network that loses requests and answers, and repeats them, as psycopg's
    user does in ``PostgresDatabase``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def run(self, name: str, transact: Callable[[], T]) -> T:
        """Run a transaction; StoreError if the connection is lost too often."""
        for _ in range(_ATTEMPTS):
            self._scheduler.point(f"send {name}")
            if self._scheduler.fault():
                self._scheduler.note(f"{name}: the request is lost")
                continue
            result = transact()
            self._scheduler.point(f"receive {name}")
            if self._scheduler.fault():
                self._scheduler.note(f"{name}: the answer is lost")
                continue
            return result
        raise StoreError(f"transaction {name!r} failed {_ATTEMPTS} times: the connection was reset")


class _Guarded:
    """A transaction of the memory store with the check of PostgreSQL's."""

    def __init__(self, inner: Transaction, guard: Guard | None) -> None:
        self._inner = inner
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def admit(self, caller: str, job_id: str) -> None:
        if self._guard is not None:
            self._guard(None, caller, job_id)  # type: ignore[arg-type]


class LedgerConnection(Store):
    """One service's connection to the ledger."""

    definite = False

    def __init__(self, scheduler: Scheduler, server: MemoryStore) -> None:
        self._connection = Connection(scheduler)
        self._server = server
        self.guard: Guard | None = None

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        def guarded(transaction: Transaction) -> T:
            return work(_Guarded(transaction, self.guard))  # type: ignore[arg-type]

        return self._connection.run(name, lambda: self._server.write(name, guarded))

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self._connection.run(name, lambda: self._server.read(name, work))

    def close(self) -> None:
        """Nothing to close."""


class QueueConnection:
    """One service's connection to the queue."""

    skip_locked = ""
    shared = True

    def __init__(self, scheduler: Scheduler, server: MemoryQueue, watch: Callable[[str, Any, Any], None]) -> None:
        """``watch`` sees the name, the rows before and the result of every transaction."""
        self._connection = Connection(scheduler)
        self._server = server
        self._watch = watch

    def write(self, name: str, work: Callable[[Execute], T]) -> T:
        def transact() -> T:
            before: list[Any] = []

            def noting(execute: Execute) -> T:
                before[:] = execute("SELECT seq, state, owner, lease_until_ms FROM queue")
                return work(execute)

            result = self._server.write(name, noting)
            self._watch(name, before, result)
            return result

        return self._connection.run(name, transact)

    def now_ms(self, execute: Execute) -> int:
        return self._server.now_ms(execute)

    def hold(self, connection: Any, seq: int, owner: str) -> None:
        """Check inside the ledger's transaction, which runs alone, that the owner holds the job."""
        from budget.errors import LeaseLostError

        rows = self._server.write(
            "hold",
            lambda execute: execute(
                "SELECT 1 FROM queue WHERE seq = ? AND owner = ? AND state = 'running'", *(seq, owner)
            ),
        )
        if not rows:
            raise LeaseLostError("another service has taken over this job")

    def close(self) -> None:
        """Nothing to close."""


class _BaseError(Exception):
    pass


class _GenericError(_BaseError):
    pass


class _AlreadyExistsError(_BaseError):
    pass


class _NotFoundError(_BaseError):
    pass


class Bucket:
    """Object storage with the calls of obstore that the service makes."""

    exceptions = SimpleNamespace(
        BaseError=_BaseError, AlreadyExistsError=_AlreadyExistsError, NotFoundError=_NotFoundError
    )

    def __init__(self, scheduler: Scheduler, appeared: Callable[[str, bytes], None]) -> None:
        self._scheduler = scheduler
        self._appeared = appeared
        self.objects: dict[str, bytes] = {}

    def _send(self, what: str) -> None:
        self._scheduler.point(what)
        if self._scheduler.fault():
            raise _GenericError("connection reset")

    def put(self, store: Any, key: str, file: Path | bytes, mode: str = "", use_multipart: bool = True) -> None:
        self._send(f"put {key}")
        raw = file if isinstance(file, bytes) else file.read_bytes()
        if mode == "create" and key in self.objects:
            raise _AlreadyExistsError(key)
        self._appeared(key, raw)
        self.objects[key] = raw
        self._send(f"put {key}: answer")

    def get(self, store: Any, key: str) -> Any:
        self._send(f"get {key}")
        if key not in self.objects:
            raise _NotFoundError(key)
        raw = self.objects[key]
        return SimpleNamespace(bytes=lambda: raw)

    def list(self, store: Any, prefix: str | None = None, chunk_size: int = 50) -> Any:
        self._send(f"list {prefix}")
        below = f"{prefix}/" if prefix else ""
        return [[{"path": key, "size": len(raw)} for key, raw in self.objects.items() if key.startswith(below)]]
