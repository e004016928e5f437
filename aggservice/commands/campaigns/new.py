"""``aggservice new``: commented files to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from aggservice.commands.console import refuse

new = typer.Typer(help="Write a commented file to start from.", no_args_is_help=True)


@new.callback()
def _group() -> None:
    pass


@new.command()
def campaign(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")] = Path("campaign.toml"),
) -> None:
    """Write an explained campaign file that runs as it is."""
    text = (files("aggservice.campaign.file") / "template.toml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        refuse(f"{file} exists: name another file")
    typer.echo(f"{file}: edit it, then run 'aggservice run {file}'")
