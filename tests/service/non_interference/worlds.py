"""A world: one whole service without sockets, with its ledger and folders, that shows every byte a caller may see."""

from __future__ import annotations

import errno
import importlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aggservice.engine import AvroShards, LocalEngine, PrivacyUnit
from aggservice.engine.opening.pool import BatchOpener
from aggservice.engine.spark import session as spark_session
from aggservice.engine.spark.engine import SparkEngine
from aggservice.engine.spark.settings import SparkSettings
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.service import Limits, Service, ServiceConfig
from aggservice.service.api.gate import Gate
from aggservice.service.config.keyring import KeyRing
from aggservice.service.log import EventLog
from aggservice.wire import write_key_set
from budget import EpsilonDeltaFilter, Ledger, MemoryStore, Signer, SqliteStore, Staging, Store, ZcdpFilter, write_log
from budget.errors import FormatError, StoreError
from budget.files.staging import CALLER_BYTES
from budget.log.entries import decode
from budget.store import EntryRow, JobRow, PartRow, T, Transaction

from ...engine.spark.test_spark_promises import HereCluster, HereExchange
from .in_process import Answer, HereExecutor, Server
from .sealed_pairs import NOW_MS, Reports
from .spying import SPY, Spy, callers

CALLER = "local"
JOBS = ("a", "b", "c")
_SIGNER = Signer(bytes(range(32)))
_KNOBS = {
    "rows_in_ledger": (("aggservice.engine.release.charging", "MOST_ROWS_IN_LEDGER"),),
    "result_bytes": (("budget.ledger", "RESULT_MAX_BYTES"), ("aggservice.engine.release.charging", "RESULT_MAX_BYTES")),
    "largest_sum": (("aggservice.engine.release.noise", "_LARGEST"),),
    "most_keys": (("aggservice.engine.jobs.histogram", "MOST_KEYS"),),
}
"""Limits of the code that a history makes small, by module and name."""
_UNPAID_LATER = ("previous", "request", "result")
"""Fields of an entry that a paid summary, or the sealed bytes of its request, decide."""


class Brief:
    """A dataclass whose ``repr`` leaves out what has its default: a reproduction that can be read and run."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            default = one.default if one.default_factory is MISSING else one.default_factory()
            if value != default:
                text = f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
                shown.append(f"{one.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Setup(Brief):
    """How both worlds of a history are set up. None leaves a limit as it is.

    ``room`` bounds the bytes of a transaction of a memory ledger; ``file_bytes`` every file that the process writes
    (RLIMIT_FSIZE), SQLite's too: both are full disks, which end with the first charge. ``spied`` adds a second caller;
    ``quota`` is what results of one caller may take of the staging folder, and ``disk`` what all of them may. With
    ``spark``, jobs over files run in the stages of a cluster, one task after the other in this process.
    """

    unit: PrivacyUnit = PrivacyUnit.REPORT
    zcdp: bool = False
    epsilon: str = "64"
    sqlite: bool = False
    pool: bool = False
    files: bool = False
    jobs: int = 4
    waiting: int = 10
    domain_keys: int = 1_000
    units: int = 1_000
    message_bytes: int = 1 << 20
    rows_in_ledger: int | None = None
    result_bytes: int | None = None
    largest_sum: int | None = None
    most_keys: int | None = None
    rows_per_shard: int | None = None
    room: int | None = None
    file_bytes: int | None = None
    spied: bool = False
    spark: bool = False
    quota: int = CALLER_BYTES
    disk: int | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the limits of the code small for as long as the block runs."""
        with ExitStack() as stack:
            for knob, places in _KNOBS.items():
                value = getattr(self, knob)
                if value is not None:
                    for module, name in places:
                        stack.enter_context(changed(importlib.import_module(module), name, value))
            if self.rows_per_shard is not None:
                defaults = AvroShards.__init__.__kwdefaults__ | {"rows_per_shard": self.rows_per_shard}
                stack.enter_context(changed(AvroShards.__init__, "__kwdefaults__", defaults))
            if self.spark:
                stack.enter_context(changed(spark_session, "Exchange", HereExchange))
            yield


