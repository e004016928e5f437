"""A release: its mechanisms and their parameters. ``budget.filters`` computes what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, get_args

from aggservice.mechanisms import AmplificationBound, ParameterError, amplified_micro
from budget.amounts import Delta, Epsilon, Rho
from budget.errors import BudgetError, FormatError, UnsupportedMechanismError, ZeroAmountError

REPORT_UNIT = "report"
"""The privacy unit of the paper's Algorithm 1, and of every release of local reports."""

_NAME_MAX = 64
_VALUE_MAX = 4096
_PARAMETERS_MAX = 64
_MECHANISMS_MAX = 16
_DIGITS_MAX = 301


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise:
    """Discrete Laplace noise over keys known in advance: ε-DP (the paper, Algorithm 1 and Fact 3.3)."""

    name: ClassVar[str] = "discrete_laplace"
    epsilon: Epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceDiscovery:
    """Truncated discrete Laplace noise and a strict threshold over keys found in reports: (ε, δ)-DP, δ > 0
    (the paper, Algorithm 1 and Lemma A.1)."""

    name: ClassVar[str] = "truncated_discrete_laplace"
    epsilon: Epsilon
    delta: Delta

    def __post_init__(self) -> None:
        if not self.delta.atto > 0:
            raise ZeroAmountError("delta must be above 0 for key discovery: at delta 0 no threshold can hide a key")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Discrete Gaussian noise: ρ-zCDP, or δ-approximate ρ-zCDP if a threshold also hides keys
    (the paper, Appendix B)."""

    name: ClassVar[str] = "discrete_gaussian"
    rho: Rho
    delta: Delta = field(default_factory=lambda: Delta(atto=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReports:
    """Reports, each randomized by its device with ε₀, released in random order; each unit only once (``filters``)."""

    name: ClassVar[str] = "local_response"
    epsilon: Epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledReports:
    """Like ``LocalReports``, at the lower price (ε, δ) that shuffling gives n honest clients in the central model
    (Erlingsson and others 2019, Theorem 7, or the numerical bound of ``aggservice.mechanisms``).

    It carries the inputs of its price. A price below the bound is refused, both in a charge and in a log.
    """

    name: ClassVar[str] = "shuffled_local_response"
    epsilon: Epsilon
    delta: Delta
    local: Epsilon
    reports: int
    bound: AmplificationBound

    def __post_init__(self) -> None:
        try:
            owed = amplified_micro(
                self.bound, local_micro=self.local.micro, reports=self.reports, delta_atto=self.delta.atto
            )
        except ParameterError as problem:
            raise BudgetError(f"the {self.bound} bound does not apply: {problem}") from problem
        # Another machine's floats may differ in the last digit, so that rounding up gives one millionth more or less.
        if not owed - 1 <= self.epsilon.micro <= self.local.micro:
            raise BudgetError(
                f"with {self.reports} shuffled reports of epsilon {self.local} and delta {self.delta}, a report owes "
                f"{Epsilon(micro=owed)} by the {self.bound} bound, not {self.epsilon}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneUseNoise:
    """Discrete Laplace noise for sensitivity 2 · ``max_value``, over reports that can be used once: ε-DP.

    The devices that sent them keep their own budgets and count each report as released once (W3C Attribution Level 1,
    "anti-replay").
    """

    name: ClassVar[str] = "discrete_laplace_one_use"
    epsilon: Epsilon
    max_value: int

    def __post_init__(self) -> None:
        if type(self.max_value) is not int or not 1 <= self.max_value < 1 << 31:
            raise BudgetError(f"the maximum value of a report must be from 1 to 2^31 - 1, not {self.max_value!r}")

    @property
    def sensitivity(self) -> int:
        """How far one report can move the sums between neighbours."""
        return 2 * self.max_value


Mechanism = LaplaceNoise | LaplaceDiscovery | GaussianNoise | LocalReports | ShuffledReports | OneUseNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release: every mechanism that ran on the same units, and parameters for auditors.

    ``unit`` names the privacy unit that pays. ``covers`` maps each API whose reports went in to the number of times
    that its bounds count (``budget.terms``). ``parameters`` are names and texts (Λ₁, Λ₀, τ, filtering IDs…) that are
    logged and do not change the price. UnsupportedMechanismError if a log entry cannot hold one of the mechanisms.
    """

    mechanisms: tuple[Mechanism, ...]
    unit: str = REPORT_UNIT
    covers: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < len(self.mechanisms) <= _MECHANISMS_MAX:
            raise BudgetError(f"a release has 1 to {_MECHANISMS_MAX} mechanisms, not {len(self.mechanisms)}")
        for one in self.mechanisms:
            _check_readable(one)
        if not len(self.parameters) <= _PARAMETERS_MAX:
            raise BudgetError(f"a release has at most {_PARAMETERS_MAX} parameters, not {len(self.parameters)}")
        for name, value in self.parameters.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise BudgetError("parameters of a release are text: give amounts as decimal text")
            if not 0 < len(name) <= _NAME_MAX or not len(value) <= _VALUE_MAX:
                raise BudgetError(
                    f"parameter {name[:_NAME_MAX]!r} or its value is too long to log, or its name is empty"
                )
        for api, times in self.covers.items():
            if not isinstance(api, str) or not 0 < len(api) <= _NAME_MAX or type(times) is not int or not times >= 1:
                raise BudgetError(f"a release covers APIs by name, each at least once, not {api!r}: {times!r}")
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        object.__setattr__(self, "covers", MappingProxyType(dict(sorted(self.covers.items()))))

    @property
    def of_reports(self) -> bool:
        """Whether the reports themselves are released, instead of sums over them."""
        return any(isinstance(one, LocalReports | ShuffledReports) for one in self.mechanisms)

    @property
    def final(self) -> bool:
        """Whether units that pay for this release can never pay again. They are reports, whatever the ledger's unit."""
        return self.of_reports or any(isinstance(one, OneUseNoise) for one in self.mechanisms)


