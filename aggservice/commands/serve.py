"""``aggservice serve``: run the service until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    config: Annotated[Path | None, typer.Option(help="The service's TOML file; see docs/service.md.")] = None,
    state: Annotated[
        Path, typer.Option(help="Without --config: the folder of ledger, keys and staged results.")
    ] = Path("aggservice-state"),
    listen: Annotated[str, typer.Option(help="Without --config: a loopback address.")] = "127.0.0.1:50051",
    http: Annotated[str, typer.Option(help="Without --config: where the HTTP app listens; empty for none.")] = "",
    processes: Annotated[
        int, typer.Option(help="Without --config: worker processes that open reports.", min=0, max=1024)
    ] = 2,
    input_folder: Annotated[Path | None, typer.Option(help="Without --config: where jobs over files read.")] = None,
    output_folder: Annotated[Path | None, typer.Option(help="Without --config: where they write.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Say whether the configuration is good, then stop.")] = False,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Print a new bearer token and the hash to configure, then stop.")
    ] = False,
) -> None:
    """Run the aggregation service: gRPC, and HTTP for public keys and metrics.

    Without a configuration file it listens on loopback alone, without TLS and callers, and keeps everything in --state.
    """
    from aggservice.mechanisms import SecureBits
    from aggservice.service import ConfigError, ServiceConfig, load_config, token_digest
    from aggservice.service import new_token as draw
    from aggservice.wire import WireError
    from budget import BudgetError

    if new_token:
        token = draw(SecureBits())
        typer.echo(f"token (give it to the caller, keep no copy): {token}")
        typer.echo(f'tokens = [{{ sha256 = "{token_digest(token)}" }}]')
        return
    try:
        if config is not None:
            settings = load_config(config)
        else:
            from dataclasses import replace

            settings = ServiceConfig(
                state=state,
                listen=listen,
                http_listen=http or None,
                input_folder=input_folder,
                output_folder=output_folder,
            )
            settings = replace(settings, limits=replace(settings.limits, processes=processes))
        if check:
            typer.echo("the configuration is good")
            return
        _run(settings)
    except (ConfigError, BudgetError, WireError) as problem:
        typer.echo(f"aggservice serve: {problem}", err=True)
        raise typer.Exit(2) from None


def _run(settings: object) -> None:
    """Run until SIGINT or SIGTERM, then stop in order."""
    import asyncio
    import signal

    from aggservice.mechanisms import SecureBits, SystemClock
    from aggservice.service import Service, ServiceConfig
    from aggservice.service.log import silence_libraries

    assert isinstance(settings, ServiceConfig)

    async def main() -> None:
        silence_libraries()
        service = Service(settings, clock=SystemClock(), bits=SecureBits())
        stop = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        await service.start()
        typer.echo(f"listening on {settings.listen.rpartition(':')[0]}:{service.port}")
        if service.http_port:
            typer.echo(f"HTTP on port {service.http_port}")
        await stop.wait()
        await service.stop()

    asyncio.run(main())


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)
