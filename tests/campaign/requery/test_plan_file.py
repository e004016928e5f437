"""Plan files and ``aggservice plan``: what they say, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.campaign import CampaignFileError, load_plan
from aggservice.campaign.plan import TargetKind, parse_plan
from aggservice.commands import app

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "requerying" / "plan" / "plan.toml"
BASE = 'days = 14\nbatches = ["shop", "outlet"]\n[budget]\nepsilon = "8"\nvalue_per_count = 100\n'
DAILY = '[[queries]]\nname = "daily"\nkind = "daily"\n'


def test_windows_and_targets_are_read() -> None:
    asked = parse_plan(
        BASE
        + DAILY
        + 'relative_error = "0.05"\nat_count = 200\n'
        + '[[queries]]\nname = "weekly"\nkind = "weekly"\nhalf_width = "7"\ntimes = 2\n'
        + '[[queries]]\nname = "rolling"\nkind = "rolling"\nwindow_days = 3\nevery_days = 2\nbatches = ["shop"]\n'
        + '[[queries]]\nname = "once"\nkind = "once"\nfrom_day = 3\nto_day = 5\ndiscovery = true\nrelease_above = 50\n'
    )
    daily, weekly, rolling, once = asked.lines
    assert len(daily.windows) == 14 and daily.target is not None
    assert (daily.target.measure, daily.target.most) == (TargetKind.DEVIATION, Fraction(200 * 5))
    assert weekly.windows == ((0, 7), (7, 14)) * 2 and weekly.target is not None and weekly.target.most == 700
    assert rolling.windows[:2] == ((0, 3), (2, 5)) and rolling.batches == {"shop"} and rolling.windows[-1] == (10, 13)
    assert once.windows == ((2, 5),) and once.discovery
    assert asked.resources.epsilon_micro == 8_000_000


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("days = =\n", 1, "is not TOML"),
        (DAILY, 0, "days is missing"),
        (BASE, 0, "Write [[queries]]"),
        (BASE + DAILY.replace('"daily"\n', '"hourly"\n', 2), 8, "Write one of 'daily'"),
        (BASE + DAILY + DAILY, 10, "of its own"),
        (BASE + DAILY + 'relative_error = "0.05"\n', 6, "Write at_count"),
        (BASE + DAILY + "at_count = 5\n", 9, "has no target beside it"),
        (BASE + DAILY + 'half_width = "5"\nstandard_deviation = "3"\n', 10, "Write one of them"),
        (BASE + DAILY + "half_width = 5\nat_count = 5\n", 10, "Leave it out"),
        (BASE + DAILY + "half_width = 0\n", 9, "Write a number above 0"),
        (BASE + DAILY + "release_above = 5\n", 9, "Write discovery = true"),
        (BASE + DAILY + 'batches = ["mall"]\n', 9, "Write some of 'shop', 'outlet'"),
        (BASE + DAILY + "from_day = 9\nto_day = 3\n", 10, "Write a day from 9 to 14"),
        (BASE + DAILY + "windows_days = 9\n", 9, "is not a field"),
        (BASE + '[[queries]]\nname = "w"\nkind = "weekly"\nto_day = 6\n', 8, "shorter window"),
        (BASE.replace('"8"', '"0"') + DAILY, 4, "above 0"),
        (BASE.replace('"8"', '"8"\ndelta = "2"') + DAILY, 5, "a probability"),
        (BASE.replace('"8"', '"0.0000001"') + DAILY, 4, 'Write epsilon = "64"'),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_a_remedy(text: str, line: int, words: str) -> None:
    with pytest.raises(CampaignFileError) as caught:
        parse_plan(text)
    assert words in str(caught.value)
    assert caught.value.line == line


def test_the_command_prints_a_plan_and_says_when_there_is_none(tmp_path: Path) -> None:
    assert len(load_plan(EXAMPLE).lines) == 4
    shown = CliRunner().invoke(app, ["plan", str(EXAMPLE)])
    assert shown.exit_code == 0 and "Every target is met" in shown.output
    plain = json.loads(CliRunner().invoke(app, ["plan", str(EXAMPLE), "--json"]).stdout)
    assert plain["feasible"] and Fraction(plain["most_spent_by_a_report"]) <= 64
    assert all(one["met"] for one in plain["queries"])
    tight = tmp_path / "tight.toml"
    tight.write_text(EXAMPLE.read_text().replace('epsilon = "64"', 'epsilon = "10"'))
    missed = CliRunner().invoke(app, ["plan", str(tight)])
    assert missed.exit_code == 1 and "cannot be met" in missed.output and "times as large" in missed.output
    assert "give it a target" in " ".join(missed.output.split()) and "give it a target" not in shown.output
    plain = json.loads(CliRunner().invoke(app, ["plan", str(tight), "--json"]).stdout)
    assert not plain["feasible"] and plain["factor"] > 1 and Fraction(plain["needed_epsilon"]) > 10
    assert Fraction(plain["most_spent_by_a_report"]) <= 10
    assert CliRunner().invoke(app, ["plan", str(tmp_path / "none.toml")]).exit_code == 2
