"""The plots of a run, as SVG and PNG. The same metrics always give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.errors import MissingExtraError
from aggservice.campaign.output.metrics import RunMetrics
from aggservice.campaign.settings.campaign import Campaign

BLUE, ORANGE, GREY, RED, GREEN = "#2b6cb0", "#dd6b20", "#718096", "#c53030", "#2f855a"
_WIDTH, _DPI = 9.6, 110
SETTINGS = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "aggservice",
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing into files; raise ``MissingExtraError`` if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError(
            "plots need matplotlib: install it with pip install 'aggservice[plots]', or run with --no-plots"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def draw_plots(campaign: Campaign, metrics: RunMetrics, folder: Path) -> list[tuple[str, Path]]:
    """Draw the plots that the campaign asks for and that have data; return (caption, SVG) in order."""
    plt = pyplot()
    drawers: dict[str, Callable[[Any, Campaign, RunMetrics], list[tuple[str, str, Any]]]] = {
        "slices": _slices,
        "waterfall": _waterfall,
        "time": _time,
        "error": _error,
        "budget": _budget,
        "hierarchy": _hierarchy,
    }
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, Path]] = []
    with plt.rc_context(SETTINGS):
        for name in campaign.drawing.plots:
            for stem, caption, figure in drawers[name](plt, campaign, metrics):
                # Two names may come to the same stem: "a b" and "a-b".
                same = sum(path.stem.partition("~")[0] == stem for _, path in drawn)
                drawn.append((caption, save(plt, figure, folder / (f"{stem}~{same}" if same else stem))))
    return drawn


def save(plt: Any, figure: Any, stem: Path) -> Path:
    """Write a figure as SVG and PNG without dates, and return the SVG.

    It prints through the canvas, because ``savefig`` would draw each figure once more to measure it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    vectors: Any = FigureCanvasSVG(figure)
    vectors.print_svg(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.set_layout_engine("none")  # the layout of the SVG serves the PNG too, and takes half the time of drawing
    figure.set_dpi(_DPI)
    pixels: Any = FigureCanvasAgg(figure)
    # Pillow's default takes twice as long to encode a picture for an eighth of its bytes.
    pixels.print_png(stem.with_suffix(".png"), metadata={"Software": None}, pil_kwargs={"compress_level": 3})
    plt.close(figure)
    return stem.with_suffix(".svg")


def plain_numbers(axis: Any) -> None:
    """Label 1, 3, 10, 30 … of a logarithmic axis as plain numbers: matplotlib's labels are slow mathematics, and its
    many ticks without a label take a third of the drawing.
    """
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.minorticks_off()


def literal(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read mathematics."""
    return text.replace("$", r"\$")


def _safe(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())


def _last_paid(metrics: RunMetrics, query: str) -> Assessment | None:
    jobs = [job for job in metrics.jobs_of(query) if job.paid]
    return jobs[-1] if jobs else None


def _slices(plt: Any, campaign: Campaign, metrics: RunMetrics) -> list[tuple[str, str, Any]]:
    """Truth and estimate with its interval, for the largest slices of the last job of each query and measure."""
    drawn = []
    for query in metrics.queries:
        job = _last_paid(metrics, query.name)
        if job is None:
            continue
        for name in [one.measure for one in query.measures]:
            rows = [row for row in job.slices if row.measure == name][:15]
            if not rows:
                continue
            figure, axes = plt.subplots(figsize=(_WIDTH, 1.4 + 0.42 * len(rows)))
            bars = range(len(rows))
            estimates = [row.estimate for row in rows]
            axes.barh(bars, [row.truth for row in rows], color="#cbd5e0", height=0.7, label="what happened")
            spread = [row.high - row.estimate for row in rows]
            axes.errorbar(estimates, bars, xerr=spread, fmt="o", color=BLUE, capsize=4, label="estimate, 95 % interval")
            axes.axvline(0, color=GREY, linewidth=0.8)
            labels = [" · ".join(v for k, v in row.names.items() if k != "measure") for row in rows]
            axes.set_yticks(list(bars), [literal(label if len(label) < 42 else label[:40] + "…") for label in labels])
            axes.invert_yaxis()
            axes.set_xlabel(literal(name))
            axes.set_title(literal(f"{query.name}: {name}"))
            axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
            caption = (
                f"{name.capitalize()} by slice, job {job.job}: bars are the truth, which only a simulation "
                "knows; dots are what the service released, with their 95 % intervals."
            )
            drawn.append((f"slices-{_safe(query.name)}-{_safe(name)}", caption, figure))
    return drawn


def _waterfall(plt: Any, campaign: Campaign, metrics: RunMetrics) -> list[tuple[str, str, Any]]:
    """From the conversions that happened to those counted, one step per loss."""
    drawn = []
    for query in metrics.queries:
        found = query.measures[0].waterfall
        if found is None:
            continue
        steps = [step for step in found.steps if step.conversions]
        names = ["happened", *(step.step for step in steps), "counted"]
        figure, axes = plt.subplots(figsize=(_WIDTH, 1.4 + 0.45 * len(names)))
        left = happened = found.happened
        room = 0.01 * max(happened, 1)
        axes.barh(0, happened, color=GREY)
        axes.text(happened + room, 0, f"{happened:,}", va="center")
        for row, step in enumerate(steps, 1):
            left -= step.conversions
            axes.barh(row, step.conversions, left=left, color=RED)
            share = step.conversions / happened
            axes.text(left + step.conversions + room, row, f"−{step.conversions:,}  ({share:.1%})", va="center")
        counted = found.counted
        axes.barh(len(names) - 1, counted, color=GREEN)
        axes.text(counted + room, len(names) - 1, f"{counted:,}", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, max(happened, 1) * 1.2)
        axes.set_xlabel(campaign.client.counts)
        axes.set_title(f"{query.name}: where they went")
        caption = "Each loss is counted where it happens; the steps add up exactly to what happened."
        if query.totals_of:
            caption += f" Job {query.totals_of}: the {query.jobs} jobs share batches, and are not added up."
        elif query.jobs > 1:
            caption += f" Sum over the {query.jobs} jobs of this query."
        drawn.append((f"waterfall-{_safe(query.name)}", caption, figure))
    return drawn


def _time(plt: Any, campaign: Campaign, metrics: RunMetrics) -> list[tuple[str, str, Any]]:
    """Totals by job, for queries with several jobs."""
    drawn = []
    for query in metrics.queries:
        jobs = metrics.jobs_of(query.name)
        if len(jobs) < 2:
            continue
        for index, measure in enumerate(campaign.measures):
            figure, axes = plt.subplots(figsize=(_WIDTH, 4.2))
            start = datetime.fromtimestamp(metrics.start_ms / 1000, tz=UTC)
            length = timedelta(hours=campaign.collection.batch_hours)
            paid = [job for job in jobs if job.paid]
            days = [start + length * (job.batches[-1] + 1) for job in paid]
            axes.plot(days, [job.figures[index].truth for job in paid], color=GREY, label="what happened", lw=2)
            axes.plot(days, [job.figures[index].estimate for job in paid], "o", color=BLUE, ms=4, label="estimate")
            refused = [start + length * (job.batches[-1] + 1) for job in jobs if not job.paid]
            for number, day in enumerate(refused):
                axes.axvline(day, color=RED, alpha=0.5, lw=1, label="refused: budget spent" if not number else None)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(literal(measure.name))
            axes.set_title(literal(f"{query.name}: {measure.name} by job"))
            axes.legend(frameon=False)
            figure.autofmt_xdate()
            caption = f"Total {measure.name} of each job of {query.name}, at the end of its last batch."
            drawn.append((f"time-{_safe(query.name)}-{_safe(measure.name)}", caption, figure))
    return drawn


def _error(plt: Any, campaign: Campaign, metrics: RunMetrics) -> list[tuple[str, str, Any]]:
    """Relative error against the size of a slice, both on logarithmic axes."""
    points: dict[str, list[tuple[float, float]]] = {}
    widths: dict[str, list[float]] = {}
    for job in metrics.jobs:
        for row in job.slices:
            if row.truth > 0 and row.relative_error:
                points.setdefault(row.measure, []).append((row.truth, row.relative_error))
                widths.setdefault(row.measure, []).append(row.high - row.estimate)
    if sum(map(len, points.values())) < 4:
        return []
    figure, axes = plt.subplots(figsize=(_WIDTH, 4.2))
    for color, (measure, found) in zip((BLUE, ORANGE, GREEN, RED), points.items(), strict=False):
        axes.plot(*zip(*found, strict=True), "o", color=color, alpha=0.6, ms=5, label=literal(measure))
        width, sizes = median(widths[measure]), sorted(size for size, _ in found)
        ends = [sizes[0] / 1.5, sizes[-1] * 1.5]
        axes.plot(ends, [width / end for end in ends], "--", color=color, lw=1)
        axes.fill_between(ends, [width / end for end in ends], 1e-9, color=color, alpha=0.06, lw=0)
    axes.set_ylim(min(y for found in points.values() for _, y in found) / 2, None)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    axes.set_xlabel("true size of the slice")
    axes.set_ylabel("relative error")
    axes.set_title("Error by size of slice")
    axes.legend(frameon=False, loc="upper right")  # errors fall with size; "best" would try every place
    caption = "Relative error of each slice against its true size. Below the dashed line is what noise explains."
    return [("error", caption, figure)]


def _budget(plt: Any, campaign: Campaign, metrics: RunMetrics) -> list[tuple[str, str, Any]]:
    """ε left in the poorest unit of each job."""
    left = metrics.ledger.left
    if len(left) < 2:
        return []
    figure, axes = plt.subplots(figsize=(_WIDTH, 3.6))
    axes.step(range(1, len(left) + 1), [float(one.get("epsilon", 0)) for one in left], where="mid", color=BLUE)
    axes.axhline(0, color=RED, lw=1)
    axes.set_ylim(0, float(metrics.ledger.epsilon) * 1.05)
    axes.set_xlabel("paid job")
    axes.set_ylabel("ε left")
    axes.set_title("What the ledger says is left")
    caption = "ε left in the poorest privacy unit of each job, right after it paid."
    return [("budget", caption, figure)]


def _hierarchy(plt: Any, campaign: Campaign, metrics: RunMetrics) -> list[tuple[str, str, Any]]:
    """The mean half-width of intervals of each level, before and after least squares, for each measure."""
    drawn = []
    for found in metrics.hierarchies:
        for measure in campaign.measures:
            levels = [one for one in found.levels if one.measure == measure.name and one.half_width_after is not None]
            if not levels:
                continue
            figure, axes = plt.subplots(figsize=(_WIDTH, 1.6 + 0.7 * len(levels)))
            for off, color, name in ((-0.2, GREY, "before"), (0.2, BLUE, "after")):
                widths = [getattr(one, f"half_width_{name}") or 0.0 for one in levels]
                axes.barh([row + off for row in range(len(levels))], widths, height=0.38, color=color, label=name)
            axes.set_yticks(range(len(levels)), [literal(one.query) for one in levels])
            axes.invert_yaxis()
            axes.set_xlabel(literal(f"half-width of a 95 % interval, {measure.name}"))
            axes.set_title(literal(f"{found.name}: {measure.name} before and after least squares"))
            axes.legend(frameon=False)
            caption = (
                f"Hierarchy {found.name}: how wide the intervals of each level are, before and after least squares."
            )
            drawn.append((f"hierarchy-{_safe(found.name)}-{_safe(measure.name)}", caption, figure))
    return drawn
