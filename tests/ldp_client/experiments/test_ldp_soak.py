"""The paper's experiments once at full size: about four minutes on one core, the first of the kept runs."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from aggservice.mechanisms import SeededBits, SystemClock
from ldp_client.experiments.datasets import load_dataset
from ldp_client.experiments.figures import FigureRequest
from ldp_client.experiments.loloha_runs import METHODS, run_experiments


@pytest.mark.soak
def test_one_full_size_run_of_every_cell_errs_as_its_variance_says(shared: Path, tmp_path: Path) -> None:
    """Seeded, as the kept data are: their first run is made again here, number for number.

    A method's mean ratio is over 30 independent cells or more, each uncertain by 8 % at most (one sampled bit).
    """
    folder = shared / "data" / "loloha"
    found = run_experiments(FigureRequest(out=tmp_path, clock=SystemClock(), data=folder, runs=1))
    assert len(found) == 600
    for method in METHODS:
        ratios = [
            outcome.mse / outcome.expected_mse
            for cell, outcomes in found.items()
            if cell.method == method
            for outcome in outcomes
        ]
        print(f"{method:<14} {len(ratios)} cells, error over expectation {fmean(ratios):.4f} on average")
        assert fmean(ratios) == pytest.approx(1, abs=0.05 if method == "1BitFlipPM" else 0.01)
    users = {
        name: load_dataset(name, SeededBits("figures").child(name), folder).users for name in ("Syn", "DB_MT", "DB_DE")
    }
    assert users == {"Syn": 10_000, "DB_MT": 10_336, "DB_DE": 9_123}
