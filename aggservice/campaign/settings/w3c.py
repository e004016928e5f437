"""The settings of W3C browsers: a design of on-device budgets, and how a campaign calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from w3c_client import Config, design_config

MICRO = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSettings:
    """A design, the names of its rules as the file changes them, and their capacities by field of ``Config``."""

    design: str
    rules: tuple[str, ...]
    capacities: Mapping[str, int]
    epoch_days: int

    def config(self, **changes: object) -> Config:
        """Return the browser's configuration; ``changes`` are further fields of it."""
        values: dict[str, object] = {"rules": self.rules, **self.capacities, "epoch_days": self.epoch_days}
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