def release_to_plain(release: Release) -> dict[str, Any]:
    """Return the release as the plain values that go into a log entry."""
    return {
        "mechanisms": [_mechanism_to_plain(one) for one in release.mechanisms],
        "unit": release.unit,
        "covers": dict(release.covers),
        "parameters": dict(release.parameters),
    }


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise FormatError(f"{text!r} is not a whole number in decimal")
    return int(text)


def _bound(text: str) -> AmplificationBound:
    if text not in tuple(AmplificationBound):
        raise FormatError(f"{text!r} is not the name of an amplification bound")
    return AmplificationBound(text)


_KINDS: Mapping[str, type[Mechanism]] = {kind.name: kind for kind in get_args(Mechanism)}
#: How each field of a mechanism is read; ``local`` is written as local_epsilon.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "epsilon": ("epsilon", Epsilon.parse),
    "delta": ("delta", Delta.parse),
    "rho": ("rho", Rho.parse),
    "local": ("local_epsilon", Epsilon.parse),
    "reports": ("reports", _whole),
    "max_value": ("max_value", _whole),
    "bound": ("bound", _bound),
}


def _mechanism_to_plain(mechanism: Mechanism) -> dict[str, str]:
    return {"name": mechanism.name} | {
        _FIELDS[field.name][0]: str(getattr(mechanism, field.name)) for field in fields(mechanism)
    }


def _mechanism(plain: dict[str, str]) -> Mechanism:
    kind = _KINDS.get(plain.get("name", ""))
    read = {field.name: _FIELDS[field.name] for field in fields(kind)} if kind is not None else {}
    if kind is None or plain.keys() != {"name", *(key for key, _ in read.values())}:
        raise FormatError(f"these values are not a mechanism: {plain!r}")
    return kind(**{name: parse(plain[key]) for name, (key, parse) in read.items()})


def _check_readable(mechanism: Mechanism) -> None:
    """Raise UnsupportedMechanismError unless the mechanism comes back unchanged from its form in a log entry."""
    try:
        read = _mechanism(_mechanism_to_plain(mechanism))
        same = type(read) is type(mechanism) and read == mechanism
    except (AttributeError, KeyError, TypeError, ValueError, BudgetError):
        same = False
    if not same:
        raise UnsupportedMechanismError(
            f"{type(mechanism).__name__} is not a mechanism that the ledger can log and price: use one of "
            f"{', '.join(kind.__name__ for kind in _KINDS.values())}"
        )


def release_from_plain(plain: dict[str, Any]) -> Release:
    """Read back what ``release_to_plain`` wrote; FormatError or AmountError for anything else."""
    if set(plain) != {"mechanisms", "unit", "covers", "parameters"}:
        raise FormatError(f"a release has mechanisms, unit, covers and parameters, not {', '.join(sorted(plain))}")
    return Release(
        mechanisms=tuple(_mechanism(one) for one in plain["mechanisms"]),
        unit=plain["unit"],
        covers=plain["covers"],
        parameters=plain["parameters"],
    )
