"""``comparison.html`` and its picture: what each API found, what it lost where, and what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aggservice.campaign.compare.run import ApiComparison
from aggservice.campaign.output.metrics import MeasureMetrics, QueryMetrics
from aggservice.campaign.output.page import (
    ERROR_HEADS,
    error_cells,
    escaped,
    guarantee,
    html_page,
    inline_svg,
    not_private,
    number,
    scrolling,
    table,
)
from aggservice.campaign.output.plots import BLUE, GREEN, ORANGE, pyplot, save
from aggservice.campaign.run import RunResult

Found = dict[str, tuple[QueryMetrics, MeasureMetrics, float | None]]
"""By API: the query, its measure, and the error of a slice."""

NAMES = {"ara": "Attribution Reporting", "paa": "Private Aggregation", "w3c": "W3C Attribution"}
_COLOURS = {"ara": BLUE, "paa": ORANGE, "w3c": GREEN}


def slice_error(run: RunResult, query: str, place: int) -> float | None:
    """Return the root mean square error over the slices of a measure in all paid jobs of a query, in natural units."""
    figures = [one.figures[place] for one in run.assessments if one.query == query and one.paid]
    slices = sum(one.slices for one in figures)
    return (sum(one.rmse**2 * one.slices for one in figures) / slices) ** 0.5 if slices else None


def measures_of(compared: ApiComparison) -> Iterator[tuple[str, str, Found]]:
    """Yield each query and measure with what every API found."""
    first = next(iter(compared.runs.values()))
    for place, query in enumerate(first.metrics.queries):
        for index, measure in enumerate(query.measures):
            found = {}
            for api, run in compared.runs.items():
                mine = run.metrics.queries[place]
                found[api] = (mine, mine.measures[index], slice_error(run, query.name, index))
            yield query.name, measure.measure, found


def write_comparison(compared: ApiComparison) -> Path:
    """Draw the picture and write the page; return its path."""
    parts = [
        f"<h1>{escaped(compared.campaign.name)}</h1>",
        f'<p class="lead">{escaped(compared.campaign.description)} The same people, ads and purchases on '
        f"{escaped(', '.join(NAMES[api] for api in compared.runs))}, through one service.</p>",
    ]
    if not all(run.metrics.private for run in compared.runs.values()):
        parts.append(not_private("whoever knows the seed can remove the noise."))
    for query, measure, found in measures_of(compared):
        parts.append(f"<h2>{escaped(query)}: {escaped(measure)}</h2>")
        parts.append(_errors(found, f"{query}: {measure}"))
        parts.append(_losses({api: one for api, (_, one, _) in found.items()}))
    drawn, caption = inline_svg(draw_comparison(compared)), "Error, and losses on the way."
    parts.append(f"<h2>Picture</h2><figure>{scrolling(drawn, caption)}<figcaption>{caption}</figcaption></figure>")
    parts.append("<h2>What each promises</h2>")
    for api, run in compared.runs.items():
        texts = dict.fromkeys(query.statement for query in run.metrics.queries if query.statement)
        named = f"<b>{NAMES[api]}.</b> "
        parts += [guarantee(text, private=run.metrics.private, before=named) for text in texts]
    links = ", ".join(f'<a href="{api}/report.html">{NAMES[api]}</a>' for api in compared.runs)
    parts.append(f"<p>A report of each: {links}.</p>")
    compared.report.write_text(html_page(compared.campaign.name, "".join(parts)), encoding="utf-8")
    return compared.report


def _errors(found: Found, label: str) -> str:
    rows = [
        [
            NAMES[api],
            f"{query.paid} of {query.jobs}",
            *error_cells(one),
            number(error, 1),
        ]
        for api, (query, one, error) in found.items()
    ]
    heads = [
        "API",
        "jobs paid",
        *ERROR_HEADS,
        "error of a slice (RMSE)",
    ]
    return table(heads, rows, label)


def _losses(found: dict[str, MeasureMetrics]) -> str:
    """Return the waterfalls side by side, with the steps at which any of them lost something."""
    falls = {api: one.waterfall for api, one in found.items() if one.waterfall is not None}
    names = [step.step for step in next(iter(falls.values())).steps]
    lost = {api: {step.step: step for step in fall.steps} for api, fall in falls.items()}
    rows = [["happened", *(number(fall.happened) for fall in falls.values())]]
    for name in names:
        if any(steps[name].conversions or steps[name].amount for steps in lost.values()):
            rows.append([escaped(name), *(number(steps[name].conversions) for steps in lost.values())])
    rows.append(["counted", *(number(fall.counted) for fall in falls.values())])
    return table(["Conversions", *(NAMES[api] for api in falls)], rows, "Where conversions went")


def draw_comparison(compared: ApiComparison) -> Path:
    """Draw the error of every measure and the conversions that each API lost; return the SVG."""
    plt = pyplot()
    found = list(measures_of(compared))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    apis = list(compared.runs)
    wide = 0.8 / len(apis)
    for place, api in enumerate(apis):
        errors = [
            (one[api][2] or 0.0) / max(one[api][1].truth / max(one[api][1].slices, 1), 1e-9) for _, _, one in found
        ]
        at = [number + (place - (len(apis) - 1) / 2) * wide for number in range(len(found))]
        left.bar(at, errors, width=wide * 0.92, color=_COLOURS[api], label=NAMES[api])
    left.set_xticks(range(len(found)), [f"{query}\n{measure}" for query, measure, _ in found])
    left.set(ylabel="RMSE over the mean truth of a slice", yscale="log")
    left.set_title("Error", loc="left", fontweight="bold")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    _draw_losses(right, {NAMES[api]: found[0][2][api][1] for api in apis}, plt)
    right.set_title(f"Conversions: {found[0][0]}, {found[0][1]}", loc="left", fontweight="bold")
    return save(plt, figure, compared.out / "comparison")


def _draw_losses(axis: Any, found: dict[str, MeasureMetrics], plt: Any) -> None:
    names = [step.step for step in next(iter(found.values())).waterfall.steps]  # type: ignore[union-attr]
    colours = plt.get_cmap("tab20").colors
    left = [0.0] * len(found)
    for place, name in enumerate(["counted", *names]):
        widths = []
        for one in found.values():
            assert one.waterfall is not None
            steps = {step.step: step.conversions for step in one.waterfall.steps}
            widths.append(float(one.waterfall.counted if name == "counted" else steps[name]))
        if any(widths):
            axis.barh(
                list(found),
                widths,
                left=left,
                color="#cbd5e0" if name == "counted" else colours[place % 20],
                label=name,
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.set_xlabel("conversions")
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
