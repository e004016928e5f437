"""Reads the fields of ``[client]`` that choose a W3C browser: a design of on-device budgets, and how it is called."""

from __future__ import annotations

from fractions import Fraction

from aggservice.campaign.settings.w3c import MICRO, DesignSettings, W3cSettings
from aggservice.files.toml import Section
from w3c_client import Design, Filter, design_config

_LARGEST = Fraction(4294)
#: The field of the file, the field of ``Config``, and the filter without which the budget has no effect.
_BUDGETS = {
    "site_budget": ("site_budget_micro", Filter.SITE),
    "global_budget": ("global_budget_micro", Filter.GLOBAL),
    "conversion_quota": ("conversion_quota_micro", Filter.CONVERSION_QUOTA),
    "impression_quota": ("impression_quota_micro", Filter.IMPRESSION_QUOTA),
}


def parse_design(section: Section) -> DesignSettings:
    """Read a design and its values; a budget whose filter the design does not have is refused.

    ``without`` names filters of the design to leave out, so that one can see what each of them does.
    """
    design = Design(section.choice("design", tuple(Design), Design.W3C))
    base = design_config(design)
    without = section.choices("without", sorted(base.filters), (), any_list=True)
    filters = base.filters - frozenset(map(Filter, without))
    amounts: dict[str, int] = {}
    for key, (name, needed) in _BUDGETS.items():
        if key in section and needed not in filters:
            section.refuse(key, f"has no effect: {design} runs no {needed} filter here", "Leave it out")
        amount = section.exact(key, Fraction(getattr(base, name), MICRO), above=Fraction(0), most=_LARGEST)
        if (amount * MICRO).denominator != 1:
            section.refuse(key, f"is {amount}", "Write at most six decimal places")
        amounts[name] = int(amount * MICRO)
    if "sites_per_action" in section and Filter.ACTION_CAP not in filters:
        section.refuse("sites_per_action", f"has no effect: {design} has no cap per action here", "Leave it out")
    return DesignSettings(
        design=design,
        without=tuple(map(Filter, without)),
        sites_per_action=section.whole("sites_per_action", base.sites_per_action, least=1, most=1_000_000),
        epoch_days=section.whole("epoch_days", base.epoch_days, least=1, most=366),
        **amounts,
    )


def parse_w3c(section: Section) -> W3cSettings:
    """Read how a campaign measures with W3C browsers. The fields are in the same table as those of the other APIs."""
    size = section.whole("histogram_size", 0, least=1, most=design_config(Design.W3C).max_histogram_size)
    settings = W3cSettings(
        design=parse_design(section),
        epsilon=section.amount("call_epsilon", "0.25"),
        histogram_size=size or None,
        cleared=section.number("cleared", 0.0, least=0, most=1),
        disabled=section.number("disabled", 0.0, least=0, most=1),
        inactive=section.number("inactive", 0.0, least=0, most=1),
    )
    exact = Fraction(settings.epsilon) * MICRO
    if exact.denominator != 1 or exact > _LARGEST * MICRO:
        section.refuse("call_epsilon", f"is {settings.epsilon}", "Write at most 4294 with at most six decimal places")
    return settings
