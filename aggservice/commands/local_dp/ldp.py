"""``aggservice ldp``: run longitudinal local-DP protocols on data, compare them, and make the papers' figures.

``aggservice.commands.local_dp.track`` adds ``track`` to this group. Figures are found by name in
``ldp_client.experiments.figures``.
"""

from __future__ import annotations

import json
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.commands.console import Json, progress_bar, require_plots
from aggservice.mechanisms import Bits, SecureBits, SeededBits, SystemClock
from ldp_client import Estimate, FrequencyProtocol, build
from ldp_client.experiments import datasets
from ldp_client.experiments import run as experiment
from ldp_client.experiments.datasets import Dataset
from ldp_client.experiments.figures import all_figures, find_figure
from ldp_client.experiments.figures.kinds import FigureRequest, write_table
from ldp_client.experiments.figures.loloha_experiments import MeanInterval
from ldp_client.experiments.run import MethodResult
from ldp_client.protocols.methods import METHODS, ONE_SHOT_METHODS

ldp = typer.Typer(
    name="ldp",
    help="Run, compare and track longitudinal local-DP protocols.\n\nAlso makes the figures and tables of the papers.",
    no_args_is_help=True,
)

DatasetName = Annotated[
    str,
    typer.Option(
        "--dataset", help="Syn, DB_MT, DB_DE, Adult, or a CSV file: header, one row per user, one column per time."
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="AGGSERVICE_LDP_DATA",
        help="The folder with PWGTP_Montana.csv, PWGTP_Delaware.csv and Adult.csv; for Adult also its file itself.",
    ),
]
Limit = Annotated[str, typer.Option("--epsilon", help="ε∞: the most that all reports of one value leak.")]
Share = Annotated[str, typer.Option("--alpha", help="ε₁ = α·ε∞: what the first report leaks.")]
First = Annotated[str | None, typer.Option("--first", help="Instead of --alpha: ε₁ itself.")]
Users = Annotated[int | None, typer.Option("--users", min=1, help="Use only the first N users.")]
Collections = Annotated[int | None, typer.Option("--collections", min=1, help="Use only the first N collections.")]
Seed = Annotated[str | None, typer.Option("--seed", help="Make the run reproducible, and not private.")]

#: Amounts of a trillion or more are refused here; smaller limits are those of the packages.
_MOST_MICRO = 10**18


def micro(text: str, what: str) -> int:
    """Return a decimal amount in millionths; an amount that is not a whole number of them is an error."""
    try:
        scaled = Decimal(text) * 1_000_000
        whole = int(scaled) if abs(scaled) < _MOST_MICRO and scaled == scaled.to_integral_value() else None
    except (ArithmeticError, ValueError):  # not a number, not finite, or beyond any exponent
        whole = None
    if whole is None:
        raise typer.BadParameter(f"{what} must be a decimal number below 10^12 with at most six places")
    return whole


def first_micro(limit_micro: int, alpha: str, first: str | None) -> int:
    """Return ε₁ in millionths: as given, or α·ε∞."""
    if first is not None:
        return micro(first, "--first")
    return micro(str(Decimal(micro(alpha, "--alpha")) * limit_micro / 10**12), "α·ε∞")


def bits_for(seed: str | None) -> Bits:
    """Return seeded bits, or secure ones without a seed."""
    return SecureBits() if seed is None else SeededBits(checked_seed(seed))


def checked_seed(seed: str) -> str:
    """Return the seed; refuse one that is not UTF-8, which Python decodes to lone surrogates."""
    if any("\ud800" <= letter <= "\udfff" for letter in seed):
        raise typer.BadParameter("--seed must be text in UTF-8")
    return seed


def load_dataset(name: str, bits: Bits, folder: Path | None, users: int | None, collections: int | None) -> Dataset:
    """Return the first users and collections of a data set: the paper's, by name, or a file's."""
    path = Path(name)
    if name not in datasets.ALL_NAMES and path.suffix == ".csv":
        data = datasets.counters(path, path.stem)
    else:
        data = datasets.load_dataset(name, bits.child(name), folder)
    return data.part(users or data.users, collections or data.collections)


