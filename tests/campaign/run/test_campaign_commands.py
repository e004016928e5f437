"""``aggservice run`` and ``demo`` as a user meets them: other services, other ledgers, JSON, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.campaign import load_campaign, run_campaign
from aggservice.campaign.run import shift_to_end_now
from aggservice.client import Client
from aggservice.commands import app
from aggservice.mechanisms import SystemClock
from aggservice.service import embedded
from budget import ExportedLog

CAMPAIGN = """
name = "small"
[population]
size = 60
days = 2
conversion_rate = 0.6
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
of = "count"
scale = 4096
[[queries]]
epsilon = "40"
"""

NOW_MS = SystemClock().now_ms()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(CAMPAIGN)
    return path


def run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["run", *map(str, arguments)])
    return found.exit_code, found.output


def test_json_and_text(file: Path, tmp_path: Path) -> None:
    code, text = run(file, "--out", tmp_path / "a", "--no-plots", "--json")
    metrics = json.loads(text)
    assert code == 0 and metrics["private"] and metrics["queries"][0]["paid"] == 1
    code, text = run(file, "--out", tmp_path / "a", "--no-plots", "--seed", "x")
    assert code == 0 and "Not private" in text and "has epsilon = 24" in text
    assert "truth" in text and "95 % interval" in text and "happened =" in text


def test_a_bad_file_and_a_foreign_folder_are_refused(file: Path, tmp_path: Path) -> None:
    file.write_text(CAMPAIGN.replace("size = 60", "size = 0"))
    code, text = run(file)
    assert code == 2 and "small.toml, line 4: population.size is 0" in text and "Traceback" not in text
    file.write_text(CAMPAIGN)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("do not touch")
    code, text = run(file, "--out", tmp_path / "mine")
    assert code == 2 and "is not empty and is not a former run" in text
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "do not touch"


def test_another_service_is_asked_and_time_is_now(file: Path, tmp_path: Path) -> None:
    with embedded() as service, Client(service.address) as client:
        for number in range(2):
            code, text = run(file, "--out", tmp_path / f"run{number}", "--no-plots", "--service", service.address)
            assert code == 0, text
        entries = list(client.entries())
        # The same campaign twice is two jobs over other reports: both paid.
        assert sum(entry.job_request_id.endswith("summary-all") for entry in entries) == 2
        assert client.verify_ledger().ok
    assert (tmp_path / "run1" / "summaries" / "summary-all" / "summary-1-of-1.avro").exists()
    code, text = run(file, "--token-file", file)
    assert code == 2 and "--service" in text
    code, text = run(file, "--out", tmp_path / "no", "--no-plots", "--service", "127.0.0.1:1")
    assert code == 2 and "Traceback" not in text


def test_a_ledger_of_ones_own_is_charged_again_and_again(file: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    for number in range(2):
        code, text = run(file, "--out", tmp_path / f"run{number}", "--no-plots", "--ledger", ledger)
        assert code == 0, text
    logs = [ExportedLog(tmp_path / f"run{number}" / "ledger" / "ledger.log") for number in range(2)]
    assert [sum(1 for entry in log.entries() for _ in [list(entry.parts)]) for log in logs] == [2, 3]


def test_a_seeded_run_again_is_charged_again(file: Path, tmp_path: Path) -> None:
    """The same seed makes the same reports: a second run over them must pay, and not find the first one's answer."""
    ledger = tmp_path / "ledger.sqlite"
    for number, paid in ((0, 1), (1, 0), (2, 0)):
        out = tmp_path / f"run{number}"
        campaign = replace(load_campaign(file), seed="s")
        # Anchored to the same hour, so that the reports are the same to the byte.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "aggservice.campaign.run.shift_to_end_now", lambda campaign, now: shift_to_end_now(campaign, NOW_MS)
            )
            result = run_campaign(campaign, out, workers=1, draw=False, ledger=ledger)
        assert [answer.paid for answer in result.answers] == [bool(paid)]
        assert len(result.answers[0].metrics) == 2 * paid


def test_a_ledger_in_the_folder_that_a_run_replaces_is_not_deleted(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "a"
    assert run(file, "--out", out, "--no-plots")[0] == 0
    ledger = out / "ledger" / "ledger.sqlite"
    before = ledger.read_bytes()
    code, text = run(file, "--out", out, "--no-plots", "--ledger", ledger)
    assert code == 2 and "name another folder" in text and "Traceback" not in text
    assert ledger.read_bytes() == before
    code, text = run(file, "--out", tmp_path / "b", "--no-plots", "--ledger", ledger)
    assert code == 0, text
    log = ExportedLog(tmp_path / "b" / "ledger" / "ledger.log")
    assert sum(1 for entry in log.entries() for _ in [list(entry.parts)]) == 3


@pytest.mark.parametrize(
    "names", [("batches/mine.avro", "log/diary.txt"), ("metrics.json", "notes.txt"), ("batches/000/x", "ledger.db")]
)
def test_a_folder_that_only_looks_like_a_run_is_left_alone(file: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("do not touch")
    code, text = run(file, "--out", tmp_path / "mine", "--no-plots")
    assert code == 2 and "is not empty and is not a former run" in text
    assert all((tmp_path / "mine" / name).read_text() == "do not touch" for name in names)
    code, text = run(file, "--out", file, "--no-plots")
    assert code == 2 and "is a file" in text and "Traceback" not in text


def test_capping_and_discovery_print_their_bias(file: Path, tmp_path: Path) -> None:
    capped = CAMPAIGN.replace("conversion_rate = 0.6", "conversion_rate = 1\nconversions = 4\nimpression_day = 0")
    file.write_text(capped + '[client]\nform = "paper"\nl0 = 1\n')
    code, text = run(file, "--out", tmp_path / "a", "--no-plots")
    assert code == 0 and "capped by Λ₀" in text and "Bias of count: -" in text
    file.write_text(capped.replace('epsilon = "40"', 'epsilon = "1"\ndiscovery = true'))
    code, text = run(file, "--out", tmp_path / "b", "--no-plots")
    assert code == 0 and "below threshold" in text and "Bias of count: -" in text


@pytest.mark.parametrize("command", ["demo", "run"])
def test_a_run_without_matplotlib_says_so_first(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("aggservice.commands.console.find_spec", lambda name: None)
    given = ["demo"] if command == "demo" else ["run", str(file)]
    found = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "out"), "--seed", "a"])
    assert found.exit_code == 0 and "aggservice[plots]" in found.stderr
    assert "The ledger says" in found.stdout and not (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    "arguments", [["figure", "big-bird-5"], ["ldp", "figure", "loloha-1"], ["audit", "--plot", "p"]], ids=" ".join
)
def test_a_plot_that_cannot_be_drawn_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aggservice.commands.console.find_spec", lambda name: None)
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2 and found.stderr.startswith("aggservice: plots need matplotlib")
    assert list(tmp_path.iterdir()) == []
