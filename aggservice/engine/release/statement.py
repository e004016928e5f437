"""The statement of guarantee that goes with every summary: what it protects, how, and how wide the noise is."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from aggservice.engine.opening.coverage import PROTECTED, PrivacyUnit
from aggservice.engine.release.noise import ReleasePlan
from aggservice.engine.shuffle import ShufflePlan, shuffle_part, shuffle_words
from aggservice.job.result import Statement
from aggservice.mechanisms import NoiseLaw
from budget import Delta, Filter
from budget.filters import spend_to_plain


def statement_of(
    plan: ReleasePlan, unit: PrivacyUnit, chosen: Filter, *, private: bool, debug_run: bool = False
) -> Statement:
    """Return the statement of a release under ``plan``; ``chosen`` is the ledger's filter, with ε* (or ρ*) and δ*.

    The interval is that of a declared key; a discovered key's noise is truncated and its interval no wider.
    """
    deviation = standard_deviation(plan.declared_noise)
    plain = plan.mechanism.to_plain()
    statement = Statement(
        mechanism=plan.mechanism.noise_name or plan.mechanism.name,
        epsilon=plain.get("epsilon", ""),
        rho=plain.get("rho", ""),
        delta=str(Delta(atto=plan.mechanism.delta_atto)),
        others_epsilon="" if plan.others is None else str(plan.others.epsilon),
        l1=plan.sensitivity.l1,
        l0=plan.sensitivity.l0,
        threshold=plan.threshold,
        privacy_unit=unit.value if plan.task is None else PrivacyUnit.REPORT.value,
        noise_standard_deviation=deviation,
        interval_half_width=plan.declared_noise.half_width(),
        others_half_width=0 if plan.others_noise is None else plan.others_noise.half_width(),
        private=private and not debug_run,
        text="",
    )
    words = _words(plan, statement, debug_run=debug_run, private=private)
    protects = [] if debug_run else [PROTECTED[api].sentence(api) for api in plan.covers]
    holds = [] if debug_run or not private else [_promise(chosen, one_use=plan.task is not None)]
    return replace(statement, text=" ".join([words, *protects, *holds]))


def shuffle_statement_of(plan: ShufflePlan, *, private: bool) -> Statement:
    """Return the statement of a shuffle: what each report paid, for whom the guarantee holds, and ε∞."""
    part = shuffle_part(plan)
    return Statement(
        mechanism=plan.mechanisms()[0].name,
        epsilon=str(plan.epsilon),
        rho="",
        delta=str(plan.delta),
        others_epsilon="",
        l1=0,
        l0=0,
        threshold=0,
        privacy_unit=PrivacyUnit.REPORT.value,
        noise_standard_deviation="0",
        interval_half_width=0,
        others_half_width=0,
        private=private,
        text=shuffle_words(plan, part, private=private),
        shuffle=part,
    )


def standard_deviation(noise: NoiseLaw) -> str:
    """Return the standard deviation of the noise, rounded to six digits."""
    variance = noise.variance()
    value = Decimal(float(variance)).sqrt()
    return f"{value:.6g}" if value < 100_000 else f"{value:.0f}"


def _promise(chosen: Filter, *, one_use: bool) -> str:
    """Return what all releases of the ledger promise together, and what that assumes (docs/guarantees.md)."""
    assumed = (
        "nobody but the service opens reports, its random bits stay secret, and all summaries of these reports come "
        "from this ledger"
    )
    if one_use:
        return f"Assumed: devices keep their budgets, {assumed}. A person with several browsers has several budgets."
    limits = spend_to_plain(chosen.limit, chosen.loss_name)
    return (
        "All that this ledger ever releases about such a unit, to callers who choose each query by earlier answers, "
        f"is private within {chosen.sign}* = {limits[chosen.loss_name]}, δ* = {limits['delta']}. Assumed: clients keep "
        f"the stated bounds, {assumed}. A person who is several such units is protected for each, not for all together."
    )


def _words(plan: ReleasePlan, statement: Statement, *, debug_run: bool, private: bool) -> str:
    if debug_run:
        return (
            "Debug run: true values stand beside noisy ones, and nothing was charged. This protects nobody; only "
            "reports that browsers marked for debugging were read."
        )
    unit = "report" if statement.privacy_unit == PrivacyUnit.REPORT else "shared ID and hour"
    parts = [
        f"Each {unit} paid {plan.mechanism.words}"
        + (f" and ε = {statement.others_epsilon} for the others total" if statement.others_epsilon else "")
        + ".",
        f"Noise: {statement.mechanism.replace('_', ' ')}, "
        + (
            f"for reports that move the sums by at most 2 · maxValue = {statement.l1} and can be used once; "
            if plan.task is not None
            else f"for clients that contribute at most Λ₁ = {statement.l1} in at most Λ₀ = {statement.l0} "
            "contributions; "
        )
        + f"standard deviation {statement.noise_standard_deviation}.",
        f"The sum that was sent for a key lies within ±{statement.interval_half_width} of its metric in 95 of 100 "
        "summaries.",
    ]
    if statement.threshold:
        parts.append(f"Keys that were not declared appear only with a noisy sum above τ = {statement.threshold}.")
    if not private:
        parts.append("NOT PRIVATE: the noise came from a seed, and whoever knows the seed can remove it.")
    return " ".join(parts)
