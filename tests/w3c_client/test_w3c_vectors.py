"""W3C scenarios with and without stores, the header cases, and the commands that run them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.commands import app
from w3c_client import Arithmetic
from w3c_client.scenarios import run_header_cases, run_scenarios

E2E, DIFFERENTIAL, HEADERS = 20, 1500, 65


@pytest.fixture(scope="module")
def vectors(shared: Path) -> Path:
    return shared / "vectors"


@pytest.mark.parametrize("arithmetic", Arithmetic)
def test_end_to_end_scenarios_pass_in_both_arithmetics(vectors: Path, arithmetic: Arithmetic) -> None:
    results = list(run_scenarios(vectors / "w3c-attribution-e2e", arithmetic=arithmetic))
    assert len(results) == E2E
    assert [result for result in results if result.differences] == []


def test_random_scenarios_agree_in_results_draws_and_stores(vectors: Path) -> None:
    results = list(run_scenarios(vectors / "w3c-differential" / "scenarios.jsonl.gz"))
    assert len(results) == DIFFERENTIAL
    assert [result for result in results if result.differences] == []


def test_header_cases_pass(vectors: Path) -> None:
    results = list(run_header_cases(vectors / "w3c-headers" / "cases.json"))
    assert len(results) == HEADERS
    assert [result for result in results if result.differences] == []


def _run(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["conformance", *arguments])
    return done.exit_code, done.output.splitlines()


def test_the_commands_print_a_line_per_case_and_the_count(vectors: Path) -> None:
    code, lines = _run("w3c", str(vectors / "w3c-attribution-e2e"))
    assert (code, lines[0], lines[-1]) == (0, "ok api-disabled", "20 passed, 0 failed")
    code, lines = _run("w3c-headers", str(vectors / "w3c-headers" / "cases.json"))
    assert (code, lines[-1]) == (0, "65 passed, 0 failed")


def test_each_changed_expectation_fails_with_its_difference(vectors: Path, tmp_path: Path) -> None:
    with gzip.open(vectors / "w3c-differential" / "scenarios.jsonl.gz", "rt") as lines:
        scenario = json.loads(next(lines))
    changed = []
    for name in ("draws_used", "epoch_start_ms", "site_budgets", "global_budgets", "quotas", "results"):
        other = json.loads(json.dumps(scenario))
        if isinstance(other["expected"][name], int):
            other["expected"][name] += 1
        elif name == "results":
            other["expected"][name][0] = [1, 0]
        else:
            other["expected"][name][0][-1] -= 1
        changed.append(json.dumps(other))
    (tmp_path / "changed.jsonl").write_text("\n".join([json.dumps(scenario), *changed]))
    code, lines = _run("w3c", str(tmp_path / "changed.jsonl"))
    assert (code, lines[-1]) == (1, "1 passed, 6 failed")
    assert [line.split(":")[0].strip() for line in lines if line.startswith("    ")] == [
        "draws_used",
        "epoch_start_ms",
        "site_budgets",
        "global_budgets",
        "quotas",
        "event 0 (measureConversion) at 3600 s",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"events": 3}', '{"events": [{"event": "dance", "seconds": 1}]}', "[" * 5000, '{"events": [{}]}'],
)
def test_a_scenario_that_is_none_fails_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "CONFIG.json").write_text("{}")
    (tmp_path / "odd.json").write_text(text)
    code, lines = _run("w3c", str(tmp_path))
    assert (code, lines[0], lines[-1]) == (1, "FAILED odd", "0 passed, 1 failed")


def test_folders_and_files_without_cases_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text("[]")
    assert _run("w3c-headers", str(tmp_path / "cases.json"))[0] == 2
    (tmp_path / "cases.json").unlink()
    (tmp_path / "broken.jsonl.gz").write_bytes(b"not gzip")
    assert _run("w3c", str(tmp_path / "broken.jsonl.gz"))[0] == 2
    (tmp_path / "broken.jsonl.gz").unlink()
    assert _run("w3c", str(tmp_path))[0] == 2
