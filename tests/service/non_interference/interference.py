"""Running a history in two worlds and comparing all that can be seen: the rule of docs/design.md, semantics 8.

From the first opened payload to the commit nothing that a caller sees, and no byte that ledger and folders hold, may
depend on what is sealed. What a job released is its own once it is charged; that it was, and whom it charged, is not.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from aggservice.engine import InlineOpener, WorkerPool
from aggservice.engine.opening.pool import BatchOpener
from aggservice.mechanisms import NoiseLaw
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.rpc.v1 import common_pb2

from .histories import AGGREGATION, Again, Ask, FileJob, History, Restart, Step, Stream
from .in_process import Answer, OwnTimeLoop
from .sealed_pairs import Reports, all_reports
from .spying import SPY, without_receipts, write_spy_files
from .worlds import CALLER, World, changed

STEP_MS = 1_000
_SHOWN = 1_500


class InterferenceError(AssertionError):
    """Two worlds that differ only in sealed payloads could be distinguished for free, or an answer changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One call of one world: what it was about, its answer, and the jobs that were charged when it ended."""

    method: str
    job: str | None
    requests: tuple[bytes, ...]
    answer: Answer
    charged: frozenset[str]


@dataclass(slots=True)
class Tally:
    """What the histories of a run came to; a run that never charges or never refuses shows nothing."""

    histories: int = 0
    calls: int = 0
    charged: int = 0
    differing: int = 0
    measured: int = 0
    codes: dict[str, int] = field(default_factory=dict)


class Machine:
    """Runs histories. Keeps what is dear between them: sealed reports, input files, one pool of workers, one loop."""

    def __init__(self, scratch: Path) -> None:
        self.reports: Reports = all_reports()
        self.scratch = scratch
        self.inputs = scratch / "in"
        self.names = self.reports.write_files(self.inputs / "L", 0)
        self.reports.write_files(self.inputs / "R", 1)
        write_spy_files(self.inputs / "S")
        for side in "LR":
            folder = self.inputs / "spied" / side
            folder.mkdir(parents=True)
            (folder / CALLER).symlink_to(self.inputs / side)
            (folder / SPY).symlink_to(self.inputs / "S")
        self._unchanged = self._input_view()
        self._inline = InlineOpener(self.reports.keys)
        self._pool: WorkerPool | None = None
        self.tally = Tally()
        self._loops = (OwnTimeLoop(), OwnTimeLoop())

    def _input_view(self) -> list[tuple[str, int, int]]:
        """Return name, size and time of every input; names and sizes are the same in both worlds."""
        views = []
        for side in "LR":
            files = sorted((self.inputs / side).iterdir())
            views.append([(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in files])
        assert [row[:2] for row in views[0]] == [row[:2] for row in views[1]]
        return views[0] + views[1]

    def opener(self, history: History) -> BatchOpener:
        """Return the opener that a history asks for."""
        if not history.setup.pool:
            return self._inline
        if self._pool is None:
            self._pool = WorkerPool(self.reports.keys, processes=1)
        return self._pool

    def close(self) -> None:
        """Let go of everything; the inputs must be as they were."""
        assert self._input_view() == self._unchanged
        if self._pool is not None:
            self._pool.close()
        for loop in self._loops:
            loop.close()

    def driver(self, history: History, side: int = 0) -> Driver:
        """Return the driver of a fresh world. Each side has a loop of its own: neither waits for the other's jobs."""
        root = self.scratch / "LR"[side]
        world = World(side, history.setup, self.reports, self.inputs, root, self.opener(history))
        return Driver(self.reports, history, world, self._loops[side])

    def run(self, history: History) -> None:
        """Run a history in both worlds; raises InterferenceError with the history and the difference."""
        with history.setup.applied():
            drivers = (self.driver(history, 0), self.driver(history, 1))
            try:
                _Pair(self.tally, history, drivers).run()
            finally:
                for driver in drivers:
                    driver.close()


