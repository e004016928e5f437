"""Clients in other languages: the scripts of examples/clients against a service with TLS and tokens."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aggservice.service import Caller, EmbeddedService, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.service.config.settings import TlsFiles

from ..engine.conftest import ORIGIN, Maker
from ..service.api.authority import Authority
from .build import NPM_OPTIONS, npm_reason

ROOT = Path(__file__).resolve().parents[2]
REPORTS = 1000
TOKEN = "token-of-adtech"
_FETCH_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A service that demands TLS and a token, and files for its clients."""

    service: EmbeddedService
    reports: Path
    authority: Path
    token: Path


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    maker = Maker()
    certificate, key, authority = Authority().write_server(tmp_path)
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        ledger="memory",
        tls=TlsFiles(certificate=certificate, private_key=key),
        callers=(
            Caller(
                name="adtech",
                roles=frozenset({Role.ADTECH}),
                origins=frozenset({ORIGIN}),
                tokens=(Token(digest=token_digest(TOKEN)),),
            ),
        ),
    )
    config = replace(config, limits=replace(config.limits, processes=0))
    (tmp_path / "token").write_text(TOKEN + "\n")
    reports = tmp_path / "reports.jsonl"
    reports.write_text("".join(maker.report({0x159: 1000, 5: 7}).to_json() + "\n" for _ in range(REPORTS)))
    with embedded(config, keys=maker.keys, clock=maker.clock) as service:
        yield Guarded(service=service, reports=reports, authority=authority, token=tmp_path / "token")


@pytest.fixture(scope="session")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node client with its dependencies, in a folder of its own; skipped where they cannot be fetched."""
    if shutil.which("npm") is None:
        pytest.skip("no Node client: there is no npm")
    root = tmp_path_factory.mktemp("clients")
    shutil.copytree(ROOT / "proto", root / "proto")
    folder = root / "examples" / "clients" / "node"
    shutil.copytree(ROOT / "examples/clients/node", folder, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", *NPM_OPTIONS, "--ignore-scripts"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no Node client: npm did not fetch its dependencies within {_FETCH_S} s")
    if done.returncode:
        pytest.skip(f"no Node client: npm cannot fetch its dependencies: {npm_reason(done.stderr)}")
    return folder / "client.mjs"


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_node_streams_reports_reads_the_summary_and_shows_a_refusal(node_client: Path, guarded: Guarded) -> None:
    """False alarms: below 1e-12 (noise at ε = 64 has scale 1024; both sums must be within 32 scales)."""
    port = guarded.service.address.rpartition(":")[2]
    command = ["node", str(node_client), "--address", f"localhost:{port}", "--origin", ORIGIN, "--epsilon", "64"]
    command += ["--domain", "0x159,0x5", str(guarded.reports)]
    trusted = ["--ca", str(guarded.authority), "--token-file", str(guarded.token)]

    first = run([*command, *trusted, "--job", "monday"])
    assert first.returncode == 0, first.stderr
    *rows, last = first.stdout.splitlines()
    sums = {key: int(metric) for key, metric in (row.split() for row in rows)}
    assert set(sums) == {"0x159", "0x5"} and last.startswith("2 rows, SUCCESS; ")
    assert abs(sums["0x159"] - 1000 * REPORTS) < 32 * 1024 and abs(sums["0x5"] - 7 * REPORTS) < 32 * 1024

    again = run([*command, *trusted, "--job", "monday"])
    assert again.stdout.splitlines()[:2] == rows, "the same job has the same summary"

    refused = run([*command, *trusted, "--job", "tuesday"])
    assert refused.returncode == 1 and not refused.stdout
    assert "refused (FAILED_PRECONDITION): 1000 of 1000 privacy units cannot pay" in refused.stderr
    assert "return code: PRIVACY_BUDGET_EXHAUSTED" in refused.stderr
    assert f"{REPORTS} units cannot pay:" in refused.stderr
    units = re.findall(r"^  ([0-9a-f]{40}) spent ε 64$", refused.stderr, re.MULTILINE)
    assert len(set(units)) == len(units) == REPORTS

    stranger = run([*command, "--ca", str(guarded.authority), "--job", "wednesday"])
    assert stranger.returncode == 1 and "refused (UNAUTHENTICATED)" in stranger.stderr


def test_the_shell_script_does_the_same(guarded: Guarded) -> None:
    """Runs where buf and jq are installed. False alarms: as above."""
    for tool in ("buf", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"no shell client: there is no {tool}")
    script = str(ROOT / "examples/clients/shell/aggregate.sh")
    port = guarded.service.address.rpartition(":")[2]
    settings = {"ADDRESS": f"localhost:{port}", "ORIGIN": ORIGIN, "EPSILON": "64", "DOMAIN": "159 5"}
    settings |= {"CA": str(guarded.authority), "TOKEN_FILE": str(guarded.token)}
    done = run([script, str(guarded.reports)], **settings, JOB="monday")
    assert done.returncode == 0, done.stderr
    header, rows = done.stdout.splitlines()
    assert '"returnCode":"SUCCESS"' in header and '"metrics":' in rows
    refused = run([script, str(guarded.reports)], **settings, JOB="tuesday")
    assert f"{REPORTS} of {REPORTS} privacy units cannot pay" in refused.stderr, refused.stderr
