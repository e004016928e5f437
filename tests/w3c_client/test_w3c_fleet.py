"""``Fleet`` against one ``Browser`` per device on random worlds: results, refusals, all stores, epoch starts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggservice.kits.rules import compare_with_fleet, small_config
from aggservice.mechanisms import ForbiddenBits, SecureBits
from aggservice.wire.device import DeviceConfigError
from w3c_client import (
    DESIGNS,
    Arithmetic,
    Config,
    ConversionColumns,
    Fleet,
    ImpressionColumns,
    SharedCost,
    design_config,
)
from w3c_client.columns import ClearColumns, ConversionOutcome

BIG_BIRD = [rule.name for rule in design_config("big-bird").rules]


def config_of(draw: random.Random) -> Config:
    """A configuration with small budgets, and any of the designs or of their rules."""
    rules = [name for name in BIG_BIRD if draw.random() < 0.7]
    design = design_config(draw.choice(list(DESIGNS))).rules
    return replace(
        small_config(draw),
        rules=rules if draw.random() < 0.5 else design,
        shared_cost=draw.choice(list(SharedCost)),
    )


def compared(worlds: int, seed: int) -> Counter[str]:
    """Compare worlds in groups of one configuration; return how often each thing happened."""
    draw = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(worlds // 50):
        seen += compare_with_fleet(config_of(draw), draw, 50)
    return seen


def test_a_fleet_equals_browsers_on_random_worlds() -> None:
    seen = compared(1_000, 1)
    assert set(seen) == {one.name for one in ConversionOutcome} | set(BIG_BIRD) and min(seen.values()) >= 5, seen


@pytest.mark.soak
def test_a_fleet_equals_browsers_on_ten_thousand_random_worlds() -> None:
    seen = compared(10_000, 2)
    conversions = sum(seen[one.name] for one in ConversionOutcome)
    print(f"10,000 random worlds, {conversions:,} conversions: Fleet equals Browser in results and in all stores;")
    print(", ".join(f"{name} {count:,}" for name, count in sorted(seen.items())))
    assert conversions > 10_000


def test_random_choices_of_a_fleet_are_uniform() -> None:
    """Three equal credits over 1: each wins a third of 30,000; a share off by 0.02 has probability below 10⁻¹¹."""
    count = 30_000
    saved = ImpressionColumns.of(
        device=np.repeat(np.arange(count), 3),
        time_ms=np.tile([0, 1, 2], count),
        site=0,
        histogram_index=np.tile([0, 1, 2], count),
    )
    bought = ConversionColumns.of(device=np.arange(count), time_ms=10, site=1, histogram_size=3)
    found = Fleet(bits=SecureBits(), credits=((1, 1, 1),)).run(saved, bought)
    shares = np.bincount(found.index, weights=found.amount, minlength=3) / count
    assert np.abs(shares - 1 / 3).max() < 0.02
    assert found.has_epoch_start.all() and np.unique(found.epoch_start_ms).size == 168


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"histogram_index": 4096}, "histogram_index"),
        ({"lifetime_days": 0}, "lifetime_days"),
        ({"site": -1}, "site"),
        ({"device": 2}, "device"),
        ({"conversion_sites": 1}, "conversion_sites"),
        ({"priority": 1 << 31}, "priority"),
        ({"histogram_index": 0.5}, "integers"),
        ({"site": [1, 2, 3]}, "different length"),
        ({"colour": 1}, "no column colour"),
    ],
)
def test_columns_that_a_browser_would_reject_are_refused(changes: dict[str, Any], words: str) -> None:
    given = {"device": [0, 1], "time_ms": 0, "site": 0, "histogram_index": 1, **changes}
    bought = ConversionColumns.of(device=0, time_ms=1, site=1, histogram_size=2)
    with pytest.raises(DeviceConfigError, match=words):
        Fleet(bits=ForbiddenBits()).run(ImpressionColumns.of(**given), bought, devices=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": 2}, "value"),
        ({"max_value": 1 << 31}, "max_value"),
        ({"epsilon_micro": 0}, "epsilon_micro"),
        ({"lookback_days": 0}, "lookback_days"),
        ({"credit": 1}, "credit"),
        ({"histogram_size": 0}, "histogram_size"),
    ],
)
def test_conversions_that_a_browser_would_reject_are_refused(changes: dict[str, Any], words: str) -> None:
    saved = ImpressionColumns.of(device=[0], time_ms=0, site=0, histogram_index=1)
    bought = ConversionColumns.of(**{"device": [0], "time_ms": 1, "site": 1, "histogram_size": 2, **changes})
    with pytest.raises(DeviceConfigError, match=words):
        Fleet(bits=ForbiddenBits()).run(saved, bought)


def test_a_fleet_says_what_only_a_browser_has() -> None:
    bits = ForbiddenBits()
    saved = ImpressionColumns.of(device=[0, 0], time_ms=0, site=0, histogram_index=1)
    bought = ConversionColumns.of(device=[0], time_ms=1, site=1, histogram_size=2)
    with pytest.raises(DeviceConfigError, match="Browser"):
        Fleet(bits=bits, config=Config(arithmetic=Arithmetic.SPEC))
    with pytest.raises(DeviceConfigError, match="Browser"):
        Fleet(bits=bits, credits=((1, 1e-10),))
    for lists, credits in ((((1,),), ((1,),)), (((), (-1,)), ((1,),)), (((),), ((),)), (((),), ((1, -1),))):
        with pytest.raises(DeviceConfigError):
            Fleet(bits=bits, lists=lists, credits=credits)
    with pytest.raises(DeviceConfigError, match="-1"):
        Fleet(bits=bits).run(saved, bought, ClearColumns.of(device=[0], time_ms=0, kind=3, site=2))
