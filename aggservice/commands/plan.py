"""``aggservice plan``: how to split ε over queries that overlap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def plan(
    file: Annotated[Path, typer.Argument(help="A plan file; docs/requerying.md lists every field.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
) -> None:
    """Propose how daily, weekly, rolling and drill-down queries share ε, and say whether their targets can be met.

    Ends with exit code 1 when they cannot.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from aggservice.campaign import CampaignError, load_plan, make_plan
    from aggservice.campaign.plan.file import feasibility_text, plan_to_plain

    try:
        asked = load_plan(file)
        made = make_plan(asked.lines, asked.resources)
    except CampaignError as problem:
        typer.echo(f"aggservice plan: {problem}", err=True)
        raise typer.Exit(2) from None
    plain = plan_to_plain(asked, made)
    if json_output:
        typer.echo(json.dumps(plain, ensure_ascii=False, indent=1))
    else:
        console = Console()
        table = Table(title=escape(asked.title), title_justify="left")
        for name in ("query", "jobs", "ε a job", "standard deviation", "95 % half-width", "target", "met"):
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
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)
