"""``aggservice collect``: an HTTP collector at the well-known report endpoints, into Avro batches."""

from __future__ import annotations

from pathlib import Path
from socket import socket
from typing import Annotated

import typer


def collect(
    out: Annotated[Path, typer.Option(help="Where batches go: API/PERIOD/reports-….avro.")] = Path("collected"),
    listen: Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")] = "127.0.0.1:8080",
    batch_hours: Annotated[int, typer.Option(help="How long a batch is, by scheduled report time.")] = 24,
    origin: Annotated[list[str] | None, typer.Option(help="Take only reports for this reporting origin.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="Serve https with this certificate (PEM).")] = None,
    private_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM).")] = None,
) -> None:
    """Collect reports as browsers post them, until stopped. Payloads stay sealed: a collector has no key.

    Each report is answered with 200 once it is on disk. The batches are input for 'aggservice job create' as they are.
    """
    import signal
    from contextlib import suppress

    import uvicorn
    from starlette.applications import Starlette

    from aggservice.mechanisms import SystemClock
    from aggservice.service import Collector, collector_routes
    from aggservice.wire import WireError, is_reporting_origin

    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        typer.echo(f"aggservice collect: {listen!r} is not an address such as 127.0.0.1:8080", err=True)
        raise typer.Exit(2)
    if (certificate is None) != (private_key is None):
        typer.echo("aggservice collect: give --certificate and --private-key together", err=True)
        raise typer.Exit(2)
    for one in origin or ():
        if not is_reporting_origin(one):
            typer.echo(f"aggservice collect: {one!r} is not an origin such as https://adtech.example", err=True)
            raise typer.Exit(2)
    for file in (certificate, private_key):
        if file is not None and not file.is_file():
            typer.echo(f"aggservice collect: there is no file {file}", err=True)
            raise typer.Exit(2)
    try:
        collector = Collector(out, clock=SystemClock(), batch_hours=batch_hours, origins=origin or ())
    except (WireError, OSError) as problem:
        typer.echo(f"aggservice collect: {problem}", err=True)
        raise typer.Exit(2) from None
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
        """Says where it listens once it does, which is when a free port is known."""

        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                typer.echo(f"collecting on {host}:{bound} into {out.resolve()}; stop with Ctrl-C")

    server = Server(settings)
    # uvicorn stops in order and then raises the signal again, for whoever was to hear it before.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            server.run()
    except SystemExit:
        typer.echo(f"aggservice collect: cannot listen on {listen}: is the port taken?", err=True)
        raise typer.Exit(1) from None
    finally:
        collector.close()
    typer.echo(f"{collector.received:,} reports taken, {collector.refused:,} refused")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("collect")(collect)
