"""Services in processes that start fast: forked from one that has imported everything, so that tests can kill many."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from aggservice.client import Client, ClientError, JobParameters
from aggservice.commands.service.serve import serve
from aggservice.mechanisms import SystemClock
from aggservice.service import load_config
from aggservice.service.server import open_queue
from aggservice.wire import BucketRows, ReportBatch, write_buckets, write_reports
from budget import open_store, verify_store

from .program import EXACT_EPSILON, ORIGIN, free_port, reports_for

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["aggservice.commands.service.serve", "aggservice.engine", "psycopg", "grpc.aio"])
REPORTS = 20
ASKS = JobParameters(attribution_report_to=ORIGIN, epsilon=EXACT_EPSILON)
CONFIG = """
state = "state"
listen = "127.0.0.1:{port}"
[ledger]
{ledger}
epsilon = "1000000"
[sensitivity.attribution-reporting]
l1 = 1
[folders]
input = "in"
output = "out"
[limits]
processes = 0
jobs = 3
lease_s = 3
attempts = 50
"""


_FAILING = {8: "INPUT_DATA_READ_FAILED", 9: "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"}
"""Jobs that must fail, by the last digit of their number: a cut domain, and a debug run over other reports."""


class ForkedService:
    """A service in a process of its own; ``start`` after ``kill`` finds the same state and port."""

    def __init__(self, folder: Path, name: str, ledger: str) -> None:
        self.port = free_port()
        self.config = folder / f"{name}.toml"
        self.config.write_text(CONFIG.format(port=self.port, ledger=ledger))
        self._process: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ForkedService:
        """Start and wait until it answers."""
        self._process = _FORKS.Process(target=serve, kwargs={"config": self.config}, daemon=True)
        self._process.start()
        with grpc.insecure_channel(self.address) as channel:
            grpc.channel_ready_future(channel).result(timeout=120)
        return self

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.join()


@dataclass(slots=True)
class Tally:
    """What happened: how each job ended, and in how many rounds of how many kills."""

    kills: int = 0
    ends: dict[str, str] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    taken_over: int = 0

    def text(self) -> str:
        """Return one line."""
        codes = ", ".join(f"{count} {code}" for code, count in sorted(self.codes.items()))
        return f"{self.kills} kills, {len(self.ends)} accepted jobs: {codes}; {self.taken_over} taken up again"


class Killings:
    """Rounds of accepted jobs, each with one SIGKILL at a random moment; every job must end, once."""

    def __init__(self, folder: Path, ledgers: list[str], seed: int) -> None:
        self.folder = folder
        for name in ("in", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.services = [ForkedService(folder, f"service{n}", one).start() for n, one in enumerate(ledgers)]
        self.clients = [
            Client(one.address, attempts=400, first_wait_s=0.02, longest_wait_s=0.1) for one in self.services
        ]
        self.reports = reports_for(self.clients[0].public_keys(), [{1 + row % 2: 1} for row in range(REPORTS)])
        write_reports(folder / "in" / "reports.avro", [ReportBatch.of(self.reports)])
        domain = BucketRows(
            key_high=np.zeros(2, dtype=np.uint64),
            key_low=np.array([1, 2], dtype=np.uint64),
            numbers=np.empty((2, 0), dtype=np.int64),
        )
        write_buckets(folder / "in" / "domain.avro", domain)
        (folder / "in" / "cut.avro").write_bytes((folder / "in" / "domain.avro").read_bytes()[:-20])
        self._rng = random.Random(seed)
        self._took_s = 1.0
        self.tally = Tally()

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            client.close()
        for service in self.services:
            service.kill()

    def _client(self) -> Client:
        return self._rng.choice(self.clients)

    def round(self, number: int, jobs: int) -> None:
        """Let jobs be accepted, kill a service at a random moment, start it again, and wait for every job's end."""
        names = [f"round-{number}-job-{one}" for one in range(jobs)]
        for one, name in enumerate(names):
            self._client().create_job(
                name,
                replace(ASKS, debug_run=one % 10 == 9),
                input_data_blob_prefix="reports",
                output_data_blob_prefix=f"{name}/sum",
                output_domain_blob_prefix="cut" if one % 10 == 8 else "domain",
            )
        cancelled = names[7::10]
        for name in cancelled:
            self._client().cancel_job(name)
        time.sleep(self._rng.uniform(0, self._took_s))
        victim = self._rng.choice(self.services)
        victim.kill()
        self.tally.kills += 1
        start = time.monotonic()
        victim.start()
        for one, name in enumerate(names):
            code = self._watch(name)
            expected = {_FAILING.get(one % 10, "SUCCESS")}
            if name in cancelled:
                expected |= {"CANCELLED"}
            assert code in expected, (name, code)
            self.tally.ends[name] = code
            self.tally.codes[code] += 1
        self._took_s = 0.8 * self._took_s + 0.2 * (time.monotonic() - start)

    def _watch(self, name: str) -> str:
        try:
            return str(self._client().watch_job(name).summary.return_code)
        except ClientError as problem:
            return "CANCELLED" if "cancelled" in str(problem) else problem.return_code

    def check(self) -> Tally:
        """Check the whole history: the log, the charges, the files, and what GetJob tells of each job."""
        client = self._client()
        assert client.verify_ledger().ok
        released = Counter(entry.job_request_id for entry in client.entries() if entry.kind == "release")
        paid = {name for name, code in self.tally.ends.items() if code == "SUCCESS"}
        assert released == Counter(paid), "each finished job was released once, and no other"
        uses = {balance.uses for balance in client.balances([report.shared_info for report in self.reports])}
        assert uses == {len(paid)}, "each report paid once per release"
        for name, code in self.tally.ends.items():
            assert self._watch(name) == code, "what GetJob tells of a job stays"
            files = sorted(one.name for one in (self.folder / "out" / name).glob("*") if one.is_file())
            wanted = ["sum-1-of-1", "sum-statement.json"] if code == "SUCCESS" else []
            assert files == wanted, (name, code, files)
        assert list((self.folder / "state" / "staging").iterdir()) == []
        return self.tally

    def offline_check(self) -> Tally:
        """Check the stored ledger and queue without a service: nothing is left, and the audit passes."""
        config = load_config(self.services[0].config)
        if config.ledger == "sqlite":
            assert verify_store(open_store(str(config.state / "ledger.sqlite"))).ok
        queue = open_queue(config, SystemClock())
        rows = queue.database.write("look", lambda execute: execute("SELECT state, attempts, owner FROM queue"))
        queue.close()
        assert {row[0] for row in rows} == {"finished"} and len(rows) == len(self.tally.ends)
        self.tally.taken_over = sum(row[1] > 1 for row in rows)
        return self.tally
