"""``aggservice run --compare``: one campaign on several APIs."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aggservice.campaign.compare import ApiComparison, measures_of, parse_apis, run_comparison, write_comparison
from aggservice.campaign.metrics import shown_in
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.device import DEVICES
from aggservice.commands.console import progress_bar


def compare_file(
    campaign: Campaign, apis: str, out: Path, seed: str, *, workers: int, plots: bool, as_json: bool
) -> None:
    """Run a campaign on several APIs with a progress bar; print a table and say where the report is."""
    with progress_bar(shown=not as_json, stages=True) as report:
        compared = run_comparison(
            campaign, out, parse_apis(apis), seed=seed or None, workers=workers or 1, progress=report, draw=plots
        )
    if plots:
        write_comparison(compared)
    if as_json:
        typer.echo(json.dumps(compared.to_plain(), ensure_ascii=False, indent=1, sort_keys=True))
    else:
        show_comparison(compared, plots=plots)


def show_comparison(compared: ApiComparison, *, plots: bool) -> None:
    """Print the errors and losses of every API, and the path of the report."""
    console = Console()
    for query, measure, found in measures_of(compared):
        table = Table(title=escape(f"{query}: {measure}"), title_justify="left")
        shown = shown_in("terminal", compared.campaign.metrics)
        heads = ("API", "jobs paid", "truth", "estimate", "bias", *(one.short or one.title for one in shown))
        for name in heads:
            table.add_column(name, justify="left" if name == "API" else "right")
        for api, (one, figures) in found.items():
            table.add_row(
                DEVICES[api].title,
                f"{one.paid} of {one.jobs}",
                f"{figures.truth:,.0f}",
                f"{figures.estimate:,.0f}",
                f"{figures.bias:+z,.0f}",
                *(metric.text(figures[metric]) for metric in shown),
            )
        console.print(table)
        for api, (_, figures) in found.items():
            fall = figures.waterfall
            assert fall is not None
            steps = "".join(f" + {step.conversions:,} {step.step}" for step in fall.steps if step.conversions)
            console.print(
                f"{DEVICES[api].title}: {fall.happened:,} happened = {fall.counted:,} counted{steps}", highlight=False
            )
    if not all(run.metrics.private for run in compared.runs.values()):
        console.print("Not private: this run came from a seed.", style="yellow")
    path = compared.report if plots else compared.out
    console.print(f"Report: {path.resolve()}", highlight=False, soft_wrap=True, markup=False)
