"""Mechanisms: what a release runs on its units, each one class with its price, its noise and its form in the log.

``MECHANISMS`` and ``DISCOVERY_RULES`` map their names to classes; nothing else knows the names. To add a mechanism,
derive from ``Mechanism`` (or from ``DiscoveryRule``), and run ``aggservice.kits`` on it (docs/extending.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

from aggservice.kinds import KindError, Kinds
from aggservice.mechanisms import (
    AmplificationBound,
    DiscreteGaussian,
    DiscreteLaplace,
    NoiseLaw,
    ParameterError,
    TruncatedDiscreteLaplace,
    amplified_micro,
    discovery_threshold,
)
from budget.amounts import MICRO_PLACES, Delta, Epsilon, Rho, decimal_text, zcdp_of_pure
from budget.errors import BudgetError, FormatError, MechanismNotAllowedError, TermsError, ZeroAmountError

if TYPE_CHECKING:
    from budget.release import Release
    from budget.terms import Terms

MAX_L1 = 1 << 32
_DIGITS_MAX = 301
_RANDOMIZER_BYTES = 28
"""A randomizer's name: 16 bytes of identity, then the length of a report, ε₀ and ε∞ in 4 bytes each (docs/wire.md).

The highest bit of the length says that a device's reports share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How much one privacy unit can move the sums: by Λ₁ in total, in at most Λ₀ contributions of at least 1 each."""

    l1: int = 65_536
    l0: int = 65_536

    def __post_init__(self) -> None:
        if not 1 <= self.l1 <= MAX_L1:
            raise TermsError(f"l1 must be an integer from 1 to 2^32, not {self.l1}")
        if not 1 <= self.l0 <= self.l1:
            raise TermsError(f"l0 must be an integer from 1 to l1 = {self.l1}, not {self.l0}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism(ABC):
    """What a release runs: a frozen dataclass whose fields are amounts, whole numbers or named choices.

    The fields are its form in the log and in jobs, as texts under their names. It states its price in each way that
    filters count (``pure_micro``, ``zcdp_micro``, ``delta_atto``) and the ``noise`` for a sensitivity.
    """

    name: ClassVar[str]
    """The name in jobs and logs."""
    final: ClassVar[bool] = False
    """Whether units that pay for it can never pay again. They are reports, whatever the ledger's unit."""
    of_reports: ClassVar[bool] = False
    """Whether it releases the reports themselves, instead of sums over them."""
    noise_name: ClassVar[str] = ""
    """The name of its noise in statements; the same as ``name`` unless given."""
    in_jobs: ClassVar[bool] = True
    """Whether a job can name it as the noise of its sums."""

    @property
    def pure_micro(self) -> int:
        """The ε of pure DP in 10⁻⁶, or of (ε, δ)-DP with ``delta_atto``: here, that of the field ``epsilon``.

        MechanismNotAllowedError if it has none.
        """
        epsilon: Epsilon | None = getattr(self, "epsilon", None)
        if epsilon is None:
            raise MechanismNotAllowedError(f"{self.name} has no epsilon: use a ledger with another filter")
        return epsilon.micro

    @property
    def zcdp_micro(self) -> int:
        """The ρ of zCDP in 10⁻⁶, δ-approximate with ``delta_atto``."""
        return zcdp_of_pure(self.pure_micro)

    @property
    def delta_atto(self) -> int:
        """The δ in 10⁻¹⁸: here, that of the field ``delta``, or 0 if it has none."""
        delta: Delta | None = getattr(self, "delta", None)
        return 0 if delta is None else delta.atto

    def moves(self, bounds: Sensitivity) -> int:
        """Return how far one unit can move the sums in total."""
        return bounds.l1

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        """Return the noise of each sum; ParameterError if there is none for these bounds."""
        raise ParameterError(f"{self.name} adds no noise to sums")

    @property
    def job_form(self) -> tuple[str, str]:
        """The name and amounts by which a repeated job is recognised. They must not change."""
        plain = self.to_plain()
        given = [(one.name, plain[one.name]) for one in fields(self) if plain[one.name] != _default_text(one)]
        if self.name in _JOB_NAMES and len(given) == 1:
            return _JOB_NAMES[self.name], given[0][1]
        return self.name, ",".join(f"{name}={text}" for name, text in given)

    @property
    def words(self) -> str:
        """What a unit paid, in words."""
        amounts = ((one.name, getattr(self, one.name)) for one in fields(self))
        return ", ".join(f"{_SIGNS.get(name, name)} = {value}" for name, value in amounts)

    def derived(self, terms: Terms, release: Release, units: int) -> dict[str, str]:
        """Return the parameters of a release of this and its other mechanisms that follow from the ledger's terms.

        Sums: Λ₁, Λ₀ and τ, which is 0 without key discovery.
        """
        bounds = terms.sensitivity(release.covers)
        found = [one for one in release.mechanisms if isinstance(one, DiscoveryRule)]
        if len(found) > 1:
            raise TermsError("a release can discover keys once: it has one threshold")
        tau = sum(one.threshold(bounds) for one in found)
        return {"l1": str(bounds.l1), "l0": str(bounds.l0), "threshold": str(tau)}

    def to_plain(self) -> dict[str, str]:
        """Return the plain values of a log entry: the name, and each field as text."""
        return {"name": self.name} | {one.name: str(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_plain(cls, plain: dict[str, str]) -> Self:
        """Read back what ``to_plain`` wrote; FormatError or AmountError for anything else."""
        if plain.keys() != {"name", *(one.name for one in fields(cls))}:
            raise FormatError(f"these values are not a mechanism: {plain!r}")
        return cls.parse(**{name: text for name, text in plain.items() if name != "name"})

    @classmethod
    def parse(cls, /, **texts: str) -> Self:
        """Return the mechanism with these fields, as decimal texts or names.

        >>> LaplaceNoise.parse(epsilon="0.5").pure_micro
        500000
        """
        types, known = get_type_hints(cls), {one.name: one for one in fields(cls)}
        needed = {name for name, one in known.items() if one.default is MISSING and one.default_factory is MISSING}
        if not needed <= texts.keys() <= known.keys():
            raise FormatError(f"{cls.name} has the parameters {', '.join(known)}, not {', '.join(texts) or 'none'}")
        return cls(**{name: _read(types[name], text) for name, text in texts.items()})

    @classmethod
    def example(cls) -> Self:
        """Return one with small amounts, for kits and pages."""
        types = get_type_hints(cls)
        return cls.parse(**{one.name: _EXAMPLES[types[one.name]] for one in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryRule(Mechanism):
    """A mechanism that also releases keys nobody declared, if their noisy sum exceeds a threshold."""

    in_jobs = False

    @classmethod
    @abstractmethod
    def beside(cls, declared: Mechanism, delta: Delta) -> Self:
        """Return the rule for a job whose declared keys get the noise of ``declared``; BudgetError if there is none."""

    @abstractmethod
    def threshold(self, bounds: Sensitivity) -> int:
        """Return τ: an undeclared key is released if its noisy sum is strictly greater."""

    @abstractmethod
    def discovered_noise(self, bounds: Sensitivity) -> NoiseLaw:
        """Return the noise of keys that are not declared. It must not carry a sum of 0 above τ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise(Mechanism):
    """Discrete Laplace noise over keys known in advance: ε-DP (the paper, Algorithm 1 and Fact 3.3)."""

    name = "discrete_laplace"
    epsilon: Epsilon

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        return DiscreteLaplace(epsilon_micro=self.epsilon.micro, sensitivity=bounds.l1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceDiscovery(DiscoveryRule):
    """Truncated discrete Laplace noise and a strict threshold over keys found in reports: (ε, δ)-DP, δ > 0
    (the paper, Algorithm 1 and Lemma A.1). Declared keys have the noise of ``LaplaceNoise``."""

    name = "truncated_discrete_laplace"
    epsilon: Epsilon
    delta: Delta

    def __post_init__(self) -> None:
        if not self.delta.atto > 0:
            raise ZeroAmountError("delta must be above 0 for key discovery: at delta 0 no threshold can hide a key")

    @classmethod
    def beside(cls, declared: Mechanism, delta: Delta) -> LaplaceDiscovery:
        if type(declared) is not LaplaceNoise:  # a subclass has other noise
            raise BudgetError(
                "key discovery uses truncated Laplace noise: give job_epsilon, not job_rho or another mechanism, or "
                "name a rule for that mechanism"
            )
        return cls(epsilon=declared.epsilon, delta=delta)

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        return LaplaceNoise(epsilon=self.epsilon).noise(bounds)

    def threshold(self, bounds: Sensitivity) -> int:
        micro, atto = self.epsilon.micro, self.delta.atto
        return discovery_threshold(epsilon_micro=micro, delta_atto=atto, l0=bounds.l0, l1=bounds.l1)

    def discovered_noise(self, bounds: Sensitivity) -> NoiseLaw:
        return TruncatedDiscreteLaplace(
            epsilon_micro=self.epsilon.micro, sensitivity=bounds.l1, tau=self.threshold(bounds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedNoise(Mechanism):
    """Discrete Laplace noise that never exceeds τ = ⌈Λ₁(1 + ln(1/δ)/ε)⌉: (ε, δ)-DP, for sums that must not be far off.

    A unit shows itself only where the noise and the moved noise do not overlap. That mass is superadditive in what the
    unit adds to a key, so it is largest if all of Λ₁ goes to one, and at most δ/2 there.
    """

    name = "bounded_discrete_laplace"
    epsilon: Epsilon
    delta: Delta

    def __post_init__(self) -> None:
        if not self.delta.atto > 0:
            raise ZeroAmountError("delta must be above 0 for bounded noise: at delta 0 no bound can hide a unit")

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        micro, l1 = self.epsilon.micro, bounds.l1
        tau = discovery_threshold(epsilon_micro=micro, delta_atto=self.delta.atto, l0=1, l1=l1)
        return TruncatedDiscreteLaplace(epsilon_micro=micro, sensitivity=l1, tau=tau)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Mechanism):
    """Discrete Gaussian noise: ρ-zCDP, or δ-approximate ρ-zCDP if a threshold also hides keys
    (the paper, Appendix B)."""

    name = "discrete_gaussian"
    rho: Rho
    delta: Delta = field(default_factory=lambda: Delta(atto=0))

    @property
    def pure_micro(self) -> int:
        raise MechanismNotAllowedError(
            "Gaussian noise is not pure DP: use a ledger created with the zCDP filter, or Laplace noise"
        )

    @property
    def zcdp_micro(self) -> int:
        return self.rho.micro

    @property
    def words(self) -> str:
        return f"ρ = {self.rho} (zCDP)"

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        return DiscreteGaussian.for_zcdp(rho_micro=self.rho.micro, sensitivity=bounds.l1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReports(Mechanism):
    """Reports, each randomized by its device with ε₀, released in random order; each unit only once (``filters``)."""

    name = "local_response"
    final = of_reports = True
    in_jobs = False
    epsilon: Epsilon

    def derived(self, terms: Terms, release: Release, units: int) -> dict[str, str]:
        terms.sensitivity(release.covers)
        return self._derived(release.parameters.get("randomizer", ""), units, self.epsilon)

    @staticmethod
    def _derived(randomizer: str, units: int, priced: Epsilon, bound: str = "") -> dict[str, str]:
        """Return number, ε₀, ε∞ and bound of local reports; TermsError if their price is not that of their randomizer.

        An amplified price (``bound``) needs a randomizer whose reports share nothing.
        """
        try:
            raw = bytes.fromhex(randomizer)
        except ValueError:
            raw = b""
        if len(raw) != _RANDOMIZER_BYTES or raw.hex() != randomizer:
            raise TermsError(f"a release of local reports names their randomizer by 56 hex digits, not {randomizer!r}")
        local, permanent = int.from_bytes(raw[20:24], "big"), int.from_bytes(raw[24:], "big")
        if priced.micro != local:
            stated = decimal_text(local, MICRO_PLACES)
            raise TermsError(f"the price is for reports of epsilon {priced}, but their randomizer has {stated}")
        if bound and (permanent or not raw[16] & 0x80):
            raise TermsError(
                "the price is amplified, but the randomizer does not say that a device's reports share nothing, and a "
                f"later report may show which one was its own: such reports cost their own epsilon, {priced}"
            )
        return {
            "reports": str(units),
            "local_epsilon": str(priced),
            "permanent_epsilon": decimal_text(permanent, MICRO_PLACES) if permanent else "",
            "bound": bound,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledReports(LocalReports):
    """Like ``LocalReports``, at the lower price (ε, δ) that shuffling gives n honest clients in the central model
    (Erlingsson and others 2019, Theorem 7, or the numerical bound of ``aggservice.mechanisms``).

    It carries the inputs of its price. A price below the bound is refused, both in a charge and in a log.
    """

    name = "shuffled_local_response"
    delta: Delta
    local_epsilon: Epsilon
    reports: int
    bound: AmplificationBound

    def __post_init__(self) -> None:
        local = self.local_epsilon
        try:
            owed = amplified_micro(
                self.bound, local_micro=local.micro, reports=self.reports, delta_atto=self.delta.atto
            )
        except ParameterError as problem:
            raise BudgetError(f"the {self.bound} bound does not apply: {problem}") from problem
        # Another machine's floats may differ in the last digit, so that rounding up gives one millionth more or less.
        if not owed - 1 <= self.epsilon.micro <= local.micro:
            raise BudgetError(
                f"with {self.reports} shuffled reports of epsilon {local} and delta {self.delta}, a report owes "
                f"{Epsilon(micro=owed)} by the {self.bound} bound, not {self.epsilon}"
            )

    @classmethod
    def example(cls) -> ShuffledReports:
        local, bound = Epsilon.parse("0.5"), AmplificationBound.NUMERICAL
        owed = amplified_micro(bound, local_micro=local.micro, reports=10_000, delta_atto=10**12)
        delta = Delta(atto=10**12)
        return cls(epsilon=Epsilon(micro=owed), delta=delta, local_epsilon=local, reports=10_000, bound=bound)

    def derived(self, terms: Terms, release: Release, units: int) -> dict[str, str]:
        terms.sensitivity(release.covers)
        if self.reports != units:
            raise TermsError(f"the price is for {self.reports} shuffled reports, but {units} units would pay it")
        return self._derived(release.parameters.get("randomizer", ""), units, self.local_epsilon, self.bound.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneUseNoise(Mechanism):
    """Discrete Laplace noise for sensitivity 2 · ``max_value``, over reports that can be used once: ε-DP.

    The devices that sent them keep their own budgets and count each report as released once (W3C Attribution Level 1,
    "anti-replay").
    """

    name = "discrete_laplace_one_use"
    noise_name = "discrete_laplace"
    final = True
    in_jobs = False
    epsilon: Epsilon
    max_value: int

    def __post_init__(self) -> None:
        if type(self.max_value) is not int or not 1 <= self.max_value < 1 << 31:
            raise BudgetError(f"the maximum value of a report must be from 1 to 2^31 - 1, not {self.max_value!r}")

    @property
    def sensitivity(self) -> int:
        """How far one report can move the sums between neighbours."""
        return 2 * self.max_value

    def moves(self, bounds: Sensitivity) -> int:
        return self.sensitivity

    @property
    def words(self) -> str:
        return f"ε = {self.epsilon}"

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        return DiscreteLaplace(epsilon_micro=self.epsilon.micro, sensitivity=self.sensitivity)

    def derived(self, terms: Terms, release: Release, units: int) -> dict[str, str]:
        if not terms.bounds.keys().isdisjoint(release.covers):
            raise TermsError("one-use noise is for APIs without bounds in this ledger")
        both = str(self.sensitivity)
        return {"l1": both, "l0": both, "threshold": "0", "max_value": str(self.max_value)}


MECHANISMS: Kinds[type[Mechanism]] = Kinds(
    "mechanism",
    base=Mechanism,
    builtin={
        one.name: one for one in (LaplaceNoise, GaussianNoise, BoundedNoise, LocalReports, ShuffledReports, OneUseNoise)
    },
)
DISCOVERY_RULES: Kinds[type[DiscoveryRule]] = Kinds(
    "key discovery rule", base=DiscoveryRule, builtin={LaplaceDiscovery.name: LaplaceDiscovery}
)
_SIGNS = {"epsilon": "ε", "delta": "δ", "rho": "ρ"}
_JOB_NAMES = {LaplaceNoise.name: "laplace", GaussianNoise.name: "gaussian"}
"""How digests of jobs have always called these two."""
_EXAMPLES: dict[Any, str] = {Epsilon: "1", Delta: "0.05", Rho: "0.5", int: "2"}


def mechanism_from_plain(plain: dict[str, str]) -> Mechanism:
    """Return the mechanism that ``to_plain`` wrote; FormatError or AmountError for anything else."""
    name = plain.get("name", "")
    try:
        kind = DISCOVERY_RULES[name] if name in DISCOVERY_RULES else MECHANISMS[name]
    except KindError as problem:
        raise FormatError(str(problem)) from problem
    return kind.from_plain(plain)


def _default_text(one: Field[Any]) -> str | None:
    """Return the text of a field's default; None if it has none."""
    if one.default_factory is not MISSING:
        return str(one.default_factory())
    return None if one.default is MISSING else str(one.default)


def _read(kind: Any, text: str) -> Any:
    """Return the value of a field from its text."""
    if kind in (Epsilon, Delta, Rho):
        return kind.parse(text)
    if kind is int:
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            raise FormatError(f"{text!r} is not a whole number in decimal")
        return int(text)
    if text not in tuple(kind):
        raise FormatError(f"{text!r} is not one of {', '.join(kind)}")
    return kind(text)
