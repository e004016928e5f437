"""On-device budget rules: the limits that can refuse an epoch of a conversion. A rule is one class; ``RULES`` names it.

A rule says what shares one of its budgets, how much a budget has, and what an epoch of a conversion costs it.
``Browser`` asks its rules one after another; ``Fleet`` compiles them to columns. The epoch is always part of the scope,
because a device's epoch is the privacy unit (docs/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from aggservice.kinds import Kinds
from aggservice.wire.device import DeviceConfigError

if TYPE_CHECKING:
    from w3c_client.config import Config


class ScopeColumn(IntEnum):
    """What a scope is made of, beside the epoch. ``CALLER`` is the intermediary if there is one, else the top level."""

    CONVERSION_SITE = 1
    IMPRESSION_SITE = 2
    CALLER = 3
    ACTION = 4


class SharedCost(StrEnum):
    """The charge to budgets that several sites share, for a window within one epoch.

    ``WHOLE_VALUE``: twice the value, as the specification says. ``INDIVIDUAL``: the norm of the histogram, as Big Bird
    charges its global filter and conversion-site quotas; impression-site quotas are charged the norm only if the
    conversion names exactly one impression site.
    """

    WHOLE_VALUE = "whole-value"
    INDIVIDUAL = "individual"


@dataclass(frozen=True, slots=True)
class RuleCost:
    """The sensitivity that an epoch pays for: ``norm`` · ‖h‖₁ + ``value`` · value, at most twice the value.

    The norm is known only if the window lies within one epoch.
    """

    norm: int
    value: int

    def __post_init__(self) -> None:
        if not (0 <= self.norm <= 2 and 0 <= self.value <= 2 - self.norm):
            raise DeviceConfigError(f"a cost is at most twice the value: write norm and value of 0 to 2, not {self}")


WHOLE_VALUE: Final = RuleCost(norm=0, value=2)
"""Without an epoch the value can move from one index to another."""
NORM: Final = RuleCost(norm=1, value=0)
"""Without the only epoch of a window nothing is reported."""


@dataclass(frozen=True)
class OnDeviceRule:
    """One limit on the device. A subclass sets what differs; instances hold a stranger's own values.

    ``name`` stands in files and results, ``title`` in tables for people. ``scope`` says what shares one budget within
    an epoch. ``observer`` says whose view of all reports a budget bounds, which ``aggservice.kits.rules`` checks; None
    is the scope. ``field`` names the field of ``Config`` with the capacity. Rules are asked by ``order``, then by name.
    ``refusal`` is the step of a campaign's waterfall that counts what the rule refuses.

    With ``counts_sites`` the capacity is the number of sites that may save or measure within one scope, and nothing
    is paid; the scope then has callers and actions only. With ``emptied`` clearing the data of a conversion site sets
    its budgets to zero. A scope with ``ACTION`` does not concern pages without one.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    scope: ClassVar[tuple[ScopeColumn, ...]] = ()
    observer: ClassVar[tuple[ScopeColumn, ...] | None] = None
    field: ClassVar[str] = ""
    order: ClassVar[int] = 100
    refusal: ClassVar[str] = "quota"
    counts_sites: ClassVar[bool] = False
    emptied: ClassVar[bool] = False

    def capacity(self, config: Config) -> int:
        """Return what each budget has per epoch, in micro-epsilon; or the number of sites."""
        if not self.field:
            raise DeviceConfigError(f"the on-device rule {self.name} has no capacity: set field, or override capacity")
        found: int = getattr(config, self.field)
        return found

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        """Return what an epoch with matches pays.

        ``one_epoch`` says that the whole window lies within the epoch; ``named_sites`` is how many impression sites the
        conversion names, 0 for any.
        """
        return WHOLE_VALUE


class SiteBudget(OnDeviceRule):
    """The privacy budget of a conversion site (specification, "privacy budget store"; Cookie Monster)."""

    name = "site-budget"
    title = "per-site budget"
    scope: ClassVar[tuple[ScopeColumn, ...]] = (ScopeColumn.CONVERSION_SITE,)
    field = "site_budget_micro"
    order = 10
    refusal = "site_budget"
    emptied = True

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        """Return the norm within one epoch: the site sees no other report."""
        return NORM if one_epoch else WHOLE_VALUE


class GlobalBudget(OnDeviceRule):
    """The budget that all sites share (specification, "global privacy budget store")."""

    name = "global-budget"
    title = "global budget"
    field = "global_budget_micro"
    order = 20
    refusal = "global_budget"

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        """Return what ``Config.shared_cost`` says."""
        return NORM if one_epoch and config.shared_cost is SharedCost.INDIVIDUAL else WHOLE_VALUE