@ldp.command("run")
def run_command(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(METHODS)}.")],
    dataset: DatasetName = "Syn",
    data: DataFolder = None,
    epsilon: Limit = "2",
    alpha: Share = "0.5",
    first: First = None,
    users: Users = None,
    collections: Collections = None,
    buckets: Annotated[int | None, typer.Option("--buckets", min=2, help="b of dBitFlipPM.")] = None,
    top: Annotated[
        int, typer.Option("--top", min=0, help="Number of most common values to print; 0 prints all with --json.")
    ] = 10,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the intervals.")] = 0.95,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write every estimate of the last collection to this CSV file.")
    ] = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Run one protocol over a data set.

    Prints estimates with intervals, the error, and the privacy loss.
    """
    if not 0 < confidence < 1:
        raise typer.BadParameter(f"--confidence must lie between 0 and 1, not {confidence}")
    limit = micro(epsilon, "--epsilon")
    once = first_micro(limit, alpha, first)
    bits = bits_for(seed)
    table = load_dataset(dataset, bits, data, users, collections)
    protocol = build(
        method, k=table.k, epsilon_permanent_micro=limit, epsilon_first_micro=once, buckets=buckets or table.buckets
    )
    last: list[Estimate] = []
    with progress_bar(shown=not as_json) as report:

        def each(t: int, estimate: Estimate) -> None:
            last[:] = [estimate]
            report(method, t + 1, table.collections)

        outcome = experiment.run_method(table, protocol, bits.child("reports"), each)
    rows = _estimates(last[0], protocol, table, confidence)
    if out is not None:
        write_table(out, tuple(rows[0]), (tuple(row.values()) for row in rows))
    described = _described(protocol, table, outcome, private=seed is None)
    commonest = sorted(rows, key=lambda row: -row["estimate"])[:top]
    if as_json:
        typer.echo(json.dumps({**described, "estimates": rows if top == 0 else commonest}))
        return
    _print_run(described, commonest, confidence)


def _estimates(estimate: Any, protocol: FrequencyProtocol, table: Dataset, confidence: float) -> list[dict[str, Any]]:
    truth = np.bincount(protocol.cell(table.values[:, -1]), minlength=protocol.cells) / table.users
    low, high = estimate.interval(confidence)
    numbers = (column.tolist() for column in (estimate.frequencies, low, high, truth))
    names = ("value", "estimate", "low", "high", "truth")
    return [dict(zip(names, row, strict=True)) for row in zip(_labels(protocol, table), *numbers, strict=True)]


def _labels(protocol: FrequencyProtocol, table: Dataset) -> list[int | str]:
    """Return the label of each estimated cell: a number, or a bucket's first and last number."""
    cells = protocol.cell(np.arange(table.k))
    labels: list[int | str] = []
    for cell in range(protocol.cells):
        inside = table.labels[cells == cell].tolist()
        labels.append(inside[0] if len(inside) == 1 else f"{inside[0]}–{inside[-1]}")
    return labels


def _described(protocol: FrequencyProtocol, table: Dataset, outcome: MethodResult, *, private: bool) -> dict[str, Any]:
    privacy = protocol.privacy
    return {
        "protocol": protocol.describe(),
        "dataset": {"name": table.name, "users": table.users, "values": table.k, "collections": table.collections},
        "private": private,
        "privacy": {
            "epsilon_first_asked": privacy.asked,
            "epsilon_first": privacy.first,
            "epsilon_permanent": privacy.permanent,
            "epsilon_worst_case": None if math.isinf(privacy.worst_case) else privacy.worst_case,
            "epsilon_average_loss": outcome.loss,
        },
        "error": {
            "mse": outcome.mse,
            "expected_mse": outcome.expected_mse,
            "approximate_variance": protocol.support.approximate_variance(table.users),
            "mse_normalised": outcome.mse_normalised,
        },
        "users_all_of_whose_changes_show": None if math.isnan(outcome.detected) else outcome.detected,
    }


def _print_run(described: dict[str, Any], commonest: list[dict[str, Any]], confidence: float) -> None:
    name, data, privacy, error = (described[key] for key in ("protocol", "dataset", "privacy", "error"))
    parameters = ", ".join(f"{key} = {value}" for key, value in name.items() if key != "kind" and value is not None)
    typer.echo(f"{name['kind']} ({parameters})")
    typer.echo(f"on {data['name']}: {data['users']} users, {data['values']} values, {data['collections']} collections")
    worst = privacy["epsilon_worst_case"]
    typer.echo(
        f"privacy  ε of a first report {privacy['epsilon_first']:.6g} (asked: {privacy['epsilon_first_asked']:.6g}), "
        f"of all reports of a value {privacy['epsilon_permanent']:.6g}, over all values at most "
        f"{'unbounded' if worst is None else format(worst, '.6g')}; spent by the average user so far: "
        f"{privacy['epsilon_average_loss']:.6g}"
    )
    typer.echo(
        f"error    MSE {error['mse']:.4e} (expected {error['expected_mse']:.4e}, "
        f"V* {error['approximate_variance']:.4e}); {error['mse_normalised']:.4e} after cutting at 0 and scaling to 1"
    )
    shown = described["users_all_of_whose_changes_show"]
    if shown is not None:
        typer.echo(f"changes  {shown:.4%} of the users who changed had every change show in their reports")
    if commonest:
        typer.echo(f"the most common values at the last collection, with {confidence:.0%} intervals:")
        for row in commonest:
            typer.echo(
                f"  {row['value']:>9}  {row['estimate']:>9.5f}  [{row['low']:>9.5f}, {row['high']:>9.5f}]  "
                f"true {row['truth']:.5f}"
            )
    if not described["private"]:
        typer.echo("NOT PRIVATE: anyone who knows the seed can remove the noise.")


