"""``aggservice run``: a campaign file from the first ad to a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from aggservice.campaign import Campaign, RemoteService, RunResult
    from aggservice.campaign.output.metrics import QueryMetrics


def run(
    file: Annotated[Path, typer.Argument(help="A campaign file; docs/campaign.md lists every field.")],
    out: Annotated[Path | None, typer.Option(help="Where the run goes; default: named after the file.")] = None,
    seed: Annotated[str, typer.Option(help="Makes the run reproducible to the byte, and not private.")] = "",
    workers: Annotated[int, typer.Option(help="Processes that seal and open; 0: two where there are two cores.")] = 0,
    service: Annotated[str, typer.Option(help="host:port of a service that runs; default: one inside.")] = "",
    token_file: Annotated[Path | None, typer.Option(help="With --service: a file with the caller's token.")] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="With --service: the authority of its certificate (PEM).")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="A SQLite ledger to charge; default: a new one.")] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw plots and the report.")] = True,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="A field and its values, such as queries.sales.epsilon=1,4,16; again for a grid."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="With --sweep: how often each point is run.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON and nothing else.")] = False,
) -> None:
    """Run a campaign: simulate, seal, collect, aggregate, compare with the truth, draw.

    With --service or --ledger, simulated time is moved so that the campaign ends now. With --sweep, every point of a
    grid of fields is run, --workers at a time.
    """
    from aggservice.campaign import CampaignError, RemoteService, load_campaign
    from aggservice.client import ClientError, Credentials

    try:
        campaign = load_campaign(file)
        other = None
        if service:
            credentials = Credentials.from_files(token_file=token_file, root_certificates=root_certificates)
            other = RemoteService(address=service, credentials=credentials)
    except (CampaignError, ClientError, OSError) as problem:
        typer.echo(f"aggservice run: {problem}", err=True)
        raise typer.Exit(2) from None
    name = file.resolve().parent.name if file.stem == "campaign" else file.stem
    if sweep:
        if other is not None or ledger is not None:
            typer.echo("aggservice run: a sweep runs services of its own: leave --service and --ledger out", err=True)
            raise typer.Exit(2)
        place = out or Path(f"{name}-sweep")
        sweep_file(campaign, sweep, place, seed, repeats, workers=workers, plots=plots, as_json=json_output)
        return
    run_file(
        campaign,
        out=out or Path(f"{name}-run"),
        seed=seed,
        workers=workers or None,
        service=other,
        ledger=ledger,
        plots=plots,
        as_json=json_output,
    )


def run_file(
    campaign: Campaign,
    *,
    out: Path,
    seed: str = "",
    workers: int | None = None,
    service: RemoteService | None = None,
    ledger: Path | None = None,
    plots: bool = True,
    as_json: bool = False,
) -> None:
    """Run a campaign with a progress bar and show what came out."""
    from aggservice.campaign import CampaignError, run_campaign
    from aggservice.client import ClientError
    from aggservice.engine import EngineError
    from aggservice.service import ConfigError
    from budget import BudgetError

    try:
        with _progress(as_json) as told:
            result = run_campaign(
                campaign,
                out,
                seed=seed or None,
                workers=workers,
                service=service,
                ledger=ledger,
                progress=told,
                draw=plots,
            )
    except (CampaignError, ClientError, ConfigError, BudgetError, EngineError) as problem:
        typer.echo(f"aggservice: {problem}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(result.metrics.to_plain(), ensure_ascii=False, indent=1, sort_keys=True))
    else:
        show(result, plots=plots)


def sweep_file(
    campaign: Campaign,
    fields: list[str],
    out: Path,
    seed: str,
    repeats: int,
    *,
    workers: int,
    plots: bool,
    as_json: bool,
) -> None:
    """Run a sweep with a progress bar; print its table and say where its files are."""
    import os

    from rich.console import Console

    from aggservice.campaign import CampaignError, parse_field, run_sweep
    from aggservice.campaign.sweep.output import draw_sweep, table_of, write_rows

    try:
        grid = [parse_field(text, campaign.document) for text in fields]
        if out.exists() and any(out.iterdir()) and not (out / "sweep.json").is_file():
            raise CampaignError(f"{out} is not empty and is no former sweep: name another folder with --out")
        with _progress(as_json) as told:
            rows = run_sweep(
                campaign,
                grid,
                out,
                seed=seed or None,
                repeats=repeats,
                workers=workers or min(2, os.cpu_count() or 1),
                progress=lambda done, total: told("runs", done, total),
            )
        write_rows(rows, grid, out)
        if plots:
            draw_sweep(rows, grid, out / "plots")
    except CampaignError as problem:
        typer.echo(f"aggservice run: {problem}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo((out / "sweep.json").read_text(encoding="utf-8"), nl=False)
        return
    console = Console()
    console.print(table_of(rows, grid))
    console.print(f"Sweep: {out.resolve()}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _progress(silent: bool) -> Iterator[Any]:
    """Yield a function that shows how far each stage is, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=silent or not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def told(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total or None)
            bar.update(tasks[stage], completed=done, total=total or None)

        yield told


