"""``aggservice replay``: replay a log of measurement-simulation through simulated browsers and write their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aggservice.campaign.replay import replay_log
from aggservice.commands.console import Json, option, print_json
from aggservice.mechanisms import SecureBits, SeededBits
from aggservice.wire import PublicKeySet


def replay(
    log: Annotated[
        Path,
        typer.Argument(
            help="A folder of *source*.json and *trigger*.json, also in folders by year/month/day.", exists=True
        ),
    ],
    out: Annotated[Path, option("A new folder for the reports.")] = Path("replayed"),
    keys: Annotated[Path | None, option("Public keys to seal reports to; default: cleartext.", exists=True)] = None,
    reporting_origin: Annotated[str, option("The origin that registers; default: each event's enrollment_id.")] = "",
    seed: Annotated[str, option("Make it reproducible, and not private.")] = "",
    as_json: Json = False,
) -> None:
    """Replay an event log through simulated browsers.

    The log has the format of measurement-simulation. Each user is a browser with Chromium's limits and noise, and the
    events' own keys and values are registered. The folder gets aggregatable/DAY.avro, event-level.jsonl, and
    domain.avro with every key that occurs.
    """
    public = None if keys is None else PublicKeySet.parse(keys.read_text(encoding="utf-8"))
    bits = SeededBits(f"replay {seed}") if seed else SecureBits()
    found = replay_log(log, out, bits=bits, keys=public, reporting_origin=reporting_origin)
    if as_json:
        print_json(found.to_plain())
        return
    typer.echo(f"{found.users:,} users, {found.sources:,} sources, {found.triggers:,} triggers")
    for name, count in found.reports.items():
        typer.echo(f"  {count:,} {name}")
    for reason, count in found.left_out.items():
        typer.echo(f"left out: {count:,} {reason}")
    for problem in found.problems:
        typer.echo(f"  {problem}")
    if seed:
        typer.echo("Not private: the browsers' noise came from a seed.")
    typer.echo(f"Reports: {out}")
    if public is None:
        typer.echo(
            f"Sum a day: aggservice aggregate --input_data_avro_file {out}/aggregatable/DAY.avro "
            f"--domain_avro_file {out}/domain.avro --output_directory summed"
        )
