"""The queue of jobs, on every database: stored once, held by one service at a time, ended once."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.job.errors import ResultWriteError
from aggservice.mechanisms import ManualClock
from aggservice.service.errors import BusyError, ConfigError
from aggservice.service.jobs.dispatch import Dispatcher
from aggservice.service.queue.databases import MemoryQueue, PostgresQueue, QueueDatabase, SqliteQueue
from aggservice.service.queue.queue import JobQueue, Room
from aggservice.service.queue.rows import JobEnd, JobState, NewJob, QueuedJob
from budget.errors import LeaseLostError, LedgerMismatchError

LEASE_MS = 5_000
PLENTY = Room(jobs=100, of_caller=100)
END = JobEnd(result=b"result", status=b"", finished_ms=9)
FAILED = JobEnd(result=b"result", status=b"status", finished_ms=9)
_schemas = itertools.count()


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed: no PostgreSQL to test against")
    with tempfile.TemporaryDirectory(prefix="aggservice-pg-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


class Stand:
    """A queue whose leases a test can let run out."""

    def __init__(self, database: QueueDatabase, clock: ManualClock) -> None:
        self.database = database
        self._clock = clock
        self.queue = JobQueue(database, lease_ms=LEASE_MS)

    def pass_lease(self) -> None:
        """Let every lease run out."""
        self._clock.advance(LEASE_MS + 1)
        if self.database.shared:  # its clock is the server's: bring the leases forward instead
            self.database.write("test", lambda execute: execute("UPDATE queue SET lease_until_ms = 0"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    clock = ManualClock(1_000_000)
    database: QueueDatabase
    if request.param == "memory":
        database = MemoryQueue(clock)
    elif request.param == "sqlite":
        database = SqliteQueue(tmp_path / "jobs.sqlite", clock)
    else:
        database = PostgresQueue(request.getfixturevalue("dsn"), schema=f"jobs{next(_schemas)}")
    yield Stand(database, clock)
    database.close()


def new(job: str, caller: str = "a", output: str | None = None) -> NewJob:
    return NewJob(caller=caller, job_id=job, request=job.encode(), output=output or job, received_ms=5)


def claim(queue: JobQueue, owner: str, caller: str = "a", held: tuple[int, ...] = ()) -> QueuedJob | None:
    return queue.claim(caller, owner, now_ms=7, held=held)


def test_jobs_are_taken_up_in_order_by_one_service_each(stand: Stand) -> None:
    queue = stand.queue
    for job in ("1", "2", "3"):
        row, added = queue.add(new(job), PLENTY)
        assert added and (row.state, row.request, row.attempts) == (JobState.WAITING, job.encode(), 0)
    queue.add(new("other", caller="b"), PLENTY)
    assert queue.waiting() == {"a": 3, "b": 1}
    one, two = claim(queue, "x"), claim(queue, "y")
    assert one is not None and two is not None
    assert (one.job_id, one.owner, one.attempts, one.started_ms) == ("1", "x", 1, 7)
    assert (two.job_id, two.owner) == ("2", "y")
    assert queue.waiting() == {"a": 1, "b": 1}
    assert queue.finish(one.seq, "x", END)
    found = queue.find("a", "1")
    assert found is not None and found.succeeded and (found.result, found.updated_ms) == (b"result", 9)
    assert queue.find("b", "1") is None
    assert not queue.finish(two.seq, "x", END) and not queue.finish(one.seq, "x", FAILED)


def test_a_stored_job_is_stored_once_and_only_a_failed_one_is_replaced(stand: Stand) -> None:
    queue = stand.queue
    first, _ = queue.add(new("1"), PLENTY)
    again, added = queue.add(new("1"), PLENTY)
    assert not added and again == first
    held = claim(queue, "x")
    assert held is not None and queue.finish(held.seq, "x", FAILED)
    replaced, added = queue.add(new("1"), PLENTY)
    assert added and replaced.seq > first.seq and replaced.state is JobState.WAITING and replaced.status == b""
    held = claim(queue, "x")
    assert held is not None and queue.finish(held.seq, "x", END)
    kept, added = queue.add(new("1"), PLENTY)
    assert not added and kept.succeeded


def test_a_caller_reads_their_own_jobs_page_by_page_newest_first(stand: Stand) -> None:
    queue = stand.queue
    room = Room(jobs=99, of_caller=99)
    for number in range(7):
        queue.add(replace(new(f"j{number}"), received_ms=5 + number // 3), room)
        queue.add(new(f"j{number}", caller="b", output=f"b{number}"), room)
    pages, before = [], (10**18, 0)
    while page := queue.page("a", before, 3):
        pages.append([one.job_id for one in page])
        before = page[-1].received_ms, page[-1].seq
    assert pages == [["j6", "j5", "j4"], ["j3", "j2", "j1"], ["j0"]]
    assert queue.page("c", (10**18, 0), 3) == []


def test_two_unfinished_jobs_never_share_an_output(stand: Stand) -> None:
    queue = stand.queue
    queue.add(new("1", output="folder/sum"), PLENTY)
    with pytest.raises(ResultWriteError, match="'sum'"):
        queue.add(new("2", output="folder/sum"), PLENTY)
    held = claim(queue, "x")
    assert held is not None and queue.finish(held.seq, "x", FAILED)
    assert queue.add(new("2", output="folder/sum"), PLENTY)[1]


def test_a_full_queue_refuses(stand: Stand) -> None:
    queue = stand.queue
    queue.add(new("1"), Room(jobs=3, of_caller=1))
    with pytest.raises(BusyError, match="full; 1 of your jobs wait"):
        queue.add(new("2"), Room(jobs=3, of_caller=1))
    assert queue.add(new("2", caller="b"), Room(jobs=2, of_caller=2))[1]
    with pytest.raises(BusyError, match="full; 0 of your jobs wait"):
        queue.add(new("3", caller="c"), Room(jobs=2, of_caller=2))
    assert claim(queue, "x") is not None
    assert queue.add(new("3", caller="c"), Room(jobs=2, of_caller=2))[1]


def test_a_lease_that_ran_out_is_taken_over_and_its_owner_can_change_nothing(stand: Stand) -> None:
    queue = stand.queue
    queue.add(new("1"), PLENTY)
    row = claim(queue, "x")
    assert row is not None and claim(queue, "y") is None and queue.waiting() == {}
    assert queue.renew("x", {row.seq: 41}) == {row.seq: False}
    assert queue.find("a", "1").reports_read == 41  # type: ignore[union-attr]
    stand.pass_lease()
    assert claim(queue, "x", held=(row.seq,)) is None  # it runs here
    taken = claim(queue, "y")
    assert taken is not None and (taken.seq, taken.owner, taken.attempts) == (row.seq, "y", 2)
    assert queue.renew("x", {row.seq: 42}) == {}
    assert not queue.finish(row.seq, "x", END)
    queue.give_back(row.seq, "x")
    assert queue.find("a", "1").owner == "y"  # type: ignore[union-attr]
    queue.give_back(row.seq, "y")
    back = queue.find("a", "1")
    assert back is not None and (back.state, back.attempts) == (JobState.WAITING, 1)


class Threads:
    """Runs calls to the database in threads, as the service's runner does."""

    async def blocking(self, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return await asyncio.to_thread(work, *args, **named)


def test_a_service_never_takes_up_a_job_twice_when_an_answer_outlasts_its_lease(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, answered, arrive = stand.queue, threading.Event(), threading.Event()
    real = queue.claim

    def slow(*args: Any, **named: Any) -> QueuedJob | None:
        found = real(*args, **named)
        answered.set()
        arrive.wait(30)
        return found

    async def claims() -> list[Any]:
        dispatcher = Dispatcher(
            runner=Threads(),  # type: ignore[arg-type]
            queue=queue,
            clock=ManualClock(1_000_000),
            owner="x",
            attempts=3,
            poll_s=60,
            **dict.fromkeys(("places", "register", "log", "metrics")),  # type: ignore[arg-type]
        )
        first = asyncio.create_task(dispatcher._claim("a"))
        await asyncio.to_thread(answered.wait, 30)
        stand.pass_lease()
        second = asyncio.create_task(dispatcher._claim("a"))
        await asyncio.sleep(0.05)
        arrive.set()
        return [await first, await second]

    queue.add(new("1"), PLENTY)
    monkeypatch.setattr(queue, "claim", slow)
    first, second = asyncio.run(claims())
    assert second is None and first is not None and first.row.job_id == "1"


def test_a_renewed_lease_does_not_run_out(stand: Stand) -> None:
    queue = stand.queue
    queue.add(new("1"), PLENTY)
    row = claim(queue, "x")
    assert row is not None
    stand.pass_lease()
    queue.renew("x", {row.seq: 1})
    assert claim(queue, "y") is None and queue.finish(row.seq, "x", END)


def test_cancelling_ends_a_job_that_waits_and_tells_the_owner_of_one_that_runs(stand: Stand) -> None:
    queue = stand.queue
    queue.add(new("1"), PLENTY)
    queue.add(new("2"), PLENTY)
    held = claim(queue, "x")
    assert held is not None
    waiting, running = queue.cancel("a", "2", FAILED), queue.cancel("a", "1", FAILED)
    assert waiting is not None and waiting.state is JobState.FINISHED and waiting.status == b"status"
    assert running is not None and running.state is JobState.RUNNING and running.cancelled
    assert queue.renew("x", {held.seq: 0}) == {held.seq: True}
    assert queue.cancel("b", "1", FAILED) is None
    stand.pass_lease()
    taken = claim(queue, "y")
    assert taken is not None and taken.cancelled
    # A job that another service may have committed is not ended here: whoever takes it up asks the ledger.
    queue.add(new("3"), PLENTY)
    begun = claim(queue, "x")
    assert begun is not None
    stand.pass_lease()
    queue.take_over()
    again = queue.cancel("a", "3", FAILED)
    assert again is not None and again.state is not JobState.FINISHED and again.cancelled


def test_many_services_claim_each_job_once(stand: Stand) -> None:
    for number in range(60):
        stand.queue.add(new(str(number)), PLENTY)
    taken: list[tuple[str, str]] = []

    def work(owner: str) -> None:
        while (row := claim(stand.queue, owner)) is not None:
            taken.append((row.job_id, owner))

    threads = [threading.Thread(target=work, args=(f"service-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # A service may find no row while another one still holds the last rows' locks, never the other way round.
    assert sorted(int(job) for job, _ in taken) == list(range(60))


def test_one_service_at_a_time_uses_a_sqlite_queue_and_finds_its_jobs_again(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    path = tmp_path / "jobs.sqlite"
    database = SqliteQueue(path, clock)
    queue = JobQueue(database, lease_ms=LEASE_MS)
    queue.add(new("1"), PLENTY)
    assert claim(queue, "x") is not None
    with pytest.raises(ConfigError, match="another service uses the queue"):
        SqliteQueue(path, clock)
    queue.close()
    assert path.stat().st_mode & 0o077 == 0
    again = JobQueue(SqliteQueue(path, clock), lease_ms=LEASE_MS)
    assert again.waiting() == {} and again.take_over() == 1 and again.waiting() == {"a": 1}
    again.close()
    foreign = tmp_path / "foreign.sqlite"
    sqlite3.connect(foreign).execute("CREATE TABLE t (x)")
    with pytest.raises(LedgerMismatchError, match="not a queue of jobs"):
        SqliteQueue(foreign, clock)


def test_a_commit_holds_its_job_and_a_job_taken_over_cannot_be_committed(dsn: str) -> None:
    psycopg: Any = pytest.importorskip("psycopg")
    database = PostgresQueue(dsn, schema=f"jobs{next(_schemas)}")
    queue = JobQueue(database, lease_ms=LEASE_MS)
    queue.add(new("1"), PLENTY)
    row = claim(queue, "x")
    assert row is not None
    database.write("test", lambda execute: execute("UPDATE queue SET lease_until_ms = 0"))
    with psycopg.connect(dsn) as committing:
        database.hold(committing, row.seq, "x")
        assert claim(queue, "y") is None  # skipped: its owner is committing it
        assert queue.renew("x", {row.seq: 3}) == {row.seq: False}  # and this waits for nothing
    assert claim(queue, "y") is not None
    with psycopg.connect(dsn) as late, pytest.raises(LeaseLostError):
        database.hold(late, row.seq, "x")
    database.close()