def show(result: RunResult, *, plots: bool = True) -> None:
    """Print the largest slices of each query, the losses, what is left, and where the report is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    metrics = result.metrics
    # Names are the campaign's own: what stands in brackets in them is no markup.
    console.print(f"[bold]{escape(metrics.campaign)}[/bold]: {escape(metrics.description)}", highlight=False)
    events, reports = metrics.events, metrics.reports
    console.print(
        f"{events.people:,} people, {events.impressions:,} ads shown, {events.conversions:,} conversions, "
        + (
            f"{reports.in_batches:,} sealed reports, batches: {len(metrics.batches)}"
            if metrics.batches
            else f"{reports.in_batches:,} event-level reports"
        ),
        highlight=False,
    )
    for query in metrics.queries:
        jobs = metrics.jobs_of(query.name)
        paid = [one for one in jobs if one.paid]
        if len(jobs) > len(paid):
            console.print(f"{query.name}: {len(jobs) - len(paid)} of {len(jobs)} jobs refused, budget spent")
        if not paid:
            continue
        table = Table(title=f"{query.name} ({paid[-1].job})", title_justify="left")
        table.add_column("slice")
        for name in ("truth", "estimate", "95 % interval"):
            table.add_column(name, justify="right")
        for row in paid[-1].slices[:24]:
            digits = 0 if row.high - row.low > 20 else 1
            table.add_row(
                escape(row.label),
                f"{row.truth:,.0f}",
                f"{row.estimate:,.{digits}f}",
                f"{row.low:,.{digits}f} to {row.high:,.{digits}f}",
            )
        console.print(table)
        _losses(console, query)
    if metrics.model is not None:
        model = metrics.model
        console.print(
            f"A model of conversion over {model.ads:,} ads: predictions of the one trained on noisy labels are off "
            f"by {model.distance_noisy:.4f}, on corrected labels by {model.distance_corrected:.4f}, where "
            f"{model.conversion_rate:.4f} of the ads convert.",
            highlight=False,
        )
    left = metrics.ledger.left
    if left:
        what = ", ".join(f"{name} = {left[-1][name]}" for name in ("epsilon", "delta") if name in left[-1])
        total = f"epsilon = {metrics.ledger.epsilon}, delta = {metrics.ledger.delta}"
        console.print(f"The ledger says each {metrics.ledger.unit} has {what} left of {total}.", highlight=False)
    if not metrics.private:
        console.print("Not private: this run came from a seed.", style="yellow")
    place = result.report if plots else result.out
    console.print(f"Report: {place.resolve()}", highlight=False, soft_wrap=True, markup=False)


def _losses(console: Any, query: QueryMetrics) -> None:
    """Print where conversions went and, where there is one, the bias."""
    found = query.measures[0].waterfall
    if found is None:
        return
    steps = ", ".join(f"{step.conversions:,} {step.step}" for step in found.steps if step.conversions)
    console.print(
        f"{found.happened:,} happened = {found.counted:,} counted" + (f" + {steps}" if steps else ""),
        highlight=False,
    )
    for one in query.measures:
        if one.bias and one.truth:
            console.print(
                f"Bias of {one.measure}: {one.bias:+,.1f} ({one.bias / one.truth:+.2%} of the truth), "
                "which no interval covers: capped, clipped, rounded, lost, late or left out.",
                highlight=False,
                markup=False,
            )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)
