"""Groups of a field: several values share one code, from the events to the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aggservice.campaign import Campaign, CampaignFileError, parse_campaign, run_campaign
from aggservice.campaign.assess.job_truth import job_truth
from aggservice.campaign.service.jobs import windows_of
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_reports
from aggservice.mechanisms import ForbiddenBits

TEXT = """name = "groups"
[population]
size = 400
days = 4
impressions = { name = "poisson", mean = 2 }
conversion_rate = 0.5
sites = ["https://a.example", "https://b.example"]
[[keys.fields]]
name = "ad"
count = 6
zipf = 1.0
[keys.fields.groups]
GROUPS
[[keys.fields]]
name = "site"
from = "site"
[[measures]]
name = "purchases"
scale = 4096
[[queries]]
name = "daily"
epsilon = "8"
over = "each"
[collection]
batch_hours = 48
"""
GROUPS = 'small = ["ad 5", "ad 2"]\nlarge = ["ad 0"]'


def truths(campaign: Campaign) -> list[dict[tuple[str, ...], int]]:
    """Return the truth of each batch by the names of its slices."""
    chain = RunChain.seeded("groups")
    world = simulate_reports(campaign, chain)
    found = []
    for window in windows_of(campaign, world.collected.closes_ms):
        truth = job_truth(campaign, chain, world, window)
        names = [
            tuple(campaign.keys.names(int(a), int(b)).values()) for a, b in zip(truth.high, truth.low, strict=True)
        ]
        found.append(dict(zip(names, truth.truth.tolist(), strict=True)))
    return found


def test_the_truth_of_a_group_is_that_of_its_members(tmp_path: Path) -> None:
    apart = parse_campaign(TEXT.replace("GROUPS", ""), folder=tmp_path)
    merged = parse_campaign(TEXT.replace("GROUPS", GROUPS), folder=tmp_path)
    field = merged.keys.field("ad")
    assert field.values == ("ad 1", "ad 3", "ad 4", "small", "large") and field.bits == 3
    assert field.groups == {"small": ("ad 2", "ad 5"), "large": ("ad 0",)}
    name_of = {value: field.values[code] for value, code in zip(field.originals, field.codes, strict=True)}
    for one, other in zip(truths(apart), truths(merged), strict=True):
        summed: dict[tuple[str, ...], int] = {}
        for (ad, site), truth in one.items():
            summed[name_of[ad], site] = summed.get((name_of[ad], site), 0) + truth
        assert summed == other and sum(other.values()) > 50


def test_a_run_is_the_same_sealed_and_unsealed_and_shows_groups(tmp_path: Path) -> None:
    campaign = parse_campaign(TEXT.replace("GROUPS", GROUPS), folder=tmp_path)
    runs = [
        run_campaign(campaign, tmp_path / name, seed="same", workers=1, draw=name == "plain", unsealed=name == "plain")
        for name in ("sealed", "plain")
    ]
    for file in ("metrics.json", "transcript.json", "losses.csv"):
        assert (runs[0].out / file).read_bytes() == (runs[1].out / file).read_bytes()
    shown = {row.names["ad"] for found in runs[0].assessments for row in found.slices}
    assert shown == {"ad 1", "ad 3", "ad 4", "small", "large"}
    assert all(answer.high.size == 5 * 2 for answer in runs[0].answers)
    assert "small" in (runs[1].out / "report.html").read_text(encoding="utf-8")


def test_a_device_counts_once_for_a_group(tmp_path: Path) -> None:
    """Reach: a device that saw two ads of a group is one device of the group."""
    text = TEXT.replace('[[measures]]\nname = "purchases"\nscale = 4096', '[client]\nkind = "reach"')
    text = text.replace("conversion_rate = 0.5\n", "").replace('over = "each"', 'over = "all"')
    apart, merged = (truths(parse_campaign(text.replace("GROUPS", one), folder=tmp_path))[0] for one in ("", GROUPS))
    for site in ("https://a.example", "https://b.example"):
        parts = [apart[f"ad {ad}", site] for ad in (2, 5)]
        assert max(parts) < merged["small", site] < sum(parts)
        assert merged["large", site] == apart["ad 0", site]


def test_groups_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "sources.csv").write_text("time,device,ad\n1700000000,d1,x\n1700000001,d2,y\n1700000002,d3,z\n")
    (tmp_path / "triggers.csv").write_text("time,device\n1700000003,d1\n")
    text = TEXT.replace("GROUPS", 'both = ["z", "x"]').replace("count = 6\nzipf = 1.0\n", "")
    start, end = text.index("[population]"), text.index("[[keys.fields]]")
    log = '[population.log]\nsources = "sources.csv"\ntriggers = "triggers.csv"\n'
    text = (text[:start] + log + text[end:]).replace("batch_hours = 48", "batch_hours = 24")
    campaign = parse_campaign(text, folder=tmp_path)
    assert campaign.keys.field("ad").values == ("y", "both")
    assert np.array_equal(
        campaign.population.model.events(campaign, ForbiddenBits()).impressions.codes["ad"], [1, 0, 1]
    )


@pytest.mark.parametrize(
    ("groups", "line", "problem", "remedy"),
    [
        ('small = ["ad 2", "ad 9"]', 13, "has 'ad 9'", "Write some of 'ad 0'"),
        ("small = []", 13, "not a list of distinct strings", "a list such as"),
        ('one = ["ad 2"]\ntwo = ["ad 3", "ad 2"]', 14, "which is in group 'one' too", "in one group"),
        ('"ad 1" = ["ad 2"]', 13, "the name of a value that is in no group", "another name"),
        ("small = 3", 13, "is 3", "a list of strings"),
    ],
)
def test_bad_groups_are_refused_with_their_line(
    tmp_path: Path, groups: str, line: int, problem: str, remedy: str
) -> None:
    with pytest.raises(CampaignFileError) as caught:
        parse_campaign(TEXT.replace("GROUPS", groups), folder=tmp_path)
    assert problem in caught.value.problem and remedy in caught.value.remedy and caught.value.line == line


def test_views_and_clicks_cannot_be_merged(tmp_path: Path) -> None:
    text = TEXT.replace('name = "ad"\ncount = 6\nzipf = 1.0', 'name = "ad"\nfrom = "interaction"')
    with pytest.raises(CampaignFileError, match="cannot merge values from the interaction"):
        parse_campaign(text.replace("GROUPS", 'x = ["view", "click"]'), folder=tmp_path)
