"""A shuffle of local reports: what it costs and guarantees, and its random order.

A caller who sends n − 1 reports of their own knows them, and so recognises the last one. Therefore the amplified
(ε, δ) counts only reports with a device token, which the caller cannot make: n is their number, all of one randomizer
(Corollary 9 of the paper that docs/shuffling.md names) and one per client. A price must survive what is released later:
if a device's reports share a hash function or a memoized answer, a later one shows which of the n was its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggservice.job.request import ShuffleRequest
from aggservice.job.result import ShuffleStatement
from aggservice.mechanisms import Bits, ParameterError, amplified_micro
from aggservice.wire import Api, Randomizer
from aggservice.wire.origins import site_of
from aggservice.wire.report.registry import RegistryKey, TokenCheck
from budget import Delta, Epsilon, LocalReports, Mechanism, ShuffledReports

ASSUMPTION = "n honest clients, one collection"
_MICRO = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSettings:
    """The public keys of the device registries that the operator trusts, by reporting origin (exactly) or by site."""

    origins: Mapping[str, RegistryKey] = field(default_factory=dict)
    sites: Mapping[str, RegistryKey] = field(default_factory=dict)

    def key(self, *, origin: str | None, site: str | None) -> RegistryKey | None:
        """Return the key for a job over an origin (its own, or its site's) or over a site; None if there is none."""
        if origin is not None and origin in self.origins:
            return self.origins[origin]
        found = site if origin is None else site_of(origin)
        return None if found is None else self.sites.get(found)

    def evidence(self, request: ShuffleRequest) -> TokenCheck | None:
        """Return the check that the device tokens of a job must pass; None if the job is not amplified.

        A job is amplified only with a δ, a collection, and a registry's key for its origin or site.
        """
        key = self.key(origin=request.attribution_report_to, site=request.reporting_site)
        if request.delta is None or not request.collection or key is None:
            return None
        return TokenCheck(key=key, collection=request.collection)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflePlan:
    """The price of each of ``reports`` reports. ``reason`` says why it is not amplified (empty if it is amplified).

    If ``evidence`` is given, each of these reports has a device token that passed this check.
    """

    request: ShuffleRequest
    reports: int
    epsilon: Epsilon
    delta: Delta
    reason: str
    evidence: TokenCheck | None = None
    covers: Mapping[Api, int] = field(default_factory=dict)

    @property
    def amplified(self) -> bool:
        """Whether the central (ε, δ) is charged in place of ε₀."""
        return not self.reason

    @classmethod
    def of(cls, request: ShuffleRequest, reports: int, *, evidence: TokenCheck | None) -> ShufflePlan:
        """Return the price of ``reports`` reports.

        ``evidence`` is the check that their device tokens passed; without it nothing is amplified.
        """
        local = Epsilon(micro=request.randomizer.epsilon_micro)

        def unamplified(reason: str) -> ShufflePlan:
            return cls(
                request=request,
                reports=reports,
                epsilon=local,
                delta=Delta(atto=0),
                reason=reason,
                evidence=evidence,
            )

        if request.delta is None:
            return unamplified("the job gives no delta, and amplification needs one")
        if not request.randomizer.independent:
            return unamplified(
                "a device's reports of this randomizer share something (a memoized answer, hash function, sample or "
                "cohort), or do not say that they share nothing, so that a later report can show which one was its own"
            )
        if not request.collection:
            return unamplified(
                "the job names no collection, so no device token was checked, and the caller could have sent the other "
                "reports"
            )
        if evidence is None:
            return unamplified(
                f"the operator has configured no device registry for {request.scope}, so nothing shows that the caller "
                "did not send the other reports"
            )
        try:
            micro = amplified_micro(
                request.bound, local_micro=local.micro, reports=reports, delta_atto=request.delta.atto
            )
        except ParameterError as problem:
            return unamplified(f"the {request.bound} bound does not apply: {problem}")
        if not micro < local.micro:
            return unamplified(f"the {request.bound} bound for {reports} reports is not below the local epsilon")
        return cls(
            request=request,
            reports=reports,
            epsilon=Epsilon(micro=micro),
            delta=request.delta,
            reason="",
            evidence=evidence,
        )

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Return the mechanisms that the ledger charges for."""
        if not self.amplified:
            return (LocalReports(epsilon=self.epsilon),)
        return (
            ShuffledReports(
                epsilon=self.epsilon,
                delta=self.delta,
                local_epsilon=Epsilon(micro=self.request.randomizer.epsilon_micro),
                reports=self.reports,
                bound=self.request.bound,
            ),
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters that are logged for auditors besides the mechanism."""
        return {
            "randomizer": self.request.randomizer.hex,
            "reports": str(self.reports),
            "local_epsilon": str(Epsilon(micro=self.request.randomizer.epsilon_micro)),
            "permanent_epsilon": permanent_text(self.request.randomizer),
            "bound": self.request.bound.value if self.amplified else "",
            "assumption": ASSUMPTION if self.amplified else "",
            "collection": self.evidence.collection if self.evidence else "",
            "registry_key_sha256": self.evidence.key.digest if self.evidence else "",
            "not_amplified": self.reason,
        }


def permanent_text(randomizer: Randomizer) -> str:
    """Return ε∞ as decimal text; empty text if nothing bounds it."""
    micro = randomizer.epsilon_permanent_micro
    if micro is None:
        return ""
    whole, part = divmod(micro, _MICRO)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".")


def random_order(bits: Bits, count: int) -> NDArray[np.int64]:
    """Return a uniform permutation of 0 to ``count`` - 1, exactly.

    Indexes sorted by independent random words are in uniform order if no two words are equal. If two are equal, which
    is rare, all words are drawn again.
    """
    while True:
        words = bits.words(count)
        order = np.argsort(words, kind="stable")
        ranked = words[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order.astype(np.int64)


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
