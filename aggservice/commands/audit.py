"""``aggservice audit``: attack a service with neighbour games and print lower bounds on ε beside what was charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aggservice.audit.output import draw, table, to_plain
from aggservice.audit.run import GAMES, QUICK, THOROUGH, chosen_games, run_audit
from aggservice.audit.target import RemoteTarget
from aggservice.client import ClientError, Credentials
from aggservice.commands.console import NO, Json, option, progress_bar, refuse, require_plots


def audit(
    quick: Annotated[bool, option("About a minute (the default).", "--quick")] = False,
    thorough: Annotated[bool, option("About an hour: sixty times as many trials.", "--thorough")] = False,
    path: Annotated[list[str] | None, option("Play only games whose name contains this; may be repeated.")] = None,
    service: Annotated[str, option("The address of a service with a test ledger. Its budgets will be spent.")] = "",
    origin: Annotated[str, option("The reporting origin to use at --service.")] = "https://adtech.example",
    token_file: Annotated[Path | None, option("The caller's token for --service.")] = None,
    root_certificates: Annotated[Path | None, option("Root certificates for --service.")] = None,
    plot: Annotated[Path | None, option("Draw the bounds to this file (SVG and PNG).")] = None,
    workers: Annotated[int, option("Games to play at the same time.", min=1, max=64)] = 2,
    names: Annotated[bool, option("List the games and what each exposes; play none.", "--names")] = False,
    as_json: Json = False,
) -> None:
    """Attack a service with neighbour games.

    Plays each game in two worlds that differ in one unit, and prints a lower bound on ε beside the ε that was charged.
    Without --service, each game starts its own service and ledger. The exit code is 1 if a bound is above its charge.
    """
    if names:
        typer.echo("\n".join(f"{game.name}: {game.exposes}" for game in GAMES))
        return
    if quick and thorough:
        refuse("--quick and --thorough are both given: give one of them")
    if plot is not None:
        require_plots()
    remote = None
    if service:
        credentials = Credentials.from_files(token_file=token_file, root_certificates=root_certificates)
        remote = RemoteTarget(address=service, origin=origin, credentials=credentials)
    if not chosen_games(path or [], remote=remote is not None)[0]:
        refuse("--path matches no game that can be played here: list the games with aggservice audit --names")
    try:
        with progress_bar(shown=not as_json) as show:
            report = run_audit(
                path or [],
                scale=THOROUGH if thorough else QUICK,
                remote=remote,
                workers=workers,
                progress=lambda done, total, name: show(name, done, total),
            )
    except ClientError as problem:
        refuse(str(problem))
    if plot is not None:
        draw(report, plot.with_suffix(""))
    typer.echo(json.dumps(to_plain(report), indent=1, ensure_ascii=False) if as_json else "\n".join(table(report)))
    if report.alarms:
        raise typer.Exit(NO)
