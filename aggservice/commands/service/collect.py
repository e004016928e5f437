"""``aggservice collect``: an HTTP collector at the well-known report endpoints that writes Avro batches."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Annotated

import typer
import uvicorn
from starlette.applications import Starlette

from aggservice.commands.console import option, refuse
from aggservice.mechanisms import SystemClock
from aggservice.service import Collector, collector_routes
from aggservice.wire import is_reporting_origin


def collect(
    out: Annotated[Path, option("The folder for batches: API/PERIOD/reports-….avro.")] = Path("collected"),
    listen: Annotated[str, option("host:port to listen on; port 0 takes a free port.")] = "127.0.0.1:8080",
    batch_hours: Annotated[int, option("Hours per batch, by scheduled report time.")] = 24,
    origin: Annotated[list[str] | None, option("Take only reports for this reporting origin; may be repeated.")] = None,
    certificate: Annotated[Path | None, option("Serve https with this certificate (PEM).")] = None,
    private_key: Annotated[Path | None, option("The private key of the certificate (PEM).")] = None,
) -> None:
    """Receive reports over HTTP and write them to Avro batches.

    Runs until stopped. Each report is answered with 200 once it is on disk. Payloads stay sealed: a collector has no
    key. The batches are input for 'aggservice job create'.
    """
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        refuse(f"--listen: {listen!r} is not an address such as 127.0.0.1:8080")
    if (certificate is None) != (private_key is None):
        refuse("only one of --certificate and --private-key is given: give both, or neither")
    for one in origin or ():
        if not is_reporting_origin(one):
            refuse(f"--origin: {one!r} is not an origin such as https://adtech.example")
    for file in (certificate, private_key):
        if file is not None and not file.is_file():
            refuse(f"there is no file {file}: give the path of a PEM file")
    collector = Collector(out, clock=SystemClock(), batch_hours=batch_hours, origins=origin or ())
    settings = uvicorn.Config(
        Starlette(routes=collector_routes(collector)),
        host=host.strip("[]"),
        port=int(port),
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )

    class Server(uvicorn.Server):
        """Prints the address once it listens, because only then is a free port known."""

        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                typer.echo(f"collecting on {host}:{bound} into {out.resolve()}; stop with Ctrl-C")

    server = Server(settings)
    # uvicorn shuts down and then raises the signal again, for the handler that was there before.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            server.run()
    except SystemExit:
        refuse(f"cannot listen on {listen}: another program may use the port; choose another one")
    finally:
        collector.close()
    typer.echo(f"{collector.received:,} reports taken, {collector.refused:,} refused")
