"""``aggservice serve``: run the service until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from aggservice.commands.console import option
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service import Service, ServiceConfig, load_config, token_digest
from aggservice.service import new_token as draw
from aggservice.service.config.check import check_files
from aggservice.service.log import silence_libraries


def serve(
    config: Annotated[Path | None, option("The service's TOML file; see docs/service.md.")] = None,
    state: Annotated[Path, option("Without --config: the folder for ledger, keys and staged results.")] = Path(
        "aggservice-state"
    ),
    listen: Annotated[str, option("Without --config: a loopback address.")] = "127.0.0.1:50051",
    http: Annotated[str, option("Without --config: host:port of the HTTP app; empty: no HTTP.")] = "",
    processes: Annotated[int, option("Without --config: worker processes that open reports.", min=0, max=1024)] = 2,
    input_folder: Annotated[Path | None, option("Without --config: the folder that jobs over files read.")] = None,
    output_folder: Annotated[Path | None, option("Without --config: the folder that jobs over files write to.")] = None,
    check: Annotated[bool, option("Check the configuration and the files that it names, and stop.", "--check")] = False,
    new_token: Annotated[
        bool, option("Print a new bearer token and its hash for the configuration, and stop.", "--new-token")
    ] = False,
) -> None:
    """Run the aggregation service.

    It serves gRPC, and HTTP for public keys, metrics, createJob and getJob. Without a configuration file it listens on
    loopback only, without TLS or authentication, and keeps everything in --state.
    """
    if new_token:
        token = draw(SecureBits())
        typer.echo(f"token (give it to the caller, keep no copy): {token}")
        typer.echo(f'tokens = [{{ sha256 = "{token_digest(token)}" }}]')
        return
    if config is not None:
        settings = load_config(config)
    else:
        settings = ServiceConfig(
            state=state,
            listen=listen,
            http_listen=http or None,
            input_folder=input_folder,
            output_folder=output_folder,
        )
        settings = replace(settings, limits=replace(settings.limits, processes=processes))
    if check:
        check_files(settings)
        typer.echo("the configuration is good")
    else:
        asyncio.run(_run(settings))


async def _run(settings: ServiceConfig) -> None:
    """Run until SIGINT or SIGTERM, then stop in order."""
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
