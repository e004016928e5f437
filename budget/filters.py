"""The privacy filter of a ledger: the cost of a release, and whether a unit can pay. It is fixed at creation.

Both filters add up what was spent and refuse a release that would bring the sum above the limit. That is sound even
when later costs depend on earlier answers: for (ε, δ) by the paper's Algorithm 1 and Theorem 4.3, for zCDP by its
Appendix B (docs/bibliography.md names the paper).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from aggservice.kinds import Kinds
from budget.amounts import ATTO, ATTO_PLACES, LIMIT_MAX_MICRO, MICRO, MICRO_PLACES, decimal_text, limit_units
from budget.errors import AmountTooLargeError, BudgetError, FormatError
from budget.mechanisms import Mechanism
from budget.release import Release

USES_UNBOUNDED: Final = 2**32 - 1
"""The largest count of uses, which is the limit in a ledger without a bound on uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """An amount of budget: loss (ε or ρ, in 10⁻⁶), δ (in 10⁻¹⁸) and uses. A cost, a balance or a limit."""

    loss_micro: int
    delta_atto: int
    uses: int

    def __post_init__(self) -> None:
        if not (0 <= self.loss_micro <= LIMIT_MAX_MICRO and 0 <= self.delta_atto <= ATTO):
            raise BudgetError(f"a spend of {self.loss_micro}e-6 and delta {self.delta_atto}e-18 is out of range")
        if not 0 <= self.uses <= USES_UNBOUNDED:
            raise BudgetError(f"{self.uses} uses are out of range: give 0 to {USES_UNBOUNDED}")

    def left_of(self, limit: Spend) -> Spend:
        """Return ``limit`` minus this spend, which must not exceed it."""
        return Spend(
            loss_micro=limit.loss_micro - self.loss_micro,
            delta_atto=limit.delta_atto - self.delta_atto,
            uses=limit.uses - self.uses,
        )


def spend_to_plain(spend: Spend, loss_name: str) -> dict[str, str]:
    """Return a spend as decimal texts; ``loss_name`` is ``epsilon`` or ``rho``, as the filter says."""
    return {
        loss_name: decimal_text(spend.loss_micro, MICRO_PLACES),
        "delta": decimal_text(spend.delta_atto, ATTO_PLACES),
        "uses": str(spend.uses),
    }


