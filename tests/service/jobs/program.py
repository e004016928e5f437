"""The service as a process of its own, for tests that kill it, measure it or start it again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from uuid import UUID

import grpc

from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import AggregatableReport, Api, Contribution, PublicKeySet, SharedInfo, make_report

ORIGIN = "https://adtech.example"
CONFIG = """
state = "state"
listen = "127.0.0.1:{port}"
[ledger]
store = "sqlite"
epsilon = "1000000"
[sensitivity.attribution-reporting]
l1 = 1
[folders]
input = "in"
output = "out"
[limits]
processes = {processes}
jobs = {jobs}
stall_s = {stall_s}
waiting = {waiting}
"""
EXACT_EPSILON = "64"
"""With Λ₁ = 1 the noise at this ε is 0 but for a chance of 10⁻²⁷: sums can be compared, and budgets still count."""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ServerProcess:
    """A service in a process of its own; ``start`` again after ``kill`` finds the same state and port."""

    def __init__(
        self, folder: Path, *, processes: int = 1, jobs: int = 4, stall_s: int = 30, waiting: int = 1000
    ) -> None:
        self.folder = folder
        self.port = free_port()
        for name in ("in", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.config = folder / "service.toml"
        self.config.write_text(
            CONFIG.format(port=self.port, processes=processes, jobs=jobs, stall_s=stall_s, waiting=waiting)
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ServerProcess:
        """Start and wait until it answers."""
        program = "from aggservice.commands import main; main()"
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "serve", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError((self.folder / "log.txt").read_text()[-2000:])
            with grpc.insecure_channel(self.address) as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=0.3)
                    return self
                except grpc.FutureTimeoutError:
                    continue
        raise AssertionError("the service did not start within two minutes")

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """End it in order; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def rss(self) -> int:
        """Return the resident memory of the service and its workers."""
        import psutil

        assert self.process is not None
        main = psutil.Process(self.process.pid)
        total = 0
        for one in (main, *main.children(recursive=True)):
            try:
                total += one.memory_info().rss
            except psutil.Error:
                continue  # it ended while we looked
        return total

    def fork_servers(self) -> list[int]:
        """Return the process ids of the servers that its workers fork from: one, unless one has just died."""
        assert self.process is not None
        return _forked(self.process.pid)

    def workers(self) -> list[int]:
        """Return the process ids of its workers."""
        return [worker for server in self.fork_servers() for worker in _forked(server)]

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def reports_for(keys: PublicKeySet, values: list[dict[int, int]]) -> list[AggregatableReport]:
    """Return reports of now, sealed to a running service's keys."""
    bits, clock = SecureBits(), SystemClock()
    return [
        make_report(
            [Contribution(bucket=bucket, value=value) for bucket, value in one.items()],
            shared_info=SharedInfo(
                api=Api.ATTRIBUTION_REPORTING,
                report_id=str(UUID(bytes=bits.read(16), version=4)),
                reporting_origin=ORIGIN,
                scheduled_report_time_s=clock.now_ms() // 1000 - 60,
                attribution_destination="https://shop.example",
            ),
            keys=keys,
            bits=bits,
            maximum=20,
        )
        for one in values
    ]


def _forked(parent: int) -> list[int]:
    """Return the process ids of children that are fork servers or were forked from one."""
    import psutil

    found = []
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(parent).children():
            with suppress(psutil.Error):  # it ended while we looked
                if "multiprocessing.forkserver" in " ".join(one.cmdline()):
                    found.append(one.pid)
    return found
