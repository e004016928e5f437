"""``report.html``: one self-contained page for a manager, without scripts, links or anything to fetch."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Literal

from aggservice import __version__
from aggservice.campaign.assess.hierarchies import HierarchyErrors
from aggservice.campaign.assess.slices import Assessment, Waterfall, WaterfallStep
from aggservice.campaign.columns import Fate
from aggservice.campaign.metrics import TYPICAL_ERROR, Metric, shown_in
from aggservice.campaign.output.metrics import MeasureMetrics, QueryMetrics, RunMetrics
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from budget.amounts import EPSILON_MAX_MICRO, MICRO

GOOD, USABLE = 0.05, 0.20
"""Relative errors (of half of the slices, or the bias of a total) up to which a query is good, or usable with care."""

_REMEDIES = {
    Fate.NO_VALUE.words: "give the measure a larger scale",
    Fate.CAPPED_L1.words: "give the measures smaller scales, or clip them lower (most)",
    Fate.CAPPED_L0.words: "let a source make fewer contributions, or raise l0 in [client]",
    Fate.RATE_LIMITED.words: "raise max_reports in [client]",
    Fate.SITE_BUDGET.words: "ask for less ε per conversion, or for fewer conversions",
    Fate.GLOBAL_BUDGET.words: "ask for less ε per conversion, or for fewer conversions",
    Fate.QUOTA.words: "ask for less ε per conversion, or on fewer sites",
    Fate.OUTSIDE.words: "raise histogram_size",
    Fate.LOST.words: "this is the network's ([collection] lost); correct estimates for the rate if it is known",
    Fate.LATE.words: 'close batches later (close_after_hours), or let the next take them (late_reports = "next")',
    Fate.OVER_BUDGET.words: "ask fewer times or with a smaller epsilon, or raise epsilon in [service]",
    Fate.NOT_ASKED.words: "add the keys to the query (rows)",
    Fate.BELOW_THRESHOLD.words: "declare the keys, or discover them with a larger epsilon or delta",
    "clipped": "raise the measure's bound (most); its scale must then become smaller",
}
"""What to change for a step of the waterfall. Other steps leave the truth as it is, or are the users' choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One query in words. ``level`` is that of its worst measure; ``hints`` say what to change, if anything."""

    query: str
    level: Literal["good", "usable with care", "mostly error", "no answer"]
    text: str
    hints: tuple[str, ...]


def verdicts_of(metrics: RunMetrics, file: str) -> list[Verdict]:
    """Return the verdict of each query; ``file`` names the campaign file in hints."""
    return [_verdict(metrics, query, file) for query in metrics.queries]


def _verdict(metrics: RunMetrics, query: QueryMetrics, file: str) -> Verdict:
    refused = query.jobs - query.paid
    hints = []
    if refused:
        hints.append(f"{refused} of {query.jobs} jobs were refused, budget spent: {_REMEDIES[Fate.OVER_BUDGET.words]}.")
    typical = {one.measure: error for one in query.measures if (error := one[TYPICAL_ERROR]) is not None}
    if not query.paid:
        return Verdict(query=query.name, level="no answer", text="No job could be paid for.", hints=tuple(hints))
    if not typical:
        return Verdict(
            query=query.name,
            level="no answer",
            text="No slice that the summaries show had any conversions.",
            hints=(*hints, "Ask for other keys (rows), or make the population larger."),
        )
    biases = {one.measure: one.bias / one.truth for one in query.measures if one.truth > 0}
    worst = max(*typical.values(), *map(abs, biases.values()))
    within = ", ".join(f"{max(error, 0.001):.1%} ({measure})" for measure, error in typical.items())
    missing = ", ".join(f"{share:+.1%} ({measure})" for measure, share in biases.items() if abs(share) > GOOD)
    for one in query.measures:
        hints += _noise_hint(metrics, query, one, file) + _bias_hint(one)
    if worst > GOOD and not hints:
        hints.append("Slices are small beside their noise: use a larger epsilon, fewer slices, or more people.")
    return Verdict(
        query=query.name,
        level="good" if worst <= GOOD else "usable with care" if worst <= USABLE else "mostly error",
        text=f"In half of the slices shown the estimate is within {within} of the truth."
        + (f" The bias of the total is {missing}." if missing else ""),
        hints=tuple(hints) if worst > GOOD or refused else (),
    )


