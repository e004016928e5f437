"""``aggservice run --sweep``, ``--repetitions`` and ``--populations``."""

from __future__ import annotations

import os
from pathlib import Path

import typer
from rich.console import Console

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.sweep.grid import parse_field
from aggservice.campaign.sweep.output import draw_sweep, table_of, write_rows, write_slices
from aggservice.campaign.sweep.run import SweepStopped, is_sweep_folder, run_sweep
from aggservice.commands.console import progress_bar


def sweep_file(
    campaign: Campaign,
    fields: list[str],
    out: Path,
    seed: str,
    *,
    populations: int,
    repetitions: int,
    sealed: bool,
    cache: Path | None,
    workers: int,
    plots: bool,
    as_json: bool,
) -> None:
    """Run a sweep with a progress bar; print its table and say where its files are."""
    grid = [parse_field(text, campaign.document) for text in fields]
    if out.exists() and not is_sweep_folder(out):
        raise CampaignError(f"{out} holds files that no sweep wrote: name another folder with --out")
    stopped: SweepStopped | None = None
    try:
        with progress_bar(shown=not as_json, stages=True) as report:
            result = run_sweep(
                campaign,
                grid,
                out,
                seed=seed or None,
                populations=populations,
                repetitions=repetitions,
                workers=workers or min(2, os.cpu_count() or 1),
                sealed=sealed,
                cache=cache,
                progress=lambda done, total: report("points", done, total),
            )
    except SweepStopped as problem:
        stopped, result = problem, problem.result
    rows = result.rows
    write_rows(rows, grid, out, sealed=sealed)
    write_slices(result, out)
    if plots and stopped is None:
        draw_sweep(rows, grid, out / "plots", campaign.metrics)
    if as_json:
        typer.echo((out / "sweep.json").read_text(encoding="utf-8"), nl=False)
    else:
        console = Console()
        console.print(table_of(rows, grid, campaign.metrics))
        if not sealed:
            console.print(
                "Unsealed: reports skipped encryption; with the same seed, sealed runs release the same rows."
            )
        console.print(f"Sweep: {out.resolve()}", highlight=False, soft_wrap=True, markup=False)
    if stopped is not None:
        again = "Run the same command again to compute all points"
        if cache is not None:
            again = f"Run the same command again to go on: what {cache} has is not computed again"
        elif not sealed:
            again += "; with --cache FOLDER, a sweep that was stopped can go on"
        typer.echo(f"aggservice: {stopped}, and their table is in {out}. {again}.", err=True)
        raise typer.Exit(130)