class Driver:
    """Takes the steps of a history in one world."""

    def __init__(self, reports: Reports, history: History, world: World, loop: OwnTimeLoop) -> None:
        self.reports = reports
        self.history = history
        self.world = world
        self._loop = loop

    def take(self, step: Step) -> list[Seen]:
        """Take one step, and return every call of it in the order in which they ended."""
        self.world.clock.advance(STEP_MS)
        seen: list[Seen] = []
        with self.world.full_disk():
            self._loop.run_until_complete(self._take_spied(step, seen))
        return seen

    async def _take_spied(self, step: Step, seen: list[Seen]) -> None:
        await self._take(step, seen)
        await self._spy(seen, all_of_them=True)

    async def _spy(self, seen: list[Seen], *, all_of_them: bool) -> None:
        """Make the second caller's calls, if there is one."""
        if self.world.spy is None:
            return
        for method, request in self.world.spy.calls(all_of_them=all_of_them):
            answer = await self.world.server.call(method, (request,), token=SPY)
            answer = without_receipts(method.rpartition("/")[2], answer)
            self._note(f"the spy's {method.rpartition('/')[2]}", None, (request,), answer, seen)

    def close(self) -> None:
        """End the world."""
        self._loop.run_until_complete(self.world.close())

    async def _take(self, step: Step, seen: list[Seen]) -> None:
        if isinstance(step, Again):
            await self._take(self.history.steps[step.step], seen)
        elif isinstance(step, Restart):
            await self.world.stop()
            self.world.restart()
            await self.world.service.dispatcher.start()
        elif isinstance(step, Ask):
            method, request = step.call(self.reports)
            about = step.job if step.method in ("GetJob", "WatchJob", "CancelJob", "GetSummary") else None
            await self._call(method, about, (request,), seen)
        elif isinstance(step, FileJob):
            await self._call(AGGREGATION + "CreateJob", step.job, (step.message().SerializeToString(),), seen)
            if step.wait:
                watch = aggregation_pb2.GetJobRequest(job_request_id=step.job).SerializeToString()
                await self._call(AGGREGATION + "WatchJob", step.job, (watch,), seen)
        else:
            await self._stream(step, seen)

    async def _stream(self, step: Stream, seen: list[Seen]) -> None:
        parts = [part.message(step.job, step.asks, self.reports, self.world.side) for part in step.parts]
        requests = tuple(part.SerializeToString() for part in parts)

        async def before(index: int) -> None:
            await asyncio.create_task(self._spy(seen, all_of_them=False))
            for at, inner in step.between:
                if at == index:
                    await asyncio.create_task(self._take(inner, seen))

        answer = await self.world.server.call(
            AGGREGATION + "Aggregate", requests, cut=step.cut, before=before if step.between or self.world.spy else None
        )
        self._note(AGGREGATION + "Aggregate", step.job, (*requests, step.cut.encode()), answer, seen)

    async def _call(self, method: str, job: str | None, requests: tuple[bytes, ...], seen: list[Seen]) -> None:
        self._note(method, job, requests, await self.world.server.call(method, requests), seen)

    def _note(
        self, method: str, job: str | None, requests: tuple[bytes, ...], answer: Answer, seen: list[Seen]
    ) -> None:
        name, answer = method.rpartition("/")[2], self.world.without_paths(answer)
        with self.world.room_to_look():
            charged = self.world.charged()
        seen.append(Seen(method=name, job=job, requests=requests, answer=answer, charged=charged))


