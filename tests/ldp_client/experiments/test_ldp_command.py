"""``aggservice ldp`` as a user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.commands.ldp import first_micro, micro


def ldp(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["ldp", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_run_prints_estimates_error_and_loss(tmp_path: Path) -> None:
    out = tmp_path / "estimates.csv"
    arguments = ["run", "OLOLOHA", "--users", "500", "--collections", "2", "--top", "3", "--out", str(out)]
    text = ldp(*arguments, "--seed", "a")
    assert "ε of a first report 0.948001 (asked: 1)" in text
    assert "NOT PRIVATE" in text
    assert text == ldp(*arguments, "--seed", "a")
    assert "NOT PRIVATE" not in ldp(*arguments)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 360
    assert all(float(row["low"]) <= float(row["estimate"]) <= float(row["high"]) for row in rows)


def test_run_in_json_on_a_file_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "hours.csv"
    table.write_text("monday,tuesday\n" + "\n".join(f"{10 * (i % 4)},{10 * (i % 3)}" for i in range(400)))
    found = json.loads(ldp("run", "L-GRR-exact", "--dataset", str(table), "--epsilon", "6", "--first", "3", "--json"))
    assert found["dataset"] == {"name": "hours", "users": 400, "values": 4, "collections": 2}
    assert found["private"] is True
    assert found["privacy"]["epsilon_first"] == pytest.approx(3)
    assert found["privacy"]["epsilon_worst_case"] == pytest.approx(24)
    truth = {row["value"]: round(row["truth"], 4) for row in found["estimates"]}
    assert truth == {0: 0.335, 10: 0.3325, 20: 0.3325, 30: 0}
    buckets = json.loads(ldp("run", "bBitFlipPM", "--dataset", str(table), "--buckets", "2", "--json", "--top", "0"))
    assert [row["value"] for row in buckets["estimates"]] == ["0–10", "20–30"]
    assert buckets["users_all_of_whose_changes_show"] is not None
    once = json.loads(ldp("run", "OLH", "--dataset", str(table), "--json"))
    assert once["privacy"]["epsilon_worst_case"] is None
    assert once["privacy"]["epsilon_average_loss"] == 4.0


def test_compare_orders_methods_by_error() -> None:
    arguments = ["compare", "--users", "1000", "--collections", "2", "--epsilon", "5", "--alpha", "0.6"]
    found = json.loads(ldp(*arguments, "--json", "--methods", "L-GRR, OLOLOHA,bBitFlipPM", "--runs", "2"))
    assert [row["method"] for row in found["methods"]] == ["bBitFlipPM", "OLOLOHA", "L-GRR"]
    assert all(row["mse_half_95"] >= 0 for row in found["methods"])
    text = ldp(*arguments, "--runs", "1")
    assert text.count("\n") == 3 + 10
    assert " – " in text


def test_figure_lists_makes_and_goes_on(tmp_path: Path) -> None:
    assert "loloha-table-2" in ldp("figure")
    assert json.loads(ldp("figure", "--json"))["loloha-1"].startswith("LOLOHA, Figure 1")
    ask = ["figure", "loloha-3", "--out", str(tmp_path), "--runs", "1", "--users", "100", "--collections", "2"]
    ask += ["--datasets", "Syn", "--epsilons", "1,2.5"]
    made = json.loads(ldp(*ask, "--json"))
    plots = ["loloha-3.png", "loloha-3-close.png"]
    assert [Path(path).name for path in made["files"]] == ["loloha-cells-summary.csv", *plots]
    cells = (tmp_path / "loloha-cells.csv").read_text()
    assert "40 cells, 1 run each" in ldp(*ask)
    assert (tmp_path / "loloha-cells.csv").read_text() == cells


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "LOLO"], "there is no method 'LOLO': choose one of"),
        (["run", "OLOLOHA", "--epsilon", "1", "--first", "1"], "must be below the limit"),
        (["run", "OLOLOHA", "--epsilon", "0"], "ε must be above 0 and at most 64"),
        (["run", "OLOLOHA", "--dataset", "DB_MT"], "give the folder of DB_MT (--data)"),
        (["run", "OLOLOHA", "--dataset", "nowhere.csv"], "cannot read nowhere.csv: No such file"),
        (["run", "OLOLOHA", "--dataset", "Child"], "there is no data set 'Child'"),
        (["run", "OLOLOHA", "--dataset", "Adult"], "Adult cannot be read, no file or folder was given"),
        (["compare", "--methods", "GRR,", "--users", "10"], "there is no method ''"),
        (["figure", "nothing"], "there is no figure 'nothing': choose one of"),
        (["figure", "loloha-3", "--datasets", "Child"], "unknown data sets Child"),
        (["figure", "loloha-3", "--datasets", "Adult"], "Adult cannot be read, no file or folder was given"),
        (["figure", "loloha-3", "--datasets", "Syn", "--epsilons", "0.000001"], "at most five decimal places"),
        (["figure", "loloha-1", "--out", "/dev/null/here"], "cannot use /dev/null/here"),
    ],
)
def test_refusals_say_what_to_do(arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGGSERVICE_LDP_DATA", raising=False)
    assert words in ldp(*arguments, code=2)


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "1e-7", "0.1234567", "", "1e5000", "1e999999"])
def test_amounts_are_decimals_of_six_places(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="at most six places"):
        micro(text, "--epsilon")
    ldp("run", "OLOLOHA", "--epsilon", text, code=2)


@pytest.mark.parametrize("cell", ["9" * 23, "1" * 140_000, "1" * 5_000])
def test_cells_that_are_no_numbers_of_64_bits_are_refused_in_a_line(cell: str, tmp_path: Path) -> None:
    (tmp_path / "cells.csv").write_text(f"a,b\n1,2\n3,{cell}\n")
    text = ldp("run", "OLOLOHA", "--dataset", str(tmp_path / "cells.csv"), code=2)
    assert "correct row 2 below the header" in text
    assert cell not in text


def test_alpha_times_the_limit_must_be_whole_millionths() -> None:
    assert (micro("0.5", ""), micro("64", ""), micro("1e-6", "")) == (500_000, 64_000_000, 1)
    assert first_micro(3_000_000, "0.6", None) == 1_800_000
    assert first_micro(3_000_000, "0.6", "1.25") == 1_250_000
    with pytest.raises(typer.BadParameter, match="α·ε∞"):
        first_micro(1, "0.5", None)
    ldp("run", "OLOLOHA", "--confidence", "1.5", code=2)
    ldp("figure", "loloha-3", "--budget", "-1", code=2)
