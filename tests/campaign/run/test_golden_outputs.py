"""The outputs of every example with a seed, to the byte, as an earlier version wrote them.

``golden_outputs.json`` holds a digest per file. A change that means to change outputs writes it again and says why in
CHANGELOG.md: ``python tests/campaign/run/test_golden_outputs.py``. Numbers in JSON are compared to 12 digits, because
the last ones depend on the processor.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aggservice.campaign import Campaign, run_campaign
from aggservice.campaign.file.campaign import campaign_of
from small_examples import NAMES, smaller

GOLDEN = Path(__file__).parent / "golden_outputs.json"
RUNS = (*NAMES, "three_apis paa", "three_apis w3c", "thanksgiving unsealed", "key_discovery unsealed")


def campaign_named(run: str) -> Campaign:
    """Return an example with fewer people; a second word is its API, or "unsealed"."""
    name, _, api = run.partition(" ")
    campaign = smaller(name, 300)
    if api in ("", "unsealed"):
        return campaign
    document = {**campaign.document, "client": {**campaign.document.get("client", {}), "api": api}}
    return campaign_of(document, folder=campaign.folder)


def rounded(value: Any) -> Any:
    """Return plain values with floats of 12 digits."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix == ".json":
        raw = json.dumps(rounded(json.loads(raw)), sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()[:32]


def outputs(run: str, out: Path) -> dict[str, str]:
    """Run an example and return a digest of each file, but for timings and the ledger's database and log."""
    unsealed = run.endswith(" unsealed")
    run_campaign(campaign_named(run), out, seed=f"golden {run}", workers=1, draw=False, unsealed=unsealed)
    left_out = {"timings.json", "ledger/ledger.log"}  # the log names the folder of the run
    files = sorted(path for path in out.rglob("*") if path.is_file())
    kept = {path.relative_to(out).as_posix(): path for path in files if "sqlite" not in path.name}
    return {name: digest(path) for name, path in kept.items() if name not in left_out}


@pytest.mark.parametrize("run", RUNS)
def test_outputs_are_those_of_before(run: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))[run]
    found = outputs(run, tmp_path / "out")
    assert {name for name in golden.keys() ^ found.keys()} == set()
    assert [name for name in golden if golden[name] != found[name]] == []


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        written = {run: outputs(run, Path(scratch) / run) for run in RUNS}
    GOLDEN.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {sum(map(len, written.values()))} digests\n")
