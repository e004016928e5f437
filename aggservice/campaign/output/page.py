"""``report.html``: one self-contained page for a manager, without scripts, links or anything to fetch."""

from __future__ import annotations

import html
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.assess.waterfall import Waterfall
from aggservice.campaign.output.metrics import MeasureMetrics, Metrics, QueryMetrics
from aggservice.campaign.settings.campaign import Campaign

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a202c; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; } h2 { margin-top: 2.2rem; font-size: 1.3rem; }
p.lead { color: #4a5568; font-size: 1.1rem; margin-top: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tile { background: #f7fafc; border: 1px solid #e2e8f0; border-radius: .5rem; padding: .6rem 1rem; min-width: 8.5rem; }
.tile b { display: block; font-size: 1.35rem; } .tile span { color: #4a5568; font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #e2e8f0; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { color: #4a5568; font-weight: 600; }
.note { background: #fffaf0; border-left: 4px solid #dd6b20; padding: .6rem 1rem; }
.guarantee { background: #f0fff4; border-left: 4px solid #2f855a; padding: .6rem 1rem; }
figure { margin: 1.2rem 0; } figure svg { width: 100%; height: auto; } figcaption { color: #4a5568; font-size: .95rem; }
"""


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands separators; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def write_report(campaign: Campaign, metrics: Metrics, plots: Sequence[tuple[str, Path]], path: Path) -> None:
    """Write the report: estimates with their intervals, losses, and the budget that is left."""
    parts = [
        f"<h1>{escaped(campaign.name)}</h1>",
        f'<p class="lead">{escaped(campaign.description)}</p>',
        _tiles(metrics),
    ]
    if not metrics.private:
        parts.append(
            '<p class="note"><strong>Not private.</strong> This run was made from a seed so that it can be repeated; '
            "whoever knows the seed can remove the noise.</p>"
        )
    for query in metrics.queries:
        parts.append(_query(metrics, query))
    parts.append("<h2>Pictures</h2>")
    for caption, svg in plots:
        parts.append(f"<figure>{inline_svg(svg)}<figcaption>{escaped(caption)}</figcaption></figure>")
    parts.append(_ledger(metrics))
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
        f"<body>{body}</body></html>\n"
    )


def escaped(value: object) -> str:
    """Return text for HTML."""
    return html.escape(str(value))


def inline_svg(svg: Path) -> str:
    """Return the ``<svg>`` element of a file, without the XML prologue."""
    text = svg.read_text(encoding="utf-8")
    body = text[text.index("<svg") :]
    # Ids are unique within one drawing; on one page each drawing needs its own.
    stem = svg.stem.replace("-", "")
    for before in ('id="', 'href="#', "url(#"):
        body = body.replace(before, f"{before}{stem}-")
    return body


def _tiles(metrics: Metrics) -> str:
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


def _query(metrics: Metrics, query: QueryMetrics) -> str:
    jobs = metrics.jobs_of(query.name)
    paid = [job for job in jobs if job.paid]
    parts = [f"<h2>{escaped(query.name)}</h2>"]
    if query.statement:
        parts.append(f'<p class="guarantee">{escaped(query.statement)}</p>')
    if len(paid) < len(jobs):
        parts.append(
            f'<p class="note">{len(jobs) - len(paid)} of {len(jobs)} jobs were refused: '
            "their reports had no budget left.</p>"
        )
    if paid:
        last = paid[-1]
        which = "" if len(jobs) == 1 else f" (job {escaped(last.job)}, the last of {len(jobs)})"
        parts.append(f"<p>The largest of {number(last.slice_count)} slices{which}:</p>")
        parts.append(_table(last))
        if last.discovery:
            found = last.discovery
            parts.append(
                f"<p>Key discovery released {number(found.released)} of {number(found.true_keys)} keys that had "
                f"conversions (recall {number(found.recall, 3)}, precision {number(found.precision, 3)}); "
                f"{found.left_out_share:.1%} of the total was left out.</p>"
            )
    rows = "".join(
        f"<tr><td>{escaped(one.measure)}</td><td>{number(one.truth)}</td><td>{number(one.estimate)}</td>"
        f"<td>{number(one.bias)}</td><td>{percent(one.coverage)}</td><td>{percent(one.above_noise)}</td>"
        f"<td>{number(one.rmsre, 3)}</td></tr>"
        for one in query.measures
    )
    parts.append(
        "<table><tr><th>In all</th><th>truth</th><th>estimate</th><th>bias</th><th>intervals that hold</th>"
        f"<th>slices above the noise</th><th>RMSRE</th></tr>{rows}</table>"
    )
    parts += [_path(one, one.waterfall) for one in query.measures if one.waterfall is not None]
    return "".join(parts)


def _path(measure: MeasureMetrics, found: Waterfall) -> str:
    """Return the steps from the truth to the estimate of one measure."""
    scale = float(Fraction(measure.scale))
    rows = [("happened", found.happened, found.happened_amount / scale)]
    rows += [
        (step.step, -step.conversions, -step.amount / scale) for step in found.steps if step.conversions or step.amount
    ]
    rows.append(("counted", found.counted, found.counted_amount / scale))
    body = "".join(
        f"<tr><td>{escaped(name)}</td><td>{number(count)}</td><td>{number(amount)}</td></tr>"
        for name, count, amount in rows
    )
    ending = "".join(
        f"<tr><td>{name}</td><td></td><td>{number(value / scale)}</td></tr>"
        for name, value in (("noise", found.noise), ("estimate", found.estimate))
    )
    return (
        f"<table><tr><th>From truth to estimate</th><th>count</th><th>{escaped(measure.measure)}</th></tr>"
        f"{body}{ending}</table>"
    )


def percent(value: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "–" if value is None else f"{value:.1%}"


def _table(job: Assessment) -> str:
    rows = []
    for row in job.slices:
        digits = 0 if abs(row.high - row.low) > 20 else 1
        rows.append(
            f"<tr><td>{escaped(row.label)}</td><td>{number(row.truth)}</td><td>{number(row.estimate, digits)}</td>"
            f"<td>{number(row.low, digits)} to {number(row.high, digits)}</td>"
            f"<td>{percent(row.relative_error)}</td></tr>"
        )
    return (
        "<table><tr><th>slice</th><th>truth</th><th>estimate</th><th>95 % interval</th><th>relative error</th></tr>"
        f"{''.join(rows)}</table>"
    )


def _ledger(metrics: Metrics) -> str:
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