def _noise_hint(metrics: RunMetrics, query: QueryMetrics, measure: MeasureMetrics, file: str) -> list[str]:
    """Say which ε would bring the interval of an average slice to ±5 %: the noise is in proportion to 1/ε."""
    if measure.half_width is None or not measure.slices or not measure.truth > 0:
        return []
    jobs = 1 if query.totals_of else query.paid
    mean = measure.truth / (measure.slices / query.paid * jobs)
    share = measure.half_width / mean
    if not share > GOOD:
        return []
    needed = float(query.epsilon) * share / GOOD
    most = min(float(metrics.ledger.epsilon), EPSILON_MAX_MICRO / MICRO)
    remedies = "fewer and larger slices, longer batches, or more people"
    return [
        f"Noise of {measure.measure}: ±{_short(measure.half_width)} per key at ε = {query.epsilon}, where an average "
        f"slice has {_short(mean)} ({share:.0%}). ±{GOOD:.0%} needs ε = {_short(needed)}"
        + (f", or {remedies}." if needed <= most else f", more than the {most:g} that a job can have: use {remedies}.")
        + f" “aggservice optimise {file}” searches for better scales and clipping."
    ]


def _bias_hint(measure: MeasureMetrics) -> list[str]:
    """Name the step that took most of the truth, if more than 5 % of it was not sent."""
    if measure.waterfall is None or not measure.truth > 0 or not abs(measure.bias) > GOOD * measure.truth:
        return []
    steps = [step for step in measure.waterfall.steps if step.step in _REMEDIES and step.amount > 0]
    if not steps:
        return []
    most: WaterfallStep = max(steps, key=lambda step: step.amount)
    return [
        f"Bias of {measure.measure}: {measure.bias / measure.truth:+.1%} of the truth, most of it “{most.step}”: "
        f"{_REMEDIES[most.step]}."
    ]


def _short(value: float) -> str:
    """Return a number with about three digits and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1a202c; --soft: #4a5568; --line: #d5dbe4; --panel: #f7fafc;
  --good: #1c6b3c; --good-panel: #f0fff4; --warn: #8a4b00; --warn-panel: #fff7ea; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --ink: #e8ecf2; --soft: #aab4c3; --line: #364152;
  --panel: #1b212b; --good: #7fd0a0; --good-panel: #14241b; --warn: #efb368; --warn-panel: #2a2012; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1080px;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; } h2 { margin-top: 2.2rem; font-size: 1.3rem; }
p.lead { color: var(--soft); font-size: 1.1rem; margin-top: 0; } a { color: inherit; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem;
  min-width: 8.5rem; }
.tile b { display: block; font-size: 1.35rem; } .tile span { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
.note, .guarantee { border-left: 4px solid; padding: .6rem 1rem; margin: .8rem 0; }
.note { background: var(--warn-panel); border-color: var(--warn); }
.guarantee { background: var(--good-panel); border-color: var(--good); }
.note strong { color: var(--warn); } .guarantee strong { color: var(--good); }
.small { color: var(--soft); font-size: .95rem; }
figure { margin: 1.2rem 0; } figure svg { width: 100%; min-width: 40rem; height: auto; background: #fff; }
figcaption { color: var(--soft); font-size: .95rem; }
"""


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators, never −0; a dash for None."""
    return "–" if value is None else f"{value:z,.{digits}f}"


def write_report(
    campaign: Campaign,
    metrics: RunMetrics,
    plots: Sequence[tuple[str, Path]],
    path: Path,
    *,
    made_ms: int | None = None,
) -> None:
    """Write the report: verdicts, estimates with their intervals, losses, and the budget that is left.

    ``made_ms`` is the time to print; a run from a seed has none, so that it gives the same bytes again.
    """
    verdicts = verdicts_of(metrics, Path(campaign.file).name)
    parts = [
        f"<h1>{escaped(campaign.name)}</h1>",
        f'<p class="lead">{escaped(campaign.description)}</p>',
        *map(_verdict_box, verdicts),
    ]
    if not metrics.private:
        parts.append(not_private("whoever knows the seed can remove the noise."))
    parts += [_facts(campaign, metrics, made_ms), _tiles(metrics)]
    for query in metrics.queries:
        parts.append(_query(metrics, query, campaign.metrics))
    parts += [_hierarchy(one) for one in metrics.hierarchies]
    parts.append("<h2>Pictures</h2>")
    for caption, svg in plots:
        parts.append(
            f"<figure>{scrolling(inline_svg(svg), caption)}<figcaption>{escaped(caption)}</figcaption></figure>"
        )
    parts.append(_ledger(metrics))
    parts.append(_losses(metrics))
    parts.append(
        "<h2>How to read this</h2><p>Truth stands here because everything was simulated; nobody has it in "
        "production. An interval speaks of the contributions that browsers sent: what was capped, clipped, lost or "
        "late before that is bias, shown in the waterfall, and no interval covers it.</p>"
    )
    path.write_text(html_page(campaign.name, "".join(parts)), encoding="utf-8")


def html_page(title: str, body: str) -> str:
    """Return a whole page in the style of all reports."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f'{escaped(title)}</title><link rel="icon" href="data:,">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body><main>{body}</main></body></html>\n"
    )


