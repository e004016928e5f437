"""The figures of Big Bird and Cookie Monster, made on our population: data as CSV, and a plot.

Shapes and orders can be compared with the papers, percentages cannot: theirs come from a log of Criteo's.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggservice.campaign.attacks.file import with_fields
from aggservice.campaign.attacks.microbenchmark import Microbenchmark, run_microbenchmark
from aggservice.campaign.attacks.run import run_attack
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.output.plots import BLUE, GREEN, GREY, ORANGE, RED, pyplot, save
from aggservice.campaign.settings.attacks import AttackScenario
from aggservice.campaign.stages import Progress, no_progress
from w3c_client import Filter

Row = dict[str, Any]

_NO_LIMITS_FOR_SYBILS = ["conversion-site-quota", "impression-site-quota", "action-cap"]
#: Designs that a figure compares with Big Bird: a label and the fields of the file.
BASELINES: dict[str, dict[str, Any]] = {
    "site and global budgets": {"client.design": "big-bird", "client.without": _NO_LIMITS_FOR_SYBILS},
    "global-only": {"client.design": "global-only"},
    "cookie-monster": {"client.design": "cookie-monster"},
    "w3c": {"client.design": "w3c"},
    "w3c, activation consumed": {"client.design": "w3c", "client.activation": "consumed"},
}
_COLOURS = (BLUE, ORANGE, GREEN, RED, GREY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePoint:
    """One run of a figure: its panel, its line, where on the line it lies, and the fields of the file."""

    panel: str
    line: str
    x: float | None
    fields: dict[str, Any]


def big_bird_5() -> list[FigurePoint]:
    """Return the runs of Figure 5: impression quotas without an attack and against Sybils at random."""
    points = []
    for attack in ("none", "random"):
        for quota in ("0.5", "1", "2", "3", "4", "5", "8"):
            fields = {"client.design": "big-bird", "client.impression_quota": quota, "attack.kind": attack}
            points.append(FigurePoint(panel=attack, line="big-bird", x=float(quota), fields=fields))
        for label, fields in BASELINES.items():
            points.append(FigurePoint(panel=attack, line=label, x=None, fields={**fields, "attack.kind": attack}))
    return points


def big_bird_6() -> list[FigurePoint]:
    """Return the runs of Figure 6: the cap per action, the number of Sybils, and the rank of the attacked sites."""
    points = []
    for attack in ("random", "omniscient"):
        base = {"client.design": "big-bird", "attack.kind": attack}
        for label, field, values in (
            ("sites per action", "client.sites_per_action", (1, 2, 3, 4)),
            ("Sybil sites", "attack.sybils", (2, 5, 10, 25, 50, 100)),
            ("rank of the attacked sites", "attack.first_rank", (1, 2, 3, 6, 11, 21)),
        ):
            for value in values:
                points.append(FigurePoint(panel=label, line=attack, x=float(value), fields={**base, field: value}))
        for label, fields in BASELINES.items():
            points.append(
                FigurePoint(
                    panel="sites per action",
                    line=f"{label}, {attack}",
                    x=None,
                    fields={**fields, **{"attack.kind": attack}},
                )
            )
    return points


def _run_point(given: tuple[AttackScenario, FigurePoint]) -> Row:
    scenario, point = given
    found = run_attack(with_fields(scenario, point.fields))
    return {
        "panel": point.panel,
        "line": point.line,
        "x": "" if point.x is None else point.x,
        "median_error": round(found.median_error, 6),
        "p95_error": round(found.p95_error, 6),
        **{f"refused_{name.value}": round(found.refused_share(name), 6) for name in Filter},
        "drained_most": found.drained_micro / 1_000_000,
        "drained_mean": round(found.drained_mean_micro / 1_000_000, 6),
        "bound": "" if found.bound_micro is None else found.bound_micro / 1_000_000,
        "conversions": found.conversions,
        "attack_conversions": found.attack_conversions,
    }


def attack_rows(
    scenario: AttackScenario, points: Sequence[FigurePoint], *, workers: int = 1, progress: Progress = no_progress
) -> list[Row]:
    """Run the points of a figure, several at a time."""
    jobs = [(scenario, point) for point in points]
    rows: list[Row] = []
    if workers <= 1:
        for job in jobs:
            rows.append(_run_point(job))
            progress("runs", len(rows), len(jobs))
        return rows
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for row in pool.map(_run_point, jobs):
            rows.append(row)
            progress("runs", len(rows), len(jobs))
    return rows


def cookie_monster_rows(
    *, seed: str, batch: int = 2_000, knobs: Sequence[float] = (0.001, 0.01, 0.1, 1.0), progress: Progress = no_progress
) -> list[Row]:
    """Return the average and largest spend per device-epoch, by participation and by impressions per day.

    With a smaller ``batch``, ε stays that of the artifact's batch of 2,000.
    """
    rows: list[Row] = []
    for name in ("participation", "impressions_per_day"):
        for value in knobs:
            settings = Microbenchmark(**{"batch": batch, "relative_error": 0.05 * 2_000 / batch, name: value})  # type: ignore[arg-type]
            for spend in run_microbenchmark(settings, seed=seed, progress=progress):
                rows.append(
                    {
                        "panel": name,
                        "line": spend.method,
                        "x": value,
                        "average": round(spend.average, 9),
                        "largest": spend.largest,
                        "refused": spend.refused,
                    }
                )
    return rows


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _lines(rows: Sequence[Row], panel: str, value: str) -> dict[str, list[tuple[float | None, float]]]:
    lines: dict[str, list[tuple[float | None, float]]] = {}
    for row in rows:
        if row["panel"] == panel:
            lines.setdefault(row["line"], []).append((None if row["x"] == "" else row["x"], row[value]))
    return lines


def draw_big_bird(rows: Sequence[Row], stem: Path, *, labels: dict[str, str], causes: bool) -> Path:
    """Draw the median and 95th percentile of the error per panel, and with ``causes`` which filters refused."""
    plt = pyplot()
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    high = 2 if causes else 1
    size = (5.2 * len(panels), 4.6 * high)
    figure, axes = plt.subplots(high, len(panels), figsize=size, squeeze=False, layout="constrained")
    for place, panel in enumerate(panels):
        axis = axes[0][place]
        lines = _lines(rows, panel, "median_error")
        swept = [line for line, points in lines.items() if points[0][0] is not None]
        for number, line in enumerate(swept):
            colour = (BLUE, RED)[number % 2]
            xs = [x for x, _ in lines[line]]
            axis.plot(xs, [y for _, y in lines[line]], color=colour, marker="o", label=f"{line}, median")
            upper = [y for _, y in _lines(rows, panel, "p95_error")[line]]
            axis.plot(xs, upper, color=colour, marker=".", lw=0.8, linestyle="--", label=f"{line}, 95 %")
        # Baselines against the strongest adversary of the panel, as flat lines.
        flat = [line for line in lines if line not in swept and line.endswith((swept[-1], *BASELINES))]
        for number, line in enumerate(flat):
            style = ("-", "--", ":", "-.", (0, (6, 2)))[number % 5]
            axis.axhline(
                lines[line][0][1], color=(GREY, ORANGE, GREEN)[number % 3], linestyle=style, lw=1.3, label=line
            )
        axis.set(xlabel=labels[panel], ylabel="error (RMSRE)" if not place else "", ylim=(0, None))
        axis.set_title({"none": "no attack", "random": "Sybils at random"}.get(panel, panel), loc="left")
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        if causes:
            _draw_causes(
                axes[1][place], [row for row in rows if row["panel"] == panel and row["x"] != ""], labels[panel]
            )
    return save(plt, figure, stem)


def _draw_causes(axis: Any, rows: Sequence[Row], label: str) -> None:
    bottom = [0.0] * len(rows)
    for name, colour in zip(Filter, _COLOURS, strict=True):
        shares = [row[f"refused_{name.value}"] for row in rows]
        axis.bar([str(row["x"]) for row in rows], shares, bottom=bottom, color=colour, label=name.value)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    axis.set(xlabel=label, ylabel="share of conversions refused")
    axis.legend(fontsize=7)


def draw_cookie_monster(rows: Sequence[Row], stem: Path) -> Path:
    """Draw average and largest spend as groups of bars."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), squeeze=False, layout="constrained")
    titles = {"participation": "share of devices per query", "impressions_per_day": "impressions per device and day"}
    for column, (panel, title) in enumerate(titles.items()):
        for line, value in enumerate(("average", "largest")):
            axis = axes[line][column]
            for number, (method, points) in enumerate(_lines(rows, panel, value).items()):
                places = [place + 0.27 * (number - 1) for place in range(len(points))]
                axis.bar(places, [y for _, y in points], width=0.25, color=_COLOURS[number], label=method)
            axis.set_xticks(range(len(points)), [str(x) for x, _ in points])
            axis.set(
                xlabel=title,
                ylabel=f"{value} ε spent per device-epoch",
                yscale="log" if value == "average" else "linear",
            )
    axes[0][0].legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.02), ncols=3)
    return save(plt, figure, stem)


