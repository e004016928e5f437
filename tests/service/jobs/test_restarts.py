"""Jobs over files across orderly restarts: what waits goes on, and what failed is remembered with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, ClientError, Credentials, JobStatus
from aggservice.service import Caller, EmbeddedService, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.service.jobs.ends import remembered
from aggservice.service.queue.rows import JobState
from budget import SqliteStore, verify_store

from .test_jobs import ASKS, _create, _files, parts, stream

TOKEN = "t" * 43


def running(config: ServiceConfig, maker: Any) -> Any:
    return embedded(config, keys=maker.keys, clock=maker.clock)


def refused(client: Client, job: str) -> tuple[str, str, str]:
    """Return what a failed job says to each call that asks about it."""
    with pytest.raises(ClientError) as watched:
        client.watch_job(job)
    with pytest.raises(ClientError) as asked:
        client.summary(job)
    assert str(watched.value) == str(asked.value)
    return asked.value.return_code, str(asked.value), asked.value.status.name


def test_jobs_that_wait_or_run_go_on_after_a_restart(maker: Any, tmp_path: Path) -> None:
    config = _files(tmp_path, maker)
    with running(config, maker) as service, Client(service.address) as client:
        holder = stream(service, parts(maker, "holder", 30))  # takes the only slot
        _wait(lambda: client.get_job("holder").job_status == JobStatus.IN_PROGRESS)
        for number in range(3):
            _create(client, f"job-{number}", f"sum-{number}")
        assert {client.get_job(f"job-{number}").job_status for number in range(3)} == {JobStatus.RECEIVED}
        client.cancel_job("job-2")
        _let_go(service, holder)
    with running(config, maker) as service, Client(service.address) as client:
        for number in range(2):
            done = client.watch_job(f"job-{number}")
            assert done.summary is not None and done.summary.row_count == 1 and done.parameters is not None
        assert refused(client, "job-2")[2] == "CANCELLED"
        assert service.service.queue.find("local", "job-0").attempts == 1
    # The audit of the ledger knows nothing of the queue, and an export holds nothing of it.
    assert verify_store(SqliteStore(config.state / "ledger.sqlite", read_only=True)).ok


def test_a_failed_job_is_remembered_and_its_id_is_free(maker: Any, tmp_path: Path) -> None:
    config = _files(tmp_path, maker)
    other = replace(ASKS, epsilon="1", attribution_report_to="https://other.example")
    asked = {"input_data_blob_prefix": "reports", "output_domain_blob_prefix": "domain"}
    with running(config, maker) as service, Client(service.address) as client:
        client.create_job("bad", other, output_data_blob_prefix="bad", **asked)
        before = refused(client, "bad")
    assert before[0] == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    with running(config, maker) as service, Client(service.address) as client:
        assert refused(client, "bad") == before
        found = client.get_job("bad")
        assert found.result is not None and found.result.error_counts and found.output_data_blob_prefix == "bad"
        _create(client, "bad", "good")
        assert client.watch_job("bad").summary.row_count == 1


def test_a_job_that_ends_every_service_is_given_up(maker: Any, tmp_path: Path) -> None:
    config = _files(tmp_path, maker)
    with running(config, maker) as service, Client(service.address) as client:
        holder = stream(service, parts(maker, "holder", 30))
        _wait(lambda: client.get_job("holder").job_status == JobStatus.IN_PROGRESS)
        _create(client, "poison", "sum")
        queue = service.service.queue
        queue.database.write("test", lambda execute: execute("UPDATE queue SET attempts = ?", config.limits.attempts))
        _let_go(service, holder)
    with running(config, maker) as service, Client(service.address) as client:
        code, text, status = refused(client, "poison")
        assert (code, status) == ("RETRIES_EXHAUSTED", "UNAVAILABLE") and "started 5 times" in text
        assert len([entry for entry in client.entries() if entry.kind == "release"]) == 0


def _caller(**changes: Any) -> Caller:
    caller = Caller(
        name="adtech",
        roles=frozenset({Role.ADTECH}),
        origins=frozenset({"https://adtech.example"}),
        tokens=(Token(digest=token_digest(TOKEN)),),
    )
    return replace(caller, **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"origins": frozenset({"https://other.example"})}, "is not a reporting origin of adtech"),
        ({"name": "somebody"}, "no longer has a caller 'adtech'"),
    ],
)
def test_a_job_whose_caller_lost_their_right_fails(maker: Any, tmp_path: Path, changes: Any, text: str) -> None:
    config = _files(tmp_path, maker)
    with (
        running(replace(config, callers=(_caller(folder=""),)), maker) as service,
        Client(service.address, credentials=Credentials(token=TOKEN)) as client,
    ):
        holder = stream(service, parts(maker, "holder", 30), metadata=(("authorization", f"Bearer {TOKEN}"),))
        _wait(lambda: client.get_job("holder").job_status == JobStatus.IN_PROGRESS)
        _create(client, "job", "sum")
        _let_go(service, holder)
    with running(replace(config, callers=(_caller(folder="", **changes),)), maker) as service:
        queue = service.service.queue
        _wait(lambda: queue.find("adtech", "job").state is JobState.FINISHED)
        problem = remembered(queue.find("adtech", "job"))
        assert text in str(problem) and problem.code == "PERMISSION_ERROR"
        assert not list((tmp_path / "out").iterdir())


def _let_go(service: EmbeddedService, holder: Any) -> None:
    """Free the slot that a stream holds; the service, which is about to stop, takes up nothing."""
    service.service.dispatcher.rest()
    holder.cancel()


def _wait(ready: Callable[[], bool]) -> None:
    for _ in range(500):
        with suppress(ClientError):
            if ready():
                return
        time.sleep(0.02)
    raise AssertionError("it did not happen within ten seconds")
