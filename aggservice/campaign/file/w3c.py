"""Reads the fields of ``[client]`` that choose a W3C browser: a design of on-device budgets and its values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from aggservice.files.toml import Section
from w3c_client import Config, Design, Filter, design_config

_MICRO = 1_000_000
_LARGEST = Fraction(4294)
#: The field of the file, the field of ``Config``, and the filter without which the budget has no effect.
_BUDGETS = {
    "site_budget": ("site_budget_micro", Filter.SITE),
    "global_budget": ("global_budget_micro", Filter.GLOBAL),
    "conversion_quota": ("conversion_quota_micro", Filter.CONVERSION_QUOTA),
    "impression_quota": ("impression_quota_micro", Filter.IMPRESSION_QUOTA),
}


def parse_design(section: Section) -> Config:
    """Read a design and its values; a budget whose filter the design does not have is refused.

    ``without`` names filters of the design to leave out, so that one can see what each of them does.
    """
    design = Design(section.choice("design", tuple(Design), Design.W3C))
    base = design_config(design)
    without = section.choices("without", sorted(base.filters), (), any_list=True)
    filters = base.filters - frozenset(map(Filter, without))
    values: dict[str, Any] = {"filters": filters}
    for key, (name, needed) in _BUDGETS.items():
        if key in section and needed not in filters:
            section.refuse(key, f"has no effect: {design} runs no {needed} filter here", "Leave it out")
        amount = section.exact(key, Fraction(getattr(base, name), _MICRO), above=Fraction(0), most=_LARGEST)
        if (amount * _MICRO).denominator != 1:
            section.refuse(key, f"is {amount}", "Write at most six decimal places")
        values[name] = int(amount * _MICRO)
    if "sites_per_action" in section and Filter.ACTION_CAP not in filters:
        section.refuse("sites_per_action", f"has no effect: {design} has no cap per action here", "Leave it out")
    values["sites_per_action"] = section.whole("sites_per_action", base.sites_per_action, least=1, most=1_000_000)
    values["epoch_days"] = section.whole("epoch_days", base.epoch_days, least=1, most=366)
    return design_config(design, **values)
