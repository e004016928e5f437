"""Every block of docs/tutorial.md, in order: files are written, commands run, and their output is as the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ..jobs.program import free_port

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "tutorial.md"


def blocks() -> list[tuple[str, str]]:
    """Return the language and the text of each fenced block."""
    return re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def as_shell(language: str, text: str) -> str:
    """Return a block as commands: a file is written or added to, a command stays what it is."""
    if language == "sh":
        return f"{text}echo '-- done'\n"
    found = re.match(r"# (file|append to): ([\w.]+)\n", text)
    assert found is not None, f"this block names no file: {text[:60]!r}"
    arrow = ">" if found[1] == "file" else ">>"
    return f"cat {arrow} {found[2]} <<'END OF BLOCK'\n{text[found.end() :]}END OF BLOCK\n"


def test_the_tutorial_runs_from_the_demo_to_the_audit(tmp_path: Path) -> None:
    """All but the first block, which sets up what this test already runs in.

    False-alarm rate below 10⁻⁶: some 17 of 350 reports are lost, and each ad sells product 0 some 27 times.
    """
    (language, install), *rest = blocks()
    assert language == "sh" and "make setup" in install and {one for one, _ in rest} == {"sh", "toml", "python"}
    binary = tmp_path / "bin"
    binary.mkdir()
    command = binary / "aggservice"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from aggservice.commands import main; main()" "$@"\n')
    command.chmod(0o755)
    (binary / "python").symlink_to(sys.executable)
    shop = tmp_path / "shop"
    shop.mkdir()
    script = "set -e\n" + "".join(as_shell(language, text) for language, text in rest)
    done = subprocess.run(
        ["bash", "-c", script.replace("127.0.0.1:50172", f"127.0.0.1:{free_port()}")],
        cwd=shop,
        env={
            **os.environ,
            "PATH": f"{binary}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "COLUMNS": "120",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = done.stdout.split("-- done\n")[:-1]
    assert len(parts) == sum(language == "sh" for language, _ in rest)
    demo, smallest, scaled, twice, found, lossy, listing, audit, read, sweep, scenario, adversary = parts[:12]
    started, client, ledger, campaign = parts[12:]

    assert "20,000 people" in demo and "epsilon = 54" in demo and "happened = " in demo
    assert 4.5 < half_width(smallest) < 5.1
    assert 0.5 < half_width(scaled) < 0.7
    assert "epsilon = 14" in twice and "epsilon = 14" not in scaled
    assert "below threshold" in found and "red · product 0" in found
    assert " lost" in lossy and " late" in lossy and "Bias of count: -" in lossy
    named = set(re.findall(r"^\| `([^|]*)` \|", section("8. What the output folder holds"), re.MULTILINE))
    assert {name.strip("`/ ") for line in named for name in line.split(",")} == set(listing.split())
    assert re.search(r"^ok: the log", audit, re.MULTILINE)
    assert re.search(r"ads-all \d+ of \d+ conversions counted", read)
    assert re.search(r"│ 16 +│ ads ", sweep) and (shop / "sweep" / "sweep.csv").is_file()
    assert len(re.findall(r"^ok ", scenario, re.MULTILINE)) == 3
    assert adversary.count("SUCCESS {3:") == 5 and "PRIVACY_BUDGET_EXHAUSTED None" in adversary
    assert "units past their limit: 0" in adversary
    assert started == ""
    near = {int(bucket): float(value) for bucket, value in re.findall(r"^(\d) (-?[\d.e-]+)$", client, re.MULTILINE)}
    # |noise| < 8 contributions but for e^(-8 · 32768 · 10 / 65536) = e^-40 a key.
    assert set(near) == {1, 2, 3} and all(abs(near[key] - true) < 8 for key, true in ((1, 50), (2, 50), (3, 0)))
    assert "'epsilon': '54'" in client
    for text in (ledger, campaign):
        assert "ok: log, receipts, jobs, results and balances agree" in text


def half_width(output: str) -> float:
    """Return half of the first interval of a run's table."""
    low, high = re.search(r"(-?[\d,.]+) to (-?[\d,.]+)", output).groups()  # type: ignore[union-attr]
    return (float(high.replace(",", "")) - float(low.replace(",", ""))) / 2


def section(title: str) -> str:
    """Return the text of one section of the page."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