@contextmanager
def _file_limit(size: int) -> Iterator[None]:
    """Let this process write no file beyond ``size`` bytes while the block runs: such a write fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute that exists another value for as long as the block runs."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Counting:
    """A transaction that may write so many bytes."""

    def __init__(self, inner: Transaction, room: int) -> None:
        self._inner = inner
        self._room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise StoreError("transaction failed: database or disk is full")

    def append(self, entry: EntryRow, parts: Iterator[PartRow]) -> None:
        held = tuple(parts)
        self._take(len(entry.header) + len(entry.receipt) + sum(len(part.keys) for part in held))
        self._inner.append(entry, held)

    def add_job(self, job: JobRow) -> None:
        self._take(len(job.result))
        self._inner.add_job(job)


class SmallStore(MemoryStore):
    """A memory store in which a transaction that writes more than ``room`` bytes fails, as on a full disk."""

    room: int | None = None
    before_commit: Callable[[], None] = staticmethod(lambda: None)

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` with a transaction that counts what it writes."""
        if name == "commit":
            self.before_commit()
        room = self.room
        if room is None:
            return super().write(name, work)
        return super().write(name, lambda transaction: work(_Counting(transaction, room)))  # type: ignore[arg-type]


class World:
    """One side of a pair of worlds: 0 is the left one, 1 the right one."""

    def __init__(
        self, side: int, setup: Setup, reports: Reports, inputs: Path, root: Path, opener: BatchOpener | None
    ) -> None:
        self.side = side
        self.setup = setup
        self.disk_is_full = setup.room is not None or setup.file_bytes is not None
        self.clock = ManualClock(NOW_MS)
        self.root = root
        self.outputs, self.staging = self.root / "out", self.root / "staging"
        self._bits = SeededBits("service")
        if setup.files or setup.sqlite:
            self.outputs.mkdir(parents=True)
        config = ServiceConfig(
            state=self.root,
            listen="127.0.0.1:0",
            ledger="memory",
            filter=(
                ZcdpFilter.parse(rho=setup.epsilon) if setup.zcdp else EpsilonDeltaFilter.parse(epsilon=setup.epsilon)
            ),
            unit=setup.unit,
            input_folder=inputs / ("spied" if setup.spied else "") / "LR"[side] if setup.files else None,
            callers=callers(CALLER) if setup.spied else (),
            output_folder=self.outputs if setup.files else None,
            limits=Limits(
                jobs=setup.jobs,
                waiting=setup.waiting,
                message_bytes=setup.message_bytes,
                domain_keys=setup.domain_keys,
                units=setup.units,
                processes=0,
            ),
        )
        self.store: Store = SqliteStore(self.root / "ledger.sqlite") if setup.sqlite else SmallStore()
        ledger = Ledger.create(
            self.store,
            filter=config.filter,
            signer=_SIGNER,
            clock=self.clock,
            bits=self._bits.child("ledger"),
            terms=config.terms,
            staging=Staging(self.staging, self._bits.child("staging"), caller_bytes=setup.quota)
            if setup.files
            else None,
        )
        self.service = Service(
            config,
            clock=self.clock,
            bits=self._bits,
            keys=KeyRing(reports.keys, self.clock),
            ledger=ledger,
            log=EventLog(self.clock, quiet=True),
        )
        if opener is not None:
            self.service.engine.parts = replace(self.service.engine.parts, opener=opener)
        if setup.spark:
            write_key_set(self.root / "keys.json", reports.keys)
            settings = SparkSettings(master="", keys=self.root / "keys.json", partition_rows=4, partition_bytes=4_000)
            local = self.service.engine
            assert isinstance(local, LocalEngine)
            self.service.engine = SparkEngine(local, settings, HereCluster())  # type: ignore[arg-type]
        self.spy = Spy(self.service, self.outputs, bisects=0 < (setup.disk or 0) < 10_000) if setup.spied else None
        if isinstance(self.store, SmallStore):
            self.store.room = setup.room
            if self.spy is not None:
                self.store.before_commit = self.spy.look
        if setup.spied:
            for name in (CALLER, SPY):
                (self.outputs / name).mkdir()
        self.restart()

    def restart(self) -> None:
        """Begin with an empty book of streams, as a service that was started again on the same ledger and queue."""
        service, limits = self.service, self.service.config.limits
        if self.setup.files:
            service.ledger.recover_staged()
        service.arrange(HereExecutor())
        self.runner = service.runner
        gate = Gate(service.register, service.metrics, service.log)
        self.server = Server(gate, message_bytes=limits.message_bytes, stall_s=limits.stall_s)
        service.add_servicers(self.server)  # type: ignore[arg-type]

    async def stop(self) -> None:
        """End the jobs that are not committed, as a service does that stops in order."""
        self.service.runner.stop()
        await self.service.dispatcher.stop()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let no file grow beyond ``file_bytes`` while the block runs, unless the disk was freed.

        With ``disk``, the staging folder is on a disk of that many bytes.
        """
        limit = self.setup.file_bytes if self.disk_is_full else None
        with ExitStack() as stack:
            if limit is not None:
                stack.enter_context(_file_limit(limit))
            if self.setup.disk is not None:
                stack.enter_context(changed(os, "posix_fallocate", self._allocate))
                stack.enter_context(changed(shutil, "disk_usage", lambda _: SimpleNamespace(free=self._free())))
            yield

    def _free(self) -> int:
        assert self.setup.disk is not None
        return self.setup.disk - sum(one.stat().st_size for one in self.staging.rglob("*") if one.is_file())

    def _allocate(self, file: int, start: int, size: int) -> None:
        if size > self._free():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file, start + size)

    @contextmanager
    def room_to_look(self) -> Iterator[None]:
        """Lift the limit on files for our own look at the ledger."""
        with nullcontext() if self.setup.file_bytes is None else _file_limit(resource.RLIM_INFINITY):
            yield

    def free_disk(self) -> None:
        """End a full disk: later steps have room."""
        self.disk_is_full = False
        if isinstance(self.store, SmallStore):
            self.store.room = None

    def without_paths(self, answer: Answer) -> Answer:
        """Return an answer with the world's own folder, which texts may name, under one name for both."""
        if not (self.setup.files or self.setup.sqlite):
            return answer
        here = str(self.root)
        raw, name = here.encode(), b"ROOT"
        return replace(
            answer,
            text=answer.text.replace(here, name.decode()),
            messages=tuple(one.replace(raw, name) for one in answer.messages),
            trailers=tuple((key, value.replace(raw, name)) for key, value in answer.trailers),
        )

    def charged(self) -> frozenset[str]:
        """Return the jobs that the ledger has charged."""
        return self.store.read("charged", lambda t: frozenset(job for job in JOBS if t.job(CALLER, job) is not None))

    def ledger_view(self) -> Any:
        """Return what the ledger holds: all of it, or, once it has charged, what may not depend on summaries."""
        return self.store.read("view", _view)

    def export(self) -> bytes:
        """Return the ledger's log as it is exported."""
        path = self.root / "exported"
        write_log(self.store, path)
        raw = path.read_bytes()
        path.unlink()
        return raw

    def folders_view(self, charged: frozenset[str]) -> Any:
        """Return every file of outputs and staging with its bytes, but for those of charged jobs."""
        if not self.setup.files:
            return ()
        found: list[Any] = []
        for name, raw in _tree(self.outputs):
            if os.path.basename(name).lstrip(".").split("-")[0] not in charged:
                found.append((name, raw))
        for attempt in sorted(os.listdir(self.staging)):
            files = _tree(self.staging / attempt)
            if _job_of(dict(files).get("job")) not in charged:
                # Names are drawn, and a paid failure may draw one more than a success.
                found.append(("" if charged else attempt, files))
        return sorted(found, key=repr)

    async def close(self) -> None:
        """End the jobs and let go of the ledger."""
        await self.stop()
        self.store.close()
        if self.root.exists():
            shutil.rmtree(self.root)


