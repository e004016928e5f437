"""The settings of W3C browsers: a design of on-device budgets, and how a campaign calls them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from w3c_client import Config, Design, Filter, design_config

MICRO = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSettings:
    """A design and its values; budgets are in micro-epsilon per epoch, and ``without`` names filters left out."""

    design: Design
    without: tuple[Filter, ...]
    site_budget_micro: int
    global_budget_micro: int
    conversion_quota_micro: int
    impression_quota_micro: int
    sites_per_action: int
    epoch_days: int

    def config(self, **changes: object) -> Config:
        """Return the browser's configuration; ``changes`` are further fields of it."""
        values: dict[str, object] = {
            "filters": design_config(self.design).filters - frozenset(self.without),
            "site_budget_micro": self.site_budget_micro,
            "global_budget_micro": self.global_budget_micro,
            "conversion_quota_micro": self.conversion_quota_micro,
            "impression_quota_micro": self.impression_quota_micro,
            "sites_per_action": self.sites_per_action,
            "epoch_days": self.epoch_days,
        }
        return design_config(self.design, **{**values, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class W3cSettings:
    """How a campaign measures with W3C browsers.

    ``epsilon`` is that of every call: one per conversion and measure. ``histogram_size`` None means room for
    every combination of the fields of impressions. ``cleared`` is the share of devices that clear their history once,
    ``disabled`` the share of devices with the API turned off, ``inactive`` the share of conversions without an
    activation.
    """

    design: DesignSettings
    epsilon: str
    histogram_size: int | None
    cleared: float
    disabled: float
    inactive: float

    @property
    def epsilon_micro(self) -> int:
        """The ε of every call in micro-epsilon."""
        return int(Fraction(self.epsilon) * MICRO)
