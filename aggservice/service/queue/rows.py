"""A row of the queue: one job over files, from its acceptance to its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands: not taken up yet, taken up by a service, or ended."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to store: the request as bytes, and where its summary goes, which no other unfinished job may share."""

    caller: str
    job_id: str
    request: bytes
    output: str
    received_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended, as bytes: its result as callers see it, and the status of its error (empty if it succeeded)."""

    result: bytes
    status: bytes
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One stored job. ``attempts`` counts how often a service took it up; ``owner`` is the one that holds its lease."""

    seq: int
    caller: str
    job_id: str
    request: bytes
    output: str
    state: JobState
    owner: str
    attempts: int
    cancelled: bool
    reports_read: int
    received_ms: int
    started_ms: int | None
    updated_ms: int
    result: bytes
    status: bytes

    @property
    def key(self) -> tuple[str, str]:
        """The caller and the job id."""
        return self.caller, self.job_id

    @property
    def succeeded(self) -> bool:
        """Whether the job has ended with a summary."""
        return self.state is JobState.FINISHED and not self.status


COLUMNS = (
    "seq, caller, job_id, request, output, state, owner, attempts, cancelled, reports_read,"
    " received_ms, started_ms, updated_ms, result, status"
)
"""The columns of a row, in the order of ``row_of``."""


def row_of(values: tuple[object, ...]) -> QueuedJob:
    """Return a row of ``COLUMNS`` as a job."""
    names = COLUMNS.replace(" ", "").split(",")
    found: dict[str, object] = dict(zip(names, values, strict=True))
    found["state"] = JobState(str(found["state"]))
    found["cancelled"] = bool(found["cancelled"])
    return QueuedJob(**found)  # type: ignore[arg-type]
