"""Attack files and their runs: designs that hold, designs that collapse, and adversaries that gain nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.campaign.attacks.figures import big_bird_5, big_bird_6, cookie_monster_rows, draw_cookie_monster
from aggservice.campaign.attacks.run import AttackResult, run_attack, simulate_visits
from aggservice.campaign.attacks.settings import load_attack, with_fields
from aggservice.campaign.errors import CampaignFileError
from aggservice.commands import app
from aggservice.mechanisms import SeededBits
from w3c_client import design_config

FOLDER = Path(__file__).parents[3] / "examples" / "w3c" / "attacks"
SMALL = {"population.devices": 60, "population.conversion_sites": 2, "queries.error": 0.4}


def run(file: str = "sybils-at-random", **fields: object) -> AttackResult:
    changed = {name.replace("__", "."): value for name, value in fields.items()}
    return run_attack(with_fields(load_attack(FOLDER / f"{file}.toml"), {**SMALL, **changed}))


def test_without_filters_reports_hold_what_last_touch_gives() -> None:
    """The browser agrees with a last touch that was computed in columns, bucket by bucket: the error is noise alone."""
    found = run(client__without=[one.name for one in design_config("big-bird").rules], attack__kind="none")
    assert found.refused == {} and found.attributable > 150
    assert found.errors == pytest.approx([0.4] * len(found.errors), rel=1e-3)


def test_global_only_collapses_and_big_bird_holds() -> None:
    quiet = run(attack__kind="none")
    for kind in ("random", "omniscient"):
        held, lost = run(attack__kind=kind), run(client__design="global-only", attack__kind=kind)
        assert held.conversions == lost.conversions == quiet.conversions  # the same population
        assert held.median_error < 1.2 * quiet.median_error
        assert lost.refused_share("global-budget") > 4 * held.refused_share("global-budget")
        assert held.drained_micro <= held.bound_micro if held.bound_micro is not None else False
        assert lost.bound_micro is None and lost.drained_micro == 8_000_000


def test_few_sybils_are_bounded_by_their_quotas() -> None:
    found = run(attack__sybils=3, attack__kind="omniscient")
    assert found.bound_micro == 3_000_000 and 0 < found.drained_micro <= 3_000_000
    assert found.refused_share("global-budget") == 0


@pytest.mark.parametrize("file", ["site-that-clears", "site-with-intermediaries"])
def test_one_site_gains_nothing_by_clearing_or_by_intermediaries(file: str) -> None:
    """It calls 20 times per visit and is paid once per epoch: its own budget of 1, and nothing of others'."""
    found = run(file)
    assert found.attack_conversions > 20 * 50
    assert found.drained_micro == 1_000_000
    assert found.refused_share("global-budget") == 0
    loose = run(file, client__design="global-only")
    assert loose.drained_micro == 8_000_000


def test_activation_that_one_call_consumes_is_a_cap_of_one() -> None:
    """W3C's text lets one activation serve every redirection of the next seconds; its simulator consumes it."""
    kept = run(client__design="w3c", client__activation="kept", attack__kind="omniscient")
    consumed = run(client__design="w3c", client__activation="consumed", attack__kind="omniscient")
    free = run(client__design="w3c", attack__kind="omniscient")
    assert kept.refused == free.refused
    assert consumed.refused_share("global-budget") < free.refused_share("global-budget") / 4


def test_cookie_monster_spends_less_than_its_baselines() -> None:
    """The order of its Figure 4, on average spend, at a small size: cookie-monster ≤ base ≤ ipa at each knob."""
    rows = cookie_monster_rows(seed="test", batch=25, knobs=(0.01, 0.1, 1.0))
    spent = {(row["panel"], row["x"], row["line"]): row["average"] for row in rows}
    assert len(rows) == 18 and all(row["refused"] == 0 for row in rows if row["line"] != "cookie-monster")
    for panel, x, _ in spent:
        assert spent[panel, x, "cookie-monster"] <= spent[panel, x, "base"] <= spent[panel, x, "ipa"]
    assert spent["impressions_per_day", 0.01, "cookie-monster"] < spent["impressions_per_day", 0.01, "base"] / 2


def test_visits_are_the_same_for_every_design() -> None:
    scenario = load_attack(FOLDER / "sybils-at-random.toml")
    one = simulate_visits(scenario.population, scenario.queries, SeededBits("x"))
    assert (one.device[1:] >= one.device[:-1]).all() and ((one.impression_site < 0) == (one.bucket < 0)).all()
    assert (one.touched[one.impression_site >= 0] == -1).all()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"client.design": "global-only", "client.impression_quota": "1"}, "has no effect"),
        ({"client.design": "cookie-monster", "client.sites_per_action": 2}, "has no effect"),
        ({"client.impression_quota": "0.0000001"}, "six decimal places"),
        ({"client.design": "small-bird"}, "Write one of"),
        ({"attack.kind": "friendly"}, "Write one of"),
        ({"attack.sybil": 3}, "Did you mean"),
        ({"population.devices": 0}, "population.devices"),
        ({"nothing": 1}, "nothing is not a field"),
    ],
)
def test_bad_fields_are_refused_by_name(fields: dict[str, object], words: str) -> None:
    with pytest.raises(CampaignFileError, match=words):
        with_fields(load_attack(FOLDER / "sybils-at-random.toml"), fields)


def test_sweeps_and_the_commands() -> None:
    refused = CliRunner().invoke(app, ["attack", str(FOLDER / "omniscient-sybils.toml"), "--sweep", "quota"])
    assert refused.exit_code == 2 and "not a sweep" in refused.output
    small = ["--sweep", "population.devices=40", "--sweep", "population.conversion_sites=2"]
    arguments = ["attack", str(FOLDER / "omniscient-sybils.toml"), *small, "--sweep", "client.sites_per_action=1,3"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(done.output)
    assert [one["fields"]["client.sites_per_action"] for one in found] == [1, 3]
    assert found[0]["drained_mean_micro"] < found[1]["drained_mean_micro"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert "big-bird-5" in CliRunner().invoke(app, ["figure"]).output
    assert CliRunner().invoke(app, ["figure", "big-bird-9"]).exit_code == 2


def test_figures_name_every_run_and_draw(tmp_path: Path) -> None:
    scenario = load_attack(FOLDER / "sybils-at-random.toml")
    for point in [*big_bird_5(), *big_bird_6()]:
        with_fields(scenario, point.fields)
    rows = cookie_monster_rows(seed="test", batch=10, knobs=(0.1, 1.0))
    assert draw_cookie_monster(rows, tmp_path / "figure").stat().st_size > 5_000
