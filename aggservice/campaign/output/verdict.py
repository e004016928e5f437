"""What a reader should conclude from a run: one verdict per query, and what to change where the error is large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aggservice.campaign.assess.waterfall import Step
from aggservice.campaign.output.metrics import MeasureMetrics, Metrics, QueryMetrics
from aggservice.campaign.world.fates import Fate
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


def verdicts_of(metrics: Metrics, file: str) -> list[Verdict]:
    """Return the verdict of each query; ``file`` names the campaign file in hints."""
    return [_verdict(metrics, query, file) for query in metrics.queries]


def _verdict(metrics: Metrics, query: QueryMetrics, file: str) -> Verdict:
    refused = query.jobs - query.paid
    hints = []
    if refused:
        hints.append(f"{refused} of {query.jobs} jobs were refused, budget spent: {_REMEDIES[Fate.OVER_BUDGET.words]}.")
    typical = {one.measure: one.typical_error for one in query.measures if one.typical_error is not None}
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


def _noise_hint(metrics: Metrics, query: QueryMetrics, measure: MeasureMetrics, file: str) -> list[str]:
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
    most: Step = max(steps, key=lambda step: step.amount)
    return [
        f"Bias of {measure.measure}: {measure.bias / measure.truth:+.1%} of the truth, most of it “{most.step}”: "
        f"{_REMEDIES[most.step]}."
    ]


def _short(value: float) -> str:
    """Return a number with about three digits and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
