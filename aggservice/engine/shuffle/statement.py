"""What a shuffle guarantees, in words and in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from aggservice.engine.shuffle.plan import ASSUMPTION, ShufflePlan, permanent_text
from budget import Epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleStatement:
    """The part of a statement that only a shuffle has. Amounts are text; ε∞ is empty if nothing bounds it.

    ``collection`` and ``registry_key_sha256`` name the evidence; they are empty if no device token was checked.
    """

    randomizer: str
    reports: int
    report_bytes: int
    local_epsilon: str
    permanent_epsilon: str
    amplified: bool
    bound: str
    assumption: str
    not_amplified: str
    collection: str = ""
    registry_key_sha256: str = ""


def shuffle_part(plan: ShufflePlan) -> ShuffleStatement:
    """Return the part of a statement that states the numbers of this shuffle."""
    randomizer = plan.request.randomizer
    return ShuffleStatement(
        randomizer=randomizer.hex,
        reports=plan.reports,
        report_bytes=randomizer.report_bytes,
        local_epsilon=str(Epsilon(micro=randomizer.epsilon_micro)),
        permanent_epsilon=permanent_text(randomizer),
        amplified=plan.amplified,
        bound=plan.request.bound.value if plan.amplified else "",
        assumption=ASSUMPTION if plan.amplified else "",
        not_amplified=plan.reason,
        collection=plan.evidence.collection if plan.evidence else "",
        registry_key_sha256=plan.evidence.key.digest if plan.evidence else "",
    )


def shuffle_words(plan: ShufflePlan, part: ShuffleStatement, *, private: bool) -> str:
    """Return the statement in one paragraph."""
    if plan.amplified:
        parts = [
            f"Each of {plan.reports} reports paid ε = {plan.epsilon}, δ = {plan.delta}: what shuffling leaves of "
            f"ε₀ = {part.local_epsilon} in the central model by the {part.bound} bound, for {ASSUMPTION} "
            f"(n = {plan.reports}, all of the same randomizer, no two of one client).",
            f"Evidence: each report has a token for collection {part.collection!r} from the device registry whose "
            f"public key has the SHA-256 {part.registry_key_sha256}.",
            "Assumed: the registry signs one token per client and collection, and its clients are honest; a caller who "
            "controls registered devices lowers n by their number.",
            f"Whoever can tell whose report is which, or knows the other reports, learns ε₀ = {part.local_epsilon}. "
            "Another collection does not tell: a device's reports of this randomizer share nothing, as they state.",
        ]
    else:
        parts = [
            f"Each of {plan.reports} reports paid ε₀ = {part.local_epsilon}, which its own device's randomization, as "
            "the report states it, guarantees against everybody, this service included.",
            f"Not amplified: {part.not_amplified}.",
        ]
        if part.collection:
            parts.append(f"Only reports with a device token for collection {part.collection!r} were shuffled.")
    parts.append(
        f"All reports of one value over time leak at most ε∞ = {part.permanent_epsilon}."
        if part.permanent_epsilon
        else "Nothing bounds what repeated reports of one value leak: each costs ε₀ anew."
    )
    parts.append("A report is shuffled once.")
    if not private:
        parts.append("NOT PRIVATE: the order came from a seed, and whoever knows the seed can undo it.")
    return " ".join(parts)
