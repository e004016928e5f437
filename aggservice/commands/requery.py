"""``aggservice requery``: run a scenario of requerying and judge it by the truth."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aggservice.campaign import ScenarioResult


def requery(
    file: Annotated[Path, typer.Argument(help="A scenario file; docs/requerying.md lists every step.")],
    out: Annotated[
        Path | None, typer.Option(help="Keep the ledger, the service's log and transcript.json in this new folder.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the transcript as JSON and nothing else.")] = False,
) -> None:
    """Run a scenario: query, look, choose, query again, late reports, retry, two analysts at once, crash.

    Every step runs against a real service. Ends with exit code 1 when a step did not go as the file expects, when a
    unit lost more than (ε*, δ*), or when the ledger disagrees with the truth.
    """
    from aggservice.campaign import CampaignError, load_scenario, run_scenario
    from aggservice.campaign.requery.run import StepResult
    from aggservice.client import ClientError
    from aggservice.mechanisms import SecureBits, SystemClock
    from aggservice.service import ConfigError

    def told(step: StepResult) -> None:
        if not json_output:
            typer.echo(f"{'ok  ' if step.ok else 'FAIL'} {step.number:>2}  {step.did}")
            for problem in step.problems:
                typer.echo(f"         line {step.line}: {problem}")

    try:
        scenario = load_scenario(file)
        if out is not None and out.exists() and any(out.iterdir()):
            raise CampaignError(f"{out} is not empty: name a new folder with --out, for a ledger of its own")
        with tempfile.TemporaryDirectory(prefix="aggservice-requery-") as scratch:
            result = run_scenario(scenario, out or Path(scratch), bits=SecureBits(), clock=SystemClock(), on_step=told)
    except (CampaignError, ClientError, ConfigError) as problem:
        typer.echo(f"aggservice requery: {problem}", err=True)
        raise typer.Exit(2) from None
    if out is not None:
        text = json.dumps(result.to_plain(), ensure_ascii=False, indent=1)
        (out / "transcript.json").write_text(text + "\n", encoding="utf-8")
    if json_output:
        typer.echo(json.dumps(result.to_plain(), ensure_ascii=False, indent=1))
    else:
        _show(result)
    if not result.ok:
        raise typer.Exit(1)


def _show(result: ScenarioResult) -> None:
    """Print what the units that lost most have lost, beside what the ledger charged."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    worst = sorted(result.comparisons, key=lambda one: (-one.lost.epsilon, one.unit))
    table = Table(title="Units that lost most, from the truth and from the ledger", title_justify="left")
    table.add_column("unit")
    for name in ("ε lost", "ε charged, by share", "largest balance of its reports", "δ lost"):
        table.add_column(name, justify="right")
    for one in worst[:5]:
        table.add_row(
            escape(one.unit),
            f"{float(one.lost.epsilon):.6f}",
            f"{float(one.charged.epsilon):.6f}",
            f"{float(one.most.epsilon):.6f}",
            f"{float(one.lost.delta):.3g}",
        )
    console.print(table)
    for problem in result.problems:
        console.print(f"FAIL {problem}", style="red", highlight=False)
    failed = sum(not step.ok for step in result.steps)
    console.print(
        f"{len(result.steps) - failed} steps as expected, {failed} not; {len(result.comparisons)} units, none past "
        f"ε* = {float(result.limit.epsilon):g}"
        if not result.problems
        else f"{failed} steps not as expected, and the truth disagrees",
        highlight=False,
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("requery")(requery)
