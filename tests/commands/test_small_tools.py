"""``aggservice noise`` and ``aggservice new``: small tools for a first hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.campaign import load_campaign, run_campaign
from aggservice.commands import app
from aggservice.mechanisms import DiscreteLaplace, ParameterError, TruncatedDiscreteLaplace


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def test_noise_says_what_the_law_says() -> None:
    code, said = run("noise", "--epsilon", "10", "--scale", "60", "--json")
    plain = json.loads(said)
    law = DiscreteLaplace(epsilon_micro=10_000_000, sensitivity=65_536)
    assert code == 0 and plain["standard_deviation"] == pytest.approx(float(law.variance()) ** 0.5)
    assert plain["units_needed"] == pytest.approx(plain["standard_deviation"] / 60 / 0.05)
    assert "154.47 counted units" in run("noise", "--epsilon", "10", "--scale", "60")[1]
    code, said = run("noise", "--epsilon", "10", "--delta", "0.00000001", "--json")
    assert code == 0 and json.loads(said)["threshold_in_units"] > 186_258
    for wrong in (["--epsilon", "ten"], ["--epsilon", "0.0000001"], ["--scale", "0"], ["--epsilon", "65"]):
        code, said = run("noise", *wrong)
        assert code == 2 and "Traceback" not in said


def test_noise_takes_decimal_text() -> None:
    assert DiscreteLaplace(epsilon="0.25", sensitivity=4) == DiscreteLaplace(epsilon_micro=250_000, sensitivity=4)
    assert TruncatedDiscreteLaplace(epsilon="1", sensitivity=4, tau=9).epsilon_micro == 1_000_000
    for wrong in (
        {"epsilon": "0.0000001"},
        {"epsilon": 0.5},
        {"epsilon": "x"},
        {"epsilon": "1", "epsilon_micro": 1},
        {},
    ):
        with pytest.raises(ParameterError):
            DiscreteLaplace(sensitivity=4, **wrong)


def test_a_new_campaign_runs_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    code, said = run("new", "campaign", str(file))
    assert code == 0 and "aggservice run" in said
    campaign = load_campaign(file)
    text = file.read_text(encoding="utf-8").replace("size = 5_000", "size = 300")
    file.write_text(text, encoding="utf-8")
    result = run_campaign(load_campaign(file), tmp_path / "out", seed="new", workers=1, draw=False)
    assert campaign.name == "My campaign" and result.metrics.queries[0].paid == 2
    code, said = run("new", "campaign", str(file))
    assert code == 2 and "exists" in said and file.read_text(encoding="utf-8") == text
