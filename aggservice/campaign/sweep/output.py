"""The outputs of a sweep: a table, ``sweep.json``, ``sweep.csv``, and a plot of the error against each field."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aggservice.campaign.metrics import STANDARD, Metric, shown_in
from aggservice.campaign.output.plots import literal, pyplot, save
from aggservice.campaign.sweep.grid import SweepField
from aggservice.campaign.sweep.run import SweepResult, SweepRow

_LOG_FROM_RATIO = 8


def write_rows(rows: Sequence[SweepRow], fields: Sequence[SweepField], out: Path, *, sealed: bool = False) -> None:
    """Write ``sweep.json`` and ``sweep.csv``; the first says whether reports were sealed."""
    figures = list(rows[0].figures) if rows else [one.in_sweep for one in STANDARD]
    out.mkdir(parents=True, exist_ok=True)
    plain = {
        "sealed": sealed,
        "fields": {field.path: list(field.values) for field in fields},
        "rows": [row.to_plain() for row in rows],
    }
    (out / "sweep.json").write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with (out / "sweep.csv").open("w", newline="", encoding="utf-8") as stream:
        names = ["point", *(field.path for field in fields), "query", "measure", "runs", "jobs", "paid", *figures]
        writer = csv.DictWriter(stream, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.to_plain().items()} for row in rows)


def write_slices(result: SweepResult, out: Path) -> None:
    """Write ``slices.csv``: the law of the estimate of each point's largest slices; none without repetitions."""
    if not result.slices:
        return
    names = ["point", "job", "query", "measure", "slice", "truth", "sent", "releases", "mean", "standard_error",
             "deviation", "coverage"]  # fmt: skip
    with (out / "slices.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        for point, laws in result.slices.items():
            for law in laws:
                row = {name: getattr(law, name) for name in names[1:] if name != "slice"}
                writer.writerow({"point": point, "slice": " · ".join(law.names.values()), **row})


def _cell(value: Any) -> Any:
    return "" if value is None else value


def table_of(rows: Sequence[SweepRow], fields: Sequence[SweepField], metrics: Sequence[Metric] = STANDARD) -> Any:
    """Return the rows as a table for a terminal, without empty columns."""
    from rich.markup import escape
    from rich.table import Table

    names = [one.in_sweep for one in shown_in("sweep", metrics) if one.in_sweep]
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    shorts = [field.short for field in fields]
    table = Table(title=f"{len({row.point for row in rows})} points", title_justify="left")
    for field in fields:
        table.add_column(escape(field.short if shorts.count(field.short) == 1 else field.path))
    for name in ("query", "measure"):
        table.add_column(name)
    for name in ("paid", *shown):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        figures = [_figure(row[name]) for name in shown]
        values = [escape(str(row.values[field.path])) for field in fields]
        table.add_row(*values, row.query, escape(row.measure), f"{row.paid}/{row.jobs}", *figures)
    return table


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def draw_sweep(
    rows: Sequence[SweepRow], fields: Sequence[SweepField], folder: Path, metrics: Sequence[Metric] = STANDARD
) -> list[Path]:
    """Plot each metric that has a plot against each field: one line per query, measure and other field."""
    plt = pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    settings = {"font.size": 11, "svg.hashsalt": "aggservice", "figure.constrained_layout.use": True}
    with plt.rc_context(settings):
        for field in fields:
            for name, title in ((one.in_sweep, one.plot) for one in metrics if one.plot):
                lines = _lines(rows, field, fields, name)
                if not any(len(points) > 1 for points in lines.values()):
                    continue
                figure, axes = plt.subplots(figsize=(9.6, 5.4))
                _draw(axes, lines, field, title)
                drawn.append(save(plt, figure, folder / f"{_safe(name)}-{_safe(field.path)}"))
    return drawn


def _lines(
    rows: Sequence[SweepRow], field: SweepField, fields: Sequence[SweepField], name: str
) -> dict[str, list[tuple[Any, float]]]:
    """Return the points of each line, in the order of the field's values."""
    lines: dict[str, list[tuple[Any, float]]] = {}
    places = {repr(value): place for place, value in enumerate(field.values)}
    several = len({(row.query, row.measure) for row in rows}) > 1
    for row in sorted(rows, key=lambda row: places[repr(row.values[field.path])]):
        value = row[name]
        if value is None:
            continue
        parts = [f"{row.query}, {row.measure}"] if several or len(fields) == 1 else []
        parts += [f"{other.short} {row.values[other.path]}" for other in fields if other is not field]
        lines.setdefault(", ".join(parts), []).append((row.values[field.path], value))
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _draw(axes: Any, lines: dict[str, list[tuple[Any, float]]], field: SweepField, title: str) -> None:
    numbers = [_number(value) for value in field.values]
    numeric = all(number is not None for number in numbers)
    for label, points in lines.items():
        x = [_number(value) if numeric else literal(str(value)) for value, _ in points]
        axes.plot(x, [y for _, y in points], marker="o", label=literal(label))
    known = [number for number in numbers if number is not None]
    if numeric and min(known) > 0 and max(known) / min(known) >= _LOG_FROM_RATIO:
        axes.set_xscale("log")
        axes.set_xticks(known, [str(value) for value in field.values])
        axes.minorticks_off()
    heights = [y for points in lines.values() for _, y in points]
    if min(heights) > 0 and max(heights) / min(heights) >= _LOG_FROM_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(lambda share, _: _percent(share) if f"{share:.0e}"[0] in "235" else "")
    axes.yaxis.set_major_formatter(lambda share, _: _percent(share))
    axes.set_xlabel(literal(field.path))
    axes.set_ylabel(title)
    axes.set_title(f"{title.partition(' (')[0]} against {literal(field.short)}".capitalize(), loc="left", weight="bold")
    axes.grid(True, alpha=0.3)
    if len(lines) <= 12:
        axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _safe(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")
