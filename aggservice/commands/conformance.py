"""``aggservice conformance``: run vectors that others wrote.

Prints one line per vector, the differences of each failure, then the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

import typer

from aggservice.commands.console import NO, Json, option, print_json, progress_bar, refuse
from aggservice.conformance.goldens import check_goldens
from ara_client.interop.runner import CaseResult, run_directory
from w3c_client.scenarios import VectorResult, run_header_cases, run_scenarios

conformance = typer.Typer(help="Run test vectors that others wrote.", no_args_is_help=True)


class Result(Protocol):
    """The result of one vector: it passed when it has no differences."""

    @property
    def name(self) -> str:
        """The vector's name."""

    @property
    def differences(self) -> tuple[str, ...]:
        """What differed, one line each."""


@conformance.command()
def reports(
    folder: Annotated[Path, typer.Argument(help="The folder of vectors.", exists=True, file_okay=False)],
    as_json: Json = False,
) -> None:
    """Compare Chromium's golden reports with their cleartext.

    Also encodes each report again and compares the bytes.
    """
    show(check_goldens(folder), as_json)


@conformance.command()
def ara(
    folder: Annotated[Path, typer.Argument(help="A folder of cases with its default_config.json.")],
    only: Annotated[list[str] | None, option("Run only this case; may be repeated.", "--case")] = None,
    as_json: Json = False,
) -> None:
    """Run Chromium's Attribution Reporting cases.

    Compares every report, time, URL and payload field.
    """
    show(_cases(folder, only or []), as_json)


@conformance.command()
def w3c(
    path: Annotated[Path, typer.Argument(help="A folder of scenarios, or a .jsonl.gz file.", exists=True)],
    as_json: Json = False,
) -> None:
    """Run scenarios of W3C Attribution, from files or lines.

    Compares every histogram and error and, where a line has them, the three budget stores at the end.
    """
    show(_scenarios(path), as_json)


@conformance.command("w3c-headers")
def w3c_headers(
    file: Annotated[Path, typer.Argument(help="A JSON file of header cases.", exists=True, dir_okay=False)],
    as_json: Json = False,
) -> None:
    """Parse W3C's Save-Impression and Measure-Conversion headers.

    Compares the options parsed from each header, or checks that it is refused.
    """
    show(run_header_cases(file), as_json)


def _scenarios(path: Path) -> Iterator[VectorResult]:
    with progress_bar() as report:
        yield from run_scenarios(path, progress=lambda done: report("scenarios", done, None))


def _cases(folder: Path, only: list[str]) -> Iterator[CaseResult]:
    """Run the cases with a progress bar, and name the fields of their configurations that are not known here."""
    with progress_bar() as report:
        for result in run_directory(folder, only, lambda done, total: report("cases", done, total)):
            if result.ignored:
                typer.echo(f"note: {result.name}: unknown fields of api_config: {', '.join(result.ignored)}", err=True)
            yield result


def show(results: Iterable[Result], as_json: bool) -> None:
    """Print each result and the count; the exit code is 1 if a vector failed, 2 if there is no vector."""
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
        print_json({"results": listed, "passed": passed, "failed": failed})
    else:
        typer.echo(f"{passed} passed, {failed} failed")
    if not passed + failed:
        refuse("there are no vectors in this folder: name the folder that holds them")
    if failed:
        raise typer.Exit(NO)
