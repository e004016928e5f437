"""Stages: computed once for what they read, kept in files, and found again by a study that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.campaign import CampaignError, parse_campaign, parse_field, run_sweep
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain, digest_of, read_stage, view_of, write_stage
from aggservice.campaign.sweep.output import write_rows, write_slices
from aggservice.campaign.world.truth import ATTRIBUTE, COLLECT, SIMULATE, simulate_reports
from aggservice.mechanisms import SeededBits

TEXT = """
name = "stages"
[population]
size = 2000
days = 2
impressions = { name = "poisson", mean = 3 }
conversion_rate = 0.5
value = { name = "lognormal", median = 60, sigma = 0.6 }
[[keys.fields]]
name = "ad"
count = 6
[[measures]]
name = "purchases"
of = "count"
scale = 8192
[[measures]]
name = "money"
of = "value"
most = 400
scale = 64
[collection]
batch_hours = 24
lost = 0.1
[[queries]]
name = "sales"
over = "each"
epsilon = "10"
[[queries]]
name = "all"
epsilon = "5"
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return parse_campaign(TEXT, folder=tmp_path)


def names(stages: Any) -> list[str]:
    return sorted(name for name, _ in stages)


#: How often each stage is computed: sums and truth once per batch of "sales" and once for "all".
STAGES = ("simulate", "attribute", "collect", "sums", "truth", "release")


@pytest.mark.parametrize(
    ("field", "computed"),
    [
        ("queries.*.epsilon=1,2,4", (1, 1, 1, 3, 3, 3)),
        ("service.epsilon=20,30", (1, 1, 1, 3, 3, 2)),
        ("collection.lost=0,0.2", (1, 1, 2, 6, 6, 2)),
        ("measures.money.scale=1,64", (1, 2, 2, 6, 6, 2)),
        ("measures.money.most=9,90", (1, 2, 2, 6, 6, 2)),
        ("population.size=90,99", (2, 2, 2, 6, 6, 2)),
    ],
)
def test_each_stage_is_computed_once(campaign: Campaign, field: str, computed: tuple[int], tmp_path: Path) -> None:
    result = run_sweep(campaign, [parse_field(field, campaign.document)], tmp_path / "out", seed="s")
    found = names(result.computed)
    assert tuple(found.count(name) for name in STAGES) == computed and len(found) == sum(computed)


def test_a_stage_cannot_read_what_it_does_not_declare(campaign: Campaign) -> None:
    seen = view_of(campaign, "test", ("population", "collection"))
    assert seen.batches == campaign.batches == 2
    for part in ("queries", "service", "measures", "folder", "document"):
        with pytest.raises(CampaignError, match=f"the stage test read {part}"):
            getattr(seen, part)
    with pytest.raises(CampaignError, match="read collection"):
        _ = view_of(campaign, "test", ("population",)).batches


def test_digests_tell_apart_what_differs(campaign: Campaign) -> None:
    chain = RunChain.seeded("1")
    other = replace(campaign, collection=replace(campaign.collection, lost=0.2))
    assert chain.digest(ATTRIBUTE, campaign) == chain.digest(ATTRIBUTE, other)
    assert chain.digest(COLLECT, campaign) != chain.digest(COLLECT, other)
    assert chain.digest(SIMULATE, campaign) == RunChain.seeded("1").digest(SIMULATE, campaign)
    assert chain.digest(SIMULATE, campaign) != RunChain.seeded("2").digest(SIMULATE, campaign)
    assert RunChain.seeded(None).digest(SIMULATE, campaign) != RunChain.seeded(None).digest(SIMULATE, campaign)
    values = [1, True, "1", 1.0, (1,), ((1,),), ("1",), None, b"1", np.array([1]), np.array([1.0]), {"a": 1}, {"b": 1}]
    assert len({digest_of(value) for value in values}) == len(values)
    assert digest_of("ab", "c") != digest_of("a", "bc")
    with pytest.raises(TypeError, match="cannot depend on a set"):
        digest_of({1})


def test_stages_survive_their_files(campaign: Campaign, tmp_path: Path) -> None:
    truth = simulate_reports(campaign, RunChain(SeededBits("file")))
    for number, value in enumerate((truth.events, (truth.reports, truth.items), truth.collected)):
        write_stage(tmp_path / f"{number}.npz", value)
        assert digest_of(read_stage(tmp_path / f"{number}.npz")) == digest_of(value)
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="not a finished stage"):
        read_stage(tmp_path / "bad.npz")
    with pytest.raises(TypeError, match="cannot hold a PosixPath"):
        write_stage(tmp_path / "path.npz", tmp_path)
    outline = np.frombuffer(b'{"class": "os:stat_result", "fields": {}}', dtype=np.uint8)
    np.savez(tmp_path / "evil.npz", outline=outline)
    with pytest.raises(ValueError, match="not a finished stage"):
        read_stage(tmp_path / "evil.npz")


