"""What the studio's parts answer is what the library and the command line say."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from aggservice.campaign import load_campaign, parse_campaign
from aggservice.campaign.assess.expected import expected_errors, noise_of_query, slice_sums
from aggservice.campaign.metrics import RMSRE
from aggservice.campaign.service.jobs import jobs_of
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_reports
from aggservice.mechanisms import SeededBits
from aggservice.studio.tune import edited
from budget import open_store, verify_store
from w3c_client.scenarios import load_scenarios

from .conftest import EXAMPLES, RunningStudio

ANALYSES = ("small.toml", "late_reports/campaign.toml", "thanksgiving/campaign.toml")


def test_an_edit_keeps_the_rest_of_the_file(studio: RunningStudio) -> None:
    toml = studio.get("campaign?campaign=0/thanksgiving/campaign.toml")["toml"]
    changed = studio.post("tune/edit", toml=toml, path="queries.0.epsilon", value='"7.5"')["toml"]
    lines = [(old, new) for old, new in zip(toml.splitlines(), changed.splitlines(), strict=True) if old != new]
    assert len(lines) == 1 and '"7.5"' in lines[0][1]
    assert parse_campaign(changed, folder=Path.cwd()).queries[0].epsilon == "7.5"
    assert edited(toml, "population.size", "30_000").count("30_000") == 1
    for path, value in (("queries.9.epsilon", '"1"'), ("queries.0.epsilon", "not toml"), ("name.x", "1"), ("", "1")):
        assert studio.try_post("tune/edit", toml=toml, path=path, value=value).status == 400


def test_a_bad_campaign_is_refused_with_its_line(studio: RunningStudio) -> None:
    answer = studio.try_post("tune", toml='name = "x"\n[population]\nsize = -3\n')
    assert answer.status == 400 and "size" in answer.json["error"]


def test_expected_errors_are_those_of_the_exact_law(studio: RunningStudio) -> None:
    """The page's figure is the root of the mean of bias² + variance over slices, from the library's own noise."""
    campaign = load_campaign(studio.folder / "small.toml")
    found = studio.post("tune", toml=(studio.folder / "small.toml").read_text(encoding="utf-8"))
    chain = RunChain(SeededBits("studio"))
    truth = simulate_reports(campaign, chain)
    (job,) = jobs_of(campaign, truth.collected.closes_ms)
    noise = noise_of_query(campaign, job.query)
    for shown, sums in zip(found["queries"][0]["measures"], slice_sums(campaign, chain, truth, job), strict=True):
        square = (sums.sent / sums.scale - sums.truth) ** 2 + sums.keys * float(noise.variance()) / sums.scale**2
        assert shown["rmse"] == pytest.approx(np.sqrt(square.mean()), rel=1e-9)
        assert len(shown["rows"]) == sums.truth.size
    assert found["epsilon_left"] == float(Fraction(campaign.service.epsilon) - Fraction(job.query.epsilon))


@pytest.mark.parametrize("name", ANALYSES)
def test_expected_errors_meet_200_draws_of_the_noise(shelf_folder: Path, name: str) -> None:
    """The mean of 200 runs' mean squares lies within 6 of its stated standard deviations (false alarm below 10⁻⁶)."""
    campaign = load_campaign(shelf_folder / name)
    campaign = replace(campaign, population=replace(campaign.population, size=min(campaign.population.size, 3_000)))
    chain = RunChain(SeededBits("tolerance"))
    truth = simulate_reports(campaign, chain)
    job = jobs_of(campaign, truth.collected.closes_ms)[0]
    noise, bits = noise_of_query(campaign, job.query), SeededBits(f"draws {name}")
    for sums in slice_sums(campaign, chain, truth, job):
        expected = expected_errors(sums, noise, job.query.tau)
        weight = np.maximum(sums.truth, expected.laws.tau) ** -2.0
        error = RMSRE.expected(expected.laws) or 0.0
        squares = []
        for _ in range(200):
            drawn = noise.sample(bits, int(sums.keys.sum()))
            total = np.add.reduceat(drawn, np.concatenate(([0], np.cumsum(sums.keys)[:-1])))
            squares.append(float(np.mean(weight * ((sums.sent + total) / sums.scale - sums.truth) ** 2)))
        assert abs(np.mean(squares) - error**2) <= 6 * expected.tolerance * error**2 / 200**0.5


