"""The terms of a ledger: its privacy unit, and per API how much one unit can contribute.

They are part of the ledger's first entry and never change. A second unit in the same ledger would give every report a
second budget, and another bound would change what the noise of earlier releases protects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from aggservice.mechanisms import discovery_threshold
from budget.amounts import MICRO_PLACES, decimal_text
from budget.errors import BudgetError, FormatError, TermsError
from budget.release import REPORT_UNIT, LaplaceDiscovery, LocalReports, Mechanism, OneUseNoise, Release, ShuffledReports

MAX_L1: Final = 1 << 32
_NAME_MAX: Final = 64
_ALWAYS_STATED: Final = ("l1", "l0", "threshold")
"""Derived parameters that a release of sums states. Others may be left out, and so may a threshold of 0."""
_RANDOMIZER_BYTES: Final = 28
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
        first = release.mechanisms[0]
        if release.final and len(release.mechanisms) > 1:
            raise TermsError("local reports and one-use noise must be the only mechanism of a release")
        if isinstance(first, LocalReports | ShuffledReports):
            self.sensitivity(release.covers)
            return _of_local_reports(first, release.parameters.get("randomizer", ""), units)
        if isinstance(first, OneUseNoise):
            if not self.bounds.keys().isdisjoint(release.covers):
                raise TermsError("one-use noise is for APIs without bounds in this ledger")
            both = str(first.sensitivity)
            return {"l1": both, "l0": both, "threshold": "0", "max_value": str(first.max_value)}
        bounds = self.sensitivity(release.covers)
        found = [one for one in release.mechanisms if isinstance(one, LaplaceDiscovery)]
        if len(found) > 1:
            raise TermsError("a release can discover keys once: it has one threshold")
        tau = 0
        for one in found:
            tau = discovery_threshold(
                epsilon_micro=one.epsilon.micro, delta_atto=one.delta.atto, l0=bounds.l0, l1=bounds.l1
            )
        return {"l1": str(bounds.l1), "l0": str(bounds.l0), "threshold": str(tau)}


def _of_local_reports(one: LocalReports | ShuffledReports, randomizer: str, units: int) -> dict[str, str]:
    """Return the derived parameters of local reports; TermsError if their price is not that of their randomizer."""
    try:
        raw = bytes.fromhex(randomizer)
    except ValueError:
        raw = b""
    if len(raw) != _RANDOMIZER_BYTES or raw.hex() != randomizer:
        raise TermsError(f"a release of local reports names their randomizer by 56 hex digits, not {randomizer!r}")
    local, permanent = int.from_bytes(raw[20:24], "big"), int.from_bytes(raw[24:], "big")
    priced = one.epsilon if isinstance(one, LocalReports) else one.local
    if priced.micro != local:
        stated = decimal_text(local, MICRO_PLACES)
        raise TermsError(f"the price is for reports of epsilon {priced}, but their randomizer has {stated}")
    if isinstance(one, ShuffledReports) and one.reports != units:
        raise TermsError(f"the price is for {one.reports} shuffled reports, but {units} units would pay it")
    if isinstance(one, ShuffledReports) and (permanent or not raw[16] & 0x80):
        raise TermsError(
            "the price is amplified, but the randomizer does not say that a device's reports share nothing, and a "
            f"later report may show which one was its own: such reports cost their own epsilon, {priced}"
        )
    return {
        "reports": str(units),
        "local_epsilon": str(priced),
        "permanent_epsilon": decimal_text(permanent, MICRO_PLACES) if permanent else "",
        "bound": one.bound.value if isinstance(one, ShuffledReports) else "",
    }


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