@ldp.command()
def compare(
    dataset: DatasetName = "Syn",
    data: DataFolder = None,
    epsilon: Limit = "2",
    alpha: Share = "0.5",
    first: First = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Names separated by commas; default: every longitudinal protocol.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs per protocol.")] = 3,
    users: Users = None,
    collections: Collections = 10,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Compare protocols at one (ε∞, ε₁).

    Prints each protocol's error with its interval, its approximate variance V*, and its privacy loss.
    """
    limit = micro(epsilon, "--epsilon")
    once = first_micro(limit, alpha, first)
    bits = bits_for(seed)
    table = load_dataset(dataset, bits, data, users, collections)
    longitudinal = [name for name in METHODS if name not in ONE_SHOT_METHODS]
    names = longitudinal if methods is None else [name.strip() for name in methods.split(",")]
    protocols = {
        name: build(name, k=table.k, epsilon_permanent_micro=limit, epsilon_first_micro=once, buckets=table.buckets)
        for name in names
    }
    rows = []
    with progress_bar(shown=not as_json) as report:
        for index, (name, protocol) in enumerate(protocols.items()):
            outcomes = []
            for number in range(runs):
                report(name, index * runs + number, len(protocols) * runs)
                outcomes.append(experiment.run_method(table, protocol, bits.child(f"{name}/{number}")))
            mse = MeanInterval.over([outcome.mse for outcome in outcomes])
            described = _described(protocol, table, outcomes[0], private=seed is None)
            rows.append(
                {
                    "method": name,
                    "mse": mse.mean,
                    "mse_half_95": None if math.isnan(mse.half) else mse.half,
                    "approximate_variance": described["error"]["approximate_variance"],
                    **described["privacy"],
                    "epsilon_average_loss": sum(outcome.loss for outcome in outcomes) / runs,
                }
            )
    rows.sort(key=lambda row: row["mse"])
    result = {"dataset": described["dataset"], "runs": runs, "private": seed is None, "methods": rows}
    if as_json:
        typer.echo(json.dumps(result))
        return
    size = result["dataset"]
    typer.echo(f"{size['name']}: {size['users']} users, {size['values']} values, {size['collections']} collections")
    head = f"{'method':<18} {'MSE':>10} {'± 95 %':>9} {'V*':>10} {'ε₁ true':>8} {'ε∞':>6} {'worst':>8} {'spent':>8}"
    typer.echo(f"{runs} {'run' if runs == 1 else 'runs'}\n{head}")
    for row in rows:
        half = "–" if row["mse_half_95"] is None else f"{row['mse_half_95']:.1e}"
        worst = "∞" if row["epsilon_worst_case"] is None else f"{row['epsilon_worst_case']:.6g}"
        typer.echo(
            f"{row['method']:<18} {row['mse']:>10.3e} {half:>9} {row['approximate_variance']:>10.3e} "
            f"{row['epsilon_first']:>8.4f} {row['epsilon_permanent']:>6.3g} {worst:>8} "
            f"{row['epsilon_average_loss']:>8.4g}"
        )


@ldp.command()
def figure(
    name: Annotated[str | None, typer.Argument(help="The figure; default: list them.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for data and plot.")] = Path("figures"),
    data: DataFolder = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", min=1, help="Runs per experiment; LOLOHA's default of 20 takes a core about an hour."),
    ] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="Start no run after this many seconds.")] = None,
    seed: Annotated[str, typer.Option("--seed", help="The seed of the experiments.")] = "figures",
    users: Users = None,
    collections: Collections = None,
    epsilons: Annotated[str | None, typer.Option("--epsilons", help="Only these ε∞, separated by commas.")] = None,
    datasets: Annotated[
        str | None, typer.Option("--datasets", help="Only these data sets, separated by commas.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes that share the runs; 0: one per core.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Make a figure or table of the papers, as data and as a plot.

    Finished runs are kept: the same command again continues from them.
    """
    if budget is not None and not budget > 0:
        raise typer.BadParameter(f"--budget must be a positive number of seconds, not {budget}")
    if name is None:
        known = {each.name: each.title for each in all_figures().values()}
        lines = [f"{key:<16} {title}" for key, title in known.items()]
        typer.echo(json.dumps(known) if as_json else "\n".join(lines))
        return
    chosen = find_figure(name)
    require_plots()
    wanted = tuple(micro(text, "--epsilons") for text in epsilons.split(",")) if epsilons else None
    with progress_bar(shown=not as_json) as report:
        made = chosen.make(
            FigureRequest(
                out=out,
                clock=SystemClock(),
                data=data,
                runs=runs,
                budget_s=budget,
                seed=checked_seed(seed),
                users=users,
                collections=collections,
                epsilons_micro=wanted,
                datasets=tuple(text.strip() for text in datasets.split(",")) if datasets else None,
                workers=workers or os.cpu_count() or 1,
                progress=lambda done, total, words: report(words, done, total),
            )
        )
    files = [str(path) for path in made.files]
    if as_json:
        result = {"figure": chosen.name, "title": chosen.title, "files": files, "lines": list(made.lines)}
        typer.echo(json.dumps(result))
        return
    typer.echo("\n".join([chosen.title, *made.lines, *(f"wrote {path}" for path in files)]))