def escaped(value: object) -> str:
    """Return a value as text, escaped for HTML."""
    return html.escape(str(value))


def percent(value: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "–" if value is None else f"{value:z.1%}"


TOTAL_HEADS = ("truth", "sent", "estimate", "bias (sent − truth)")


def error_cells(one: MeasureMetrics, metrics: Iterable[Metric]) -> list[str]:
    """Return the cells of a measure: its totals below ``TOTAL_HEADS``, then its metrics."""
    amounts = (one.truth, one.truth + one.bias, one.estimate, one.bias)
    return [*map(number, amounts), *(metric.text(one[metric]) for metric in metrics)]


def scrolling(inner: str, label: str) -> str:
    """Return a box that scrolls what is wider than the page; keyboards reach it too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(label)}">{inner}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """Return a table that scrolls; cells are HTML already."""
    head = "".join(f'<th scope="col">{escaped(one)}</th>' for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", label)


def not_private(why: str) -> str:
    """Return the warning of a run from a seed."""
    return f'<p class="note"><strong>Not private.</strong> This run was made from a seed: {escaped(why)}</p>'


def guarantee(text: str, *, private: bool, before: str = "") -> str:
    """Return a statement in a green box, or in that of a warning if it promises nothing; ``before`` is HTML."""
    return f'<p class="{"guarantee" if private else "note"}">{before}{escaped(text)}</p>'


def inline_svg(svg: Path) -> str:
    """Return the ``<svg>`` element of a file, without the XML prologue."""
    text = svg.read_text(encoding="utf-8")
    body = text[text.index("<svg") :]
    # Ids are unique within one drawing; on one page each drawing needs its own.
    stem = svg.stem.replace("-", "")
    for before in ('id="', 'href="#', "url(#"):
        body = body.replace(before, f"{before}{stem}-")
    return body


def _verdict_box(found: Verdict) -> str:
    hints = "".join(f"<li>{escaped(hint)}</li>" for hint in found.hints)
    change = f"<br>What to change:</p><ul>{hints}</ul>" if hints else "</p>"
    return (
        f'<div class="{"guarantee" if found.level == "good" else "note"}"><p style="margin: 0">'
        f"<strong>{escaped(found.query)}: {escaped(found.level)}.</strong> {escaped(found.text)}{change}</div>"
    )


def _facts(campaign: Campaign, metrics: RunMetrics, made_ms: int | None) -> str:
    """Return where the page comes from: file, times, version and privacy parameters."""
    start = metrics.start_ms
    ledger, unit = metrics.ledger, escaped(metrics.ledger.unit)
    spent = ", ".join(f"{escaped(query.epsilon)} ({escaped(query.name)})" for query in metrics.queries)
    total = (
        f"; a {unit} has ε = {escaped(ledger.epsilon)}, δ = {escaped(ledger.delta)} in all" if metrics.batches else ""
    )
    made = f"made from the seed “{escaped(metrics.seed)}”, without a date" if made_ms is None else _day(made_ms)
    facts = [
        ("Campaign file", escaped("/".join(Path(campaign.file).parts[-2:]))),
        ("Date", made),
        ("Simulated time", f"{_day(start)} to {_day(start + campaign.population.days * DAY_MS)}"),
        ("Privacy", f"ε per job and {unit} = {spent}{total}"),
        ("Program", f"aggservice {escaped(__version__)}"),
    ]
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{value}</dd>' for name, value in facts)}</dl>"


def _day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%d")


def _tiles(metrics: RunMetrics) -> str:
    events, reports = metrics.events, metrics.reports
    tiles = [
        (number(events.people), "people"),
        (number(events.impressions), "ads shown"),
        (number(events.conversions), "conversions"),
        (number(reports.in_batches), "sealed reports" if metrics.batches else "event-level reports"),
        (number(len(metrics.jobs)), "jobs"),
    ]
    inner = "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{inner}</div>'


def _query(metrics: RunMetrics, query: QueryMetrics, chosen: Sequence[Metric]) -> str:
    jobs = metrics.jobs_of(query.name)
    paid = [job for job in jobs if job.paid]
    parts = [f"<h2>{escaped(query.name)}</h2>"]
    if query.statement:
        parts.append(guarantee(query.statement, private=metrics.private))
        parts.append(_units(query))
    if len(paid) < len(jobs):
        parts.append(
            f'<p class="note">{len(jobs) - len(paid)} of {len(jobs)} jobs were refused: '
            "their reports had no budget left.</p>"
        )
    if paid:
        last = paid[-1]
        which = "" if len(jobs) == 1 else f" (job {escaped(last.job)}, the last of {len(jobs)})"
        parts.append(f"<p>The largest of {number(last.slice_count)} slices{which}:</p>")
        parts.append(_slices(query, last))
        if last.discovery:
            found = last.discovery
            parts.append(
                f"<p>Key discovery released {number(found.released)} of {number(found.true_keys)} keys that had "
                f"conversions (recall {number(found.recall, 3)}, precision {number(found.precision, 3)}); "
                f"{found.left_out_share:.1%} of the total was left out.</p>"
            )
    if query.totals_of:
        parts.append(
            f"<p>The {query.jobs} jobs share batches, so that their totals do not add up: truth, sent, estimate, bias "
            f"and the steps below are those of job {escaped(query.totals_of)}. The other columns cover all jobs.</p>"
        )
    shown = shown_in("report", chosen)
    rows = [[escaped(one.measure), *error_cells(one, shown)] for one in query.measures]
    first = f"Job {query.totals_of}" if query.totals_of else "In all"
    heads = [first, *TOTAL_HEADS, *(metric.title for metric in shown)]
    parts.append(table(heads, rows, f"Totals of {query.name}"))
    parts += [_path(query, one, one.waterfall) for one in query.measures if one.waterfall is not None]
    return "".join(parts)


def _units(query: QueryMetrics) -> str:
    """Return the statement's interval in the units of the tables; event-level reports have none."""
    widths = [
        f"±{number(one.half_width, 0 if one.half_width > 20 else 1)} {escaped(one.measure)} "
        f"(± {number(one.half_width * float(Fraction(one.scale)))} divided by the scale {escaped(one.scale)})"
        for one in query.measures
        if one.half_width is not None
    ]
    if not widths:
        return ""
    return (
        '<p class="small">The statement counts in contribution units. In the units of the tables below, the 95 % '
        f"interval of one key is {' and '.join(widths)}.</p>"
    )


def _slices(query: QueryMetrics, job: Assessment) -> str:
    """Return the table of the largest slices, and how to read its intervals."""
    scales = {one.measure: float(Fraction(one.scale)) for one in query.measures}
    rows = []
    outside = 0
    for row in job.slices:
        digits = 0 if abs(row.high - row.low) > 20 else 1
        missed = not row.low <= row.truth <= row.high
        outside += missed
        rows.append(
            [
                escaped(row.label),
                number(row.truth) + ("*" if missed else ""),
                number(row.sent / scales[row.measure], digits),
                number(row.estimate, digits),
                f"{number(row.low, digits)} to {number(row.high, digits)}",
                percent(row.relative_error),
            ]
        )
    heads = ["slice", "truth", "sent", "estimate", "95 % interval of what was sent", "relative error"]
    note = (
        "The interval is about what was <em>sent</em>: in 95 of 100 summaries it holds that. The truth may lie "
        "outside, because conversions that were capped, clipped, lost or late were never sent."
    )
    if outside:
        note += f" * marks {outside} of {len(rows)} truths outside."
    return table(heads, rows, f"The largest slices of {query.name}") + f'<p class="small">{note}</p>'


def _hierarchy(found: HierarchyErrors) -> str:
    """Return the errors of each level before and after least squares."""
    rows = "".join(
        f"<tr><td>{escaped(one.query)}: {escaped(one.measure)}</td><td>{number(one.slices)}</td>"
        f"<td>{number(one.rmse_before, 2)}</td><td>{number(one.rmse_after, 2)}</td>"
        f"<td>{number(one.half_width_before, 2)}</td><td>{number(one.half_width_after, 2)}</td>"
        f"<td>{percent(one.covered_after / (one.slices - one.missing) if one.slices > one.missing else None)}</td></tr>"
        for one in found.levels
    )
    return (
        f"<h2>Hierarchy: {escaped(found.name)}</h2><p>Each level was asked for with its own noise. Least squares makes "
        "the slices of a level add up to those above, and every number at least as exact, at no cost in privacy. "
        "<code>hierarchies.csv</code> has all of them.</p>"
        "<table><tr><th>level</th><th>slices</th><th>RMSE before</th><th>after</th><th>half-width before</th>"
        f"<th>after</th><th>intervals that hold</th></tr>{rows}</table>"
    )


def _path(query: QueryMetrics, measure: MeasureMetrics, found: Waterfall) -> str:
    """Return the steps from the truth to the estimate of one measure."""
    scale = float(Fraction(measure.scale))
    rows = [["happened", number(found.happened), number(found.happened_amount / scale)]]
    rows += [
        [escaped(step.step), number(-step.conversions), number(-step.amount / scale)]
        for step in found.steps
        if step.conversions or step.amount
    ]
    rows.append(["counted", number(found.counted), number(found.counted_amount / scale)])
    rows += [
        [name, "", number(value / scale)] for name, value in (("noise", found.noise), ("estimate", found.estimate))
    ]
    label = f"From truth to estimate of {measure.measure}, {query.name}"
    return table(["From truth to estimate", "count", measure.measure], rows, label)


def _ledger(metrics: RunMetrics) -> str:
    ledger = metrics.ledger
    if not ledger.left:
        return ""
    last = ledger.left[-1]
    signs = (("ε", "epsilon"), ("δ", "delta"))
    left = ", ".join(f"{sign} = {last[name]}" for sign, name in signs if name in last)
    return (
        f"<h2>What is left of the budget</h2><p>Each {escaped(ledger.unit)} had ε = {escaped(ledger.epsilon)} and "
        f"δ = {escaped(ledger.delta)}. After job {escaped(last['job'])} the poorest of its units has {escaped(left)} "
        "left. Anyone can audit the log <code>ledger/ledger.log</code> with <code>aggservice ledger verify</code>.</p>"
    )


def _losses(metrics: RunMetrics) -> str:
    """Return what a source loses by both kinds of reports; empty if the sources send one kind."""
    most = metrics.losses
    if most is None:
        return ""
    return (
        f"<h2>What a source loses</h2><p>Each of {number(most.sources)} sources loses ε = {escaped(most.event_level)} "
        "by its event-level reports, whatever happens; no ledger charges that. Losses by summary reports come on top. "
        f"The source that lost most ({escaped(most.unit)}) lost ε = {escaped(most.summary)} by them: "
        f"<strong>ε = {escaped(most.together)}, δ = {escaped(most.delta)} together</strong>. "
        "<code>transcript.json</code> has the others, in exact fractions.</p>"
    )
