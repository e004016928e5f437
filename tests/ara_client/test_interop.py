"""Chromium's interoperability cases, and that the comparison would notice a difference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.commands import app
from ara_client import Config
from ara_client.interop.cases import InteropCaseError, chromium_json, load_case, load_config, loads, merge_config
from ara_client.interop.runner import run_case, run_directory

CASES = 82


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "vectors" / "chromium-ara-interop"


def test_every_case_passes(folder: Path) -> None:
    results = list(run_directory(folder))
    assert len(results) == CASES
    assert [result.name for result in results if not result.passed] == []
    assert sum(result.reports for result in results) > 300


@pytest.mark.parametrize("field", ["report_time", "report_url", "payload"])
def test_a_changed_expectation_fails_with_a_diff(folder: Path, field: str) -> None:
    case = load_case(folder / "basic_aggregatable.json", load_config(folder / "default_config.json"))
    assert run_case(case).passed
    changed = [dict(report) for report in case.expected]
    changed[0][field] = {"report_time": "1", "report_url": "https://other.test/", "payload": {}}[field]
    result = run_case(replace(case, expected=tuple(changed)))
    assert not result.passed
    assert "--- expected" in result.diff
    fewer = run_case(replace(case, expected=case.expected[1:]))
    assert not fewer.passed


def test_reports_out_of_order_in_a_case_are_noticed(folder: Path) -> None:
    case = load_case(folder / "multiple_destinations.json", load_config(folder / "default_config.json"))
    times = {report["report_time"] for report in case.expected}
    assert len(times) > 1
    assert not run_case(replace(case, expected=case.expected[::-1])).passed


def test_the_command_prints_a_line_a_case_and_the_count(folder: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["conformance", "ara", str(folder), "--case", "basic", "--case", "fenced"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["ok basic", "ok fenced", "2 passed, 0 failed"]
    as_json = runner.invoke(app, ["conformance", "ara", str(folder), "--case", "basic", "--json"])
    assert json.loads(as_json.stdout)["passed"] == 1
    missing = runner.invoke(app, ["conformance", "ara", str(folder), "--case", "no_such_case"])
    assert missing.exit_code == 2
    assert "no_such_case" in missing.stderr
    (tmp_path / "default_config.json").write_text((folder / "default_config.json").read_text())
    wrong = (folder / "basic.json").read_text().replace('"source_event_id": "123"', '"source_event_id": "124"', 1)
    (tmp_path / "basic.json").write_text(wrong.replace("{", '{"api_config": {"novelty": "1"},', 1))
    failing = runner.invoke(app, ["conformance", "ara", str(tmp_path)])
    assert failing.exit_code == 1
    assert failing.stdout.splitlines()[0] == "FAILED basic"
    assert failing.stdout.splitlines()[-1] == "0 passed, 1 failed"
    assert '"source_event_id": "124"' in failing.stdout
    assert "novelty" in failing.stderr


def test_a_broken_case_is_a_failure_and_not_a_traceback(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "default_config.json").write_text((folder / "default_config.json").read_text())
    (tmp_path / "broken.json").write_text(
        '{"input": {"registrations": [{"timestamp": "x"}]}, "output": {"reports": []}}'
    )
    (tmp_path / "wrong.json").write_text(
        '{"input": {}, "output": {"reports": [{"report_time": "1", "report_url": "u", "payload": {}}]}}'
    )
    backwards = '{"timestamp": "5", "connection": true}, {"timestamp": "4", "connection": true}'
    (tmp_path / "backwards.json").write_text(
        f'{{"input": {{"registrations": [{backwards}]}}, "output": {{"reports": []}}}}'
    )
    backwards_result, broken, wrong = run_directory(tmp_path)
    assert "goes back in time" in backwards_result.diff
    assert "could not be run" in broken.diff
    assert not wrong.passed
    request = {"timestamp": "5", "registration_request": {"context_origin": "https://a.test"}, "responses": []}
    for number, changes in enumerate(
        [
            {"api_config": []},
            {"input": {"registrations": [request | {"responses": [{"url": 5, "response": {}}]}]}},
            {"input": {"registrations": [request | {"registration_request": {"context_origin": 5}}]}},
            {"output": {"reports": [{"report_time": "1"}]}},
            {"output": {"reports": [{"report_time": "x", "report_url": "u", "payload": {}}]}},
            {"output": {"reports": [7]}},
            {"input": {"registrations": [7]}},
        ]
    ):
        case = {"input": {"registrations": [request]}, "output": {"reports": []}} | changes
        (tmp_path / f"other{number}.json").write_text(json.dumps(case))
    results = list(run_directory(tmp_path))
    assert len(results) == 10
    assert not any(result.passed or "Traceback" in result.diff for result in results)


def test_an_unknown_configuration_field_is_noted_and_a_bad_one_refused() -> None:
    config, ignored = merge_config(Config(), {"max_sorces_per_origin": "3"}, "case.json")
    assert (config, ignored) == (Config(), ("max_sorces_per_origin",))
    with pytest.raises(InteropCaseError, match="wrong type"):
        merge_config(Config(), {"max_sources_per_origin": "three"}, "case.json")


def test_comments_are_stripped_outside_strings_only() -> None:
    assert loads('{"a": "http://x", // y "\n "b": "\\"//"}') == {"a": "http://x", "b": '"//'}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (4294967296, "4294967296.0"),
        (2147483647, "2147483647"),
        (1.5, "1.5"),
        (1e-7, "1e-7"),
        (1e21, "1e+21"),
        ("<é>", '"\\u003Cé>"'),
    ],
)
def test_headers_given_as_json_are_written_as_chromium_writes_them(value: object, text: str) -> None:
    assert chromium_json(value) == text
