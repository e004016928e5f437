"""A release: its mechanisms and their parameters. ``budget.filters`` computes what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from budget.errors import BudgetError, FormatError, UnsupportedMechanismError
from budget.mechanisms import DISCOVERY_RULES, MECHANISMS, Mechanism, mechanism_from_plain

REPORT_UNIT = "report"
"""The privacy unit of the paper's Algorithm 1, and of every release of local reports."""

_NAME_MAX = 64
_VALUE_MAX = 4096
_PARAMETERS_MAX = 64
_MECHANISMS_MAX = 16


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
        return any(one.of_reports for one in self.mechanisms)

    @property
    def final(self) -> bool:
        """Whether units that pay for this release can never pay again. They are reports, whatever the ledger's unit."""
        return any(one.final for one in self.mechanisms)


def release_to_plain(release: Release) -> dict[str, Any]:
    """Return the release as the plain values that go into a log entry."""
    return {
        "mechanisms": [one.to_plain() for one in release.mechanisms],
        "unit": release.unit,
        "covers": dict(release.covers),
        "parameters": dict(release.parameters),
    }


def _check_readable(mechanism: Mechanism) -> None:
    """Raise UnsupportedMechanismError unless the mechanism comes back unchanged from its form in a log entry."""
    try:
        read = mechanism_from_plain(mechanism.to_plain())
        same = type(read) is type(mechanism) and read == mechanism
    except (AttributeError, KeyError, TypeError, ValueError, BudgetError):
        same = False
    if not same:
        raise UnsupportedMechanismError(
            f"{type(mechanism).__name__} is not a mechanism that the ledger can log and price: use one of "
            f"{', '.join((*MECHANISMS, *DISCOVERY_RULES))}"
        )


def release_from_plain(plain: dict[str, Any]) -> Release:
    """Read back what ``release_to_plain`` wrote; FormatError or AmountError for anything else."""
    if set(plain) != {"mechanisms", "unit", "covers", "parameters"}:
        raise FormatError(f"a release has mechanisms, unit, covers and parameters, not {', '.join(sorted(plain))}")
    return Release(
        mechanisms=tuple(mechanism_from_plain(one) for one in plain["mechanisms"]),
        unit=plain["unit"],
        covers=plain["covers"],
        parameters=plain["parameters"],
    )
