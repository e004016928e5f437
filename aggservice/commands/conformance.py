"""``aggservice conformance``: run vectors that others wrote. One line each, a diff for each failure, then the count."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Protocol

import typer

_Folder = Annotated[Path, typer.Argument(help="The folder of vectors.", exists=True, file_okay=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Result(Protocol):
    """What became of one vector: it passed when it has no differences."""

    @property
    def name(self) -> str:
        """The vector's name."""

    @property
    def differences(self) -> tuple[str, ...]:
        """What differed, a line each."""


def register(app: typer.Typer) -> None:
    """Add ``conformance``."""
    conformance = typer.Typer(help="Run interop vectors and golden reports of Chromium.", no_args_is_help=True)
    conformance.command("reports")(reports)
    app.add_typer(conformance, name="conformance")


def reports(folder: _Folder, as_json: _Json = False) -> None:
    """Open Chromium's golden reports, compare each with its cleartext, and encode it again to the same bytes."""
    from aggservice.conformance.goldens import check_goldens

    show(check_goldens(folder), as_json)


def show(results: Iterable[Result], as_json: bool) -> None:
    """Print each result and the count, and end the program with 1 if any failed or there were none."""
    passed, failed, listed = 0, 0, []
    for result in results:
        good = not result.differences
        passed, failed = passed + good, failed + (not good)
        if as_json:
            listed.append({"name": result.name, "passed": good, "differences": list(result.differences)})
        else:
            typer.echo(f"{'ok' if good else 'FAILED'} {result.name}")
            for difference in result.differences:
                typer.echo(f"    {difference}")
    if as_json:
        typer.echo(json.dumps({"results": listed, "passed": passed, "failed": failed}, indent=2))
    elif passed + failed == 0:
        typer.echo("found no vectors in this folder", err=True)
    if not as_json:
        typer.echo(f"{passed} passed, {failed} failed")
    if failed or not passed:
        raise typer.Exit(1)