class ConversionQuota(GlobalBudget):
    """What one conversion site may take from the global budget (Big Bird)."""

    name = "conversion-site-quota"
    title = "conversion-site quota"
    scope = (ScopeColumn.CONVERSION_SITE,)
    field = "conversion_quota_micro"
    order = 30
    refusal = "quota"


class ImpressionQuota(OnDeviceRule):
    """What conversions on one site's impressions may take from the global budget (specification; Big Bird).

    Each impression site among the matches pays once.
    """

    name = "impression-site-quota"
    title = "impression-site quota"
    scope = (ScopeColumn.IMPRESSION_SITE,)
    field = "impression_quota_micro"
    order = 40

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        """Return the norm only if no other publisher's impression can take the value."""
        individual = one_epoch and config.shared_cost is SharedCost.INDIVIDUAL
        return NORM if individual and named_sites == 1 else WHOLE_VALUE


class ActionCap(OnDeviceRule):
    """How many sites may save impressions or measure conversions after one action of the user (Big Bird)."""

    name = "action-cap"
    title = "cap per action"
    scope = (ScopeColumn.ACTION,)
    field = "sites_per_action"
    order = 50
    counts_sites = True


class DelegatedBudget(SiteBudget):
    """The part of a conversion site's budget that one caller may spend (w3c/attribution issue 41, Level 2).

    A site that lets intermediaries measure can then lose no more than this to any one of them.
    """

    name = "delegated-budget"
    title = "budget delegated to a caller"
    scope = (ScopeColumn.CONVERSION_SITE, ScopeColumn.CALLER)
    field = "delegated_budget_micro"
    order = 60
    refusal = "quota"
    emptied = False


RULES: Final[Kinds[type[OnDeviceRule] | OnDeviceRule]] = Kinds(
    "on-device rule",
    base=OnDeviceRule,
    builtin={
        rule.name: rule
        for rule in (SiteBudget, GlobalBudget, ConversionQuota, ImpressionQuota, ActionCap, DelegatedBudget)
    },
)
"""Every on-device rule by its name."""


def rule_of(given: OnDeviceRule | type[OnDeviceRule] | str) -> OnDeviceRule:
    """Return a rule itself, or the rule of a name or class."""
    found = RULES[given] if isinstance(given, str) else given
    return found() if isinstance(found, type) else found


def rules_in_order(given: Iterable[OnDeviceRule | type[OnDeviceRule] | str]) -> tuple[OnDeviceRule, ...]:
    """Return rules in the order in which they are asked; raise ``DeviceConfigError`` if they cannot run together."""
    rules = sorted(map(rule_of, given), key=lambda rule: (rule.order, rule.name))
    for number, rule in enumerate(rules):
        if number and rules[number - 1].name == rule.name:
            raise DeviceConfigError(f"two on-device rules are named {rule.name}: give each a name of its own")
        if rule.counts_sites and not {*rule.scope} <= {ScopeColumn.CALLER, ScopeColumn.ACTION}:
            raise DeviceConfigError(f"{rule.name} counts sites: its scope can have callers and actions only")
        if rule.emptied and rule.scope != (ScopeColumn.CONVERSION_SITE,):
            raise DeviceConfigError(f"{rule.name} is emptied with a site's data: its scope must be the conversion site")
    return tuple(rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """One epoch that a call uses: whose budgets it touches. ``impression_sites`` are those of the matches."""

    epoch: int
    site: str
    caller: str
    action: int | None = None
    impression_sites: frozenset[str] = frozenset()

    def keys(self, scope: tuple[ScopeColumn, ...]) -> list[tuple[int | str, ...]]:
        """Return the keys of the budgets of a scope: the epoch, then a value per column."""
        if scope == (ScopeColumn.IMPRESSION_SITE,):
            return [(self.epoch, other) for other in self.impression_sites]
        if ScopeColumn.ACTION in scope and self.action is None:
            return []
        values = (0, self.site, "", self.caller, self.action or 0)
        known = [values[column] for column in scope]
        if ScopeColumn.IMPRESSION_SITE not in scope:
            return [(self.epoch, *known)]
        at = scope.index(ScopeColumn.IMPRESSION_SITE)
        return [(self.epoch, *known[:at], other, *known[at + 1 :]) for other in self.impression_sites]
