"""The terms of a ledger: its privacy unit, and per API how much one unit can contribute.

They are part of the ledger's first entry and never change. A second unit in the same ledger would give every report a
second budget, and another bound would change what the noise of earlier releases protects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from budget.errors import BudgetError, FormatError, TermsError
from budget.release import REPORT_UNIT, OneUseNoise, Release

MAX_L1: Final = 1 << 32
_NAME_MAX: Final = 64


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

    def check(self, release: Release) -> None:
        """Refuse a release with another unit than the ledger's, an unknown API, or other bounds than its APIs have.

        Final releases are charged per report in every ledger. A release with ``OneUseNoise`` has its own bound,
        2 · max_value, and covers only APIs without a bound in the ledger: their devices bound each report.
        """
        expected = REPORT_UNIT if release.final else self.unit
        if release.unit != expected:
            raise TermsError(
                f"this ledger charges each {self.unit}, but this release would charge each {release.unit}, so that a "
                "report would have two budgets: use the unit of the ledger"
            )
        if not release.covers:
            return
        once = [one for one in release.mechanisms if isinstance(one, OneUseNoise)]
        if once:
            if len(release.mechanisms) > 1 or not self.bounds.keys().isdisjoint(release.covers):
                raise TermsError("one-use noise must be the only mechanism, over APIs without bounds in this ledger")
            bounds = Sensitivity(l1=once[0].sensitivity, l0=once[0].sensitivity)
        else:
            bounds = self.sensitivity(release.covers)
        if release.of_reports:
            return
        stated = (release.parameters.get("l1"), release.parameters.get("l0"))
        if stated != (str(bounds.l1), str(bounds.l0)):
            raise TermsError(
                f"this release states the bounds {stated[0]} and {stated[1]}: in this ledger, a release over "
                f"{', '.join(release.covers)} must state l1 = {bounds.l1} and l0 = {bounds.l0}"
            )


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