class _Pair:
    """One history in two worlds."""

    def __init__(self, tally: Tally, history: History, drivers: tuple[Driver, Driver]) -> None:
        self._history = history
        self._drivers = drivers
        self._worlds = tuple(driver.world for driver in drivers)
        self._tally = tally
        self._kept: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})

    def run(self) -> None:
        """Take every step in both worlds and compare."""
        left, right = self._worlds
        self._tally.histories += 1
        for number, step in enumerate(self._history.steps):
            seen = [driver.take(step) for driver in self._drivers]
            self._same(number, "what was called", *([(one.method, one.job) for one in calls] for calls in seen))
            for one, other in zip(*seen, strict=True):
                self._compare_calls(number, one, other)
            charged = left.charged()
            self._same(number, "the charged jobs", charged, right.charged())
            if left.spy is not None and right.spy is not None:
                self._same(number, "what the second caller measures", left.spy.measured, right.spy.measured)
                self._tally.measured += len(left.spy.measured)
            self._same(number, "the ledger", left.ledger_view(), right.ledger_view())
            self._same(number, "the folders", left.folders_view(charged), right.folders_view(charged))
            if not charged:
                self._same(number, "the metrics", *(_metrics(world) for world in self._worlds))
                if self._history.setup.sqlite:
                    self._same(number, "the exported log", left.export(), right.export())
            elif left.disk_is_full:
                # What is left of a full disk depends on what was paid for.
                for driver in self._drivers:
                    driver.world.free_disk()
        self._tally.charged += len(left.charged())

    def _compare_calls(self, number: int, one: Seen, other: Seen) -> None:
        self._tally.calls += 1
        self._tally.codes[one.answer.code] = self._tally.codes.get(one.answer.code, 0) + 1
        self._same(number, f"the jobs charged after {one.method}", one.charged, other.charged)
        if one.job is None or one.job not in one.charged:
            spied = self._worlds[0].spy is not None  # whose results are digests of files by their whole path
            answers = [_without_results(call) if call.charged or spied else call.answer for call in (one, other)]
            self._same(number, f"the answer of {one.method}", *answers)
            return
        self._tally.differing += one.answer != other.answer
        for side, seen in enumerate((one, other)):
            self._compare_again(number, side, seen)

    def _compare_again(self, number: int, side: int, seen: Seen) -> None:
        """The same question about a charged job has one answer, for as long as the service's disks are well."""
        if self._worlds[side].disk_is_full or seen.method not in ("Aggregate", "GetSummary", "GetJob"):
            return
        if "has not finished" in seen.answer.text or "is under way" in seen.answer.text:
            return  # it was charged while this was answered
        if seen.answer.code == "CANCELLED":  # the caller hung up and got no answer
            return
        answer = _lasting(seen)
        before = self._kept[side].setdefault((seen.method, seen.requests), answer)
        if before != answer:
            self._fail(number, f"{seen.method} of a charged job, asked again in world {side},", before, answer)

    def _same(self, number: int, what: str, left: Any, right: Any) -> None:
        if left != right:
            self._fail(number, what, left, right)

    def _fail(self, number: int, what: str, left: Any, right: Any) -> None:
        raise InterferenceError(
            f"{what} differs after step {number} of\n  {self._history!r}\n"
            f"  left:  {repr(left)[:_SHOWN]}\n  right: {repr(right)[:_SHOWN]}"
        )


def _without_results(seen: Seen) -> Answer:
    """Return an answer about the ledger without the digests that paid summaries decide."""
    if seen.answer.code != "OK" or seen.method not in ("ListEntries", "VerifyLedger"):
        return seen.answer
    if seen.method == "VerifyLedger":
        found = budget_pb2.VerifyLedgerResponse.FromString(seen.answer.messages[0])
        found.head = b""
        return replace(seen.answer, messages=(found.SerializeToString(),))
    listed = budget_pb2.ListEntriesResponse.FromString(seen.answer.messages[0])
    for entry in listed.entries:
        entry.result_digest = entry.entry_hash = entry.previous_hash = b""
    return replace(seen.answer, messages=(listed.SerializeToString(),))


def _metrics(world: World) -> list[str]:
    """Return a world's metrics but for those of the process that runs both worlds, and the machine's time."""
    lines = world.service.metrics.text().decode().splitlines()
    return [line for line in lines if "process_" not in line and "_created" not in line]


def _lasting(seen: Seen) -> Any:
    """Return what must stay the same of an answer about a charged job: not progress, nor what is left by now."""
    answer = seen.answer
    if answer.code != "OK":
        return answer.code, answer.text, answer.trailers
    if seen.method == "GetJob":
        job = aggregation_pb2.Job.FromString(answer.messages[0])
        return job.result_info.return_code, job.result_info.return_message, _header(job.summary)
    kind: Any = aggregation_pb2.AggregateResponse if seen.method == "Aggregate" else aggregation_pb2.SummaryChunk
    kept = []
    for raw in answer.messages:
        message = kind.FromString(raw)
        part = message.WhichOneof("part")
        if part == "header":
            kept.append(_header(message.header))
        elif part != "progress":
            kept.append(raw)
    return kept


def _header(header: common_pb2.SummaryHeader) -> bytes:
    """Return a header without what may change; counters in one order, which only the first answer has in another."""
    header.repeated = False
    counts = sorted(header.error_summary.error_counts, key=lambda one: one.category)
    del header.error_summary.error_counts[:]
    header.error_summary.error_counts.extend(counts)
    for name in ("remaining", "remaining_uses", "uses_bounded"):
        header.statement.ClearField(name)
    return header.SerializeToString(deterministic=True)


@contextmanager
def running_machine() -> Iterator[Machine]:
    """Yield a machine whose files are in memory if the system has a file system for that."""
    shared = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="worlds-", dir=shared if shared.is_dir() else None))
    # The same few mechanisms come again and again, and the width of an interval depends on nothing else.
    with changed(NoiseLaw, "half_width", cache(NoiseLaw.half_width)):
        machine = Machine(scratch)
        try:
            yield machine
        finally:
            machine.close()
            shutil.rmtree(scratch)
