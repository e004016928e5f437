"""A service inside the caller's own process, on loopback: for tests, campaigns and the demo.

It is the same service behind the same gRPC; only its event loop runs in a thread.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aggservice.mechanisms import Bits, Clock, SecureBits, SystemClock
from aggservice.service.config.keyring import KeyRing
from aggservice.service.config.settings import ServiceConfig
from aggservice.service.log import EventLog
from aggservice.service.server import Service
from aggservice.wire import KeySet
from budget import Ledger


class EmbeddedService:
    """A running service. ``address`` is the address to give to a client."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @property
    def address(self) -> str:
        """Host and port of the gRPC service."""
        return f"127.0.0.1:{self.service.port}"

    @property
    def ledger(self) -> Ledger:
        """The ledger itself, without the network."""
        return self.service.ledger

    @property
    def keys(self) -> KeySet:
        """The key set with which reports are opened."""
        return self.service.keys.keys


@contextmanager
def embedded(
    config: ServiceConfig | None = None,
    *,
    state: Path | None = None,
    clock: Clock | None = None,
    bits: Bits | None = None,
    keys: KeySet | None = None,
    processes: int = 0,
    quiet: bool = True,
) -> Iterator[EmbeddedService]:
    """Run a service on a free port of loopback until the block ends.

    Without ``config`` it keeps a memory ledger, or, with ``state``, a SQLite ledger in that folder. Without
    ``processes`` it opens reports in its own threads.
    """
    clock = clock or SystemClock()
    bits = bits or SecureBits()
    with tempfile.TemporaryDirectory(prefix="aggservice-") as scratch:
        if config is None:
            config = ServiceConfig(
                state=state or Path(scratch) / "state",
                listen="127.0.0.1:0",
                ledger="memory" if state is None else "sqlite",
            )
            config = replace(config, limits=replace(config.limits, processes=processes))
        ring = None if keys is None else KeyRing(keys, clock)
        service = Service(config, clock=clock, bits=bits, keys=ring, log=EventLog(clock, quiet=quiet))
        with run_service(service) as running:
            yield running


@contextmanager
def run_service(service: Service) -> Iterator[EmbeddedService]:
    """Run a service that the caller has built, in a thread, until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="aggservice", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(service.start(), loop).result(60)
        try:
            yield EmbeddedService(service)
        finally:
            asyncio.run_coroutine_threadsafe(service.stop(grace_s=1.0), loop).result(120)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
