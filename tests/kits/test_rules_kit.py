"""The kit of on-device and attribution rules: every entry of both tables passes, and rules that lie fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest

from aggservice.kits.failures import KitFailure
from aggservice.kits.rules import check_attribution, check_rule
from w3c_client import ATTRIBUTION_RULES, RULES, Config, OnDeviceRule
from w3c_client.credit import LastTouches
from w3c_client.rules import NORM, WHOLE_VALUE, ConversionQuota, ImpressionQuota, RuleCost, ScopeColumn, SiteBudget


@pytest.mark.parametrize("name", RULES.names)
def test_every_on_device_rule_passes(name: str) -> None:
    check_rule(name)


@pytest.mark.parametrize("name", ATTRIBUTION_RULES.names)
def test_every_attribution_rule_passes(name: str) -> None:
    check_attribution(name)


@dataclass(frozen=True)
class OwnQuota(OnDeviceRule):
    """A rule of a stranger: a quota per caller and action, whose capacity comes with the object."""

    name = "own-quota"
    scope = (ScopeColumn.ACTION, ScopeColumn.CALLER)
    capacity_micro: int = 700_000

    def capacity(self, config: Config) -> int:
        return self.capacity_micro


@dataclass(frozen=True)
class EveryColumn(OwnQuota):
    """A scope of all columns."""

    name = "every-column"
    scope = (ScopeColumn.CALLER, ScopeColumn.IMPRESSION_SITE, ScopeColumn.ACTION, ScopeColumn.CONVERSION_SITE)


class SitesPerCaller(OnDeviceRule):
    """A cap on the sites that one caller uses in an epoch."""

    name = "sites-per-caller"
    scope = (ScopeColumn.CALLER,)
    field = "sites_per_action"
    counts_sites = True


@pytest.mark.parametrize("rule", [OwnQuota(), OwnQuota(capacity_micro=5), EveryColumn(), SitesPerCaller()])
def test_rules_of_strangers_pass(rule: OnDeviceRule) -> None:
    check_rule(rule)


class HalfTheValue(SiteBudget):
    """Forgets that a value can move from one index to another."""

    name = "half-the-value"
    emptied = False

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        return NORM if one_epoch else RuleCost(norm=0, value=1)


class FreeNorm(SiteBudget):
    """Charges nothing within one epoch."""

    name = "free-norm"
    emptied = False

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        return RuleCost(norm=0, value=0) if one_epoch else WHOLE_VALUE


class CallersForAll(ImpressionQuota):
    """Says that it bounds all sites together, and keeps its budgets by caller."""

    name = "by-caller-for-all"
    scope = (ScopeColumn.CALLER,)
    observer = ()


class ByCaller(SiteBudget):
    """Says that it bounds a conversion site, and keeps its budgets by caller."""

    name = "by-caller"
    scope = (ScopeColumn.CALLER,)
    observer = (ScopeColumn.CONVERSION_SITE,)
    emptied = False


@dataclass(frozen=True)
class Moody(ConversionQuota):
    """Charges something else each time it is asked."""

    name = "moody"

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        _ASKED.append(1)
        return WHOLE_VALUE if len(_ASKED) % 3 else RuleCost(norm=0, value=1)


_ASKED: list[int] = []


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (HalfTheValue, r"half-the-value charges too little: conversion site shop.example can learn 1.0+ .* paid 0.5"),
        (FreeNorm, r"free-norm charges too little: .* whose budget paid 0.0"),
        (CallersForAll, r"by-caller-for-all charges too little: all sites together can learn"),
        (ByCaller, r"by-caller is keyed wrongly: it bounds what conversion site .* differs in its conversion site"),
        (Moody, "browser and fleet differ in their"),
    ],
)
def test_a_rule_that_lies_fails_by_a_sentence(rule: type[OnDeviceRule], sentence: str) -> None:
    with pytest.raises(KitFailure, match=sentence):
        check_rule(rule)


class TwoUnits(LastTouches):
    """Gives every touch the whole value."""

    name = "two-units"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        return [Fraction(1)] * min(touches, most)


class Negative(LastTouches):
    """Takes from one touch what it gives to another."""

    name = "negative"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        return [Fraction(1)] if touches == 1 else [Fraction(3, 2), Fraction(-1, 2)]


class TooMany(LastTouches):
    """Gives more touches a share than a report has room for."""

    name = "too-many"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        return [Fraction(1, touches)] * touches


class Forgetful(LastTouches):
    """Divides differently when it is asked again."""

    name = "forgetful"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        _ASKED.append(1)
        return [Fraction(1, 1 + len(_ASKED) % 2)]


class Half(LastTouches):
    """Gives the last touch half, and nobody the rest."""

    name = "half"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        return [Fraction(1, 2)]

    def doubles(self, touches: int, credit: Sequence[float]) -> None:  # type: ignore[override]
        return None


class Earliest(Half):
    """Gives the middle touch a third and the earliest the rest."""

    name = "earliest"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        return [Fraction(1)] if touches < 3 else [*[Fraction(0)] * (touches - 2), Fraction(1, 3), Fraction(2, 3)]


@pytest.mark.parametrize("rule", [Half, Earliest])
def test_attribution_rules_of_strangers_pass(rule: type[LastTouches]) -> None:
    check_attribution(rule)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (TwoUnits, r"two-units gives 2 touches .* 2 in all: a conversion has one unit to give"),
        (Negative, "a share is below 0"),
        (TooMany, r"there are \d+ touches, and room for 4 in a report"),
        (Forgetful, "and others when it is asked again"),
    ],
)
def test_an_attribution_rule_that_lies_fails_by_a_sentence(rule: type[LastTouches], sentence: str) -> None:
    with pytest.raises(KitFailure, match=sentence):
        check_attribution(rule)
