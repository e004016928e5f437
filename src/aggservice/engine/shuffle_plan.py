"""What a shuffle of local reports costs: ε₀ a report, or what is left of it for one among n honest clients.

The amplified (ε, δ) is charged only where the operator has declared the clients authenticated: a caller who could send
reports of his own would know the other n − 1 and undo the shuffle. It counts reports of the same randomizer (Corollary
9), one a client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from aggservice.engine.errors import InvalidJobError
from aggservice.engine.sites import site_of
from aggservice.wire import EncodingError, Randomizer
from budget import AmountError, Delta, Epsilon, LocalReports, Mechanism, ShuffledReports
from mechanisms import ParameterError, closed_epsilon, shuffled_epsilon, small_epsilon

ASSUMPTION = "n honest clients, one collection"
_MICRO = 10**6
_ATTO = 10**18


class AmplificationBound(StrEnum):
    """Which bound says what shuffling leaves of ε₀; all of them hold for every randomizer.

    ``numerical`` is the tightest; ``closed`` is Theorem 7's; ``small`` its case for at least 1,000 reports, ε₀ < ½ and
    δ < 1/100, which is also Corollary 9.
    """

    NUMERICAL = "numerical"
    CLOSED = "closed"
    SMALL = "small"

    def epsilon(self, local: float, reports: int, delta: float) -> float:
        """Return the central ε at δ; raise ``ParameterError`` with the reason where the bound does not apply."""
        match self:
            case AmplificationBound.NUMERICAL:
                return shuffled_epsilon(local, reports, delta)
            case AmplificationBound.CLOSED:
                return closed_epsilon(local, reports, delta)
            case AmplificationBound.SMALL:
                return small_epsilon(local, reports, delta)


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
    """The reporting origins or sites whose clients the operator has declared authenticated."""

    authenticated: frozenset[str] = frozenset()

    def covers(self, scope: str) -> bool:
        """Return whether the clients of a job's origin or site are."""
        return scope in self.authenticated or site_of(scope) in self.authenticated


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflePlan:
    """What each of ``reports`` reports is charged, and why it is not less (empty when amplified)."""

    request: ShuffleRequest
    reports: int
    epsilon: Epsilon
    delta: Delta
    reason: str

    @property
    def amplified(self) -> bool:
        """Whether the central (ε, δ) is charged in place of ε₀."""
        return not self.reason

    @classmethod
    def of(cls, request: ShuffleRequest, reports: int, scope: str, settings: ShuffleSettings) -> ShufflePlan:
        """Decide. ``scope`` is the job's reporting origin or site."""
        local = Epsilon(micro=request.randomizer.epsilon_micro)

        def unamplified(reason: str) -> ShufflePlan:
            return cls(request=request, reports=reports, epsilon=local, delta=Delta(atto=0), reason=reason)

        if request.delta is None:
            return unamplified("no delta was asked for, without which shuffling amplifies nothing")
        if not settings.covers(scope):
            return unamplified(
                f"the operator has not declared the clients of {scope} authenticated: "
                "somebody could have sent the other reports himself"
            )
        try:
            # A float may be a unit in the last place off: take the local epsilon above, and delta below, what was said.
            above = math.nextafter(local.micro / _MICRO, math.inf)
            central = request.bound.epsilon(above, reports, math.nextafter(request.delta.atto / _ATTO, 0))
        except ParameterError as problem:
            return unamplified(f"the {request.bound} bound does not apply: {problem}")
        micro = max(1, math.ceil(central * _MICRO * (1 + 1e-12))) if central < local.micro / _MICRO else local.micro
        if not micro < local.micro:
            return unamplified(f"the {request.bound} bound for {reports} reports is not below the local epsilon")
        return cls(request=request, reports=reports, epsilon=Epsilon(micro=micro), delta=request.delta, reason="")

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Return what the ledger charges for."""
        if self.amplified:
            return (ShuffledReports(epsilon=self.epsilon, delta=self.delta),)
        return (LocalReports(epsilon=self.epsilon),)

    def parameters(self) -> dict[str, str]:
        """Return what an auditor should know beside the mechanism."""
        return {
            "randomizer": self.request.randomizer.hex,
            "reports": str(self.reports),
            "local_epsilon": str(Epsilon(micro=self.request.randomizer.epsilon_micro)),
            "permanent_epsilon": permanent_text(self.request.randomizer),
            "bound": self.request.bound.value if self.amplified else "",
            "assumption": ASSUMPTION if self.amplified else "",
            "not_amplified": self.reason,
        }


def permanent_text(randomizer: Randomizer) -> str:
    """Return ε∞ as decimal text; empty where nothing bounds it."""
    micro = randomizer.epsilon_permanent_micro
    if micro is None:
        return ""
    whole, part = divmod(micro, _MICRO)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".")
