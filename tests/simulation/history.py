"""One history: two services over one ledger, queue, disk and object storage, clients that retry, and everything that
can go wrong; afterwards, and at every step, the invariants hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aggservice.engine import EngineSettings
from aggservice.mechanisms import SeededBits
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service import Limits, Service, ServiceConfig
from aggservice.service.api.gate import Gate
from aggservice.service.config.keyring import KeyRing
from aggservice.service.jobs import objects
from aggservice.service.jobs.objects import ObjectPublisher
from aggservice.service.log import EventLog
from aggservice.service.queue.databases import MemoryQueue
from aggservice.service.queue.queue import JobQueue
from aggservice.wire import BucketRows, ReportBatch, write_buckets, write_reports
from budget import EpsilonDeltaFilter, Ledger, MemoryStore, Signer, Staging, verify_store
from budget.errors import FormatError
from budget.files.staging import Manifest
from budget.units import UnitSet

from ..engine.conftest import NOW_MS, Maker
from ..service.non_interference.in_process import Answer, Server
from .disk import Disk
from .scheduler import FiberExecutor, Process, Scheduler
from .servers import Bucket, LedgerConnection, LocalClock, QueueConnection, ServerClock

ORIGIN = "https://adtech.example"
REMOTE = "s3://bucket/out"
CALLER = "local"
_LEASE_S = 5
_SERVICES = 2
_CALL = "/aggservice.v1.AggregationService/"
_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
_SIGNER = Signer(bytes(range(32)))
FINISHED = aggregation_pb2.Job.FINISHED


class ViolationError(AssertionError):
    """An invariant does not hold."""


@cache
def material() -> tuple[Any, bytes, bytes]:
    """Return keys, the bytes of a file of reports and of a domain, made once."""
    import tempfile

    maker = Maker(SeededBits("simulation"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        write_reports(path, [ReportBatch.of([maker.report({1: 1 + row}) for row in range(3)])])
        reports = path.read_bytes()
        keys = np.arange(2, dtype=np.uint64)
        rows = BucketRows(key_high=np.zeros_like(keys), key_low=keys, numbers=np.empty((2, 0), dtype=np.int64))
        write_buckets(path, rows)
        return maker.keys, reports, path.read_bytes()


class Machine:
    """One service through its lives."""

    def __init__(self, history: History, number: int) -> None:
        self.history = history
        self.number = number
        self.lives = 0
        self.process = Process(f"service-{number}")
        self.process.alive = False
        self.server: Server | None = None
        self.clock = LocalClock(history.scheduler, NOW_MS)

    async def start(self) -> None:
        """Start the service on what is stored; it may be killed while it starts."""
        history = self.history
        self.lives += 1
        self.server = None
        process = self.process = Process(f"service-{self.number}.{self.lives}")
        process.on_kill.append(lambda: history.disk.unlock(process))
        token = _PROCESS.set(process)
        try:
            await asyncio.create_task(self._start(process))
        except BaseException as problem:
            if process.alive:
                process.kill()
            if isinstance(problem, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
        finally:
            _PROCESS.reset(token)

    async def _start(self, process: Process) -> None:
        history = self.history
        process.tasks[asyncio.current_task()] = None  # type: ignore[index]
        executor = FiberExecutor(history.scheduler, process)
        loop = asyncio.get_running_loop()
        bits = SeededBits(f"{history.seed} {process.name}")
        store = LedgerConnection(history.scheduler, history.ledger_server)
        ledger = await loop.run_in_executor(executor, lambda: history.open_ledger(store, self.clock, bits))
        await loop.run_in_executor(executor, ledger.recover_staged)
        database = QueueConnection(history.scheduler, history.queue_server, history.queue_changed)
        service = Service(
            history.config,
            clock=self.clock,
            bits=bits,
            keys=KeyRing(material()[0], self.clock),
            ledger=ledger,
            queue=JobQueue(database, lease_ms=1000 * _LEASE_S),
            log=EventLog(self.clock, quiet=True),
        )
        service.engine.parts = replace(service.engine.parts, settings=EngineSettings())  # type: ignore[attr-defined]
        service.arrange(executor)
        store.guard = service.dispatcher.guard(database)  # type: ignore[arg-type]
        self.service = service
        server = Server(Gate(service.register, service.metrics, service.log), message_bytes=1 << 20, stall_s=60)
        service.add_servicers(server)  # type: ignore[arg-type]
        await service.dispatcher.start()
        self.server = server

    def kill(self) -> None:
        """End the service where it is."""
        self.process.kill()
        self.server = None


class History:
    """Everything that one seed decides."""

    def __init__(self, seed: int, faults: tuple[Any, ...] = ()) -> None:
        """``faults`` are patches of the code (context managers), to see that the invariants find them."""
        self.seed = seed
        self.scheduler = scheduler = Scheduler(seed)
        self.random = scheduler.random
        self._faults = faults
        self.remote = self.random.random() < 0.4
        self.disk = Disk(scheduler, self.file_appeared)
        self.bucket = Bucket(scheduler, self.object_appeared)
        self.ledger_server = MemoryStore()
        self.queue_server = MemoryQueue(ServerClock(scheduler))  # type: ignore[arg-type]
        root = self.disk.root
        for name in ("in", "out", "state"):
            (root / name).mkdir(mode=0o700)
        _, reports, domain = material()
        (root / "in" / "reports.avro").write_bytes(reports)
        (root / "in" / "domain.avro").write_bytes(domain)
        self.config = ServiceConfig(
            state=root / "state",
            listen="127.0.0.1:0",
            ledger="memory",
            filter=EpsilonDeltaFilter.parse(epsilon="1000"),
            input_folder=root / "in",
            output_folder=REMOTE if self.remote else root / "out",
            limits=Limits(jobs=2, processes=0, lease_s=_LEASE_S, attempts=1000),
        )
        self.open_ledger(self.ledger_server, LocalClock(scheduler, NOW_MS), SeededBits(f"{seed} ledger"))
        self.machines = [Machine(self, number) for number in range(_SERVICES)]
        self.accepted: set[str] = set()
        self.told: dict[str, str] = {}
        self.cuts = 0

    def open_ledger(self, store: Any, clock: Any, bits: Any) -> Ledger:
        """Open the ledger over one service's connection."""
        remote = ObjectPublisher(self.config.output_folder)
        return Ledger.open_or_create(
            store,
            filter=self.config.filter,
            signer=_SIGNER,
            clock=clock,
            bits=bits,
            terms=self.config.terms,
            staging=Staging(self.disk.root / "state" / "staging", bits, remote),
        )

    # What must hold at every step

    def _committed(self, job: str) -> Manifest | None:
        """Return the manifest of a job that is paid for; one without files for a paid failure."""
        row = self.ledger_server.read("look", lambda transaction: transaction.job(CALLER, job))
        if row is None:
            return None
        with suppress(FormatError):
            return Manifest.from_bytes(row.result)
        return Manifest(attempt="", destination="", files=())

    def _check_published(self, place: str, raw: bytes) -> None:
        """A byte that callers can read is paid for, and is the one that the ledger has."""
        job, name = place.split("/")[-2:]
        manifest = self._committed(job)
        if manifest is None:
            return self.violation(f"{place} is readable, and nobody paid for it")
        if name.endswith("-manifest.json"):
            return None
        digests = {one.name: one.sha256 for one in manifest.files}
        if hashlib.sha256(raw).digest() != digests.get(name):
            self.violation(f"{place} is readable, and is not what the ledger has for {job}")
        return None

    def file_appeared(self, path: str) -> None:
        """Check a file that was created or renamed."""
        below = path.removeprefix(f"{self.disk.root}/out/")
        if below != path and not below.rpartition("/")[2].startswith("."):
            self._check_published(below, Path(path).read_bytes())

    def object_appeared(self, key: str, raw: bytes) -> None:
        """Check an object; a manifest says that all its files are there."""
        self._check_published(key, raw)
        if key.endswith("-manifest.json"):
            for one in json.loads(raw)["files"]:
                there = self.bucket.objects.get(f"{key.rpartition('/')[0]}/{one['name']}", b"")
                if hashlib.sha256(there).hexdigest() != one["sha256"]:
                    self.violation(f"{key} is there before {one['name']}")

    def queue_changed(self, name: str, before: Any, result: Any) -> None:
        """Check that a job is taken up by one service at a time."""
        if name != "claim_job" or result is None:
            return
        held = {row[0]: row[1:] for row in before}
        state, owner, until = held[result.seq]
        alive = any(
            machine.process.alive and owner == getattr(machine.service, "_owner", "")
            for machine in self.machines
            if hasattr(machine, "service")
        )
        if state == "running" and alive and until >= self.queue_server.now_ms(None):  # type: ignore[arg-type]
            self.violation(f"{result.job_id} was taken from a service that holds its lease")

    def violation(self, text: str) -> None:
        """Remember the first violation: code of the service must not swallow it."""
        if self._violation is None:
            self._violation = text
            self.scheduler.note(f"VIOLATION: {text}")

    _violation: str | None = None

    # What happens

    async def call(self, machine: Machine, method: str, message: Any) -> Answer | None:
        """Send a request; None if it, the service or the answer was lost."""
        scheduler = self.scheduler
        await asyncio.sleep(self.random.uniform(0.0, 0.05))
        process, server = machine.process, machine.server
        if server is None or not process.alive or scheduler.fault():
            return None
        token = _PROCESS.set(process)
        times = 2 if scheduler.fault() else 1  # a request that arrives twice
        calls = [asyncio.create_task(server.call(_CALL + method, (message.SerializeToString(),))) for _ in range(times)]
        _PROCESS.reset(token)
        process.tasks.update(dict.fromkeys(calls))
        await asyncio.wait(calls)
        for one in calls:
            process.tasks.pop(one, None)
        first = calls[0]
        if first.cancelled() or first.exception() is not None or not process.alive or scheduler.fault():
            return None
        return first.result()

    def some(self) -> Machine:
        """Draw a service."""
        return self.random.choice(self.machines)

    def request(self, job: str) -> aggregation_pb2.CreateJobRequest:
        """Return the request of a job."""
        return aggregation_pb2.CreateJobRequest(
            job_request_id=job,
            input_data_blob_prefix="reports",
            output_data_blob_prefix=f"{job}/sum",
            output_domain_blob_prefix="domain",
            job_parameters=aggregation_pb2.JobParameters(attribution_report_to=ORIGIN, debug_privacy_epsilon="1"),
        )

    async def client(self, job: str) -> None:
        """Ask for a job until it is accepted, then look at it now and then, and cancel it perhaps."""
        await asyncio.sleep(self.random.uniform(0.0, 4.0))
        for _ in range(12):
            answer = await self.call(self.some(), "CreateJob", self.request(job))
            if answer is not None and answer.code == "OK":
                self.accepted.add(job)
                self.scheduler.note(f"{job} is accepted")
                break
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
        cancels = self.random.random() < 0.3
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(self.random.uniform(0.0, 4.0))
            if cancels and self.random.random() < 0.5:
                await self.call(self.some(), "CancelJob", aggregation_pb2.GetJobRequest(job_request_id=job))
            self.see(job, await self.call(self.some(), "GetJob", aggregation_pb2.GetJobRequest(job_request_id=job)))

    def see(self, job: str, answer: Answer | None) -> str | None:
        """Check what GetJob told of an accepted job; return how the job ended, if it has."""
        if answer is None or job not in self.accepted:
            return None
        if answer.code == "NOT_FOUND":
            self.violation(f"{job} was accepted, and is unknown now")
        if answer.code != "OK":
            return None
        found = aggregation_pb2.Job.FromString(answer.messages[0])
        if found.job_status != FINISHED:
            return None
        how = found.summary.receipt.hex() if found.HasField("summary") else found.result_info.return_message
        if "paid for" in how:
            return None  # a failure that says that it will be made good
        before = self.told.setdefault(job, how)
        if before != how:
            self.violation(f"{job} ended as {before[:60]!r}, and now as {how[:60]!r}")
        return how

    async def trouble(self) -> None:
        """Start killed services again, cut the power, and let clocks jump."""
        while True:
            await asyncio.sleep(self.random.uniform(0.1, 3.0))
            drawn = self.random.random()
            if drawn < 0.12 and self.scheduler.crash_rate:
                for machine in self.machines:
                    machine.kill()
                await asyncio.sleep(0.01)
                self.cut_power()
            elif drawn < 0.25:
                self.some().clock.offset_ms += self.random.randrange(-3_600_000, 3_600_000)
            for machine in self.machines:
                if not machine.process.alive and self.random.random() < 0.7:
                    await machine.start()

    def cut_power(self) -> None:
        """Let the disk forget what was not flushed."""
        self.cuts += 1
        self.disk.cut_power()

    async def _happen(self) -> None:
        for machine in self.machines:
            await machine.start()
        jobs = [f"job-{number}" for number in range(self.random.randrange(1, 5))]
        trouble = asyncio.create_task(self.trouble())
        await asyncio.gather(*(self.client(job) for job in jobs))
        await asyncio.sleep(self.random.uniform(0.0, 10.0))
        trouble.cancel()
        await asyncio.wait([trouble])
        if self.random.random() < 0.5:
            for machine in self.machines:
                machine.kill()
            await asyncio.sleep(0.01)
            self.cut_power()
        await self._settle()

    async def _settle(self) -> None:
        """Let nothing go wrong any more; every accepted job must end."""
        self.scheduler.calm = True
        for machine in self.machines:
            if not machine.process.alive or machine.server is None:
                machine.kill()
                await asyncio.sleep(0.01)
                await machine.start()
        for job in sorted(self.accepted):
            for _ in range(60):
                asked = aggregation_pb2.GetJobRequest(job_request_id=job)
                if self.see(job, await self.call(self.machines[0], "GetJob", asked)) is not None or self._violation:
                    break
                await asyncio.sleep(_LEASE_S / 5)
            else:
                self.violation(f"{job} was accepted, and never ends")
        for machine in self.machines:
            await machine.service.dispatcher.stop()

    # What must hold afterwards

    def check(self) -> None:
        """Check the ledger, the files and what is left."""
        report = verify_store(self.ledger_server)
        if not report.ok:
            self.violation(f"the log does not verify: {report.disagreement}")
        ledger = self.open_ledger(self.ledger_server, LocalClock(self.scheduler, NOW_MS), SeededBits("check"))
        ledger.recover_staged()
        releases: Counter[str] = Counter()
        units: set[bytes] = set()

        def look(transaction: Any) -> None:
            for row in transaction.entries(1):
                releases[json.loads(row.header)["job_id"]] += 1
                units.update(keys for part in transaction.parts(row.seq) for keys in (part.keys,))

        self.ledger_server.read("check", look)
        for job, times in releases.items():
            manifest = self._committed(job)
            if times != 1 or manifest is None:
                self.violation(f"{job} was charged {times} times")
                continue
            for one in manifest.files:
                if self.remote:
                    raw = self.bucket.objects.get(f"{job}/{one.name}", b"")
                else:
                    path = self.disk.root / "out" / job / one.name
                    raw = path.read_bytes() if path.exists() else b""
                if hashlib.sha256(raw).digest() != one.sha256:
                    self.violation(f"{job} is paid for, and its file {one.name} is lost")
            if self.remote and manifest.files and f"{job}/sum-manifest.json" not in self.bucket.objects:
                self.violation(f"{job} is paid for, and has no manifest")
        for packed in units:
            spent = ledger.balances(UnitSet.packed(packed))
            if {int(uses) for uses in spent.uses} != {sum(releases.values())}:
                self.violation("a unit did not pay once per release")
        for job, how in self.told.items():
            paid = "charged, but" in how or (len(how) > 200 and how.isalnum())
            if paid != (job in releases):
                self.violation(f"{job} was told as {how[:60]!r}, and the ledger has it {releases[job]} times")
        rows = self.queue_server.write(
            "look", lambda execute: execute("SELECT job_id, result FROM queue WHERE length(status) > 0")
        )
        for job, raw in rows:
            how = aggregation_pb2.Job.FromString(raw).result_info.return_message
            if job in releases and not ("charged, but" in how or "paid for" in how):
                self.violation(f"{job} was recorded as {how[:60]!r}, and was charged")
        left = list((self.disk.root / "state" / "staging").iterdir())
        if left:
            self.violation(f"{len(left)} staged attempts are left")

    def run(self) -> None:
        """Live through the history; ViolationError with its last steps if an invariant does not hold."""
        loop = self.scheduler.loop
        asyncio.set_event_loop(loop)
        try:
            with ExitStack() as stack:
                stack.enter_context(self.disk.watched())
                for name, value in (("_library", lambda: self.bucket), ("open_bucket", lambda root: root)):
                    stack.callback(setattr, objects, name, getattr(objects, name))
                    setattr(objects, name, value)
                for fault in self._faults:
                    stack.enter_context(fault(self))
                loop.run_until_complete(asyncio.wait_for(self._happen(), 10_000))
                self.check()
        except RuntimeError as problem:
            self.violation(f"stuck: {problem}")
        finally:
            for machine in self.machines:
                machine.process.kill()
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            self.scheduler.calm = True
            if pending:
                loop.run_until_complete(asyncio.wait(pending, timeout=1))
            loop.close()
            self.disk.close()
        if self._violation is not None:
            steps = "\n  ".join(list(self.scheduler.trace)[-80:])
            raise ViolationError(f"seed {self.seed}: {self._violation}\n  {steps}")
