"""``aggservice ldp``: run longitudinal local-DP protocols on data, compare and track them, and make papers' figures.

``track`` shows how well reports hide whether they come from one user or from two; its paper is "Can Two Walk Together"
(docs/bibliography.md). Protocols are those of ``ldp_client.PROTOCOLS``, figures those of
``ldp_client.experiments.figures``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.commands.console import Json, option, progress_bar, require_plots
from aggservice.mechanisms import Bits, SecureBits, SeededBits, SystemClock
from ldp_client import PROTOCOLS, FrequencyEstimate, LocalProtocol, build, permanent_untrackable, trackability
from ldp_client.errors import LdpParameterError
from ldp_client.experiments import datasets
from ldp_client.experiments import run as experiment
from ldp_client.experiments.datasets import Dataset
from ldp_client.experiments.figures import FigureRequest, all_figures, find_figure, write_table
from ldp_client.experiments.loloha_runs import MeanInterval
from ldp_client.experiments.run import MethodResult
from ldp_client.protocols import methods as protocol_methods
from ldp_client.protocols.base import ProtocolRequest
from ldp_client.tracking import StreamLaw

METHODS = tuple(protocol_methods())
#: The titles of columns that a protocol adds to those of ``track``.
_PROVED = {"exact_worst_case": "worst case", "untrackable_delta": "(0, δ) δ"}
_LONGEST = 60

ldp = typer.Typer(
    name="ldp",
    help="Run, compare and track longitudinal local-DP protocols.\n\nAlso makes the figures and tables of the papers.",
    no_args_is_help=True,
)

DatasetName = Annotated[
    str,
    option("Syn, DB_MT, DB_DE, Adult, or a CSV file: header, one row per user, one column per time.", "--dataset"),
]
DataFolder = Annotated[
    Path | None,
    option(
        "The folder with PWGTP_Montana.csv, PWGTP_Delaware.csv and Adult.csv; for Adult also its file itself.",
        "--data",
        envvar="AGGSERVICE_LDP_DATA",
    ),
]
Limit = Annotated[str, option("ε∞: the most that all reports of one value leak.", "--epsilon")]
Share = Annotated[str, option("ε₁ = α·ε∞: what the first report leaks.", "--alpha")]
First = Annotated[str | None, option("Instead of --alpha: ε₁ itself.", "--first")]
Users = Annotated[int | None, option("Use only the first N users.", "--users", min=1)]
Collections = Annotated[int | None, option("Use only the first N collections.", "--collections", min=1)]
Seed = Annotated[str | None, option("Make the run reproducible, and not private.", "--seed")]

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
    buckets: Annotated[int | None, option("b of dBitFlipPM.", min=2)] = None,
    top: Annotated[int, option("Number of most common values to print; 0 prints all with --json.", min=0)] = 10,
    confidence: Annotated[float, option("Confidence of the intervals.")] = 0.95,
    out: Annotated[Path | None, option("Write every estimate of the last collection to this CSV file.")] = None,
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
    last: list[FrequencyEstimate] = []
    with progress_bar(shown=not as_json) as report:

        def each(t: int, estimate: FrequencyEstimate) -> None:
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


def _estimates(estimate: Any, protocol: LocalProtocol, table: Dataset, confidence: float) -> list[dict[str, Any]]:
    truth = np.bincount(protocol.cell(table.values[:, -1]), minlength=protocol.cells) / table.users
    low, high = estimate.interval(confidence)
    numbers = (column.tolist() for column in (estimate.frequencies, low, high, truth))
    names = ("value", "estimate", "low", "high", "truth")
    return [dict(zip(names, row, strict=True)) for row in zip(_labels(protocol, table), *numbers, strict=True)]


def _labels(protocol: LocalProtocol, table: Dataset) -> list[int | str]:
    """Return the label of each estimated cell: a number, or a bucket's first and last number."""
    cells = protocol.cell(np.arange(table.k))
    labels: list[int | str] = []
    for cell in range(protocol.cells):
        inside = table.labels[cells == cell].tolist()
        labels.append(inside[0] if len(inside) == 1 else f"{inside[0]}–{inside[-1]}")
    return labels


