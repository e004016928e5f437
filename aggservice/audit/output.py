"""An audit as text, as plain values and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggservice.audit.run import CANNOT_SEE, FALSE_ALARM, GamesReport, PathResult
from aggservice.campaign.output.plots import pyplot, save


def path_name(result: PathResult) -> str:
    """Return the name of a path: its game, and its part if the game has several."""
    return f"{result.game}: {result.part}" if result.part else result.game


def table(report: GamesReport) -> list[str]:
    """Return the lines of a table: lower bound, charge and verdict of every path, then what the audit cannot see."""
    names = [path_name(one) for one in report.results]
    width = max(map(len, names), default=4)
    lines = [f"{'path':<{width}}  {'ε at least':>10}  {'charged':>8}  {'at δ':>8}  verdict"]
    for name, one in zip(names, report.results, strict=True):
        verdict = f"ALARM: {one.exposes}" if one.alarm else "ok"
        lines.append(f"{name:<{width}}  {one.bound.epsilon:10.3f}  {one.charged:8.3f}  {one.delta:8.2g}  {verdict}")
    lines += [
        "",
        f"Each bound holds with confidence {100 * report.confidence:.5f} %; a correct service raises an alarm",
    ]
    lines += [f"in at most one run of {round(1 / FALSE_ALARM):,}. Took {report.seconds:.0f} s."]
    lines += [f"Left out, because it needs a service of its own or none: {name}." for name in report.skipped]
    lines += [f"Cannot see: {one}." for one in CANNOT_SEE]
    alarms = len(report.alarms)
    lines += [f"{len(report.results) - alarms} bounds within what was charged, {alarms} above"]
    return lines


def to_plain(report: GamesReport) -> dict[str, Any]:
    """Return the audit as plain values."""
    return {
        "paths": [
            {
                "game": one.game,
                "part": one.part,
                "exposes": one.exposes,
                "epsilon_at_least": one.bound.epsilon,
                "charged": one.charged,
                "delta": one.delta,
                "alarm": one.alarm,
                "feature": one.bound.feature,
                "hits": list(one.bound.hits),
                "trials": list(one.bound.trials),
            }
            for one in report.results
        ],
        "skipped": list(report.skipped),
        "cannot_see": list(CANNOT_SEE),
        "confidence_of_a_bound": report.confidence,
        "false_alarm_rate_of_a_run": FALSE_ALARM,
        "alarms": len(report.alarms),
        "seconds": round(report.seconds, 1),
    }


def draw(report: GamesReport, stem: Path) -> Path:
    """Draw a bar per path from 0 to its bound, and a mark at what was charged; write SVG and PNG, return the SVG."""
    plt = pyplot()
    results = list(reversed(report.results))
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(results) + 1), layout="constrained")
    places = range(len(results))
    colours = ["#c0392b" if one.alarm else "#4a78a8" for one in results]
    axes.barh(places, [one.bound.epsilon for one in results], color=colours, label="at least")
    axes.plot([one.charged for one in results], places, "|", color="black", markersize=9, label="charged")
    axes.set_yticks(places, [path_name(one) for one in results], fontsize=7)
    axes.set_xlabel("ε")
    axes.legend(loc="lower right", fontsize=7)
    return save(plt, figure, stem)
