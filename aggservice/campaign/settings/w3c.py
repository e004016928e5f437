"""A design of W3C browsers: which rules pay on the device, and how much each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from aggservice.files.settings import entry_of
from aggservice.files.toml import Section
from w3c_client import DESIGNS, RULES, Config, design_config
from w3c_client.rules import rule_of

MICRO = 1_000_000
LARGEST_EPSILON = Fraction(4294)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSettings:
    """A design, the names of its rules as the file changes them, and their capacities by field of ``Config``."""

    design: str
    rules: tuple[str, ...]
    capacities: Mapping[str, int]
    epoch_days: int

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read a design and its values; a capacity whose rule the design does not have is refused.

        ``without`` names rules of the design to leave out, so that one can see what each of them does; ``with`` names
        other rules to add. A capacity is named as its field of ``Config``, budgets without ``_micro``.
        """
        design = section.choice("design", tuple(DESIGNS), "w3c")
        base = design_config(design)
        names = [rule.name for rule in base.rules]
        without = section.choices("without", sorted(names), (), any_list=True)
        added = [
            rule_of(entry_of(section, "with", one, RULES)).name for one in section.texts("with", (), any_list=True)
        ]
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
                amount = section.exact(key, Fraction(default, MICRO), above=Fraction(0), most=LARGEST_EPSILON)
                if (amount * MICRO).denominator != 1:
                    section.refuse(key, f"is {amount}", "Write at most six decimal places")
                capacities[rule.field] = int(amount * MICRO)
        return cls(
            design=design,
            rules=rules,
            capacities=capacities,
            epoch_days=section.whole("epoch_days", base.epoch_days, least=1, most=366),
        )

    def config(self, **changes: object) -> Config:
        """Return the browser's configuration; ``changes`` are further fields of it."""
        values: dict[str, object] = {"rules": self.rules, **self.capacities, "epoch_days": self.epoch_days}
        return design_config(self.design, **{**values, **changes})