def _job_of(note: bytes | None) -> str | None:
    """Return the job that an attempt notes itself for; None when a full disk kept it from noting anything."""
    try:
        return str(decode(note or b"")["job_id"])
    except FormatError:
        return None


def _tree(folder: Path) -> list[tuple[str, bytes | None]]:
    """Return every file below a folder with its bytes, and every folder with None."""
    found: list[tuple[str, bytes | None]] = []
    for above, folders, files in os.walk(folder):
        inside = os.path.relpath(above, folder)
        found += [(os.path.normpath(os.path.join(inside, name)), None) for name in folders]
        for name in files:
            found.append((os.path.normpath(os.path.join(inside, name)), Path(above, name).read_bytes()))
    return sorted(found)


def _view(transaction: Transaction) -> Any:
    entries = list(transaction.entries())
    parts = [(row.seq, [part.keys for part in transaction.parts(row.seq)]) for row in entries]
    blocks = list(transaction.blocks())
    jobs = [(job, row.seq) for job in JOBS if (row := transaction.job(CALLER, job)) is not None]
    if len(entries) == 1:
        return entries, parts, blocks, jobs, transaction.head(), transaction.count_jobs()
    kept = []
    for row in entries:
        plain = decode(row.header)
        kept.append({name: value for name, value in plain.items() if name not in _UNPAID_LATER})
    return kept, parts, blocks, jobs, transaction.count_jobs()
