"""The figures of the LOLOHA paper: the choice of g, V*, costs in numbers, errors, losses, and changes that show.

Figures 3 and 4 and Table 2 are made from the runs of ``ldp_client.experiments.loloha_runs``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from aggservice.mechanisms import SeededBits
from ldp_client.errors import FigureError
from ldp_client.estimation import MICRO
from ldp_client.experiments.datasets import Dataset
from ldp_client.experiments.figures import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits
from ldp_client.experiments.loloha_runs import (
    CONFIDENCE,
    EPSILONS_MICRO,
    MEASURED,
    METHODS,
    PAPER_METHODS,
    RUN_ALPHAS,
    RUNS,
    ExperimentPoint,
    Found,
    MeanInterval,
    first_micro,
    has_second_step,
    run_experiments,
    source_of,
)
from ldp_client.experiments.run import caught_users, detection_chances, hits_law, two_sided
from ldp_client.protocols import build
from ldp_client.protocols.base import Costs
from ldp_client.protocols.bitflip import BitFlip, Memo, bit_flip
from ldp_client.protocols.hashed import best_range, printed_range

ALPHAS = tuple(Fraction(tenth, 10) for tenth in range(1, 7))
VARIANCE_METHODS = ("RAPPOR", "L-OSUE", "BiLOLOHA", "OLOLOHA", "OLOLOHA-exact")
VARIANCE_REPORTS = 10_000


BEST = "L-OSUE"
CLOSE = ("RAPPOR", "BiLOLOHA", "OLOLOHA", "OLOLOHA-exact")

#: Table 2, DB_MT, d = 1: the printed percentages for ε∞ = 0.5, …, 5, means over 20 runs of 10,336 users.
PRINTED_PERCENT = dict(
    zip(EPSILONS_MICRO, (0.0048, 0.0044, 0.0048, 0.0039, 0.0024, 0.0024, 0.0024, 0.0019, 0.0010, 0.0010), strict=True)
)
_NAME = "DB_MT"
_HEADER = (
    "epsilon_permanent", "exact_bucket_percent", "exact_pattern_percent", "printed_percent", "printed_hits",
    "printed_two_sided_bucket", "printed_two_sided_pattern", "runs", "hits", "two_sided_bucket",
)  # fmt: skip


def hash_ranges() -> list[tuple[int, Fraction, int, int, int]]:
    """Return (ε∞ in millionths, α, Eq. 6's g, the g of least V*, the best g of the exact calibration)."""
    rows = []
    for alpha in ALPHAS:
        for micro in EPSILONS_MICRO:
            pair = Fraction(micro, MICRO), Fraction(first_micro(micro, alpha), MICRO)
            rows.append((micro, alpha, printed_range(*pair), best_range(*pair, "paper"), best_range(*pair, "exact")))
    return rows


def variances() -> list[tuple[int, Fraction, str, float]]:
    """Return (ε∞ in millionths, α, method, V* for n = 10,000) on the grid of Figure 2; V* does not depend on k."""
    rows = []
    for alpha in ALPHAS:
        for micro in EPSILONS_MICRO:
            for name in VARIANCE_METHODS:
                protocol = build(
                    name, k=2, epsilon_permanent_micro=micro, epsilon_first_micro=first_micro(micro, alpha)
                )
                rows.append((micro, alpha, name, protocol.support.approximate_variance(VARIANCE_REPORTS)))
    return rows


def _figure_1(request: FigureRequest) -> FigureFiles:
    rows = hash_ranges()
    data = request.write_table(
        "loloha-1.csv",
        ("epsilon_permanent", "alpha", "g_eq6", "g_least_variance", "g_exact_calibration"),
        ((micro / MICRO, float(alpha), *ranges) for micro, alpha, *ranges in rows),
    )
    figure, (axes,) = grid_of_panels(1, 1, width=5.5, height=4)
    for alpha in ALPHAS:
        mine = [row for row in rows if row[1] == alpha]
        axes.plot([row[0] / MICRO for row in mine], [row[2] for row in mine], marker="o", label=f"α = {float(alpha)}")
    axes.set(xlabel="ε∞", ylabel="g (Eq. 6)")
    axes.legend()
    missed = [
        f"  ε∞ = {micro / MICRO}, α = {float(alpha)}: Eq. 6 says {printed}, {best} is better"
        for micro, alpha, printed, best, _ in rows
        if printed != best
    ]
    lines = [f"Eq. 6 over {len(rows)} points; it misses the whole g of least V* at {len(missed)}:", *missed]
    return FigureFiles(files=(data, request.save_plot(figure, "loloha-1.png")), lines=tuple(lines))


def _figure_2(request: FigureRequest) -> FigureFiles:
    rows = variances()
    data = request.write_table(
        "loloha-2.csv",
        ("epsilon_permanent", "alpha", "method", "approximate_variance"),
        ((micro / MICRO, float(alpha), name, six_digits(value)) for micro, alpha, name, value in rows),
    )
    figure, panels = grid_of_panels(2, 3)
    for alpha, axes in zip(ALPHAS, panels, strict=True):
        for name in VARIANCE_METHODS:
            mine = [row for row in rows if row[1] == alpha and row[2] == name]
            axes.plot([row[0] / MICRO for row in mine], [row[3] for row in mine], marker=".", label=name)
        axes.set(title=f"α = {float(alpha)}", xlabel="ε∞", ylabel="V*", yscale="log")
    panels[0].legend(fontsize=8)
    picture = request.save_plot(figure, "loloha-2.png")
    by_key = {(micro, alpha, name): value for micro, alpha, name, value in rows}
    points = dict.fromkeys((micro, alpha) for micro, alpha, _, _ in rows)
    gains = {point: 1 - by_key[*point, "OLOLOHA-exact"] / by_key[*point, "OLOLOHA"] for point in points}
    (micro, alpha), gain = max(gains.items(), key=lambda item: item[1])
    line = f"the exact calibration lowers OLOLOHA's V* by up to {gain:.1%} (ε∞ = {micro / MICRO}, α = {float(alpha)})"
    return FigureFiles(files=(data, picture), lines=(f"V* at {len(rows)} points, n = {VARIANCE_REPORTS}", line))


#: The point at which Table 1 is printed in numbers: DB_MT, ε∞ = 5, α = 0.6.
TABLE_1 = {"k": 1_412, "buckets": 353, "epsilon_permanent_micro": 5 * MICRO, "epsilon_first_micro": 3 * MICRO}
TABLE_1_USERS = 10_336


def table_1() -> dict[str, Costs]:
    """Return Table 1 in numbers for the seven methods on DB_MT, at ε∞ = 5 and α = 0.6."""
    return {name: build(name, **TABLE_1).costs(TABLE_1_USERS) for name in PAPER_METHODS}


def _table_1(request: FigureRequest) -> FigureFiles:
    rows = [{"method": method, **asdict(row)} for method, row in table_1().items()]
    table = request.write_table("loloha-table-1.csv", tuple(rows[0]), (tuple(row.values()) for row in rows))
    lines = [f"DB_MT (n = {TABLE_1_USERS}, k = {TABLE_1['k']}, b = {TABLE_1['buckets']}), ε∞ = 5, α = 0.6:"]
    for row in rows:
        lines.append(
            f"  {row['method']:<12} {row['report_bits']:>5} bits, {row['server_steps']:>9} server steps, "
            f"worst case {row['worst_case']:g}"
        )
    return FigureFiles(files=(table,), lines=tuple(lines))


def summary(request: FigureRequest, found: Found) -> Iterator[tuple[object, ...]]:
    """Yield one line of the data file per point."""
    source = source_of(request)
    data = {name: source.dataset(name) for name in {cell.dataset for cell in found}}
    for cell, outcomes in found.items():
        measured = {name: MeanInterval.over([getattr(each, name) for each in outcomes]) for name in MEASURED}
        mse, loss = measured["mse"], measured["loss"]
        protocol = cell.protocol(data[cell.dataset])
        yield (
            cell.dataset,
            cell.method,
            cell.epsilon_micro / MICRO,
            float(cell.alpha) or "",
            len(outcomes),
            six_digits(mse.mean),
            six_digits(mse.half),
            six_digits(measured["expected_mse"].mean),
            six_digits(protocol.support.approximate_variance(data[cell.dataset].users)),
            six_digits(measured["mse_normalised"].mean),
            six_digits(measured["mse_normalised"].half),
            six_digits(loss.mean),
            six_digits(loss.half),
            *(six_digits(100 * measured[name].mean) for name in ("detected", "injective")),
        )


_SUMMARY = (
    "dataset", "method", "epsilon_permanent", "alpha", "runs", "mse", "mse_half_95", "expected_mse",
    "approximate_variance", "mse_normalised", "mse_normalised_half_95", "loss", "loss_half_95", "detected_percent",
    "injective_percent",
)  # fmt: skip


def _figure_3(request: FigureRequest) -> FigureFiles:
    found = run_experiments(request)
    whole = _curves(request, "loloha-3.png", found, "mse", "MSE_avg (Eq. 7)")
    return _figure_files(request, found, "mse", whole, _close_up(request, found))


def _figure_4(request: FigureRequest) -> FigureFiles:
    found = run_experiments(request)
    return _figure_files(request, found, "loss", _curves(request, "loloha-4.png", found, "loss", "ε̌_avg (Eq. 8)"))


def _figure_files(request: FigureRequest, found: Found, what: str, *plots: Path) -> FigureFiles:
    table = request.write_table("loloha-cells-summary.csv", _SUMMARY, summary(request, found))
    return FigureFiles(files=(table, *plots), lines=(*_caption(found), *_text_tables(found, what)))


def _curves(request: FigureRequest, name: str, found: Found, what: str, label: str) -> Path:
    """Draw one panel per data set and α, with all methods on a logarithmic axis."""
    figure, panels = _panels(found, label)
    for dataset, alpha, axes in panels:
        for index, method in enumerate(METHODS):
            curve = _curve(found, dataset, method, alpha, what)
            point = ExperimentPoint(dataset=dataset, method=method, epsilon_micro=MICRO, alpha=alpha)
            protocol = point.protocol(source_of(request).dataset(dataset))
            # A histogram of buckets is not comparable with one of values (§5.2): its error is only in the data file.
            if curve and not (what == "mse" and protocol.cells < protocol.k):
                means = [interval.mean for interval in curve.values()]
                halves = [interval.drawn_half for interval in curve.values()]
                low = [min(half, 0.9 * mean) for half, mean in zip(halves, means, strict=True)]  # the axis has no zero
                axes.errorbar(list(curve), means, (low, halves), color=f"C{index}", marker=".", capsize=2, label=method)
        axes.set_yscale("log")
    return request.save_plot(_with_legend(figure, panels), name)


def _close_up(request: FigureRequest, found: Found) -> Path:
    """Draw the errors of methods that are close to each other, divided by L-OSUE's, which is among the best."""
    figure, panels = _panels(found, f"MSE_avg over {BEST}'s")
    for dataset, alpha, axes in panels:
        best = _curve(found, dataset, BEST, alpha, "mse")
        for method in CLOSE:
            curve = _curve(found, dataset, method, alpha, "mse")
            points = [x for x in curve if x in best]
            shares = [curve[x].mean / best[x].mean for x in points]
            halves = [curve[x].drawn_half / best[x].mean for x in points]
            color = f"C{METHODS.index(method)}"
            axes.errorbar(points, shares, halves, color=color, marker=".", capsize=2, label=method)
        axes.set_ylim(0.9, 1.8)  # BiLOLOHA is outside where g = 2 is far from the best
    return request.save_plot(_with_legend(figure, panels), "loloha-3-close.png")


def _curve(found: Found, dataset: str, method: str, alpha: Fraction, what: str) -> dict[float, MeanInterval]:
    """Return the interval of a method at each ε∞."""
    return {
        cell.epsilon_micro / MICRO: MeanInterval.over([getattr(each, what) for each in outcomes])
        for cell, outcomes in found.items()
        if (cell.dataset, cell.method) == (dataset, method) and cell.alpha in (alpha, 0)
    }


def _panels(found: Found, label: str) -> tuple[Any, list[tuple[str, Fraction, Any]]]:
    datasets = list(dict.fromkeys(cell.dataset for cell in found))
    figure, panels = grid_of_panels(len(datasets), len(RUN_ALPHAS))
    titles = [(dataset, alpha) for dataset in datasets for alpha in RUN_ALPHAS]
    for (dataset, alpha), axes in zip(titles, panels, strict=True):
        axes.set(title=f"{dataset}, α = {float(alpha)}", xlabel="ε∞", ylabel=label)
    return figure, [(*title, axes) for title, axes in zip(titles, panels, strict=True)]


def _with_legend(figure: Any, panels: list[tuple[str, Fraction, Any]]) -> Any:
    handles, labels = panels[0][2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _text_tables(found: Found, what: str) -> Iterator[str]:
    """Yield one table per data set and α, with one line per method: mean ± half its interval at integer ε∞."""
    shown_micro = sorted({cell.epsilon_micro for cell in found if cell.epsilon_micro % MICRO == 0})
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        for alpha in RUN_ALPHAS:
            rows = [[f"{dataset}, α = {float(alpha)}", *(f"ε∞ = {micro // MICRO}" for micro in shown_micro)]]
            for method in METHODS:
                row = [method]
                for micro in shown_micro:
                    mine = alpha if has_second_step(method) else Fraction(0)
                    outcomes = found.get(
                        ExperimentPoint(dataset=dataset, method=method, epsilon_micro=micro, alpha=mine), []
                    )
                    row.append(str(MeanInterval.over([getattr(each, what) for each in outcomes])) if outcomes else "")
                rows.append(row)
            yield from _aligned(rows)


def _table_2(request: FigureRequest) -> FigureFiles:
    found = run_experiments(request)
    datasets = list(dict.fromkeys(cell.dataset for cell in found))
    methods = ("1BitFlipPM", "bBitFlipPM")
    columns = [(way, m, d) for way in ("detected", "injective") for m in methods for d in datasets]
    header = ["epsilon_permanent", *("_".join(column) for column in columns)]
    rows: list[list[object]] = []
    for micro in request.epsilons_micro or EPSILONS_MICRO:
        row: list[object] = [micro / MICRO]
        for way, method, dataset in columns:
            outcomes = found.get(
                ExperimentPoint(dataset=dataset, method=method, epsilon_micro=micro, alpha=Fraction(0))
            )
            row.append(six_digits(100 * fmean(getattr(each, way) for each in outcomes)) if outcomes else "")
        rows.append(row)
    table = request.write_table("loloha-table-2.csv", header, rows)
    return FigureFiles(files=(table,), lines=(*_caption(found), "percent of users:", *_aligned([header, *rows])))


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _caption(found: Found) -> tuple[str, ...]:
    """Return the number of runs, and the ratio of the mean errors to the exact variance."""
    runs = [len(outcomes) for outcomes in found.values()]
    ratios = [
        fmean(each.mse for each in outcomes) / fmean(each.expected_mse for each in outcomes)
        for outcomes in found.values()
    ]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    least, most = min(runs), max(runs)
    each = f"{least} to {most} runs" if least < most else f"{most} {'run' if most == 1 else 'runs'}"
    return (
        f"{len(found)} cells, {each} each, {CONFIDENCE:.0%} intervals in the data",
        f"mean squared error over its exact expectation: {fmean(ratios):.4f} on average, {worst:.4f} at worst",
    )


def one_bit(data: Dataset, epsilon_micro: int, memo: Memo) -> BitFlip:
    """Return 1BitFlipPM over the buckets of a data set."""
    return bit_flip(k=data.k, buckets=data.buckets, sampled=1, epsilon_permanent_micro=epsilon_micro, memo=memo)


def printed_hits(epsilon_micro: int, data: Dataset) -> int:
    """Return how many users were caught in the paper's 20 runs, from the printed percentage."""
    return round(PRINTED_PERCENT[epsilon_micro] / 100 * RUNS * data.users)


def _table_2_exact(request: FigureRequest) -> FigureFiles:
    if request.datasets not in (None, (_NAME,)) or request.users or request.collections:
        raise FigureError(f"this table is on the whole of {_NAME}: leave out --datasets, --users and --collections")
    grid = request.epsilons_micro or EPSILONS_MICRO
    if not set(grid) <= set(PRINTED_PERCENT):
        raise FigureError(f"Table 2 has ε∞ = {', '.join(str(micro / MICRO) for micro in EPSILONS_MICRO)} only")
    runs = RUNS if request.runs is None else request.runs
    data = source_of(request).dataset(_NAME)
    rows: list[tuple[object, ...]] = []
    for index, micro in enumerate(grid):
        chances = {memo: detection_chances(data, one_bit(data, micro, memo)) for memo in ("bucket", "pattern")}
        seeds = SeededBits(request.seed).child(f"{_NAME}/1BitFlipPM-bucket/{micro}")
        hits = 0
        for number in range(runs):
            request.progress(index * runs + number, len(grid) * runs, f"ε∞ = {micro / MICRO}, run {number + 1}")
            hits += caught_users(data, one_bit(data, micro, "bucket"), seeds.child(str(number)))
        printed = printed_hits(micro, data)
        rows.append(
            (
                micro / MICRO,
                f"{100 * chances['bucket'].mean():.5f}",
                f"{100 * chances['pattern'].mean():.3g}",
                PRINTED_PERCENT[micro],
                printed,
                *(six_digits(two_sided(hits_law(chances[memo], RUNS), printed)) for memo in ("bucket", "pattern")),
                runs,
                hits,
                six_digits(two_sided(hits_law(chances["bucket"], runs), hits)),
            )
        )
    table = request.write_table("loloha-table-2-exact.csv", _HEADER, rows)
    lines = ["exact percent by bucket, printed percent, hits printed and run (probability of hits no more likely):"]
    lines += [f"  ε∞ = {r[0]}: {r[1]}, {r[3]}, {r[4]} ({r[5]}) and {r[8]} ({r[9]})" for r in rows]
    return FigureFiles(files=(table,), lines=tuple(lines))


FIGURES = (
    Figure(name="loloha-table-1", title="LOLOHA, Table 1: bits, server steps and worst case", make=_table_1),
    Figure(name="loloha-1", title="LOLOHA, Figure 1: optimal g by Eq. 6", make=_figure_1),
    Figure(name="loloha-2", title="LOLOHA, Figure 2: approximate variance V*", make=_figure_2),
    Figure(
        name="loloha-table-2-exact",
        title="LOLOHA, Table 2, DB_MT, d = 1: exact, as printed, and with an answer per bucket",
        make=_table_2_exact,
    ),
    Figure(name="loloha-3", title="LOLOHA, Figure 3: error of all methods on all data sets", make=_figure_3),
    Figure(name="loloha-4", title="LOLOHA, Figure 4: privacy loss of all methods on all data sets", make=_figure_4),
    Figure(name="loloha-table-2", title="LOLOHA, Table 2: users all of whose changes show", make=_table_2),
)
