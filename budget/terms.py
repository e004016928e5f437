"""The terms of a ledger: its privacy unit, and per API how much one unit can contribute.

They are part of the ledger's first entry and never change. A second unit in the same ledger would give every report a
second budget, and another bound would change what the noise of earlier releases protects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from budget.errors import BudgetError, FormatError, TermsError
from budget.mechanisms import MAX_L1, Mechanism, Sensitivity
from budget.release import REPORT_UNIT, Release

_NAME_MAX: Final = 64
_ALWAYS_STATED: Final = ("l1", "l0", "threshold")
"""Derived parameters that a release of sums states. Others may be left out, and so may a threshold of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The privacy unit a ledger charges, by name, and the Λ₁ and Λ₀ of each API whose reports it may cover."""

    unit: str = REPORT_UNIT
    bounds: Mapping[str, Sensitivity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.unit, *self.bounds):
            if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX:
                raise TermsError(f"a unit or API must be named by 1 to {_NAME_MAX} characters, not {name!r}")
        object.__setattr__(self, "bounds", MappingProxyType(dict(sorted(self.bounds.items()))))

    def sensitivity(self, covers: Mapping[str, int]) -> Sensitivity:
        """Return the bounds of a release: the sum over the covered APIs, each times its count.

        One person can use all of the APIs at once, so the bounds add up. A release without reports protects nobody; it
        gets the largest bounds of a single API.
        """
        missing = sorted(set(covers) - set(self.bounds))
        if missing:
            raise TermsError(
                f"this ledger has no bounds for {', '.join(missing)}, only for {', '.join(self.bounds) or 'no API'}"
            )
        if not covers:
            return max(self.bounds.values(), key=lambda one: (one.l1, one.l0), default=Sensitivity())
        l1 = sum(self.bounds[api].l1 * times for api, times in covers.items())
        l0 = sum(self.bounds[api].l0 * times for api, times in covers.items())
        if not l1 <= MAX_L1:
            raise TermsError(
                f"the bounds of the covered APIs add up to {l1}, above 2^32: aggregate fewer days or APIs per job"
            )
        return Sensitivity(l1=l1, l0=l0)

    def release(
        self,
        *mechanisms: Mechanism,
        covers: Mapping[str, int],
        units: int = 1,
        parameters: Mapping[str, str] | None = None,
    ) -> Release:
        """Return a release of ``mechanisms`` over these APIs that states its unit and every derived parameter.

        ``units`` is how many units will pay; it matters for local reports only.
        """
        made = Release(mechanisms=mechanisms, covers=covers, parameters=parameters or {})
        stated = {**self.derived(made, units), **made.parameters}
        return replace(made, unit=REPORT_UNIT if made.final else self.unit, parameters=stated)

    def check(self, release: Release, units: int) -> None:
        """Refuse a release over ``units`` units that these terms forbid, or that states another derived parameter.

        It must have the ledger's unit (final releases: the report) and, if it charges units, name their APIs. The
        ledger asks before it charges, and every audit asks again.
        """
        expected = REPORT_UNIT if release.final else self.unit
        if release.unit != expected:
            raise TermsError(
                f"this ledger charges each {self.unit}, but this release would charge each {release.unit}, so that a "
                "report would have two budgets: use the unit of the ledger"
            )
        if units and not release.covers:
            raise TermsError(
                f"this release charges {units} units and names no API, so that nothing bounds what they contribute: "
                f"name their APIs in covers; this ledger has bounds for {', '.join(self.bounds) or 'no API'}"
            )
        for name, value in self.derived(release, units).items():
            stated = release.parameters.get(name)
            if stated != value and (stated is not None or (name in _ALWAYS_STATED and value != "0")):
                raise TermsError(
                    f"this release states {name} = {stated}: in this ledger, a release of these mechanisms over "
                    f"{', '.join(release.covers) or 'no API'} must state {name} = {value}"
                )

    def derived(self, release: Release, units: int) -> dict[str, str]:
        """Return the parameters of a release that follow from its mechanisms, its APIs and these terms.

        Sums: Λ₁, Λ₀ and τ (0 without key discovery), and max_value of ``OneUseNoise``, whose Λ₁ is twice that and whose
        APIs have no bound here. Local reports: their number, ε₀, ε∞ and the bound of their price.
        """
        if release.final and len(release.mechanisms) > 1:
            raise TermsError("local reports and one-use noise must be the only mechanism of a release")
        return release.mechanisms[0].derived(self, release, units)


def terms_to_plain(terms: Terms) -> dict[str, Any]:
    """Return the terms as the plain values of a ledger's first entry."""
    return {
        "unit": terms.unit,
        "bounds": {api: {"l1": str(one.l1), "l0": str(one.l0)} for api, one in terms.bounds.items()},
    }


def terms_from_plain(plain: dict[str, Any]) -> Terms:
    """Read back what ``terms_to_plain`` wrote."""
    try:
        bounds = {api: Sensitivity(l1=int(one["l1"]), l0=int(one["l0"])) for api, one in plain["bounds"].items()}
        return Terms(unit=plain["unit"], bounds=bounds)
    except (KeyError, TypeError, ValueError, AttributeError, BudgetError) as problem:
        raise FormatError(f"the terms of the ledger cannot be read: {problem}") from problem
