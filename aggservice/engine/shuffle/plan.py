"""The price of a shuffle of local reports: ε₀ per report, or less if it is amplified among n honest clients.

A caller who sends n − 1 reports of their own knows them, and so recognises the last one. Therefore the amplified
(ε, δ) counts only reports with a device token, which the caller cannot make: n is their number, all of one randomizer
(Corollary 9 of the paper that docs/shuffling.md names) and one per client. A price must survive what is released later:
if a device's reports share a hash function or a memoized answer, a later one shows which of the n was its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aggservice.engine.errors import InvalidJobError
from aggservice.mechanisms import AmplificationBound, ParameterError, amplified_micro
from aggservice.wire import Api, Randomizer
from aggservice.wire.errors import EncodingError
from aggservice.wire.origins import site_of
from aggservice.wire.report.device_tokens import TokenCheck, check_collection
from aggservice.wire.report.registry_keys import RegistryKey
from budget import AmountError, Delta, Epsilon, LocalReports, ShuffledReports
from budget.release import Mechanism

ASSUMPTION = "n honest clients, one collection"
_MICRO = 10**6
_ATTO = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRequest:
    """The parameters of a shuffle: the randomizer of its reports, and the δ of amplification (None: no amplification).

    Device tokens must be for ``collection``; without it, no token is checked and nothing is amplified.
    """

    randomizer: Randomizer
    delta: Delta | None = None
    bound: AmplificationBound = AmplificationBound.NUMERICAL
    collection: str = ""

    def __post_init__(self) -> None:
        if self.delta is not None and not 0 < self.delta.atto < _ATTO:
            raise InvalidJobError("the delta of the shuffle is out of range: use a number above 0 and below 1")
        if not self.randomizer.epsilon_micro <= 64 * _MICRO:
            raise InvalidJobError(
                "the randomizer's epsilon is above 64, the most that a unit may pay: use one with a smaller epsilon"
            )
        if self.collection:
            try:
                check_collection(self.collection)
            except EncodingError as problem:
                raise InvalidJobError(str(problem)) from problem

    @classmethod
    def parse(cls, *, randomizer: str, delta: str = "", bound: str = "", collection: str = "") -> ShuffleRequest:
        """Read the request from text; an empty text means that the field is not given."""
        try:
            return cls(
                randomizer=Randomizer.from_hex(randomizer),
                delta=Delta.parse(delta) if delta else None,
                bound=AmplificationBound(bound) if bound else AmplificationBound.NUMERICAL,
                collection=collection,
            )
        except (EncodingError, AmountError) as problem:
            raise InvalidJobError(str(problem)) from problem
        except ValueError:
            known = ", ".join(AmplificationBound)
            raise InvalidJobError(f"the bound {bound!r} is unknown: use one of {known}") from None

    def to_plain(self) -> dict[str, str]:
        """Return plain values; the ledger recognises a repeated request by them."""
        plain = {"randomizer": self.randomizer.hex, "delta": str(self.delta or ""), "bound": self.bound.value}
        return {**plain, "collection": self.collection} if self.collection else plain


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

    def evidence(self, request: ShuffleRequest, *, origin: str | None, site: str | None) -> TokenCheck | None:
        """Return the check that the device tokens of a job must pass; None if the job is not amplified.

        A job is amplified only with a δ, a collection, and a registry's key for its origin or site.
        """
        key = self.key(origin=origin, site=site)
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
    def of(cls, request: ShuffleRequest, reports: int, *, evidence: TokenCheck | None, scope: str) -> ShufflePlan:
        """Return the price of ``reports`` reports of the origin or site ``scope``.

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
                f"the operator has configured no device registry for {scope}, so nothing shows that the caller did "
                "not send the other reports"
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
                local=Epsilon(micro=self.request.randomizer.epsilon_micro),
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
