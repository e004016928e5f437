"""The scripts of examples/python are short, run, and print what they are meant to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "python"
SHOWS = {
    "browser": ["the service: key 0x107, value 32768", "padding:     19 contributions", '"attribution-reporting"'],
    "ledger": ["monday: charged 12", "left per unit: 0\n", "wednesday: 1000 of 1000 units cannot pay", "audit: ok"],
    "noise": ["largest difference: ", "within ±12: 0.95"],
}


@pytest.mark.parametrize("name", SHOWS)
def test_a_script_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """False alarms: below 1e-10 (noise.py compares 13 shares with their law at 7 standard deviations)."""
    path = SCRIPTS / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in SHOWS[name]:
        assert words in done.stdout, done.stdout
    assert not list(tmp_path.iterdir())


def test_every_script_is_short_and_on_the_page() -> None:
    found = {path.stem for path in SCRIPTS.glob("*.py")}
    assert found == set(SHOWS)
    page = (SCRIPTS.parent / "README.md").read_text(encoding="utf-8")
    for name in found:
        assert len((SCRIPTS / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 60
        assert re.search(rf"\(python/{name}\.py\)", page)
