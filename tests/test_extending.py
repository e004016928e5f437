"""examples/extending: a package in an environment of its own, whose kinds run like built-in ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import venv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.linalg import hadamard

from aggservice.campaign import load_campaign, parse_campaign
from aggservice.campaign.columns import Conversions, Events, Impressions
from aggservice.campaign.errors import CampaignFileError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS
from aggservice.job.errors import InvalidJobError
from aggservice.job.request import parse_mechanism
from aggservice.kits.devices import check_device
from aggservice.kits.tables import TABLES
from aggservice.mechanisms import ParameterError, SecureBits, SeededBits
from budget import Sensitivity
from ldp_client import LocalProtocol

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "extending"
PAGE = ROOT / "docs" / "extending.md"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KINDS = {(group, name) for group, names in PROJECT["entry-points"].items() for name in names}


class Outside:
    """An environment with the package; it also sees the packages of the one that runs the tests."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        packages = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        seen = [str(ROOT), *site.getsitepackages()]  # this tree before an installed one
        (packages / "seen.pth").write_text("".join(f"import site; site.addsitedir({one!r})\n" for one in seen))
        # What an installer writes: neither it nor a network is needed.
        (packages / "extending.pth").write_text(f"{FOLDER}\n")
        info = packages / f"extending_example-{PROJECT['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
        )
        lines = []
        for group, names in PROJECT["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {place}" for name, place in names.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str, folder: Path | None = None, codes: tuple[int, ...] = (0,)) -> str:
        """Run Python with these arguments; return what it prints if its exit code is one of those expected."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    return Outside(tmp_path_factory.mktemp("outside") / "env")


def test_every_kind_is_listed_with_its_package(outside: Outside) -> None:
    rows = json.loads(outside.run("-m", "aggservice", "kinds", "--json"))["kinds"]
    found = {(row["group"], row["name"]) for row in rows if row["from"] == "extending-example 1.0"}
    assert found == KINDS and len(KINDS) == 11
    assert all(row["from"] == "built in" for row in rows if (row["group"], row["name"]) not in KINDS)


def test_every_kind_passes_its_kit(outside: Outside) -> None:
    """False alarms: below 1e-8 (four chi-square tests of noise at 1e-9)."""
    shown = outside.run("-m", "aggservice.kits", *(name for _, name in sorted(KINDS)))
    assert shown.endswith(f"{len(KINDS)} passed, 0 failed\n"), shown


def test_the_code_of_the_page_runs(outside: Outside, tmp_path: Path) -> None:
    """Every kind in use, and its kit: noise over gRPC, rules in browsers, an API on devices, events from a table.

    False alarms: below 1e-8 (five chi-square tests of noise at 1e-9).
    """
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 12
    outside.run("-c", "\n".join(blocks), folder=tmp_path)
    verify = ("-m", "aggservice", "ledger", "verify", str(tmp_path / "state" / "ledger.sqlite"))
    assert "ok: log, receipts, jobs, results and balances agree" in outside.run(*verify)
    without = subprocess.run([sys.executable, *verify], cwd=ROOT, capture_output=True, text=True, check=False)
    assert without.returncode == 1 and "there is no mechanism 'discrete_staircase'" in without.stdout


def test_a_campaign_names_the_rule_and_the_metric(outside: Outside, tmp_path: Path) -> None:
    outside.run("-m", "aggservice", "run", str(FOLDER / "quota.toml"), "--seed", "1", "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    (job,) = found["jobs"]
    near = [abs(one["estimate"] - one["truth"]) <= one["truth"] / 10 for one in job["slices"]]
    assert job["figures"][0]["within_tenth"] == sum(near)
    steps = {one["step"]: one["conversions"] for one in job["waterfalls"][0]["steps"]}
    assert steps["refused by a quota"] > 20 and job["waterfalls"][0]["adds_up"]
    assert "slices within 10 % of the truth" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_protocol_runs_by_name(outside: Outside) -> None:
    command = "-m aggservice ldp run HR --dataset Syn --users 2000 --collections 1 --seed 1 --json"
    found = json.loads(outside.run(*command.split()))
    assert found["protocol"]["kind"] == "HR" and found["error"]["mse"] < 3 * found["error"]["expected_mse"]


def test_the_audit_attacks_the_protocol(outside: Outside) -> None:
    """What is tested is that it does, not its verdict, which is wrong once in 10⁴ runs.

    False alarms: below 1e-20 (40,000 reports would have to look as if ε were half of what it is).
    """
    command = ("-m", "aggservice", "audit", "--path", "local reports, once", "--json")
    found = json.loads(outside.run(*command, codes=(0, 1)))
    (game,) = [one for one in found["paths"] if one["part"] == "HR"]
    assert game["charged"] == 1 and game["epsilon_at_least"] > 0.5


def test_a_campaign_reads_a_table_and_has_the_noise_of_the_mechanism(outside: Outside, tmp_path: Path) -> None:
    outside.run(
        "-m", "aggservice", "run", str(FOLDER / "population.toml"), "--seed", "1", "--out", str(tmp_path / "out")
    )
    found = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    rows = [line.split("\t") for line in (FOLDER / "counts.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    sold: Counter[tuple[str, str]] = Counter()
    for _, ad, product, _, _, conversions in rows:
        sold[ad, product] += int(conversions)
    (job,) = found["jobs"]
    assert {(one["names"]["ad"], one["names"]["product"]): one["truth"] for one in job["slices"]} == sold
    assert job["figures"][0]["within_tenth"] >= 1
    shown = outside.run("-m", "aggservice", "ledger", "log", str(tmp_path / "out" / "ledger" / "ledger.sqlite"))
    assert "discrete_staircase" in shown


def test_a_campaign_sends_postbacks(outside: Outside, tmp_path: Path) -> None:
    """Small crowds hide: what campaigns know of creatives is less than what happened, and nothing is lost unseen."""
    outside.run(
        "-m", "aggservice", "run", str(FOLDER / "postbacks.toml"), "--seed", "1", "--out", str(tmp_path / "out")
    )
    (job,) = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))["jobs"]
    steps = {one["step"]: one["conversions"] for one in job["waterfalls"][0]["steps"]}
    assert job["waterfalls"][0]["adds_up"] and steps["deduplicated"] > 0 and steps["below threshold"] > 0
    scale = 4096
    hidden = sum(one["sent"] for one in job["slices"] if one["names"]["creative"] == "hidden") // scale
    shown = sum(one["sent"] for one in job["slices"] if one["names"]["creative"] != "hidden") // scale
    assert hidden > 20 and shown > 20
    assert sum(one["truth"] for one in job["slices"] if one["names"]["creative"] == "hidden") == 0


def test_the_api_is_compared_with_a_built_in_one(outside: Outside, tmp_path: Path) -> None:
    command = ("-m", "aggservice", "run", str(FOLDER / "postbacks.toml"), "--seed", "1", "--json")
    found = json.loads(outside.run(*command, "--compare", "paa,postbacks", "--out", str(tmp_path / "out")))
    assert list(found["apis"]) == ["paa", "postbacks"]


def test_the_audit_attacks_mechanism_rule_and_api(outside: Outside) -> None:
    """What is tested is that it does, not its verdict.

    False alarms: below 1e-12 (bounds are near 0.7 with a standard deviation of 0.05, and 0.25 is enough).
    """
    found = json.loads(outside.run("-m", "aggservice", "audit", "--path", "installed", "--json", codes=(0, 1)))
    played = {one["part"]: one for one in found["paths"]}
    assert {name: one["charged"] for name, one in played.items()} == {
        "discrete_staircase": 1, "advertiser-quota": 0.5, "postbacks": 1
    }  # fmt: skip
    assert all(played[name]["epsilon_at_least"] > 0.25 for name in ("discrete_staircase", "postbacks"))


def test_the_studio_runs_the_campaigns(outside: Outside, tmp_path: Path) -> None:
    """Posted files name installed entries, and read tables below their own folder."""
    for path in (*FOLDER.glob("*.toml"), FOLDER / "counts.tsv"):
        if path.name != "pyproject.toml":
            shutil.copy(path, tmp_path)
    shown = outside.run(
        "-c",
        "import sys, time\n"
        "from pathlib import Path\n"
        "from aggservice.studio import Shelf\n"
        "from aggservice.studio.feeds import Feeds\n"
        "from aggservice.studio.given import Given\n"
        "from aggservice.studio.runs import Runs\n"
        "from aggservice.studio.tune import Tune\n"
        "shelf, feeds = Shelf([Path(sys.argv[1])]), Feeds()\n"
        "runs, tune = Runs(shelf, feeds), Tune(shelf)\n"
        "for item in shelf.items():\n"
        "    toml = tune.campaign(Given({'campaign': item.id}))['toml']\n"
        "    expected = tune.expect(Given({'campaign': item.id, 'toml': toml}))['queries'][0]['name']\n"
        "    started = runs.start(Given({'campaign': item.id, 'toml': toml, 'seed': 'one'}))\n"
        "    feed = feeds.get(started['feed'])\n"
        "    while not feed.closed:\n"
        "        time.sleep(0.05)\n"
        "    jobs = len(runs.result(Given({'run': started['run']}))['metrics']['jobs'])\n"
        "    print(item.name, expected, feed.last['state'], jobs)\n",
        str(tmp_path),
    )
    assert shown.splitlines() == [
        "population.toml sales finished 1",
        "postbacks.toml installs finished 1",
        "quota.toml sales finished 1",
    ]


def test_the_studio_offers_the_protocol_and_the_metric(outside: Outside) -> None:
    shown = outside.run(
        "-c",
        "from aggservice.campaign.metrics import METRICS, shown_in\n"
        "from aggservice.studio.given import Given\n"
        "from aggservice.studio.local_dp import local_dp\n"
        "found = local_dp(Given({'method': 'HR', 'k': 6, 'seed': 'one'}))\n"
        "print(found['methods']['HR'], found['method']['kind'], len(found['reports']), found['memo'])\n"
        "print(*(one.name for one in shown_in('studio', map(METRICS.__getitem__, METRICS))))\n",
    )
    words, metrics = shown.splitlines()
    assert words == "Hadamard response, one report HR 5 {}" and "within_tenth" in metrics.split()


def test_names_mean_nothing_without_the_package() -> None:
    with pytest.raises(CampaignFileError, match=r"client\.with is 'advertiser-quota'\. There is no on-device rule"):
        load_campaign(FOLDER / "quota.toml")
    with pytest.raises(CampaignFileError, match=r"client\.api is 'postbacks'"):
        load_campaign(FOLDER / "postbacks.toml")
    with pytest.raises(CampaignFileError, match=r"population\.model is 'table'\. There is no population 'table'"):
        load_campaign(FOLDER / "population.toml")
    with pytest.raises(InvalidJobError, match="there is no mechanism 'discrete_staircase'"):
        parse_mechanism("discrete_staircase", {"epsilon": "1"})


def test_the_page_lists_every_table() -> None:
    rows = re.findall(r"^\| (?:\[)?([\w -]+?)(?:\].*?)? \| `([\w.]+)` \| `([\w.]+)` \|", PAGE.read_text("utf-8"), re.M)
    assert {kind: (base, group) for kind, base, group in rows}.keys() == {one.table.title for one in TABLES}
    for one in TABLES:
        ((base, group),) = [(base, group) for kind, base, group in rows if kind == one.table.title]
        module, _, name = base.rpartition(".")
        assert getattr(import_module(module), name) is one.table._base and group == one.table.group


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module of the package, which this environment does not have installed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: import_module(f"extending_example.{name}")


@pytest.mark.parametrize(("epsilon", "keys", "width"), [("1", 1, 5), ("4", 1, 30), ("2.5", 3, 7), ("0.7", 1, 1)])
def test_the_law_is_the_papers(example: Callable[[str], Any], epsilon: str, keys: int, width: int) -> None:
    """P_r of the paper's discrete form, in mpmath, for the same r; moments by adding up."""
    noise = example("staircase").StaircaseNoise.parse(epsilon=epsilon).noise(Sensitivity(l1=max(width, keys), l0=keys))
    b, r = mpmath.exp(-mpmath.mpf(epsilon) / keys), noise.high
    peak = (1 - b) / (2 * r + 2 * b * (width - r) - (1 - b))
    law = [peak * b ** (i // width + (i % width >= r)) for i in range(width * keys * 100)]
    assert 1 <= r <= width
    for x in (0, 1, r - 1, r, width - 1, width, 3 * width + r, 5 * width + 1):
        assert float(noise.pmf(x)) == float(noise.pmf(-x)) == pytest.approx(float(law[x]), rel=1e-12)
        assert float(noise.cdf(-x)) == pytest.approx(float(sum(law[x:])), rel=1e-12)
    square = 2 * sum(i * i * chance for i, chance in enumerate(law))
    assert float(noise.variance()) == pytest.approx(float(square), rel=1e-9)
    tau = 2 * width + 1
    cut, kept = replace(noise, tau=tau), 2 * sum(law[: tau + 1]) - law[0]
    assert cut.largest == tau and float(cut.pmf(tau + 1)) == 0 and float(cut.cdf(tau)) == 1
    assert float(cut.pmf(tau)) == pytest.approx(float(law[tau] / kept), rel=1e-12)
    square = 2 * sum(i * i * chance for i, chance in enumerate(law[: tau + 1])) / kept
    assert float(cut.variance()) == pytest.approx(float(square), rel=1e-9)


def test_noise_that_64_bits_cannot_hold_is_refused(example: Callable[[str], Any]) -> None:
    with pytest.raises(ParameterError, match="does not fit into 64 bits"):
        example("staircase").StaircaseNoise.parse(epsilon="0.000001").noise(Sensitivity(l1=1 << 32, l0=1 << 32))


@pytest.mark.parametrize(("epsilon", "delta", "l1", "l0"), [("1", "0.05", 3, 2), ("4", "0.000001", 20, 1)])
def test_the_threshold_is_the_least(example: Callable[[str], Any], epsilon: str, delta: str, l1: int, l0: int) -> None:
    bounds = Sensitivity(l1=l1, l0=l0)
    rule = example("discovery").StaircaseDiscovery.parse(epsilon=epsilon, delta=delta)
    tau = rule.threshold(bounds)

    def shown(tau: int) -> float:
        noise = replace(rule.noise(bounds), tau=tau)
        return l0 * sum(float(noise.pmf(x)) for x in range(tau - l1 + 1, tau + 1))

    assert shown(tau) <= float(delta) < shown(tau - 1)


@pytest.mark.parametrize("k", [2, 5, 7, 8])
def test_columns_are_those_of_a_hadamard_matrix(example: Callable[[str], Any], k: int) -> None:
    module = example("hadamard")
    protocol = module.HadamardResponse(k=k, epsilon_micro=1_000_000)
    size = protocol.columns_in_all
    matrix, columns = hadamard(size), np.arange(size)
    assert size > k >= size // 2
    for value in range(k):
        assert np.array_equal(protocol.supports(columns, value), matrix[value + 1] == 1)
        for odd in (False, True):
            half = module.column_of(value + 1, np.arange(size // 2), odd)
            assert sorted(half) == list(np.flatnonzero(matrix[value + 1] == (-1 if odd else 1)))
    reports = protocol.fleet(500, SecureBits()).report(np.arange(500) % k)
    counted = LocalProtocol.estimate(protocol, reports).frequencies
    assert np.allclose(protocol.estimate(reports).frequencies, counted, rtol=0, atol=1e-12)


def test_browsers_and_columns_send_the_same_postbacks(example: Callable[[str], Any]) -> None:
    """Every tier, hidden values of every field, and last touch with and without clicks first."""
    tables = [
        {},
        {"crowds": [1, 2, 4], "hidden": "p"},
        {"crowds": [1, 2, 3], "hidden": "a", "view_days": 30},
        {"crowds": [1, 1, 1], "view_days": 30, "click_priority": 0},
    ]
    assert check_device(example("postbacks").Postbacks, settings=tables, worlds=80) > 100


def postbacks_of(example: Callable[[str], Any], bought_days: list[float], **client: Any) -> list[tuple[int, ...]]:
    """Return (hours after the install, creative, level) of the postbacks of one device with one click."""
    example("postbacks")
    document = {
        "name": "one device",
        "population": {"size": 1, "days": 60},
        "keys": {
            "fields": [
                {"name": "campaign", "values": ["autumn"]},
                {"name": "creative", "values": ["film", "hidden"]},
                {"name": "level", "from": "conversion", "values": ["low", "high", "hidden"]},
            ]
        },
        "client": {"api": "extending_example.postbacks:Postbacks", **client},
        "queries": [{"name": "all"}],
    }
    campaign = campaign_of(document, folder=FOLDER)
    start, zero = campaign.population.start_ms, np.zeros(1, dtype=np.int64)
    time_ms = start + np.array([int(day * DAY_MS) for day in bought_days])
    none = np.zeros_like(time_ms)
    events = Events(
        impressions=Impressions(
            time_ms=start + zero,
            device=zero,
            destination=zero,
            click=np.array([True]),
            codes={"campaign": zero, "creative": zero},
        ),
        conversions=Conversions(
            time_ms=time_ms,
            device=none,
            destination=none,
            value=none,
            dedup_key=none - 1,
            codes={"level": np.arange(none.size) % 2},
        ),
        devices=1,
    )
    reports, _ = campaign.client.reports(campaign, events, SeededBits("postbacks"))
    codes = campaign.keys.decode(reports.key_high, reports.key_low)
    hours = (reports.scheduled_ms - time_ms[0]) // HOUR_MS
    return list(zip(hours.tolist(), codes["creative"].tolist(), codes["level"].tolist(), strict=True))


def test_windows_delays_and_tiers_are_those_of_the_documentation(example: Callable[[str], Any]) -> None:
    """Days 0 to 2, 3 to 7, 8 to 35; 24 to 48 and 24 to 144 hours; the last value counts; later ones are coarse."""
    days = [1.0, 1.5, 2.5, 5.0, 12.0, 40.0]  # the install, then 0.5, 1.5, 4, 11 and 39 days after it
    film, hidden, low, high, nothing = 0, 1, 0, 1, 2
    (first, second, third) = postbacks_of(example, days, crowds=[1, 1, 1])
    assert 48 + 24 <= first[0] <= 48 + 48 and first[1:] == (film, low)
    assert 168 + 24 <= second[0] <= 168 + 144 and second[1:] == (hidden, high)
    assert 840 + 24 <= third[0] <= 840 + 144 and third[1:] == (hidden, low)
    assert [one[1:] for one in postbacks_of(example, days, crowds=[1, 2, 2])] == [
        (hidden, low), (hidden, high), (hidden, low)
    ]  # fmt: skip
    assert [one[1:] for one in postbacks_of(example, days, crowds=[2, 2, 2])] == [(hidden, nothing)]
    assert postbacks_of(example, [31.0]) == []  # the click lived 30 days


def test_fields_that_no_postback_has_room_for_are_refused(example: Callable[[str], Any]) -> None:
    example("postbacks")
    text = (
        (FOLDER / "postbacks.toml")
        .read_text(encoding="utf-8")
        .replace('"postbacks" ', '"extending_example.postbacks:Postbacks" ')
    )
    with pytest.raises(CampaignFileError, match="4 values of the first field from the conversion"):
        parse_campaign(text.replace('"high", "hidden"]', '"high", "highest"]'), folder=FOLDER)
    with pytest.raises(CampaignFileError, match="three whole numbers that do not decrease"):
        parse_campaign(text.replace("[5, 20, 60]", "[5, 20, 6]"), folder=FOLDER)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("2026-11-18,a,3,-1", "row 1: conversions is '-1', not a count"),
        ("yesterday,a,3,1", "a day in counts.csv is 'yesterday'"),
        ("2026-11-18,a,0,0", "no impressions and no conversions"),
        ("2026-11-18,a,99999999,0", "impressions is '99999999', not a count"),
    ],
)
def test_a_bad_table_is_refused(example: Callable[[str], Any], tmp_path: Path, row: str, sentence: str) -> None:
    example("table")
    (tmp_path / "counts.csv").write_text(f"day,ad,impressions,conversions\n{row}\n", encoding="utf-8")
    document = {
        "name": "bad",
        "population": {"model": "extending_example.table:TablePopulation", "table": {"file": "counts.csv"}},
        "keys": {"fields": [{"name": "ad"}]},
        "queries": [{"name": "all"}],
    }
    with pytest.raises(CampaignFileError, match=re.escape(sentence)):
        campaign_of(document, folder=tmp_path)
