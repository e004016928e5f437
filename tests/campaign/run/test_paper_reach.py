"""Reach and frequency in the paper's form, against Algorithm 3 event by event."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggservice.campaign import parse_campaign, run_campaign
from aggservice.campaign.columns import Fate
from aggservice.campaign.devices.paa import WINDOW_MS
from aggservice.campaign.errors import CampaignFileError
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import Truth, simulate_reports
from aggservice.mechanisms import SeededBits
from paa_client import PaaSrClient

TEXT = """
name = "reach"
[population]
size = 60
days = 1
impressions = { name = "geometric", mean = 40 }
impression_day = { name = "uniform", low = 0, high = 0.05 }
[[keys.fields]]
name = "campaign"
values = ["a", "b", "c", "d", "e"]
[client]
kind = "KIND"
form = "paper"
l1 = L1
l0 = L0
cap = CAP
thresholds = [1, 3]
[[queries]]
name = "all"
epsilon = "10"
"""


def text(kind: str, l1: int, l0: int, cap: int) -> str:
    chosen = TEXT.replace("KIND", kind).replace("L1", str(l1)).replace("L0", str(l0)).replace("CAP", str(cap))
    return chosen if kind == "frequency" else chosen.replace("thresholds = [1, 3]\n", "")


def sent_by_algorithm_3(truth: Truth, kind: str, l1: int, l0: int, cap: int) -> list[tuple[int, int] | None]:
    """Return the key and value of every report, one per view; None for a null report."""
    client = PaaSrClient(lambda_1=l1, lambda_0=l0, bits=SeededBits(kind))
    thresholds = [1] if kind == "reach" else [1, 3]
    views = truth.events.impressions
    found: list[tuple[int, int] | None] = []
    for device, time_ms, campaign in zip(views.device, views.time_ms, views.codes["campaign"], strict=True):

        def pi(seen: dict[int, int], campaign: int = int(campaign)) -> tuple[dict[int, int], int, int]:
            count = seen.get(campaign, 0) + 1
            level = thresholds.index(count) if count in thresholds else -1
            return {**seen, campaign: count}, campaign * 10 + level, l1 // cap if level >= 0 else 0

        made = client.event(int(device), int(time_ms) // WINDOW_MS, pi)
        found.append(None if made.k is None else (int(made.k), int(made.v or 0)))
    return found


@pytest.mark.parametrize("kind", ["reach", "frequency"])
@pytest.mark.parametrize(("l1", "l0", "cap"), [(65_536, 2, 2), (65_536, 20, 3), (1_000, 1, 4), (7, 7, 7)])
def test_every_report_is_algorithm_3s(kind: str, l1: int, l0: int, cap: int, tmp_path: Path) -> None:
    campaign = parse_campaign(text(kind, l1, l0, cap), folder=tmp_path)
    truth = simulate_reports(campaign, RunChain.seeded(f"{kind} {l0} {cap}"))
    model = sent_by_algorithm_3(truth, kind, l1, l0, cap)
    reports = truth.reports
    assert len(reports) == len(model) == len(truth.events.impressions) > 1_000
    level_of = campaign.keys.field("views") if kind == "frequency" else None
    made: list[tuple[int, int] | None] = []
    for row in range(len(reports)):
        low, high = reports.offset[row : row + 2].tolist()
        assert high - low == int(not reports.null[row])
        key = int(reports.key_low[low]) if high > low else 0
        names = campaign.keys.field("campaign")
        code = (key >> names.offset) & ((1 << names.bits) - 1)
        level = 0 if level_of is None else (key >> level_of.offset) & ((1 << level_of.bits) - 1)
        made.append((code * 10 + level, int(reports.value[low])) if high > low else None)
    assert made == model
    cut = {Fate(one) for one in truth.items.fate.tolist()} & {Fate.CAPPED_L0, Fate.CAPPED_L1}
    assert cut == ({Fate.CAPPED_L0} if l0 < cap else {Fate.CAPPED_L1} if cap < 5 else cut)


def test_a_run_has_its_noise_for_the_papers_bounds_and_its_losses(tmp_path: Path) -> None:
    campaign = parse_campaign(text("reach", 1_000, 2, 2), folder=tmp_path)
    result = run_campaign(campaign, tmp_path / "out", seed="paper", workers=1, draw=False)
    (found,) = result.assessments
    assert found.paid and "Λ₁ = 1,000" in found.statement.replace("1000", "1,000")
    assert result.metrics.client.form == "paper" and (result.metrics.client.l1, result.metrics.client.l0) == (1_000, 2)
    assert all(one.adds_up for one in found.waterfalls)


def test_a_deployed_device_has_no_caps_to_choose(tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match='write form = "paper" to choose it'):
        parse_campaign(text("reach", 1_000, 2, 2).replace('form = "paper"', ""), folder=tmp_path)
