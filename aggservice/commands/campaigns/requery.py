"""``aggservice requery`` and ``plan``: run scenarios, split ε over queries."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aggservice.campaign import CampaignError, RequeryResult, load_plan, load_scenario, make_plan, run_scenario
from aggservice.campaign.plan import feasibility_text, plan_to_plain
from aggservice.campaign.requery.run import StepResult
from aggservice.commands.console import NO, Json, option
from aggservice.mechanisms import SecureBits, SystemClock


def requery(
    file: Annotated[Path, typer.Argument(help="A scenario file; docs/requerying.md lists every step.")],
    out: Annotated[
        Path | None, option("A new folder that keeps the ledger, the service's log and transcript.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a requerying scenario and check it against the truth.

    The steps of the file (query, choose the next query by the answer, late reports, retry, two analysts at once,
    crash) run against a real service. The exit code is 1 when a step ended differently from what the file expects,
    when a unit lost more than (ε*, δ*), or when the ledger disagrees with the truth.
    """

    def show_step(step: StepResult) -> None:
        if not as_json:
            typer.echo(f"{'ok  ' if step.ok else 'FAIL'} {step.number:>2}  {step.did}")
            for problem in step.problems:
                typer.echo(f"         line {step.line}: {problem}")

    scenario = load_scenario(file)
    if out is not None and out.exists() and any(out.iterdir()):
        raise CampaignError(f"{out} is not empty: name a new folder with --out, so that the ledger is new")
    with tempfile.TemporaryDirectory(prefix="aggservice-requery-") as scratch:
        result = run_scenario(scenario, out or Path(scratch), bits=SecureBits(), clock=SystemClock(), on_step=show_step)
    text = json.dumps(result.to_plain(), ensure_ascii=False, indent=1)
    if out is not None:
        (out / "transcript.json").write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        _show(result)
    if not result.ok:
        raise typer.Exit(NO)


def _show(result: RequeryResult) -> None:
    """Print the five units with the largest loss, beside what the ledger charged them."""
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
        else f"{failed} steps not as expected; the final check failed",
        highlight=False,
    )


def plan(
    file: Annotated[Path, typer.Argument(help="A plan file; docs/requerying.md lists every field.")],
    as_json: Json = False,
) -> None:
    """Split ε over overlapping queries to meet their targets.

    The file lists daily, weekly, rolling and drill-down queries, each with an error that it may have. The exit code is
    1 when no split meets every target.
    """
    asked = load_plan(file)
    made = make_plan(asked.lines, asked.resources)
    plain = plan_to_plain(asked, made)
    if as_json:
        typer.echo(json.dumps(plain, ensure_ascii=False, indent=1))
    else:
        console = Console()
        table = Table(title=escape(asked.title), title_justify="left")
        for name in ("query", "jobs", "ε per job", "standard deviation", "95 % half-width", "target", "met"):
            table.add_column(name, justify="left" if name in ("query", "target") else "right")
        for one in plain["queries"]:
            target = one["target"]
            table.add_row(
                escape(one["name"]),
                str(one["jobs"]),
                one["epsilon"],
                f"{one['standard_deviation']:,.4g}",
                f"{one['half_width_95']:,.4g}",
                "" if target is None else f"{target['measure']} ≤ {target['most']:,.4g}",
                "" if target is None else "yes" if one["met"] else "no",
            )
        console.print(table)
        console.print(feasibility_text(made), highlight=False, markup=False)
    if not made.feasible:
        raise typer.Exit(NO)