FIGURES: dict[str, str] = {
    "big-bird-5": "Big Bird's Figure 5: impression quotas, without an attack and against Sybils at random",
    "big-bird-6": "Big Bird's Figure 6: the cap per action, the number of Sybils and the rank of attacked sites",
    "cookie-monster-4": "Cookie Monster's Figure 4: spend per device-epoch of three ways of budgeting",
}
_POINTS: dict[str, Callable[[], list[FigurePoint]]] = {"big-bird-5": big_bird_5, "big-bird-6": big_bird_6}


def make_figure(
    name: str, scenario: AttackScenario, out: Path, *, workers: int = 1, progress: Progress = no_progress
) -> list[Row]:
    """Make one figure in a folder: ``NAME.csv``, ``NAME.png`` and ``NAME.svg``."""
    if name not in FIGURES:
        raise CampaignError(f"there is no figure {name!r}. Write one of {', '.join(FIGURES)}")
    if name == "cookie-monster-4":
        rows = cookie_monster_rows(seed=scenario.seed, progress=progress)
        write_rows(rows, out / f"{name}.csv")
        draw_cookie_monster(rows, out / name)
        return rows
    rows = attack_rows(scenario, _POINTS[name](), workers=workers, progress=progress)
    write_rows(rows, out / f"{name}.csv")
    axis = "impression-site quota (ε)" if name == "big-bird-5" else ""
    labels = {row["panel"]: axis or row["panel"] for row in rows}
    draw_big_bird(rows, out / name, labels=labels, causes=name == "big-bird-5")
    return rows
