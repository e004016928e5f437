"""One campaign on three APIs through one service: intervals hold, waterfalls add up, W3C reports are used once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from aggservice.campaign import parse_campaign
from aggservice.campaign.assess.slices import noise_of
from aggservice.campaign.columns import Fate
from aggservice.campaign.compare import ApiComparison, parse_apis, run_comparison, variant, write_comparison
from aggservice.campaign.errors import CampaignError, RunError
from aggservice.client import ClientError
from aggservice.commands import app

CAMPAIGN = """
name = "three"
[population]
size = 150
days = 6
conversion_rate = 0.9
sites = ["https://blog.example", "https://news.example"]
delay_days = { name = "uniform", low = 0, high = 0.5 }
impression_day = { name = "uniform", low = 0, high = 5 }
value = { name = "uniform", low = 1, high = 40 }
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[keys.fields]]
name = "site"
from = "site"
[[keys.fields]]
name = "product"
from = "conversion"
values = ["x", "y"]
[[measures]]
name = "count"
of = "count"
scale = 5000
[[measures]]
name = "money"
of = "value"
most = 40
scale = 100
[client]
call_epsilon = "0.5"
site_budget = "100"
global_budget = "1000"
impression_quota = "1000"
[[queries]]
name = "sales"
epsilon = "10"
"""
LOSSY = (
    CAMPAIGN.replace(
        "size = 150",
        'size = 400\nimpressions = { name = "geometric", mean = 5 }\ndestinations = ["https://shop.example", "https://store.example"]',
    )
    .replace(
        'site_budget = "100"', 'site_budget = "1"\nhistogram_size = 3\ncleared = 0.2\ndisabled = 0.1\ninactive = 0.1'
    )
    .replace('global_budget = "1000"', 'global_budget = "1.5"')
    .replace('impression_quota = "1000"', 'impression_quota = "1"')
    + '[collection]\nlost = 0.05\nretried = 0.05\n[[queries]]\nname = "again"\nepsilon = "0.1"\n'
)


def compared(text: str, folder: Path, **options: Any) -> ApiComparison:
    return run_comparison(parse_campaign(text, folder=folder), folder / "out", draw=False, **options)


def intervals_hold(repetitions: int, folder: Path) -> None:
    """Assert coverage of every API over repetitions of the whole campaign, each with its own people and noise.

    Nothing is capped, clipped, refused or lost, so the truth is what was sent. Rows have their own noise, so the rows
    of an API and measure that hold are binomial with the interval's exact probability; six two-sided tests at 10⁻⁷ have
    a false-alarm rate below 10⁻⁶ in all.
    """
    held: Counter[tuple[str, str]] = Counter()
    rows: Counter[tuple[str, str]] = Counter()
    stated: dict[tuple[str, str], float] = {}
    for number in range(repetitions):
        found = compared(CAMPAIGN, folder / str(number))
        happened = {run.metrics.queries[0].measures[0].truth for run in found.runs.values()}
        assert len(happened) == 1  # the same purchases on every API
        for api, run in found.runs.items():
            (assessment,), (answer,) = run.assessments, run.answers
            assert assessment.paid and all(one.adds_up and one.clipped == 0 for one in assessment.waterfalls)
            for row in assessment.slices:
                measure = ("count", "money").index(row.measure)
                assert row.sent == round(row.truth * (5000, 100)[measure]), (api, row)
                held[api, row.measure] += row.low <= row.truth <= row.high
                rows[api, row.measure] += 1
                law, width = noise_of(answer, measure), answer.statement_of(measure).interval_half_width
                stated[api, row.measure] = float(law.cdf(width) - law.cdf(-width - 1))
    assert set(rows) == {(api, measure) for api in ("ara", "paa", "w3c") for measure in ("count", "money")}
    for key, count in rows.items():
        assert count == 8 * repetitions and 0.95 <= stated[key] < 0.951
        assert stats.binomtest(held[key], count, stated[key]).pvalue > 1e-7, key
        print(f"{key[0]} {key[1]}: {held[key]} of {count} intervals hold the truth ({held[key] / count:.4f})")


def test_intervals_hold_the_truth_on_every_api(tmp_path: Path) -> None:
    intervals_hold(8, tmp_path)


@pytest.mark.soak
def test_intervals_hold_in_200_repetitions(tmp_path: Path) -> None:
    intervals_hold(200, tmp_path)


def test_every_loss_has_its_step_and_a_second_use_is_refused(tmp_path: Path) -> None:
    found = compared(LOSSY, tmp_path, seed="losses")
    for api, run in found.runs.items():
        assert all(fall.adds_up for one in run.assessments for fall in one.waterfalls), api
        assert len({fall.happened for one in run.assessments for fall in one.waterfalls}) == 1
    assert len({run.assessments[0].waterfalls[0].happened for run in found.runs.values()}) == 1
    first, second = found.runs["w3c"].assessments
    lost = {fate for fate in Fate if any(fall.conversions[fate] for fall in first.waterfalls)}
    own = {Fate.INACTIVE, Fate.CLEARED, Fate.SITE_BUDGET, Fate.GLOBAL_BUDGET, Fate.QUOTA, Fate.OUTSIDE, Fate.LOST}
    assert own <= lost
    assert all(
        not found.runs[api].assessments[0].waterfalls[0].conversions[fate]
        for api in ("ara", "paa")
        for fate in own - {Fate.LOST}
    )
    reply = found.runs["w3c"].answers[1].reply
    assert first.paid and not second.paid and isinstance(reply, ClientError)
    assert "used once" in second.refusal and reply.units and reply.count >= len(reply.units)
    assert second.waterfalls[0].conversions[Fate.OVER_BUDGET] == first.waterfalls[0].counted
    for api in ("ara", "paa"):
        assert [one.paid for one in found.runs[api].assessments] == [True, True]


def test_a_seed_repeats_the_comparison_and_the_page_has_every_api(tmp_path: Path) -> None:
    text = CAMPAIGN.replace("size = 150", "size = 60")
    one, two = (compared(text, tmp_path / name, seed="same") for name in ("one", "two"))
    assert one.to_plain() == two.to_plain() and one.to_plain()["private"] is False
    page = write_comparison(one).read_text(encoding="utf-8")
    assert page.count("<svg") == 1 and "<script" not in page
    for words in ("Attribution Reporting", "Private Aggregation", "W3C Attribution", "can be used once", "happened"):
        assert words in page
    assert (one.out / "comparison.png").stat().st_size > 5_000
    again = run_comparison(parse_campaign(text, folder=tmp_path), one.out, ("paa", "w3c"), seed="same", draw=False)
    assert list(again.runs) == ["paa", "w3c"] and not (one.out / "ara").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("keep")
    with pytest.raises(RunError, match="holds no earlier comparison"):
        run_comparison(parse_campaign(text, folder=tmp_path), other, draw=False)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('name = "three"', 'name = "three"\nreporting_origin = "https://www.ad-tech.example"', "measures sites"),
        ("days = 6", 'days = 6\ndestinations = ["https://a.shop.example"]', "measures sites"),
        ('epsilon = "10"', 'epsilon = "10"\ndiscovery = true', "its own indexes"),
        ("[client]", '[client]\ndesign = "big-birds"', "Write one of"),
        ("[client]", '[client]\nform = "paper"', "deployed"),
        ('call_epsilon = "0.5"', 'call_epsilon = "0.0000005"', "six decimal places"),
        ("[client]", '[client]\nkind = "reach"', "it is 'paa'"),
    ],
)
def test_what_w3c_cannot_do_is_refused_with_what_to_write(before: str, after: str, words: str, tmp_path: Path) -> None:
    text = CAMPAIGN.replace("[client]", '[client]\napi = "w3c"').replace(before, after, 1)
    with pytest.raises(CampaignError, match=words):
        parse_campaign(text, folder=tmp_path)


def test_the_command_and_its_refusals(tmp_path: Path) -> None:
    assert parse_apis("w3c, ara") == ("w3c", "ara")
    for bad in ("w3c", "ara,ara", "ara,topics"):
        with pytest.raises(CampaignError, match="Write two or three"):
            parse_apis(bad)
    file = tmp_path / "campaign.toml"
    file.write_text(CAMPAIGN.replace("size = 150", "size = 60"), encoding="utf-8")
    arguments = ["run", str(file), "--compare", "paa,w3c", "--out", str(tmp_path / "out"), "--seed", "x", "--no-plots"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0 and set(json.loads(done.output)["apis"]) == {"paa", "w3c"}
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and "happened =" in shown.output
    assert CliRunner().invoke(app, [*arguments, "--sweep", "queries.sales.epsilon=1,2"]).exit_code == 2
    assert CliRunner().invoke(app, [*arguments, "--service", "localhost:1"]).exit_code == 2
    reach = parse_campaign(
        'name = "r"\n[population]\nsize = 5\ndays = 1\n[client]\nkind = "reach"\n[[keys.fields]]\nname = "a"\n'
        'values = ["x"]\n[[queries]]\n',
        folder=tmp_path,
    )
    with pytest.raises(CampaignError, match="has one API"):
        variant(reach, "w3c")
