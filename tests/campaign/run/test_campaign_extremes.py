"""Populations, values and delays at the ends of their ranges: exact, or refused by name, never wrapped around."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.campaign import CampaignError, RunResult, parse_campaign, parse_field, run_campaign, run_sweep
from aggservice.campaign.columns import Fate
from aggservice.campaign.devices.amounts import _scaled
from aggservice.commands import app

CAMPAIGN = """
name = "extreme"
[population]
size = 60
days = 2
conversion_rate = 1
{population}
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
of = "value"
most = 10
scale = "0.333333333"
[[queries]]
epsilon = "10"
[collection]
{collection}
"""


def run(tmp_path: Path, population: str = "", collection: str = "") -> RunResult:
    campaign = parse_campaign(CAMPAIGN.format(population=population, collection=collection), folder=tmp_path)
    return run_campaign(campaign, tmp_path / "out", seed="extreme", workers=1, draw=False)


@pytest.mark.filterwarnings("error")
def test_values_times_scale_do_not_wrap(tmp_path: Path) -> None:
    """10¹⁵ times a scale of nine decimals is past 63 bits on the way, and not at its end."""
    result = run(tmp_path, "value = 1e15\ndelay_days = 0")
    (waterfall,) = result.assessments[0].waterfalls
    assert waterfall.happened == 60 - waterfall.conversions[Fate.NOT_ATTRIBUTED] >= 50
    assert waterfall.happened_amount == waterfall.happened * 333_333_333_000_000 and waterfall.adds_up
    assert waterfall.counted_amount == 3 * waterfall.conversions[Fate.COUNTED]


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(65_536), Fraction(1, 3), Fraction(6553600001, 10**5)])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**44, 2**45 + 1])
def test_scaling_is_exact(value: int, scale: Fraction) -> None:
    values = np.array([value, 1, 0], dtype=np.int64)
    assert _scaled(values, scale).tolist() == [int(one * scale + Fraction(1, 2)) for one in (value, 1, 0)]
    with pytest.raises(CampaignError, match="make the values or the scale smaller"):
        _scaled(np.array([2**53], dtype=np.int64), Fraction(65_536))


HEAVY = "{ name = 'pareto', least = 1, alpha = 0.02 }"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("field", ["value", "impressions", "conversions", "organic", "devices"])
def test_counts_beyond_measure_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(CampaignError, match="choose a lighter tail"):
        run(tmp_path, f"{field} = {HEAVY}")


@pytest.mark.parametrize("field", ["impressions", "conversions", "organic", "devices"])
def test_more_events_than_memory_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(CampaignError, match=r"comes to 6e\+08 .*, more than 500,000,000"):
        run(tmp_path, f"{field} = 10_000_000\ndelay_days = 0")


@pytest.mark.filterwarnings("error")
def test_a_delay_beyond_measure_is_late_and_not_before_time(tmp_path: Path) -> None:
    """Cast to milliseconds, such a delay would be negative, and the purchase before its ad."""
    conversions = run(tmp_path, f"delay_days = {HEAVY}").truth.events.conversions
    assert len(conversions) == 0
    result = run(tmp_path, "delay_days = 0\nvalue = 10", f"late = 1\nlate_days = {HEAVY}")
    (waterfall,) = result.assessments[0].waterfalls
    assert waterfall.conversions[Fate.LATE] == waterfall.happened > 0 and waterfall.adds_up


REACH = """
name = "reach"
[population]
size = 10
days = 1
impressions = 50
impression_day = 0.5
[[keys.fields]]
name = "ad"
count = 40
[client]
kind = "{kind}"
thresholds = [1, 2]
{client}
[service]
epsilon = "10"
[[queries]]
epsilon = "10"
"""


@pytest.mark.parametrize("kind", ["reach", "frequency"])
def test_no_device_contributes_more_than_the_noise_is_for(tmp_path: Path, kind: str) -> None:
    """Browsers let 2¹⁶ through in ten minutes, whatever the file says of Λ₁: noise for less would protect nobody."""
    for client in ("", "cap = 3", "cap = 65536", 'form = "paper"\nl1 = 100\nl0 = 3\ncap = 2'):
        campaign = parse_campaign(REACH.format(kind=kind, client=client), folder=tmp_path)
        result = run_campaign(campaign, tmp_path / "out", seed="reach", workers=1, draw=False)
        transcript = json.loads((result.out / "transcript.json").read_text())
        assert transcript["units"] == 10 and transcript["units_past_the_limit"] == 0
    with pytest.raises(CampaignError, match='A deployed browser has 65536; write form = "paper"'):
        parse_campaign(REACH.format(kind=kind, client="l1 = 100"), folder=tmp_path)


EVENT_LEVEL = """
name = "event level"
[population]
size = 1
days = 1
{population}
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[keys.fields]]
name = "kind"
from = "conversion"
values = ["x", "y"]
[[measures]]
of = "value"
[client]
kind = "event-level"
field = "kind"
[client.windows_days]
x = [2, 7]
[client.buckets]
x = [1]
"""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("population", ["impressions = 0", "impressions = 1", "impressions = 0\norganic = 2"])
def test_event_level_reports_of_nobody(tmp_path: Path, population: str) -> None:
    campaign = parse_campaign(EVENT_LEVEL.format(population=population), folder=tmp_path)
    result = run_campaign(campaign, tmp_path / "out", seed="extreme", draw=True)
    assert result.metrics.events.impressions == result.metrics.model.ads == int("impressions = 1" in population)
    assert "NaN" not in (tmp_path / "out" / "metrics.json").read_text()


def test_names_are_drawn_and_printed_as_they_are(tmp_path: Path) -> None:
    """Dollar signs are no mathematics, brackets no markup, and a script in a name is text in the report."""
    names = ["$0 to $50", "$50 \\bad $", "[red]shoes[/red]", "[/]"]
    text = CAMPAIGN.format(population="value = 10\ndelay_days = 0", collection="").replace(
        'values = ["a", "b"]', f"values = {json.dumps(names)}"
    )
    text = text.replace('name = "extreme"', "name = '<script>alert(1)</script> 50 % $off$ [/b]'")
    text = text.replace('of = "value"', "name = '$ \\frac $'\nof = \"value\"")
    file = tmp_path / "names.toml"
    file.write_text(text)
    found = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "out"), "--seed", "1"])
    assert found.exit_code == 0, found.output
    assert all(name in found.output for name in (*names, "<script>alert(1)</script> 50 % $off$ [/b]"))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    plan = "days = 3\ntitle = '[/b]'\n[[queries]]\nname = '[red]'\nkind = \"daily\"\n"
    (tmp_path / "plan.toml").write_text(plan)
    found = CliRunner().invoke(app, ["plan", str(tmp_path / "plan.toml")])
    assert found.exit_code == 0 and "[/b]" in found.output and "[red]" in found.output


def test_a_sweep_over_an_impossible_service_is_refused_by_name(tmp_path: Path) -> None:
    text = CAMPAIGN.format(population="", collection="") + "[service]\n"
    campaign = parse_campaign(text, folder=tmp_path)
    with pytest.raises(CampaignError, match=r"service.delta = 2: .*above 1"):
        run_sweep(campaign, [parse_field("service.delta=0.1,2", campaign.document)], tmp_path / "sweep", seed="s")


def test_plots_of_names_that_look_alike_are_two(tmp_path: Path) -> None:
    text = CAMPAIGN.format(population="value = 10\ndelay_days = 0", collection="")
    text = text.replace("[[queries]]", "[[measures]]\nname = 'a b'\n[[measures]]\nname = 'a-b'\n[[queries]]")
    run_campaign(parse_campaign(text, folder=tmp_path), tmp_path / "out", seed="s", workers=1)
    stems = {path.stem for path in (tmp_path / "out" / "plots").glob("slices-*.svg")}
    assert len(stems) == 3, stems


@pytest.mark.parametrize("kind", ["reach", "frequency"])
def test_more_slices_than_a_number_tells_apart(tmp_path: Path, kind: str) -> None:
    """Four fields of a million values: numbered one by one, slices would wrap around and fall together."""
    fields = "".join(f'[[keys.fields]]\nname = "f{place}"\ncount = 1_000_000\n' for place in range(4))
    client = f'[client]\nkind = "{kind}"\nthresholds = [1]\ncap = 8\n'
    text = f'name = "many"\n[population]\nsize = 20\ndays = 1\nimpressions = 3\n{fields}{client}'
    campaign = parse_campaign(text + "[[queries]]\ndiscovery = true\n", folder=tmp_path)
    result = run_campaign(campaign, tmp_path / "out", seed="many", workers=1, draw=False)
    (waterfall,) = result.assessments[0].waterfalls
    assert waterfall.happened == 60 and waterfall.adds_up
    assert waterfall.conversions[Fate.BELOW_THRESHOLD] + waterfall.conversions[Fate.CAPPED_L1] == 60
