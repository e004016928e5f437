"""Every device passes its kit, devices that lie fail it with a sentence, and nothing else knows their names."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.campaign.columns import Events, MeasuredConversions, ReportColumns
from aggservice.campaign.devices.ara import AttributionReporting
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.device import DEVICES
from aggservice.kits.devices import check_device
from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import Bits

ROOT = Path(__file__).parents[2]
#: Tables ``[client]`` that make every limit matter now and then.
TABLES: dict[str, list[dict[str, Any]]] = {
    "ara": [
        {},
        {"click_priority": 1, "max_reports": 2, "null_rate": "0.5", "expiry_days": 2},
        {"form": "paper", "l1": 1000, "l0": 2},
    ],
    "paa": [{}, {"click_priority": 5, "expiry_days": 1.5}],
    "w3c": [
        {},
        {"design": "big-bird", "call_epsilon": "0.5", "cleared": 0.4, "disabled": 0.2, "inactive": 0.2},
        {"site_budget": "0.5", "histogram_size": 2},
    ],
    "reach": [{}, {"cap": 3}, {"form": "paper", "l1": 100, "l0": 2, "cap": 2}],
    "frequency": [{"thresholds": [1, 2, 4]}, {"cap": 2}, {"form": "paper", "l1": 100, "l0": 2, "cap": 2}],
}
Made = tuple[ReportColumns, MeasuredConversions]


def test_the_tables_cover_every_device_that_sends_aggregatable_reports() -> None:
    assert [name for name in DEVICES if DEVICES[name].aggregatable] == list(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_device_passes_its_kit(name: str) -> None:
    assert check_device(name, settings=TABLES[name], worlds=36, seed=1) > 100


@pytest.mark.soak
@pytest.mark.parametrize("name", TABLES)
def test_browsers_and_fleets_agree_on_a_thousand_worlds(name: str) -> None:
    compared = check_device(name, settings=TABLES[name], worlds=1_000, seed=2)
    print(f"{name}: BrowserFleet and the fleet made the same {compared} reports in 1000 random worlds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetsOnBrowsers(AttributionReporting):
    """Schedules the reports of browsers a second later than its fleet."""

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> Made:
        made, items = AttributionReporting.reports(self, campaign, events, bits)
        late = 1000 if self.engine == "browser" else 0
        return replace(made, scheduled_ms=made.scheduled_ms + late), items


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributesMore(AttributionReporting):
    """Sends each value a hundred times over, and says so in the ground truth."""

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> Made:
        made, items = AttributionReporting.reports(self, campaign, events, bits)
        return replace(made, value=100 * made.value), replace(items, amount=100 * items.amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class LosesFates(AttributionReporting):
    """Gives an item that was sent the fate of one that was not attributed."""

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> Made:
        made, items = AttributionReporting.reports(self, campaign, events, bits)
        return made, replace(items, fate=np.where(items.report >= 0, 2, items.fate).astype(np.int8))


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesTruth(AttributionReporting):
    """Attributes to one key and states another as the truth."""

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> Made:
        made, items = AttributionReporting.reports(self, campaign, events, bits)
        return made, replace(items, true_low=items.true_low ^ np.uint64(1))


@pytest.mark.parametrize(
    ("liar", "sentence"),
    [
        (ForgetsOnBrowsers, "browser and fleet differ .*column scheduled_ms"),
        (ContributesMore, "source [0-9]+ contributes more than its bound .* states Λ₁ = 65536"),
        (LosesFates, "fates do not add up"),
        (MovesTruth, "the ground truth is not what was attributed"),
    ],
)
def test_a_device_that_lies_fails_with_a_sentence(liar: type[AttributionReporting], sentence: str) -> None:
    with pytest.raises(KitFailure, match=sentence):
        check_device(liar)


def _knows_names(node: ast.AST) -> bool:
    """Whether an expression reads ``api``, ``kind`` or ``form`` of a client."""
    return any(
        isinstance(one, ast.Attribute)
        and one.attr in ("api", "kind", "form")
        and ast.unparse(one.value).rpartition(".")[2] == "client"
        for one in ast.walk(node)
    )


def test_nothing_but_devices_branches_on_their_names() -> None:
    found = []
    for path in sorted((ROOT / "aggservice").rglob("*.py")):
        if "devices" in path.parts or path.name == "device.py" or "rpc" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare | ast.Match | ast.Subscript) and _knows_names(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert found == []
