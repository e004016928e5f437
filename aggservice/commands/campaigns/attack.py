"""``aggservice attack`` and ``figure``: adversaries against on-device budgets, and the figures of the papers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aggservice.campaign.attacks.figures import FIGURES, make_figure
from aggservice.campaign.attacks.run import AttackResult, run_attack
from aggservice.campaign.attacks.settings import load_attack, with_fields
from aggservice.campaign.sweep.grid import grid_of, parse_field
from aggservice.commands.console import Json, option, progress_bar, refuse, require_plots


def attack(
    file: Annotated[Path, typer.Argument(help="An attack file; docs/w3c_designs.md lists every field.")],
    sweep: Annotated[
        list[str] | None,
        option("A field and its values, such as client.impression_quota=0.5,1,2; repeat it for a grid."),
    ] = None,
    seed: Annotated[str, option("The seed of the population; default: the file's.")] = "",
    as_json: Json = False,
) -> None:
    """Attack on-device budgets; show what other sites have left.

    Prints the error of every conversion site's query (RMSRE), the conversions that each filter refused, and how much of
    a device's global budget the adversary took, beside the bound that the design gives.
    """
    scenario = load_attack(file)
    points = grid_of([parse_field(text, scenario.document) for text in sweep or []])
    scenarios = [with_fields(scenario, point) for point in points]
    results = []
    with progress_bar(shown=not as_json) as report:
        for number, one in enumerate(scenarios):
            bar = partial(_advance, report, f"run {number + 1} of {len(scenarios)}")
            results.append(run_attack(one, seed=seed or None, progress=bar))
    if as_json:
        plain = [{"fields": point, **found.to_plain()} for point, found in zip(points, results, strict=True)]
        typer.echo(json.dumps(plain, ensure_ascii=False, indent=1))
        return
    Console().print(_table(scenario.name, points, results))


def _advance(report: Callable[[str, int, int | None], None], what: str, _: str, done: int, total: int) -> None:
    report(what, done, total)


def _table(name: str, points: list[dict[str, Any]], results: list[AttackResult]) -> Table:
    table = Table(title=escape(name), title_justify="left")
    rules = list(dict.fromkeys(rule for found in results for rule in found.rules))
    for path in points[0]:
        table.add_column(escape(path))
    for heading in ("median error", "95 % error", *(f"refused: {one}" for one in rules), "drained at most", "bound"):
        table.add_column(heading, justify="right")
    for point, found in zip(points, results, strict=True):
        bound = "none" if found.bound_micro is None else f"{found.bound_micro / 1e6:g}"
        table.add_row(
            *(escape(str(value)) for value in point.values()),
            f"{found.median_error:.3f}",
            f"{found.p95_error:.3f}",
            *(f"{found.refused_share(one):.1%}" for one in rules),
            f"{found.drained_micro / 1e6:g}",
            bound,
        )
    return table


def figure(
    name: Annotated[str | None, typer.Argument(help="The figure; default: list them.")] = None,
    file: Annotated[Path, option("The attack file whose population is used.")] = Path(
        "examples/w3c/attacks/sybils-at-random.toml"
    ),
    out: Annotated[Path, option("The folder for data and plot.")] = Path("figures"),
    workers: Annotated[int, option("Processes that share the runs.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Make a figure about on-device budgets, as data and as a plot.

    The figures of Big Bird are made on the population of an attack file: compare shapes and orders, not percentages.
    """
    if name is None:
        typer.echo(json.dumps(FIGURES) if as_json else "\n".join(f"{key:<18} {line}" for key, line in FIGURES.items()))
        return
    if name not in FIGURES:
        refuse(f"there is no figure {name!r}: write one of {', '.join(FIGURES)}")
    require_plots()
    with progress_bar(shown=not as_json) as report:
        rows = make_figure(name, load_attack(file), out, workers=workers, progress=report)
    typer.echo(json.dumps(rows, indent=1) if as_json else f"Figure: {(out / name).with_suffix('.png').resolve()}")