def _checked_limits(loss_micro: int, delta_atto: int, uses: int | None) -> None:
    for value in (loss_micro, delta_atto, 1 if uses is None else uses):
        if not isinstance(value, int) or isinstance(value, bool):
            raise BudgetError("a limit must be an integer number of grid steps")
    if not 0 < loss_micro <= LIMIT_MAX_MICRO:
        raise BudgetError("the limit on the loss must be above 0 and at most 10⁹")
    if not 0 <= delta_atto <= ATTO:
        raise BudgetError("the limit on delta must lie in [0, 1]")
    if uses is not None and not 0 < uses < USES_UNBOUNDED:
        raise BudgetError("the bound on uses must be a positive number below 2³² − 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(ABC):
    """The filter of a ledger. A subclass names the loss that it counts and has the field ``<loss_name>_micro``.

    ``delta_atto`` is the limit on δ, ``uses`` on the number of releases (None: unbounded).
    """

    name: ClassVar[str]
    loss_name: ClassVar[str]
    sign: ClassVar[str]
    """The sign of the loss in words, such as ε."""

    delta_atto: int = ATTO // 10**5
    uses: int | None = None

    def __post_init__(self) -> None:
        _checked_limits(self.loss_micro, self.delta_atto, self.uses)

    @property
    def loss_micro(self) -> int:
        """The limit on the loss, in 10⁻⁶."""
        found: int = getattr(self, f"{self.loss_name}_micro")
        return found

    @property
    def limit(self) -> Spend:
        """What one unit may spend in total."""
        uses = USES_UNBOUNDED if self.uses is None else self.uses
        return Spend(loss_micro=self.loss_micro, delta_atto=self.delta_atto, uses=uses)

    @abstractmethod
    def loss(self, mechanism: Mechanism) -> int:
        """Return the loss of one mechanism in 10⁻⁶, rounded up; MechanismNotAllowedError if it has no price here."""

    def cost(self, release: Release) -> Spend:
        """Return what each unit pays: the sums of loss and δ over the mechanisms, and one use, or all if it is final.

        A shuffle hides the order of reports but shows their contents: a second shuffle of all but one of them would
        reveal the missing report. Because a shuffle takes every use, it is the first and the last release of each of
        its units. The same holds for reports that their devices count as released once.
        """
        loss = sum(self.loss(one) for one in release.mechanisms)
        delta = sum(one.delta_atto for one in release.mechanisms)
        if not delta <= ATTO:
            raise AmountTooLargeError("the deltas of one release add up to more than 1: give smaller deltas")
        return Spend(loss_micro=loss, delta_atto=delta, uses=self.limit.uses if release.final else 1)

    @classmethod
    def of_texts(cls, loss: str, delta: str, uses: int | None) -> Self:
        """Read limits from decimal text, rounding down to the grid."""
        limits: dict[str, Any] = {
            f"{cls.loss_name}_micro": limit_units(f"{cls.loss_name} limit", loss, MICRO_PLACES, LIMIT_MAX_MICRO),
            "delta_atto": limit_units("delta limit", delta, ATTO_PLACES, ATTO, minimum=0),
        }
        return cls(**limits, uses=uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaFilter(Filter):
    """Sums of ε and of δ per unit (the paper, Algorithm 1), and a bound on uses. Default limits: ε* = 64, δ* = 10⁻⁵."""

    name = "epsilon-delta"
    loss_name = "epsilon"
    sign = "ε"

    epsilon_micro: int = 64 * MICRO

    def loss(self, mechanism: Mechanism) -> int:
        return mechanism.pure_micro

    @classmethod
    def parse(cls, *, epsilon: str = "64", delta: str = "0.00001", uses: int | None = None) -> EpsilonDeltaFilter:
        """Read limits from decimal text, rounding down to the grid."""
        return cls.of_texts(epsilon, delta, uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZcdpFilter(Filter):
    """Sums of ρ and of δ per unit under approximate zCDP (the paper, Appendix B), and a bound on uses."""

    name = "zcdp"
    loss_name = "rho"
    sign = "ρ"

    rho_micro: int

    def loss(self, mechanism: Mechanism) -> int:
        return mechanism.zcdp_micro

    @classmethod
    def parse(cls, *, rho: str, delta: str = "0.00001", uses: int | None = None) -> ZcdpFilter:
        """Read limits from decimal text, rounding down to the grid."""
        return cls.of_texts(rho, delta, uses)


FILTERS: Kinds[type[Filter]] = Kinds(
    "accounting filter", base=Filter, builtin={one.name: one for one in (EpsilonDeltaFilter, ZcdpFilter)}
)


def filter_to_plain(chosen: Filter) -> dict[str, Any]:
    """Return the filter as the plain values of a ledger's first entry."""
    loss = decimal_text(chosen.loss_micro, MICRO_PLACES)
    uses = "unbounded" if chosen.uses is None else str(chosen.uses)
    return {
        "name": chosen.name,
        chosen.loss_name: loss,
        "delta": decimal_text(chosen.delta_atto, ATTO_PLACES),
        "uses": uses,
    }


def filter_from_plain(plain: dict[str, Any]) -> Filter:
    """Read back what ``filter_to_plain`` wrote."""
    try:
        uses = None if plain["uses"] == "unbounded" else int(plain["uses"])
        kind = FILTERS[plain["name"]]
        chosen = kind.of_texts(plain[kind.loss_name], plain["delta"], uses)
    except (KeyError, TypeError, ValueError) as problem:
        raise FormatError(f"the filter cannot be read: {problem}") from problem
    if filter_to_plain(chosen) != plain:
        raise FormatError("the filter is not in canonical form")
    return chosen
