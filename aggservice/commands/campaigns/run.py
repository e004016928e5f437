"""``aggservice run`` and ``demo``: a campaign from the first ad to the report."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aggservice.campaign import Campaign, RemoteService, RunResult, load_campaign, run_campaign, thanksgiving
from aggservice.campaign.output.metrics import QueryMetrics
from aggservice.client import Credentials
from aggservice.commands.console import Json, can_draw, option, progress_bar, refuse
from aggservice.compiler import start_numba


def run(
    file: Annotated[Path, typer.Argument(help="A campaign file; docs/campaign.md lists every field.")],
    out: Annotated[Path | None, option("The folder of the run; default: named after the file.")] = None,
    seed: Annotated[str, option("Make the run reproducible to the byte, and not private.")] = "",
    workers: Annotated[int, option("Processes that seal and open; 0: one per core, at most two.")] = 0,
    service: Annotated[str, option("host:port of a running service; default: start one for this run.")] = "",
    token_file: Annotated[Path | None, option("With --service: a file with your bearer token.")] = None,
    root_certificates: Annotated[
        Path | None, option("With --service: certificates to trust (PEM); turns on TLS.")
    ] = None,
    ledger: Annotated[Path | None, option("A SQLite ledger to charge; default: a new one.")] = None,
    plots: Annotated[bool, option("Draw plots and the report.", "--plots/--no-plots")] = True,
    sweep: Annotated[
        list[str] | None,
        option("A field and its values, such as queries.sales.epsilon=1,4,16; repeat it for a grid."),
    ] = None,
    repetitions: Annotated[int, option("Releases per point, each with fresh noise.")] = 1,
    populations: Annotated[int, option("Populations to draw per point.", "--populations", "--repeats")] = 1,
    unsealed: Annotated[
        bool | None,
        option("Skip encryption: same rows, but faster. Default for sweeps only.", "--unsealed/--sealed"),
    ] = None,
    cache: Annotated[Path | None, option("With --sweep or --repetitions: keep finished stages in this folder.")] = None,
    compare: Annotated[str, option("Run the campaign on several APIs through one service: ara,paa,w3c.")] = "",
    as_json: Json = False,
) -> None:
    """Run a campaign file and compare its results with the truth.

    The folder of the run holds reports, summaries, ledger, metrics, plots and report.html. With --service or --ledger,
    simulated time is shifted so that the campaign ends now.

    With --sweep, --repetitions or --populations it runs a sweep: each point of a grid of fields is released several
    times. A sweep computes once what its points share. With --cache, a sweep that was stopped continues where it was.
    """
    campaign = load_campaign(file)
    plots = can_draw(plots)
    other = None
    if not service and (token_file or root_certificates):
        refuse("--token-file and --root-certificates are for another service: give its address with --service too")
    if service:
        credentials = Credentials.from_files(token_file=token_file, root_certificates=root_certificates)
        other = RemoteService(address=service, credentials=credentials)
    name = file.resolve().parent.name if file.stem == "campaign" else file.stem
    if sweep or repetitions > 1 or populations > 1:
        if compare:
            refuse("a comparison is one run per API: leave --sweep, --repetitions and --populations out")
        if other is not None or ledger is not None:
            refuse("a sweep starts its own services and ledgers: leave --service and --ledger out")
        from aggservice.commands.campaigns.sweep import sweep_file  # a plain run does not need its modules

        sweep_file(
            campaign,
            sweep or [],
            out or Path(f"{name}-sweep"),
            seed,
            populations=populations,
            repetitions=repetitions,
            sealed=unsealed is False,
            cache=cache,
            workers=workers,
            plots=plots,
            as_json=as_json,
        )
        return
    if compare:
        if other is not None or ledger is not None or unsealed:
            refuse("a comparison starts its own service: leave --service, --ledger and --unsealed out")
        from aggservice.commands.campaigns.compare import compare_file

        folder = out or Path(f"{name}-comparison")
        compare_file(campaign, compare, folder, seed, workers=workers, plots=plots, as_json=as_json)
        return
    if cache is not None:
        refuse("--cache keeps the stages of a sweep: give --sweep, --repetitions or --populations too")
    given = {"workers": workers or None, "service": other, "ledger": ledger, "unsealed": unsealed is True}
    run_file(campaign, out or Path(f"{name}-run"), seed, plots=plots, as_json=as_json, **given)


def demo(
    out: Annotated[Path, option("The folder of the run.")] = Path("demo-run"),
    seed: Annotated[str, option("Make the run reproducible to the byte, and not private.")] = "",
    plots: Annotated[bool, option("Draw plots and the report.", "--plots/--no-plots")] = True,
    as_json: Json = False,
) -> None:
    """Run the demo campaign, from ads to report: start here.

    It is the Thanksgiving campaign of Figure 1 in "On the Differential Privacy and Interactivity of Privacy Sandbox
    Reports", through browsers, encryption, service and ledger. It ends with a table of truth, estimate and interval,
    what the ledger has left, and the path of the report.
    """
    run_file(thanksgiving(), out, seed, plots=can_draw(plots), as_json=as_json)


def run_file(campaign: Campaign, out: Path, seed: str, *, plots: bool, as_json: bool, **given: Any) -> None:
    """Run a campaign with a progress bar and print its results; ``given`` is passed on to ``run_campaign``."""
    start_numba()
    with progress_bar(shown=not as_json, stages=True) as report:
        result = run_campaign(campaign, out, seed=seed or None, progress=report, draw=plots, **given)
    if as_json:
        typer.echo(json.dumps(result.metrics.to_plain(), ensure_ascii=False, indent=1, sort_keys=True))
    else:
        show(result, plots=plots)


def show(result: RunResult, *, plots: bool = True) -> None:
    """Print the largest slices of each query, the losses, the budget left, and the path of the report."""
    console = Console()
    metrics = result.metrics
    # Names come from the campaign file: brackets in them are not markup.
    console.print(f"[bold]{escape(metrics.campaign)}[/bold]: {escape(metrics.description)}", highlight=False)
    events, reports = metrics.events, metrics.reports
    console.print(
        f"{events.people:,} people, {events.impressions:,} ads shown, {events.conversions:,} conversions, "
        + (
            f"{reports.in_batches:,} sealed reports, batches: {len(metrics.batches)}"
            + (f", {reports.event_level:,} event-level reports" if reports.event_level is not None else "")
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
                f"{row.estimate:z,.{digits}f}",
                f"{row.low:z,.{digits}f} to {row.high:z,.{digits}f}",
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
    if metrics.losses is not None:
        most = metrics.losses
        console.print(
            f"Every source loses ε = {most.event_level} by event-level reports; with summary reports it is at most "
            f"ε = {most.together} ({most.unit}).",
            highlight=False,
        )
    if not metrics.private:
        console.print("Not private: this run came from a seed.", style="yellow")
    path = result.report if plots else result.out
    console.print(f"Report: {path.resolve()}", highlight=False, soft_wrap=True, markup=False)


def _losses(console: Any, query: QueryMetrics) -> None:
    """Print which step lost how many conversions, and the bias if there is any."""
    found = query.measures[0].waterfall
    if found is None:
        return
    steps = ", ".join(f"{step.conversions:,} {step.step}" for step in found.steps if step.conversions)
    of = f"Job {query.totals_of} (jobs share batches and are not added up): " if query.totals_of else ""
    console.print(
        f"{of}{found.happened:,} happened = {found.counted:,} counted" + (f" + {steps}" if steps else ""),
        highlight=False,
        markup=False,
    )
    for one in query.measures:
        if one.bias and one.truth:
            console.print(
                f"Bias of {one.measure}: {one.bias:+z,.1f} ({one.bias / one.truth:+z.2%} of the truth), "
                "which no interval covers: capped, clipped, rounded, lost, late or left out.",
                highlight=False,
                markup=False,
            )


new = typer.Typer(help="Write a commented file to start from.", no_args_is_help=True)


@new.callback()
def _group() -> None:
    pass


@new.command()
def campaign(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")] = Path("campaign.toml"),
) -> None:
    """Write an explained campaign file that runs as it is."""
    text = (files("aggservice.campaign.file") / "template.toml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        refuse(f"{file} exists: name another file")
    typer.echo(f"{file}: edit it, then run 'aggservice run {file}'")
