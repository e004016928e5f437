"""The kept full-size data: every claim that docs/ldp_client.md makes of them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

KEPT = Path(__file__).resolve().parents[3] / "docs" / "figures"


def test_the_kept_data_show_what_the_paper_reports() -> None:
    """docs/figures holds the full-size runs: every claim made of them in docs/ldp_client.md is checked here."""
    path = KEPT / "loloha-cells-summary.csv"
    assert path.is_file()
    with path.open() as file:
        rows = {
            (row["dataset"], row["method"], float(row["epsilon_permanent"]), row["alpha"]): row
            for row in csv.DictReader(file)
        }
    assert len(rows) == 3 * 10 * (6 * 3 + 2)
    mse = {key: float(row["mse"]) for key, row in rows.items()}
    loss = {key: float(row["loss"]) for key, row in rows.items()}
    applies = 0
    for key, row in rows.items():
        assert int(row["runs"]) == (60 if key[1] == "1BitFlipPM" else 20), key
        assert 0 < float(row["mse_half_95"]) < 0.03 * mse[key], key
        star, expected = float(row["approximate_variance"]), float(row["expected_mse"])
        assert mse[key] == pytest.approx(expected, rel=0.05), key
        if abs(expected / star - 1) < 0.01:
            applies += 1
            assert mse[key] == pytest.approx(star, rel=0.05), key
        if key[1] == "bBitFlipPM":
            assert float(row["detected_percent"]) > 99.9
        if key[1] == "1BitFlipPM":
            assert float(row["detected_percent"]) < 0.1
    assert applies > 550
    for dataset in ("Syn", "DB_MT", "DB_DE"):
        for half in range(1, 11):
            micro = half / 2
            for alpha in ("0.4", "0.5", "0.6"):
                at = {m: (dataset, m, micro, alpha) for m in ("RAPPOR", "L-OSUE", "L-GRR", "BiLOLOHA", "OLOLOHA")}
                assert mse[at["L-GRR"]] > 5 * max(mse[at[m]] for m in at if m != "L-GRR")
                if micro >= 4 and alpha == "0.6":
                    assert max(mse[at["L-OSUE"]], mse[at["OLOLOHA"]]) < mse[at["RAPPOR"]] < mse[at["BiLOLOHA"]]
                assert loss[at["BiLOLOHA"]] <= 2 * micro
                # Where Eq. 6 says g = 2 the two are one protocol, and differ by their draws alone.
                assert loss[at["BiLOLOHA"]] <= 1.005 * loss[at["OLOLOHA"]]
                assert loss[at["OLOLOHA"]] < loss[at["RAPPOR"]] == loss[at["L-GRR"]] == loss[at["L-OSUE"]]
                exact = (dataset, "OLOLOHA-exact", micro, alpha)
                predicted = float(rows[exact]["approximate_variance"]) / float(
                    rows[at["OLOLOHA"]]["approximate_variance"]
                )
                assert mse[exact] / mse[at["OLOLOHA"]] == pytest.approx(predicted, rel=0.05)
                if dataset == "Syn":
                    assert mse[dataset, "bBitFlipPM", micro, ""] < min(mse[each] for each in at.values())
                    assert mse[dataset, "1BitFlipPM", micro, ""] > max(mse[at[m]] for m in at if m != "L-GRR")
