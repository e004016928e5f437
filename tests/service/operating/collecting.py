"""A collector behind a real socket, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from aggservice.service import Collector, collector_routes


@contextmanager
def collecting(collector: Collector) -> Iterator[int]:
    """Serve a collector on a free port of loopback until the block ends; close it then."""
    app = Starlette(routes=collector_routes(collector))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)
    collector.close()
