"""Figures 3 and 4 and Table 2 of the LOLOHA paper: made from the runs of ``loloha_experiments``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from ldp_client.estimation.steps import MICRO
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits
from ldp_client.experiments.figures.loloha import EPSILONS_MICRO
from ldp_client.experiments.figures.loloha_experiments import (
    ALPHAS,
    CONFIDENCE,
    MEASURED,
    METHODS,
    ExperimentPoint,
    Found,
    MeanInterval,
    run_experiments,
    source_of,
)
from ldp_client.protocols.methods import has_second_step

BEST = "L-OSUE"
CLOSE = ("RAPPOR", "BiLOLOHA", "OLOLOHA", "OLOLOHA-exact")


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
            # A histogram of buckets is not comparable with one of values (§5.2): its error is only in the data file.
            if curve and not (what == "mse" and method.endswith("BitFlipPM") and dataset.startswith("DB_")):
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
    figure, panels = grid_of_panels(len(datasets), len(ALPHAS))
    titles = [(dataset, alpha) for dataset in datasets for alpha in ALPHAS]
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
        for alpha in ALPHAS:
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


FIGURES = (
    Figure(name="loloha-3", title="LOLOHA, Figure 3: error of all methods on all data sets", make=_figure_3),
    Figure(name="loloha-4", title="LOLOHA, Figure 4: privacy loss of all methods on all data sets", make=_figure_4),
    Figure(name="loloha-table-2", title="LOLOHA, Table 2: users all of whose changes show", make=_table_2),
)
