"""``aggservice ldp track`` and the figures of tracking, shuffling and RAPPOR, in small."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.mechanisms import SystemClock
from ldp_client import PROTOCOLS
from ldp_client.experiments.figures import FigureRequest, find_figure
from ldp_client.protocols import methods
from ldp_client.protocols.base import SMALL


def small(name: str) -> Any:
    return PROTOCOLS[name].for_values(name, SMALL)


def track(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["ldp", "track", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_table_with_intervals() -> None:
    text = track("--draws", "200", "--reports", "2-4", "--seed", "a")
    assert text == track("--draws", "200", "--reports", "2-4", "--seed", "a")
    lines = text.splitlines()
    assert lines[0].startswith("RAPPOR (size = 128, hashes = 2, cohorts = 1, f = 1/2, p = 1/2, q = 3/4), 200 draws")
    assert [line.split()[0] for line in lines[2:5]] == ["2", "3", "4"]
    assert lines[2].split()[-1] == "88.723"


def test_a_cohort_that_is_sent_tells_users_apart() -> None:
    text = track("--draws", "200", "--reports", "2", "--cohorts", "64", "--seed", "a")
    assert text.splitlines()[2].split()[:3] == ["2", "∞", "[∞,"]
    assert text.splitlines()[-1] == "chance that the cohorts alone tell two users apart: 98.4375%"
    found = json.loads(track("--draws", "200", "--reports", "2", "--cohorts", "64", "--json"))
    assert found["told_apart_by_cohort"] == 63 / 64
    assert found["reports"][0]["median"]["value"] is None and found["reports"][0]["theorem_13"] is None


@pytest.mark.parametrize(
    "arguments, extra",
    [
        (["BEP", "--epsilon", "0.5", "--value", "1"], "exact_worst_case"),
        (["RNIP", "--size", "20", "--epsilon", "0.3", "--stored", "50"], "untrackable_delta"),
        (["L-SUE", "--k", "8"], None),
        (["L-OSUE", "--k", "8"], None),
        (["L-GRR", "--k", "8", "--value", "3"], None),
    ],
)
def test_every_client_in_json(arguments: list[str], extra: str | None) -> None:
    found = json.loads(track(*arguments, "--draws", "100", "--reports", "3", "--json"))
    (row,) = found["reports"]
    assert row["reports"] == 3
    assert row["percentile_90"]["low"] <= row["percentile_90"]["value"]
    if extra is not None:
        assert row[extra] > 0
    if arguments[0] == "BEP":
        assert row["percentile_90"]["value"] <= row["exact_worst_case"] + 1e-9 <= row["theorem_13"]
    if arguments[0] == "RNIP":
        assert row["theorem_13"] is None


def test_what_cannot_be_tracked_is_explained() -> None:
    assert "choose one of RAPPOR" in track("HALOLOHA", code=2)
    assert "without a second step" in track("SUE", code=2)
    assert "below 2" in track("BEP", "--value", "2", code=2)
    assert "holds a number" in track("L-GRR", "--value", "x", code=2)
    assert "0 ≤ p < q ≤ 1" in track("RAPPOR", "--p", "0.8", code=2)
    for arguments in (["--reports", "1"], ["--reports", "5-3"], ["--p", "x"], ["--confidence", "1"]):
        track(*arguments, code=2)


def test_every_client_runs_with_its_defaults() -> None:
    """RNIP took RAPPOR's 128 bits, of which its values have at most 62."""
    once = {name for name in methods() if not small(name).memoizes}
    assert once >= {"GRR", "SUE", "OUE", "BLH", "OLH"}
    for method in sorted(set(PROTOCOLS) - once):
        track(method, "--draws", "10", "--reports", "2")
    found = json.loads(track("RNIP", "--draws", "10", "--reports", "3", "--json"))
    assert found["protocol"]["bits"] == 32
    assert "∞ [" in track("RNIP", "--size", "8", "--stored", "1", "--draws", "20", "--reports", "2")


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--reports", "²"], 2),
        (["--reports", "2-³"], 2),
        (["--reports", "2-"], 2),
        (["--reports", "9" * 5000], 2),
        (["L-GRR", "--value", "²"], 2),
        (["L-GRR", "--value", "9" * 5000], 2),
        (["--value", "\udcff"], 2),
        (["--f", "1e999999999"], 2),
        (["--f", "1/" + "9" * 5000], 2),
        (["--seed", "\udcff"], 2),
        (["--epsilon", "1e5000"], 2),
        (["RNIP", "--size", "63"], 2),
    ],
)
def test_text_that_is_no_number_is_refused_in_a_line(arguments: list[str], code: int) -> None:
    result = CliRunner().invoke(app, ["ldp", "track", "--draws", "10", *arguments])
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)


def request(folder: Path, users: int | None = None) -> FigureRequest:
    return FigureRequest(out=folder, clock=SystemClock(), users=users, seed="test")


def test_figures_of_tracking_are_data_and_plots(tmp_path: Path) -> None:
    made = find_figure("tracking-1").make(request(tmp_path, users=60))
    assert [path.name for path in made.files] == ["tracking-1.csv", "tracking-1.png"]
    assert len(made.lines) == 14 and "90th percentile" in made.lines[0]
    with made.files[0].open() as file:
        assert [int(row["reports"]) for row in csv.DictReader(file)] == list(range(2, 16))
    exact = find_figure("tracking-bitwise").make(request(tmp_path))
    assert exact.lines == ("36 exact values by enumeration, 0 of them outside the lower bound and Theorem 13",)
    assert all(path.stat().st_size > 500 for path in (*made.files, *exact.files))


def test_the_figure_of_rappor_prints_the_limit_on_learning(tmp_path: Path) -> None:
    made = find_figure("rappor-zipf").make(request(tmp_path, users=100_000))
    assert "limit on learning: 45.4 strings (Basic One-time RAPPOR, f = 0), 22.9 with this f" in made.lines
    with made.files[0].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200
    assert rows[0]["string"] == "string 1" and rows[0]["detected"] == "1"
    assert find_figure("shuffling").title.startswith("Shuffling")


def test_what_names_its_sender_is_infinitely_trackable() -> None:
    for method in ("LOLOHA", "dBitFlipPM"):
        ask = (method, "--reports", "3", "--draws", "50", "--sampled", "9")
        assert track(*ask).count("∞ [∞, ∞]") == 2
        found = json.loads(track(*ask, "--json"))
        assert found["reports"][0]["median"] == {"value": None, "low": None, "high": None}
