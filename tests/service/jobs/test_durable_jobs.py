"""Accepted jobs survive SIGKILL: each ends once, with a summary or with a reason that GetJob still tells."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .forked import Killings, Tally

SQLITE = 'store = "sqlite"'


@pytest.fixture
def dsn_file() -> Iterator[Path]:
    """A file with the connection string of a PostgreSQL server of this test's own."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed: no PostgreSQL to test against")
    with tempfile.TemporaryDirectory(prefix="aggservice-pg-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder)
        path = Path(folder) / "dsn"
        path.touch(mode=0o600)
        path.write_text(server.get_uri() + "\n")
        yield path
        server.cleanup()


def killed(folder: Path, ledgers: list[str], *, kills: int, jobs: int, seed: int) -> Tally:
    """Kill services that share a queue, once per round of accepted jobs; return what happened after every check."""
    killings = Killings(folder, ledgers, seed)
    try:
        for number in range(kills):
            killings.round(number, jobs)
        killings.check()
    finally:
        killings.close()
    return killings.offline_check()


def test_a_killed_service_ends_every_job_that_it_accepted(tmp_path: Path) -> None:
    tally = killed(tmp_path, [SQLITE], kills=3, jobs=20, seed=1)
    assert len(tally.ends) == 60 and tally.codes["INPUT_DATA_READ_FAILED"] == 6


def test_two_services_end_each_others_jobs(tmp_path: Path, dsn_file: Path) -> None:
    ledger = f'store = "postgres"\ndsn_file = "{dsn_file}"'
    tally = killed(tmp_path, [ledger, ledger], kills=2, jobs=10, seed=2)
    assert len(tally.ends) == 20


@pytest.mark.soak
def test_200_kills_of_a_service_with_20_accepted_jobs_each(tmp_path: Path) -> None:
    tally = killed(tmp_path, [SQLITE], kills=200, jobs=20, seed=3)
    print(f"one service, SQLite: {tally.text()}")
    assert (tally.kills, len(tally.ends)) == (200, 4000)


@pytest.mark.soak
def test_50_kills_of_either_of_two_services_on_one_queue(tmp_path: Path, dsn_file: Path) -> None:
    ledger = f'store = "postgres"\ndsn_file = "{dsn_file}"'
    tally = killed(tmp_path, [ledger, ledger], kills=50, jobs=20, seed=4)
    print(f"two services, PostgreSQL: {tally.text()}")
    assert (tally.kills, len(tally.ends)) == (50, 1000)