def test_a_run_goes_on_in_the_background_and_leaves_what_it_found(studio: RunningStudio) -> None:
    toml = (studio.folder / "small.toml").read_text(encoding="utf-8")
    started = studio.post("runs", toml=toml, seed="again", campaign="0/small.toml")
    events = studio.follow(started["feed"])
    assert events[-1] == {"state": "finished"}
    stages = [event["stage"] for event in events[:-1]]
    assert list(dict.fromkeys(stages))[:2] == ["simulate", "attribute"] and "query" in stages
    result = studio.get(f"result?run={started['run']}")
    folder = studio.folder / started["run"].removeprefix("0/")
    assert result["metrics"] == json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert result["ledger"] == f"{started['run']}/ledger/ledger.sqlite"


def test_one_campaign_runs_on_three_apis(studio: RunningStudio) -> None:
    toml = (EXAMPLES / "three_apis" / "campaign.toml").read_text(encoding="utf-8")
    started = studio.post("runs", toml=re.sub(r"size = [0-9_]+", "size = 300", toml), seed="three", compare=True)
    assert studio.follow(started["feed"])[-1] == {"state": "finished"}
    found = studio.get(f"comparison?comparison={started['run']}")
    assert list(found["runs"]) == ["ara", "paa", "w3c"]
    for api, run in found["runs"].items():
        assert studio.get(f"result?run={run}")["metrics"]["queries"] == found["apis"][api]["queries"]


def test_a_cancelled_run_leaves_nothing(studio: RunningStudio) -> None:
    toml = (studio.folder / "thanksgiving" / "campaign.toml").read_text(encoding="utf-8")
    started = studio.post("runs", toml=toml.replace("size = 20_000", "size = 900_000"))
    time.sleep(0.5)
    assert studio.post("runs/cancel", feed=started["feed"]) == {"cancelled": True}
    assert studio.follow(started["feed"])[-1]["state"] == "cancelled"
    assert not (studio.folder / started["run"].removeprefix("0/")).exists()
    assert studio.try_post("runs/cancel", feed="none").status == 404


def test_a_run_that_fails_says_why(studio: RunningStudio) -> None:
    toml = (studio.folder / "small.toml").read_text(encoding="utf-8").replace("median = 70", "median = 1e17")
    started = studio.try_post("runs", toml=toml)
    if started.status == 200:
        last = studio.follow(started.json["feed"])[-1]
        assert last["state"] == "failed" and last["error"]
    else:
        assert started.status == 400 and started.json["error"]


def test_a_ledger_is_shown_as_it_is(studio: RunningStudio) -> None:
    ledger = "0/small-run/ledger/ledger.sqlite"
    found = studio.get(f"ledger?ledger={ledger}")
    store = open_store(str(studio.folder / "small-run" / "ledger" / "ledger.sqlite"))
    audit = verify_store(store)
    store.close()
    assert found["units"] == audit.units_known == sum(one["units"] for one in found["balances"])
    assert [entry["type"] for entry in found["timeline"]] == ["genesis", "release"]
    assert found["timeline"][1]["most_spent"] == float(found["most"]["epsilon"]) == 10
    exported = studio.get("ledger?ledger=0/small-run/ledger/ledger.log")
    assert [entry["most_spent"] for entry in exported["timeline"]] == [0, 10]
    entries = studio.get(f"ledger/entries?ledger={ledger}")
    assert entries["count"] == 2
    job, caller = entries["entries"][1]["job_id"], entries["entries"][1]["caller"]
    receipt = studio.get(f"ledger/receipt?ledger={ledger}&job={job}&caller={caller}")
    assert receipt["nodes"][-1]["node"] == receipt["root"] == audit.root.hex()
    assert studio.request("GET", f"/api/ledger/receipt?ledger={ledger}&job=none&caller=x").status == 400


def test_an_audit_agrees_and_finds_every_tampering(studio: RunningStudio) -> None:
    ledger = "0/small-run/ledger/ledger.sqlite"
    before = hashlib.sha256((studio.folder / "small-run" / "ledger" / "ledger.sqlite").read_bytes()).digest()
    good = studio.follow(studio.post("ledger/verify", ledger=ledger)["feed"])[-1]
    assert good["state"] == "finished" and good["report"]["ok"]
    exported = studio.follow(studio.post("ledger/verify", ledger="0/small-run/ledger/ledger.log")["feed"])[-1]
    assert exported["report"]["ok"] and exported["report"]["root"] == good["report"]["root"]
    for how in studio.get(f"ledger?ledger={ledger}")["tamperings"]:
        for seed in range(3):
            feed = studio.post("ledger/tamper", ledger=ledger, how=how, seed=seed)["feed"]
            last = studio.follow(feed)[-1]
            assert last["state"] == "finished" and not last["report"]["ok"], (how, seed)
            assert last["report"]["disagreement"]["text"]
    assert hashlib.sha256((studio.folder / "small-run" / "ledger" / "ledger.sqlite").read_bytes()).digest() == before


