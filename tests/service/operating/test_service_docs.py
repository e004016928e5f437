"""The Python of the pages about engine, service and client runs, and so does the README's walk through a service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("page", "count"), [("engine", 1), ("service", 1), ("client", 1)])
def test_the_examples_of_a_page_run(page: str, count: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == count
    exec(compile("\n".join(blocks), f"docs/{page}.md", "exec"), {})  # noqa: S102


def test_the_configuration_of_the_page_is_one_that_the_service_takes(tmp_path: Path) -> None:
    from aggservice.service import Role, parse_config

    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    block = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0].replace("…64 hex digits…", "0" * 64)
    config = parse_config(tomllib.loads(block), tmp_path)
    assert config.listen == "0.0.0.0:50051" and config.tls is not None
    assert config.input_folder is not None and config.output_folder is not None
    assert config.callers[0].roles == {Role.ADTECH}
    assert config.callers[0].tokens[0].expires_ms == 1_798_761_600_000


def test_the_readme_starts_a_service_sends_reports_and_reads_summary_and_ledger(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## A service, a summary, a ledger", 1)[1].split("\n## ", 1)[0]
    scripts = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    programs = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(scripts) == 3 and len(programs) == 1
    (tmp_path / "send.py").write_text(programs[0], encoding="utf-8")
    binary = tmp_path / "bin"
    binary.mkdir()
    command = binary / "aggservice"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from aggservice.commands import main; main()" "$@"\n')
    command.chmod(0o755)
    (binary / "python").symlink_to(sys.executable)
    environment = {
        **os.environ,
        "PATH": f"{binary}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    script = "set -e\n" + "\n".join(scripts)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
    assert "95 of 100 summaries" in done.stdout
    assert re.search(r"0x0+1  -?\d+", done.stdout)
    assert "PRIVACY_BUDGET_EXHAUSTED: 300 of 300" in done.stdout
    assert "ok: log, receipts, jobs, results and balances agree" in done.stdout
