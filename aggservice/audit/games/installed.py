"""Games against what installed packages add: each of their mechanisms, on-device rules and device APIs.

The other games know the built-in entries. These read the tables, so that a package's entry is attacked like them; its
LDP protocols are attacked by ``aggservice.audit.games.local``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from aggservice.audit.games.game import Game, Played
from aggservice.audit.games.sums import compared, pairs
from aggservice.audit.games.w3c import limits_played, plan_of
from aggservice.audit.target import L1, Target
from aggservice.campaign.columns import Conversions, Events, Impressions
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.settings.campaign import DAY_MS
from aggservice.campaign.settings.device import DEVICES
from aggservice.wire import Contribution
from budget import MECHANISMS
from budget.errors import BudgetError
from w3c_client.rules import RULES, OnDeviceRule, ScopeColumn, rule_of

_UNITS = 4_000
_MINUTE_MS = 60_000
_BOUGHT_MS = (_MINUTE_MS, 2 * _MINUTE_MS, 3 * DAY_MS, 4 * DAY_MS, 10 * DAY_MS)
"""When each device converts after its ad, each time for all of Λ₁."""


def _mechanisms() -> list[str]:
    """Return the mechanisms whose jobs have a price in ε."""
    found = []
    for name in MECHANISMS.outside:
        try:
            priced = MECHANISMS[name].example().pure_micro > 0
        except BudgetError:
            continue
        found += [name] if priced else []
    return found


def _rules() -> list[OnDeviceRule]:
    """Return the rules that limit a loss, on pages without an action too."""
    rules = [rule_of(name) for name in RULES.outside]
    return [one for one in rules if not one.counts_sites and ScopeColumn.ACTION not in one.scope]


def _apis() -> list[str]:
    """Return the device APIs that sum conversions and state one bound for all reports of a unit."""
    apis = {name: DEVICES[name] for name in DEVICES.outside}
    return [name for name, one in apis.items() if one.sums_conversions and one.aggregatable and not one.task_jobs]


MECHANISMS_PLAYED, RULES_PLAYED, APIS_PLAYED = _mechanisms(), _rules(), _apis()


def mechanisms(target: Target, scale: int) -> list[Played]:
    """Play declared keys with the example of each mechanism; a unit contributes Λ₁ to its one key."""
    units, played = _UNITS * scale, []
    for name in MECHANISMS_PLAYED:
        texts = {key: str(text) for key, text in MECHANISMS[name].example().to_plain().items() if key != "name"}
        with target.open(l0=1) as attacked:
            reports = attacked.units(units, every=2)
            asked = attacked.parameters(mechanism=name, mechanism_parameters=texts)
            metrics = attacked.metrics(attacked.ask(asked, reports, 4 * units))
            epsilon, _, delta = attacked.charged(reports)
            played.append(compared(pairs(metrics), units, epsilon, delta=delta, name=name))
    return played


def rules(target: Target, scale: int) -> list[Played]:
    """Play the game of the built-in limits with each rule."""
    return limits_played(target, scale, {one.name: plan_of(one) for one in RULES_PLAYED})


def apis(target: Target, scale: int) -> list[Played]:
    """Let each device convert again and again, and sum under a key per privacy unit what its reports contribute."""
    return [_summed(target, name, _UNITS * scale) for name in APIS_PLAYED]


def _summed(target: Target, name: str, devices: int) -> Played:
    document: dict[str, Any] = {
        "name": "audit",
        "population": {"size": devices, "days": 30},
        "keys": {"fields": [{"name": "ad", "values": ["a"]}]},
        "measures": [{"name": "count", "scale": L1}],
        "client": {"api": name},
        "queries": [{"name": "all"}],
    }
    campaign = campaign_of(document, folder=Path.cwd())
    made, _ = campaign.client.reports(campaign, _events(campaign.population.start_ms, devices), target.bits)
    assert made.unit is not None
    numbers = {unit: number for number, unit in enumerate(np.unique(made.unit[made.unit >= 0]).tolist())}
    with target.open() as attacked:
        values, bounds = made.value.tolist(), made.offset.tolist()
        reports = [
            attacked.report([Contribution(bucket=2 * numbers[unit], value=value) for value in values[start:end]])
            for unit, (start, end) in zip(made.unit.tolist(), pairwise(bounds), strict=True)
            if end > start
        ]
        metrics = attacked.metrics(attacked.ask(attacked.parameters("1"), reports, 4 * len(numbers)))
        return compared(pairs(metrics), len(numbers), attacked.charged(reports)[0], name=name)


def _events(start_ms: int, devices: int) -> Events:
    """Return a click per device, and its conversions."""
    every = np.arange(devices)
    time_ms = start_ms + np.repeat(_BOUGHT_MS, devices)
    device = np.tile(every, len(_BOUGHT_MS))
    return Events(
        impressions=Impressions(
            time_ms=np.full(devices, start_ms),
            device=every,
            destination=np.zeros_like(every),
            click=np.ones(devices, dtype=np.bool_),
            codes={"ad": np.zeros_like(every)},
        ),
        conversions=Conversions(
            time_ms=time_ms,
            device=device,
            destination=np.zeros_like(device),
            value=np.ones_like(device),
            dedup_key=np.full(device.size, -1),
            codes={},
        ),
        devices=devices,
    )


GAMES = tuple(
    game
    for game in (
        Game(
            "installed mechanisms", "noise too small for its price", mechanisms, parts=len(MECHANISMS_PLAYED), own=True
        ),
        Game("installed on-device rules", "a rule that pays too little", rules, parts=len(RULES_PLAYED), own=True),
        Game("installed device APIs", "a unit that contributes more than Λ₁", apis, parts=len(APIS_PLAYED)),
    )
    if game.parts
)