def test_a_device_says_which_filter_refused(studio: RunningStudio) -> None:
    device = studio.post("device", design="w3c", site_budget="0.5")["device"]
    convert = {"aggregationService": "https://aggregation-service.example", "histogramSize": 4, "epsilon": 0.5}
    studio.post("device/do", device=device, what="save", site="news.example", options={"histogramIndex": 2})
    studio.post("device/do", device=device, what="wait", hours=1)
    for lookback, result in ((7, 1), (7, 1), (7, 0)):
        options = convert | {"lookbackDays": lookback}
        state = studio.post("device/do", device=device, what="convert", site="shop.example", options=options)
        last = state["journal"][-1]
        assert sum(last["result"]) <= result
    spent = [one for one in state["budgets"] if one["filter"] == "site-budget"]
    assert spent and all(0 <= one["left"] <= 500_000 for one in spent)
    assert last["result"] == [0, 0, 0, 0] and last["refused_by"] == ["site-budget"]
    refused = studio.post(
        "device/do", device=device, what="convert", site="shop.example", options=convert | {"epsilon": -1}
    )
    assert refused["journal"][-1]["error"] == "RangeError"
    assert studio.try_post("device/do", device="none", what="wait", hours=1).status == 404


def test_every_scenario_steps_to_its_expected_end(studio: RunningStudio) -> None:
    listed = studio.get("device/scenarios")
    assert len(listed) == len(list((studio.folder / "scenarios").glob("*.json"))) - 1
    for item in listed[:8]:
        name, scenario = next(iter(load_scenarios(studio.folder / item["id"].removeprefix("0/"))))
        total = len(scenario.events)
        state = studio.post("device/scenario", scenario=item["id"], steps=total)
        assert state["total"] == total and all(event["agrees"] for event in state["journal"]), name
        assert "agrees" not in studio.post("device/scenario", scenario=item["id"], steps=0)["journal"][0]


@pytest.mark.parametrize("method", ["RAPPOR", "1BitFlipPM", "OLOLOHA"])
def test_local_dp_shows_what_the_protocol_says(studio: RunningStudio, method: str) -> None:
    found = studio.post("local-dp", method=method, k=8, value=2, epsilon="2", first="1", reports=3, seed="x")
    assert len(found["reports"]) == 3 and found["memo"]
    for fleet in found["fleets"]:
        assert fleet["mse"] < 40 * fleet["expected"]
    tracked = studio.post("local-dp/tracking", method=method, k=8, value=2, epsilon="2", first="1", reports=4)
    assert [row["reports"] for row in tracked["rows"]] == [2, 3, 4]
    assert studio.try_post("local-dp", method=method, k=8, value=8).status == 400


def test_a_followed_report_is_whole(studio: RunningStudio) -> None:
    toml = (studio.folder / "small.toml").read_text(encoding="utf-8")
    found = studio.post("follow", toml=toml, fate="on the way")
    names = [step["name"] for step in found["steps"]]
    assert names == [
        "The ads", "The conversion", "What the browser decided", "The payload", "The sealed report", "The collector",
        "The charge", "The sum and its noise",
    ]  # fmt: skip
    decided, payload, charge, total = (found["steps"][number]["values"] for number in (2, 3, 6, 7))
    sent = {one["bucket"]: one["value"] for one in decided["contributions"]}
    assert sent == {one["bucket"]: one["value"] for one in payload["entries"] if one["value"]}
    assert charge["spent"] == 10 and len(charge["unit"]) == 40
    for row in total["rows"]:
        assert row["released for this report alone"] - row["noise"] == row["this report"] <= row["sum of the campaign"]
    lost = studio.post("follow", toml=toml, fate="not attributed")
    assert [step["name"] for step in lost["steps"]][:3] == names[:3]
    assert studio.try_post("follow", toml=toml, fate="nonsense").status == 400
    assert studio.try_post("follow", toml=toml.replace("[client]", '[client]\napi = "w3c"', 1)).status == 400


def test_vendored_files_are_the_ones_that_their_page_names() -> None:
    folder = Path(str(files("aggservice.studio") / "static" / "vendor"))
    listed = (folder / "README.md").read_text(encoding="utf-8")
    scripts = sorted(folder.glob("*.js"))
    assert len(scripts) == 2
    for script in scripts:
        assert hashlib.sha256(script.read_bytes()).hexdigest() in listed and script.name in listed
    own = sum(path.stat().st_size for path in folder.parent.iterdir() if path.is_file())
    assert own < 200_000
