"""The queue of jobs: each is stored before its caller hears of it, held by one service at a time, and ends once.

A service holds a job by a lease that it renews. A job whose lease has run out, because its service died or lost its
database, may be taken up by any service. That alone never releases anything twice: the ledger commits a job id once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aggservice.job.errors import ResultWriteError
from aggservice.service.errors import BusyError
from aggservice.service.queue.databases import Execute, QueueDatabase
from aggservice.service.queue.rows import COLUMNS, JobEnd, JobState, NewJob, QueuedJob, row_of

_INSERT = (
    "INSERT INTO queue (caller, job_id, request, output, state, owner, lease_until_ms, attempts, cancelled,"
    " reports_read, received_ms, started_ms, updated_ms, result, status)"
    " VALUES (?, ?, ?, ?, 'waiting', '', 0, 0, 0, 0, ?, NULL, ?, ?, ?) ON CONFLICT DO NOTHING"
    f" RETURNING {COLUMNS}"
)
_FREE = "(state = 'waiting' OR (state = 'running' AND lease_until_ms < ?))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many jobs may wait in the queue, in all and of one caller."""

    jobs: int
    of_caller: int


class JobQueue:
    """The stored jobs. Every method is one transaction, and blocks."""

    def __init__(self, database: QueueDatabase, *, lease_ms: int) -> None:
        self.database = database
        self._lease_ms = lease_ms

    @property
    def shared(self) -> bool:
        """Whether several services use the queue."""
        return self.database.shared

    def add(self, job: NewJob, room: Room) -> tuple[QueuedJob, bool]:
        """Store a job and return it and True; or, if the caller has an unfinished job of this id, that one and False.

        A job that ended without a summary is replaced. BusyError if too many jobs wait; ResultWriteError if another
        unfinished job writes to the same output.
        """

        def work(execute: Execute) -> tuple[QueuedJob, bool]:
            found = _find(execute, job.caller, job.job_id)
            if found is not None and (found.state is not JobState.FINISHED or found.succeeded):
                return found, False
            counts = execute("SELECT caller, count(*) FROM queue WHERE state = 'waiting' GROUP BY caller")
            waiting, own = sum(row[1] for row in counts), dict(map(tuple, counts)).get(job.caller, 0)
            if not (waiting < room.jobs and own < room.of_caller):
                raise BusyError(own)
            if found is not None:
                execute("DELETE FROM queue WHERE seq = ? AND state = 'finished'", found.seq)
            values = (job.caller, job.job_id, job.request, job.output, job.received_ms, job.received_ms, b"", b"")
            rows = execute(_INSERT, *values)
            if rows:
                return row_of(rows[0]), True
            found = _find(execute, job.caller, job.job_id)  # another service stored it in between
            if found is None:
                raise ResultWriteError(f"another job is writing to {job.output.rpartition('/')[2]!r}: choose another")
            return found, False

        return self.database.write("add_job", work)

    def find(self, caller: str, job_id: str) -> QueuedJob | None:
        """Return a caller's job, or None."""
        return self.database.write("find_job", lambda execute: _find(execute, caller, job_id))

    def page(self, caller: str, before: tuple[int, int], size: int) -> list[QueuedJob]:
        """Return a caller's jobs with (received_ms, seq) below ``before``, newest first, ``size`` at most."""

        def work(execute: Execute) -> list[QueuedJob]:
            rows = execute(
                f"SELECT {COLUMNS} FROM queue WHERE caller = ? AND (received_ms, seq) < (?, ?)"
                " ORDER BY received_ms DESC, seq DESC LIMIT ?",
                *(caller, *before, size),
            )
            return [row_of(row) for row in rows]

        return self.database.write("list_jobs", work)

    def waiting(self) -> dict[str, int]:
        """Return how many jobs of each caller a service may take up."""

        def work(execute: Execute) -> dict[str, int]:
            now = self.database.now_ms(execute)
            rows = execute(f"SELECT caller, count(*) FROM queue WHERE {_FREE} GROUP BY caller ORDER BY min(seq)", now)
            return {row[0]: int(row[1]) for row in rows}

        return self.database.write("count_jobs", work)

    def claim(self, caller: str, owner: str, *, now_ms: int, held: Collection[int] = ()) -> QueuedJob | None:
        """Take up the caller's oldest job that nobody holds; None if there is none. Rows in ``held`` are skipped.

        Rows that another service is taking up at this moment are skipped.
        """

        def work(execute: Execute) -> QueuedJob | None:
            now = self.database.now_ms(execute)
            others = f" AND seq NOT IN ({', '.join('?' * len(held))})" if held else ""
            rows = execute(
                f"UPDATE queue SET state = 'running', owner = ?, lease_until_ms = ?, attempts = attempts + 1,"
                f" reports_read = 0, started_ms = coalesce(started_ms, ?), updated_ms = ?"
                f" WHERE seq = (SELECT seq FROM queue WHERE caller = ? AND {_FREE}{others} ORDER BY seq LIMIT 1"
                f" {self.database.skip_locked}) RETURNING {COLUMNS}",
                *(owner, now + self._lease_ms, now_ms, now_ms, caller, now, *held),
            )
            return row_of(rows[0]) if rows else None

        return self.database.write("claim_job", work)

    def renew(self, owner: str, read: Mapping[int, int]) -> dict[int, bool]:
        """Renew the leases of the jobs in ``read`` (row: reports read) that ``owner`` still holds.

        Returns those rows, each with whether its caller cancelled it. A row whose charge is being committed is locked:
        it is left as it is, and nobody else can take it up meanwhile.
        """

        def work(execute: Execute) -> dict[int, bool]:
            until = self.database.now_ms(execute) + self._lease_ms
            for seq, reports_read in read.items():
                execute(
                    "UPDATE queue SET lease_until_ms = ?, reports_read = ? WHERE seq = (SELECT seq FROM queue"
                    f" WHERE seq = ? AND owner = ? AND state = 'running' {self.database.skip_locked})",
                    *(until, reports_read, seq, owner),
                )
            rows = execute("SELECT seq, cancelled FROM queue WHERE owner = ? AND state = 'running'", owner)
            return {int(row[0]): bool(row[1]) for row in rows}

        return self.database.write("renew_leases", work)

    def finish(self, seq: int, owner: str, end: JobEnd) -> bool:
        """Record how a job ended and return True; change nothing and return False if ``owner`` no longer holds it."""

        def work(execute: Execute) -> bool:
            rows = execute(
                "UPDATE queue SET state = 'finished', owner = '', result = ?, status = ?, updated_ms = ?"
                " WHERE seq = ? AND owner = ? AND state = 'running' RETURNING seq",
                *(end.result, end.status, end.finished_ms, seq, owner),
            )
            return bool(rows)

        return self.database.write("finish_job", work)

    def give_back(self, seq: int, owner: str) -> None:
        """Return a job of ``owner``, which is stopping, to the queue; the attempt is not counted."""
        self.database.write(
            "give_back_job",
            lambda execute: execute(
                "UPDATE queue SET state = 'waiting', owner = '', attempts = attempts - 1"
                " WHERE seq = ? AND owner = ? AND state = 'running'",
                *(seq, owner),
            ),
        )

    def cancel(self, caller: str, job_id: str, end: JobEnd) -> QueuedJob | None:
        """Return a job after cancelling it; None if the caller has no such job.

        A job that no service has taken up ends with ``end`` at once. Otherwise the service that runs it will end it.
        """

        def work(execute: Execute) -> QueuedJob | None:
            key = (caller, job_id)
            execute(
                "UPDATE queue SET state = 'finished', cancelled = 1, result = ?, status = ?, updated_ms = ?"
                " WHERE caller = ? AND job_id = ? AND state = 'waiting' AND attempts = 0",
                *(end.result, end.status, end.finished_ms, *key),
            )
            execute("UPDATE queue SET cancelled = 1 WHERE caller = ? AND job_id = ? AND state <> 'finished'", *key)
            return _find(execute, caller, job_id)

        return self.database.write("cancel_job", work)

    def take_over(self) -> int:
        """Return the jobs of ended services to the queue; return their number. For a queue of one service only."""
        if self.shared:
            return 0
        return self.database.write(
            "take_over_jobs",
            lambda execute: len(
                execute("UPDATE queue SET state = 'waiting', owner = '' WHERE state = 'running' RETURNING seq")
            ),
        )

    def close(self) -> None:
        """Release the database."""
        self.database.close()


def _find(execute: Execute, caller: str, job_id: str) -> QueuedJob | None:
    rows = execute(f"SELECT {COLUMNS} FROM queue WHERE caller = ? AND job_id = ?", caller, job_id)
    return row_of(rows[0]) if rows else None
