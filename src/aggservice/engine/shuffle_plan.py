"""What a shuffle of local reports costs: ε₀ a report, or what is left of it for one among n honest clients.

The amplified (ε, δ) is charged only where the operator has declared the clients authenticated: a caller who could send
reports of his own would know the other n − 1 and undo the shuffle. It counts reports of the same randomizer (Corollary
9), one a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from aggservice.engine.errors import InvalidJobError
from aggservice.engine.sites import site_of
from aggservice.wire import Api, EncodingError, Randomizer
from budget import AmountError, Delta, Epsilon, LocalReports, Mechanism, ShuffledReports
from mechanisms import AmplificationBound, ParameterError, amplified_micro

ASSUMPTION = "n honest clients, one collection"
_MICRO = 10**6
_ATTO = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRequest:
    """What a shuffle asks for: reports of one randomizer, and amplification at δ (None: none)."""

    randomizer: Randomizer
    delta: Delta | None = None
    bound: AmplificationBound = AmplificationBound.NUMERICAL

    def __post_init__(self) -> None:
        if self.delta is not None and not 0 < self.delta.atto < _ATTO:
            raise InvalidJobError("amplification by shuffling needs a delta above 0 and below 1")
        if not self.randomizer.epsilon_micro <= 64 * _MICRO:
            raise InvalidJobError("this randomizer's reports have an epsilon above 64, which no unit may pay at once")

    @classmethod
    def parse(cls, *, randomizer: str, delta: str = "", bound: str = "") -> ShuffleRequest:
        """Read the request from text; what is empty is left out."""
        try:
            return cls(
                randomizer=Randomizer.from_hex(randomizer),
                delta=Delta.parse(delta) if delta else None,
                bound=AmplificationBound(bound) if bound else AmplificationBound.NUMERICAL,
            )
        except (EncodingError, AmountError) as problem:
            raise InvalidJobError(str(problem)) from problem
        except ValueError:
            known = ", ".join(AmplificationBound)
            raise InvalidJobError(f"the bound of a shuffle is one of {known}, not {bound!r}") from None

    def to_plain(self) -> dict[str, str]:
        """Return plain values, by which the ledger knows the same request again."""
        return {"randomizer": self.randomizer.hex, "delta": str(self.delta or ""), "bound": self.bound.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSettings:
    """Whose clients the operator has declared authenticated: reporting origins, exactly, or whole sites."""

    origins: frozenset[str] = frozenset()
    sites: frozenset[str] = frozenset()

    def declared(self, *, origin: str | None, site: str | None) -> str:
        """Return the declaration that covers a job over an origin, or over a site; empty where none does."""
        if origin is not None and origin in self.origins:
            return origin
        found = site if origin is None else site_of(origin)
        return found if found is not None and found in self.sites else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflePlan:
    """What each of ``reports`` reports is charged, and why it is not less (empty when amplified)."""

    request: ShuffleRequest
    reports: int
    epsilon: Epsilon
    delta: Delta
    reason: str
    declared: str = ""
    covers: ClassVar[Mapping[Api, int]] = {}

    @property
    def amplified(self) -> bool:
        """Whether the central (ε, δ) is charged in place of ε₀."""
        return not self.reason

    @classmethod
    def of(
        cls,
        request: ShuffleRequest,
        reports: int,
        settings: ShuffleSettings,
        *,
        origin: str | None = None,
        site: str | None = None,
    ) -> ShufflePlan:
        """Decide for a job over a reporting origin, or over a reporting site."""
        local = Epsilon(micro=request.randomizer.epsilon_micro)

        def unamplified(reason: str) -> ShufflePlan:
            return cls(request=request, reports=reports, epsilon=local, delta=Delta(atto=0), reason=reason)

        if request.delta is None:
            return unamplified("no delta was asked for, without which shuffling amplifies nothing")
        declared = settings.declared(origin=origin, site=site)
        if not declared:
            return unamplified(
                f"the operator has not declared the clients of {origin or site} authenticated: "
                "somebody could have sent the other reports himself"
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
            declared=declared,
        )

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Return what the ledger charges for."""
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
        """Return what an auditor should know beside the mechanism."""
        return {
            "randomizer": self.request.randomizer.hex,
            "reports": str(self.reports),
            "local_epsilon": str(Epsilon(micro=self.request.randomizer.epsilon_micro)),
            "permanent_epsilon": permanent_text(self.request.randomizer),
            "bound": self.request.bound.value if self.amplified else "",
            "assumption": ASSUMPTION if self.amplified else "",
            "declared": self.declared,
            "not_amplified": self.reason,
        }


def permanent_text(randomizer: Randomizer) -> str:
    """Return ε∞ as decimal text; empty where nothing bounds it."""
    micro = randomizer.epsilon_permanent_micro
    if micro is None:
        return ""
    whole, part = divmod(micro, _MICRO)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".")
