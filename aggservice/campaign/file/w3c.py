"""Reads the fields of ``[client]`` that choose a W3C browser: a design of on-device budgets, and how it is called."""

from __future__ import annotations

from fractions import Fraction

from aggservice.campaign.settings.w3c import MICRO, DesignSettings, W3cSettings
from aggservice.files.settings import entry_of
from aggservice.files.toml import Section
from w3c_client import DESIGNS, RULES, design_config
from w3c_client.rules import rule_of

_LARGEST = Fraction(4294)


def parse_design(section: Section) -> DesignSettings:
    """Read a design and its values; a capacity whose rule the design does not have is refused.

    ``without`` names rules of the design to leave out, so that one can see what each of them does; ``with`` names other
    rules to add. A capacity is named as its field of ``Config``, budgets without ``_micro``.
    """
    design = section.choice("design", tuple(DESIGNS), "w3c")
    base = design_config(design)
    names = [rule.name for rule in base.rules]
    without = section.choices("without", sorted(names), (), any_list=True)
    added = [rule_of(entry_of(section, "with", one, RULES)).name for one in section.texts("with", (), any_list=True)]
    for name in added:
        if name in names:
            section.refuse("with", f"has {name!r}", f"{design} runs it without that: leave it out")
    rules = tuple(name for name in (*names, *added) if name not in without)
    capacities: dict[str, int] = {}
    for rule in map(rule_of, RULES):
        key, default = rule.field.removesuffix("_micro"), getattr(base, rule.field, 0)
        if key in section and rule.name not in rules:
            section.refuse(key, f"has no effect: {design} runs no {rule.name} filter here", "Leave it out")
        if rule.counts_sites:
            capacities[rule.field] = section.whole(key, default, least=1, most=1_000_000)
        elif rule.field:
            amount = section.exact(key, Fraction(default, MICRO), above=Fraction(0), most=_LARGEST)
            if (amount * MICRO).denominator != 1:
                section.refuse(key, f"is {amount}", "Write at most six decimal places")
            capacities[rule.field] = int(amount * MICRO)
    return DesignSettings(
        design=design,
        rules=rules,
        capacities=capacities,
        epoch_days=section.whole("epoch_days", base.epoch_days, least=1, most=366),
    )


def parse_w3c(section: Section) -> W3cSettings:
    """Read how a campaign measures with W3C browsers. The fields are in the same table as those of the other APIs."""
    size = section.whole("histogram_size", 0, least=1, most=design_config("w3c").max_histogram_size)
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