def test_a_killed_study_goes_on_and_gives_the_same_bytes(campaign: Campaign, tmp_path: Path) -> None:
    """Kill a study after some of its stages; the next one computes only what is missing."""
    grid = ["queries.*.epsilon=0.5,1,2,4,8", "measures.money.scale=16,64"]
    file = tmp_path / "campaign.toml"
    file.write_text(TEXT)

    def finish(out: Path, cache: Path | None) -> Any:
        fields = [parse_field(text, campaign.document) for text in grid]
        result = run_sweep(campaign, fields, out, seed="s", repetitions=3, cache=cache)
        write_rows(result.rows, fields, out)
        write_slices(result, out)
        return result

    whole = finish(tmp_path / "whole", None)
    cache = tmp_path / "cache"
    options = [option for text in grid for option in ("--sweep", text)]
    command = [sys.executable, "-c", "from aggservice.commands import main; main()", "run", str(file), *options]
    process = subprocess.Popen(
        [*command, "--seed", "s", "--repetitions", "3", "--cache", str(cache), "--out", str(tmp_path / "killed")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(list(cache.glob("release-*.npz"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path.name for path in cache.glob("[a-z]*.npz")}
    assert 3 <= len([name for name in done if name.startswith("release-")]) < 10
    again = finish(tmp_path / "again", cache)
    computed = {f"{name}-{digest}.npz" for name, digest in again.computed}
    assert not computed & done
    assert computed | done == {f"{name}-{digest}.npz" for name, digest in whole.computed}
    for name in ("sweep.json", "sweep.csv", "slices.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    third = finish(tmp_path / "third", cache)
    assert not third.computed and names(third.read) == ["release"] * 10
    assert third.rows == whole.rows
    assert os.stat(cache).st_size


_STOPPING = """
import signal
from aggservice.campaign.sweep import run
from aggservice.commands import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
ran, plain = [], run._run_one
def stopping(task, store):
    ran.append(task)
    if len(ran) == 4:
        signal.raise_signal(signal.SIGINT)
    return plain(task, store)
run._run_one = stopping
main()
"""


def test_an_interrupted_sweep_keeps_its_table_and_goes_on(campaign: Campaign, tmp_path: Path) -> None:
    """Ctrl-C after three of ten points; the same command then finishes with the bytes of an undisturbed sweep."""
    grid = ["queries.*.epsilon=0.5,1,2,4,8", "measures.money.scale=16,64"]
    file = tmp_path / "campaign.toml"
    file.write_text(TEXT)
    out = tmp_path / "out"
    given = ["run", str(file), *(option for text in grid for option in ("--sweep", text)), "--seed", "s", "--no-plots"]
    given += ["--workers", "1", "--cache", str(tmp_path / "cache"), "--out", str(out)]

    def run(program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *given]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    stopped = run(_STOPPING)
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.startswith("aggservice: the sweep was stopped; 3 of 10 points had finished")
    assert "Traceback" not in stopped.stderr and "to go on" in stopped.stderr and "3 points" in stopped.stdout
    kept = json.loads((out / "sweep.json").read_text())["rows"]
    points = {row["point"] for row in kept}
    assert len(points) == 3
    done = run("from aggservice.commands import main; main()")
    assert done.returncode == 0, done.stderr
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    assert len({row["point"] for row in rows}) == 10 and [row for row in rows if row["point"] in points] == kept
    fields = [parse_field(text, campaign.document) for text in grid]
    whole = run_sweep(campaign, fields, tmp_path / "whole", seed="s")
    write_rows(whole.rows, fields, tmp_path / "whole")
    assert (out / "sweep.csv").read_bytes() == (tmp_path / "whole" / "sweep.csv").read_bytes()


def test_an_unseeded_study_keeps_its_seed_in_its_cache(campaign: Campaign, tmp_path: Path) -> None:
    grid = [parse_field("queries.*.epsilon=1,2", campaign.document)]
    first = run_sweep(campaign, grid, tmp_path / "one", cache=tmp_path / "cache")
    again = run_sweep(campaign, grid, tmp_path / "two", cache=tmp_path / "cache")
    assert again.rows == first.rows and not again.computed
    assert run_sweep(campaign, grid, tmp_path / "three").rows != first.rows


def test_repetitions_show_the_law_of_an_estimate(campaign: Campaign, tmp_path: Path) -> None:
    """Over 400 releases the mean, the deviation and the coverage of each slice are those of the noise.

    Per slice the mean lies within 7 standard errors of what was sent (below 10⁻¹⁰ by the normal law), the deviation
    within 45 % of the noise's (the Laplace law has kurtosis 6, so the relative standard error of a deviation over 400
    draws is 5.6 %: 8 of them), and coverage is above 0.85 (P[Bin(400, 0.95) ≤ 340] < 10⁻¹²). Over 12 slices: below
    10⁻⁸ in all. The total over slices has coverage above 0.9: P[Bin(4800, 0.95) ≤ 4320] < 10⁻⁴⁰.
    """
    result = run_sweep(campaign, [], tmp_path / "law", repetitions=400)
    laws = [law for law in result.slices[0] if law.job == "all-all"]
    assert len(laws) == 12 and all(law.releases == 400 for law in laws)
    for law in laws:
        scale = 8192 if law.measure == "purchases" else 64
        noise = 2**0.5 * 65536 / 5 / scale
        assert abs(law.mean - law.sent) <= 7 * law.standard_error
        assert 0.55 * noise <= law.deviation <= 1.45 * noise
        assert law.coverage > 0.85
    row = next(row for row in result.rows if row.query == "all")
    assert row.runs == row.jobs == row.paid == 400 and row["standard_error"] is not None and row["estimate"] is not None
    assert row["coverage"] is not None and row["coverage"] > 0.9
    write_rows(result.rows, [], tmp_path / "law")
    write_slices(result, tmp_path / "law")
    assert len((tmp_path / "law" / "slices.csv").read_text().splitlines()) == 1 + len(result.slices[0])
