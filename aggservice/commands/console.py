"""What commands share at the terminal: refusals, progress bars on standard error, options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import open as open_with_progress

#: Exit codes for a negative answer and for a refusal; usage errors of typer are refusals too.
NO, REFUSED = 1, 2


def option(says: str, *names: str, **more: Any) -> Any:
    """Declare an option for ``Annotated``: its line of help, and its names if they are not those of the parameter."""
    return typer.Option(*names, help=says, **more)


Json = Annotated[bool, option("Print JSON and nothing else.", "--json")]


def print_json(plain: object) -> None:
    """Print plain values as JSON; bytes become hexadecimal digits."""
    typer.echo(json.dumps(plain, indent=2, default=bytes.hex))


def show(plain: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print plain values as JSON, or else the lines."""
    if as_json:
        print_json(plain)
    else:
        for line in lines:
            typer.echo(line)


def utc(time_ms: int, *, precise: bool = False) -> str:
    """Return a time as ISO 8601 in UTC, to the second or, if ``precise``, to the millisecond."""
    text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds" if precise else "seconds")
    return text.replace("+00:00", "Z")


def refuse(message: str, *details: str) -> NoReturn:
    """Print the message, and the details indented below it; end the program with the exit code of a refusal."""
    typer.echo(f"aggservice: {message}", err=True)
    for detail in details:
        typer.echo(f"  {detail}", err=True)
    raise typer.Exit(REFUSED)


def require_plots() -> None:
    """Refuse a command that draws a plot, before it begins its work, if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        refuse("plots need matplotlib: install it with pip install 'aggservice[plots]'")


def can_draw(plots: bool) -> bool:
    """Return whether plots are wanted and can be drawn; print a note if they are wanted and cannot be drawn."""
    if plots and find_spec("matplotlib") is None:
        typer.echo("note: no plots and no report.html: they need pip install 'aggservice[plots]'", err=True)
        return False
    return plots


@contextmanager
def progress_bar(*, shown: bool = True, stages: bool = False) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield ``report(what, done, total)``, which moves a bar on a terminal; a total of None or 0 is not known yet.

    With ``stages`` each ``what`` has a line of its own, which stays; otherwise one line shows the latest and vanishes.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not (shown and console.is_terminal)
    with Progress(*columns, console=console, transient=not stages, disable=disable) as bar:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            line = what if stages else ""
            if line not in tasks:
                tasks[line] = bar.add_task(what, total=None)
            bar.update(tasks[line], description=what, completed=done, total=total or None)

        yield report


@contextmanager
def unit_count(what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to a count of units, shown on a terminal."""
    seen = 0
    with progress_bar() as report:

        def add(units: int) -> None:
            nonlocal seen
            seen += units
            report(f"{what}, units", seen, None)

        yield add


@contextmanager
def open_with_bar(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, under a progress bar on a terminal."""
    console = Console(stderr=True)
    with open_with_progress(
        path, "rb", description=path.name, console=console, transient=True, disable=not console.is_terminal
    ) as stream:
        yield stream
