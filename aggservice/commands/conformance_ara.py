"""``aggservice conformance ara``: Chromium's interoperability cases against our browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggservice.commands.conformance import show

if TYPE_CHECKING:
    from ara_client.interop.runner import CaseResult

_Folder = Annotated[Path, typer.Argument(help="A folder of cases with its default_config.json.")]
_Cases = Annotated[list[str] | None, typer.Option("--case", help="Run only this case; may be repeated.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add ``ara`` to the group ``conformance``, which its own module has added before."""
    group = next(known.typer_instance for known in app.registered_groups if known.name == "conformance")
    assert group is not None
    group.command("ara")(ara)


def ara(folder: _Folder, only: _Cases = None, as_json: _Json = False) -> None:
    """Run Chromium's Attribution Reporting cases and compare every report, time, URL and payload field."""
    from ara_client import AraClientError

    try:
        show(_results(folder, only or []), as_json)
    except AraClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _results(folder: Path, only: list[str]) -> Iterator[CaseResult]:
    """Run the cases with a progress bar on a terminal, saying which configuration fields nobody knows."""
    from rich.console import Console
    from rich.progress import Progress

    from ara_client.interop.runner import run_directory

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("cases", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        for result in run_directory(folder, only, advance):
            if result.ignored:
                typer.echo(f"note: {result.name}: configuration not known: {', '.join(result.ignored)}", err=True)
            yield result