def _described(protocol: LocalProtocol, table: Dataset, outcome: MethodResult, *, private: bool) -> dict[str, Any]:
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
    methods: Annotated[str | None, option("Names separated by commas; default: every longitudinal protocol.")] = None,
    runs: Annotated[int, option("Runs per protocol.", min=1)] = 3,
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
    names = _longitudinal() if methods is None else [name.strip() for name in methods.split(",")]
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


def _longitudinal() -> list[str]:
    """Return the methods that memoize, whatever their parameters."""
    small = {"k": 2, "epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": 1_000_000}
    return [name for name in METHODS if build(name, **small).memoizes]


@ldp.command()
def figure(
    name: Annotated[str | None, typer.Argument(help="The figure; default: list them.")] = None,
    out: Annotated[Path, option("The folder for data and plot.")] = Path("figures"),
    data: DataFolder = None,
    runs: Annotated[
        int | None,
        option("Runs per experiment; LOLOHA's default of 20 takes a core about an hour.", min=1),
    ] = None,
    budget: Annotated[float | None, option("Start no run after this many seconds.")] = None,
    seed: Annotated[str, option("The seed of the experiments.")] = "figures",
    users: Users = None,
    collections: Collections = None,
    epsilons: Annotated[str | None, option("Only these ε∞, separated by commas.")] = None,
    datasets: Annotated[str | None, option("Only these data sets, separated by commas.")] = None,
    workers: Annotated[int, option("Processes that share the runs; 0: one per core.", min=0)] = 0,
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


def fraction(text: str, what: str) -> Fraction:
    """Return the exact value of text such as 1/2 or 0.75."""
    try:
        if len(text) <= _LONGEST and "e" not in text.lower():
            return Fraction(text)
    except (ValueError, ZeroDivisionError):
        pass
    raise typer.BadParameter(f"{what} must be a number such as 0.75 or 3/4")


def span(text: str) -> range:
    """Return the numbers of reports that ``text`` names: one, or a range such as 2-15."""
    first, dash, last = text.partition("-")
    least, most = whole(first, 9), whole(last if dash else first, 9)
    if least is None or most is None or not 2 <= least <= most:
        raise typer.BadParameter("--reports must be a number from 2 on or a range such as 2-15")
    return range(least, most + 1)


def whole(text: str, digits: int) -> int | None:
    """Return a whole number of at most ``digits`` digits, or None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


@ldp.command()
def track(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(PROTOCOLS)}.")] = "RAPPOR",
    reports: Annotated[str, option("Number of reports, or a range.")] = "2-15",
    draws: Annotated[int, option("Streams to draw of each kind (one user, two users).", min=10)] = 5000,
    value: Annotated[str, option("The value that users hold: a string for RAPPOR, otherwise a number below k.")] = "0",
    epsilon: Limit = "2",
    alpha: Share = "0.5",
    first: First = None,
    k: Annotated[int, option("Number of values (not for RAPPOR, BEP, RNIP).", min=2)] = 128,
    sampled: Annotated[int, option("Buckets that each user samples (dBitFlipPM).", min=1)] = 1,
    second: Annotated[str, option("ε₂ of a report about the stored bit (BEP).")] = "1",
    size: Annotated[int | None, option("Bits of the filter (RAPPOR: 128) or of a value (RNIP: 32).")] = None,
    hashes: Annotated[int, option("Hash functions h of RAPPOR.")] = 2,
    f: Annotated[str, option("f of RAPPOR's permanent response.")] = "1/2",
    p: Annotated[str, option("p of RAPPOR's instantaneous response.")] = "1/2",
    q: Annotated[str, option("q of RAPPOR's instantaneous response.")] = "3/4",
    cohorts: Annotated[
        int,
        option("Cohorts of RAPPOR: users draw one and send it; 1: all in one, as in Figure 1.", min=1),
    ] = 1,
    stored: Annotated[int, option("Stored inner products L (RNIP).")] = 100,
    confidence: Annotated[float, option("Confidence of the intervals.")] = 0.95,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Estimate how well an observer can track a user by their reports.

    Prints median and 90th percentile of the trackability γ, with intervals and proved bounds. γ means: after seeing two
    sets of reports, the observer's odds that they come from one user rather than two change by a factor of at most
    e^γ. The defaults are the parameters of Figure 1 of "Can Two Walk Together".
    """
    counts = span(reports)
    if not 0 < confidence < 1:
        raise typer.BadParameter(f"--confidence must lie between 0 and 1, not {confidence}")
    limit = micro(epsilon, "--epsilon")
    once = first_micro(limit, alpha, first)
    if method not in PROTOCOLS:
        raise LdpParameterError(f"there is no client {method!r}: choose one of {', '.join(PROTOCOLS)}")
    options = {
        "sampled": sampled,
        "second": micro(second, "--second"),
        "size": size,
        "hashes": hashes,
        "cohorts": cohorts,
        "f": fraction(f, "--f"),
        "p": fraction(p, "--p"),
        "q": fraction(q, "--q"),
        "stored": stored,
    }
    request = ProtocolRequest(k=k, epsilon_permanent_micro=limit, epsilon_first_micro=once, options=options)
    protocol = PROTOCOLS[method].for_tracking(method, request)
    law = protocol.stream_law(_held(protocol, method, value), cohort="sent")
    with progress_bar(shown=not as_json) as report:
        rows = _rows(protocol, law, counts, draws, confidence, bits_for(seed), report)
    described = {"method": method, "protocol": protocol.describe(), "draws": draws, "confidence": confidence}
    if law.told_apart:
        described["told_apart_by_cohort"] = 1 - float(1 - law.told_apart)
    if as_json:
        typer.echo(json.dumps({**described, "reports": rows}))
        return
    _print_track(described, rows)


def _held(protocol: LocalProtocol, method: str, value: str) -> Any:
    """Return the value that ``--value`` names: a string, or a number below the protocol's number of values."""
    if protocol.values is None:
        return value
    held = whole(value, 20)
    if held is None:
        raise LdpParameterError(f"a user of {method} holds a number: give --value as at most 20 digits")
    if held >= protocol.values:
        raise LdpParameterError(f"--value must be below {protocol.values} for this {method}")
    return held


def _rows(
    protocol: LocalProtocol,
    law: StreamLaw,
    counts: range,
    draws: int,
    confidence: float,
    bits: Bits,
    report: Callable[[str, int, int], None],
) -> list[dict[str, Any]]:
    rows = []
    for done, reports in enumerate(counts):
        report(f"{reports} reports", done, len(counts))
        found = trackability(law, reports, draws, bits.child(f"track/{reports}"))
        row: dict[str, Any] = {"reports": reports}
        for name, level in (("median", 0.5), ("percentile_90", 0.9)):
            percentile = asdict(found.percentile(level, confidence))
            row[name] = {key: _finite(percentile[key]) for key in ("value", "low", "high")}
        proved = permanent_untrackable(reports, law.report_epsilon())
        row["theorem_13"] = _finite(proved)
        rows.append(row | protocol.proved(reports))
    return rows


def _print_track(described: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    parameters = ", ".join(f"{key} = {value}" for key, value in described["protocol"].items() if key != "kind")
    typer.echo(f"{described['method']} ({parameters}), {described['draws']} draws of each kind")
    extra = [name for name in rows[0] if name not in ("reports", "median", "percentile_90", "theorem_13")]
    head = f"{'reports':>7}  {'median':<26}  {'90th percentile':<26}  {'Theorem 13':>10}"
    typer.echo("".join([head, *(f"  {_PROVED.get(name, name):>10}" for name in extra)]))
    for row in rows:
        cells = [
            f"{_shown(found['value'])} [{_shown(found['low'])}, {_shown(found['high'])}]"
            for found in (row["median"], row["percentile_90"])
        ]
        line = f"{row['reports']:>7}  {cells[0]:<26}  {cells[1]:<26}  {_shown(row['theorem_13']):>10}"
        typer.echo("".join([line, *(f"  {_shown(row[name]):>10}" for name in extra)]))
    typer.echo(f"intervals of {described['confidence']:.0%}, from order statistics")
    if "told_apart_by_cohort" in described:
        typer.echo(f"chance that the cohorts alone tell two users apart: {described['told_apart_by_cohort']:.4%}")


def _finite(value: float) -> float | None:
    """Return None for infinity, which JSON does not have."""
    return None if math.isinf(value) else value


def _shown(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"
