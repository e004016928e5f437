"""The values that the specification leaves to the browser: limits, budgets, and which rules it runs.

``Config()`` is a browser in the style of Chromium; ``specification_minimums`` is the least that the specification
allows; ``design_config`` gives the rules of a published design. Change single values with ``dataclasses.replace``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from aggservice.wire.device import DeviceConfigError
from aggservice.wire.limits import MAX_CONTRIBUTIONS
from w3c_client.credit import AttributionRule, LastTouches, attribution_rule_of
from w3c_client.rules import OnDeviceRule, SharedCost, rules_in_order

DAY_MS: Final = 86_400_000
UINT32_MAX: Final = (1 << 32) - 1
#: The largest ε of a call (specification, "maximum epsilon"): in micro-epsilon it fits 32 bits.
MAX_EPSILON: Final = 4294
#: The only protocol of Level 1, and our own proposal for a service in a trusted execution environment.
DAP_PROTOCOL: Final = "dap-18-histogram"
TEE_PROTOCOL: Final = "aggservice-tee-0"
DEFAULT_SERVICE: Final = "https://aggregation-service.example"


class Arithmetic(StrEnum):
    """How costs and credits are computed: exactly, or in IEEE doubles in the specification's order."""

    EXACT = "exact"
    SPEC = "spec"


#: Published designs of on-device budgets: their rules, and further fields of ``Config``.
DESIGNS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "w3c": {},
        "big-bird": {
            "rules": rules_in_order(
                ("site-budget", "global-budget", "conversion-site-quota", "impression-site-quota", "action-cap")
            ),
            "impression_quota_micro": 2_000_000,
            "shared_cost": SharedCost.INDIVIDUAL,
        },
        "cookie-monster": {"rules": rules_in_order(("site-budget",))},
        "global-only": {"rules": rules_in_order(("global-budget",))},
    }
)
_LAST_TOUCHES: Final = LastTouches()
_LEVEL_1: Final = rules_in_order(("site-budget", "global-budget", "impression-site-quota"))
_SERVICES: Final[Mapping[str, str]] = MappingProxyType({DEFAULT_SERVICE: TEE_PROTOCOL})
_NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})
_AT_LEAST_ONE: Final = ("max_lookback_days", "max_credits", "max_histogram_size", "epoch_days", "sites_per_action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every implementation-defined value (specification, "Setting Implementation-Defined Values").

    ``rules`` are the on-device rules in use, as objects or names; a budget without its rule has no effect. Budgets are
    in micro-epsilon per epoch. ``attribution`` divides a conversion's value over its touches; it may be a name.
    ``impressions_per_site`` is a limit per site and epoch: no epoch displaces another's impressions. None keeps all.
    With ``consume_activation`` an activation enables the API on one site only, as the simulator of w3c/attribution
    proposes; the specification does not consume activations.
    """

    aggregation_services: Mapping[str, str] = field(default_factory=lambda: _SERVICES)
    max_service_histogram_size: Mapping[str, int] = field(default_factory=lambda: _NO_LIMITS)
    max_lookback_days: int = 30
    max_conversion_sites: int = 10
    max_conversion_callers: int = 10
    max_impression_sites: int = 30
    max_impression_callers: int = 10
    max_credits: int = 20
    max_match_values: int = 30
    max_histogram_size: int = 4096
    impressions_per_site: int | None = 10_000
    epoch_days: int = 7
    rules: tuple[OnDeviceRule, ...] = _LEVEL_1
    site_budget_micro: int = 1_000_000
    global_budget_micro: int = 8_000_000
    impression_quota_micro: int = 4_000_000
    conversion_quota_micro: int = 1_000_000
    delegated_budget_micro: int = 500_000
    sites_per_action: int = 2
    shared_cost: SharedCost = SharedCost.WHOLE_VALUE
    attribution: AttributionRule = _LAST_TOUCHES
    arithmetic: Arithmetic = Arithmetic.EXACT
    activation_duration_ms: int = 5_000
    consume_activation: bool = False
    reports_kept: int = 1_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", rules_in_order(self.rules))
        object.__setattr__(self, "attribution", attribution_rule_of(self.attribution))
        object.__setattr__(self, "shared_cost", SharedCost(self.shared_cost))
        object.__setattr__(self, "arithmetic", Arithmetic(self.arithmetic))
        for name in (each.name for each in fields(self) if each.type == "int"):
            most = UINT32_MAX if name.endswith("_micro") else 1 << 53
            self._check(name, getattr(self, name), 1 if name in _AT_LEAST_ONE else 0, most)
        if self.impressions_per_site is not None:
            self._check("impressions_per_site", self.impressions_per_site, 1, 1 << 53)
        if self.max_histogram_size > UINT32_MAX + 1:
            raise DeviceConfigError(
                f"max_histogram_size must be at most {UINT32_MAX + 1}, not {self.max_histogram_size}"
            )
        for url, protocol in self.aggregation_services.items():
            if protocol not in (DAP_PROTOCOL, TEE_PROTOCOL):
                raise DeviceConfigError(f"{url!r} has protocol {protocol!r}: use {DAP_PROTOCOL!r} or {TEE_PROTOCOL!r}")
            if protocol == TEE_PROTOCOL and min(self.max_credits, self.max_histogram_size) > MAX_CONTRIBUTIONS:
                raise DeviceConfigError(
                    f"a report to {url!r} holds {MAX_CONTRIBUTIONS} amounts: set max_credits or max_histogram_size to "
                    "at most that"
                )

    @staticmethod
    def _check(name: str, value: object, least: int, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise DeviceConfigError(f"{name} must be an integer from {least} to {most}, not {value!r}")

    @property
    def epoch_ms(self) -> int:
        """The length of an epoch."""
        return self.epoch_days * DAY_MS

    @property
    def max_lookback_ms(self) -> int:
        """The longest lookback, which is also the longest lifetime."""
        return self.max_lookback_days * DAY_MS

    def payload_slots(self, histogram_size: int) -> int:
        """Return how many contributions every report with this histogram size has, nulls included.

        A conversion credits at most as many impressions as a call may have credits. The page's own number of credits is
        not used, so that all reports of a task have the same size.
        """
        return min(histogram_size, self.max_credits, MAX_CONTRIBUTIONS)


def specification_minimums(**changes: object) -> Config:
    """Return the smallest limits that the specification allows, with ε_site = 1 and shared limits as small multiples.

    >>> specification_minimums().max_conversion_sites
    5
    """
    values: dict[str, object] = {
        "max_lookback_days": 30,
        "max_conversion_sites": 5,
        "max_conversion_callers": 10,
        "max_impression_sites": 30,
        "max_impression_callers": 10,
        "max_credits": 10,
        "max_match_values": 30,
        "impressions_per_site": 1_000,
    }
    return Config(**{**values, **changes})  # type: ignore[arg-type]


def design_config(design: str, **changes: object) -> Config:
    """Return a design's rules over the default limits; ``changes`` are fields of ``Config``.

    ``big-bird`` adds conversion-site quotas and a cap on sites per user action, with the values of its evaluation
    (quotas of 1 and 2 ε, cap 2); ``cookie-monster`` has only per-site budgets; ``global-only`` has one budget for all
    sites.
    """
    if design not in DESIGNS:
        raise DeviceConfigError(f"there is no design {design!r}: choose one of {', '.join(DESIGNS)}")
    return Config(**{**DESIGNS[design], **changes})  # type: ignore[arg-type]
