"""The service of a scenario, in this process or in a process of its own that can be killed.

Both use the same configuration file and a SQLite ledger in the same folder; analysts are callers with tokens.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import grpc

from aggservice.campaign.errors import RunError
from aggservice.campaign.requery.file import RequeryScenario
from aggservice.campaign.requery.interactive import ORIGIN
from aggservice.client import Client, Credentials
from aggservice.mechanisms import Bits
from aggservice.service import embedded, load_config, new_token, token_digest

AUDITOR = "auditor"
_START_S = 120.0
_ATTEMPTS = 9


def configuration(scenario: RequeryScenario, tokens: Mapping[str, str], port: int) -> str:
    """Return the service's configuration: the scenario's budget, one caller per analyst, and the auditor."""
    lines = [
        'state = "state"',
        f'listen = "127.0.0.1:{port}"',
        f'privacy_unit = "{scenario.service.unit.replace("-", "_")}"',
        "[ledger]",
        'store = "sqlite"',
        f'epsilon = "{scenario.service.epsilon}"',
        f'delta = "{scenario.service.delta}"',
        "[sensitivity.attribution-reporting]",
        f"l1 = {scenario.service.l1}",
        f"l0 = {scenario.service.l0}",
        "[limits]",
        "processes = 0",
    ]
    for name, token in tokens.items():
        lines += [
            "[[callers]]",
            f'name = "{name}"',
            f'roles = ["{"auditor" if name == AUDITOR else "adtech"}"]',
            f'reporting_origins = ["{ORIGIN}"]',
            f'tokens = [{{ sha256 = "{token_digest(token)}" }}]',
        ]
    return "\n".join(lines) + "\n"


class ScenarioServer:
    """A running service, for use in a ``with`` statement. ``kill`` needs a service in its own process."""

    def __init__(self, scenario: RequeryScenario, folder: Path, *, bits: Bits) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._own = scenario.needs_process
        self._stack = ExitStack()
        self._tokens = {name: new_token(bits) for name in (*scenario.analysts, AUDITOR)}
        port = _free_port() if self._own else 0
        self.address = f"127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "service.toml"
        self._config.write_text(configuration(scenario, self._tokens, port), encoding="utf-8")

    def __enter__(self) -> ScenarioServer:
        if self._own:
            self.start()
        else:
            self.address = self._stack.enter_context(embedded(load_config(self._config))).address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def client(self, name: str) -> Client:
        """Return a client for an analyst or the auditor; it retries for longer than a restart takes."""
        return Client(self.address, credentials=Credentials(token=self._tokens[name]), attempts=_ATTEMPTS)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        log = self._folder / "service.log"
        with log.open("ab") as into:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from aggservice.commands import main; main()",
                    "serve",
                    "--config",
                    str(self._config),
                ],
                stdout=into,
                stderr=into,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RunError(f"the service stopped while it was starting: see {log}")
            with grpc.insecure_channel(self.address) as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=0.5)
                    return
                except grpc.FutureTimeoutError:
                    continue
        self.kill()
        raise RunError(f"the service did not answer within {_START_S:.0f} s: see {log}")

    def kill(self) -> None:
        """Kill the process like a power cut."""
        if self._process is None:
            raise RunError("the service runs in this process and cannot be killed: use a scenario with a crash step")
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
