"""``aggservice conformance ara``: Chromium's interoperability cases against our browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ara_client.interop import CaseResult


def register(app: typer.Typer) -> None:
    """Add ``ara`` to the group ``conformance``, making the group if no other module has."""
    group = next((known.typer_instance for known in app.registered_groups if known.name == "conformance"), None)
    if group is None:
        group = typer.Typer(help="Run vectors that nobody here wrote; the last line counts what passed.")
        app.add_typer(group, name="conformance")
    group.command("ara")(ara)


def ara(
    folder: Annotated[Path, typer.Argument(help="A folder of interop cases with its default_config.json.")],
    only: Annotated[list[str] | None, typer.Option("--case", help="Run only this case; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Run Chromium's Attribution Reporting interop cases: one line each, a diff for each failure."""
    from rich.console import Console
    from rich.progress import Progress

    from ara_client.errors import AraClientError
    from ara_client.interop import run_directory

    results: list[CaseResult] = []
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
            task = progress.add_task("cases", total=None)

            def report(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total)

            for result in run_directory(folder, only or (), report):
                results.append(result)
                if not as_json:
                    _print(result)
    except AraClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    passed = sum(result.passed for result in results)
    failed = len(results) - passed
    if as_json:
        cases = [
            {"name": r.name, "passed": r.passed, "reports": r.reports, "diff": r.diff, "ignored": list(r.ignored)}
            for r in results
        ]
        typer.echo(json.dumps({"passed": passed, "failed": failed, "cases": cases}, indent=2))
    else:
        typer.echo(f"{passed} passed, {failed} failed")
    if failed:
        raise typer.Exit(1)


def _print(result: CaseResult) -> None:
    if result.ignored:
        typer.echo(f"note  {result.name}: unknown configuration ignored: {', '.join(result.ignored)}", err=True)
    if result.passed:
        typer.echo(f"ok    {result.name} ({result.reports} reports)")
    else:
        typer.echo(f"FAIL  {result.name}")
        typer.echo(result.diff, nl=False)
