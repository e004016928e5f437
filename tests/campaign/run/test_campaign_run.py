"""A small campaign through the whole pipeline: the same bytes for the same seed, and sums that the batches bear out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.campaign import RunResult, parse_campaign, run_campaign, thanksgiving
from aggservice.campaign.columns import Fate
from aggservice.wire import decode_payload, read_reports
from aggservice.wire.hpke.sealing import open_sealed

ROOT = Path(__file__).parents[3]

SMALL = """
name = "small"
[population]
size = 600
days = 4
devices = { name = "poisson", mean = 1.2 }
impressions = { name = "poisson", mean = 2 }
conversion_rate = 0.4
organic = { name = "poisson", mean = 0.1 }
value = { name = "lognormal", median = 50, sigma = 1 }
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[keys.fields]]
name = "product"
from = "conversion"
values = ["x", "y", "z"]
[[measures]]
name = "purchases"
of = "count"
scale = 4096
[[measures]]
name = "money"
of = "value"
most = 200
scale = "80.5"
[collection]
batch_hours = 24
lost = 0.05
late = 0.1
retried = 0.1
[[queries]]
name = "daily"
over = "each"
epsilon = "20"
[[queries]]
name = "rolling"
over = "rolling"
window = 2
epsilon = "20"
[[queries]]
name = "found"
discovery = true
epsilon = "10"
delta = "0.000001"
"""


def small(tmp_path: Path, text: str = SMALL, **options: Any) -> RunResult:
    campaign = parse_campaign(text, folder=tmp_path)
    return run_campaign(campaign, tmp_path / "out", **{"seed": "s", "workers": 1, "draw": False, **options})


def files_of(folder: Path) -> dict[str, bytes]:
    """Every output but the timings and the ledger's own file, which is compared by its exported log."""
    left_out = ("timings.json", "ledger.sqlite")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out
    }


def test_the_demo_is_the_example() -> None:
    kept = ROOT / "aggservice/campaign/file/thanksgiving.toml"
    assert (ROOT / "examples/thanksgiving/campaign.toml").resolve() == kept
    assert thanksgiving().name == "Thanksgiving shoes"


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(tmp_path, draw=True)
    kept = files_of(first.out)
    assert {"metrics.json", "ledger/ledger.log", "batches/000/reports-1-of-1.avro", "report.html"} <= set(kept)
    assert sum(name.endswith((".svg", ".png")) for name in kept) > 10
    shutil.rmtree(first.out)
    monkeypatch.setattr("aggservice.campaign.service.sealing.POOL_FROM_REPORTS", 1)
    monkeypatch.setattr("aggservice.campaign.run.POOL_FROM_REPORTS", 1)
    again = files_of(small(tmp_path, workers=2, draw=True).out)
    assert kept == again
    shutil.rmtree(first.out)
    other = files_of(small(tmp_path, seed="t").out)
    assert other["metrics.json"] != kept["metrics.json"]


def test_reports_posted_as_json_give_the_same_batches(tmp_path: Path) -> None:
    """Base64, JSON and a collector's checks in between change nothing."""
    kept = files_of(small(tmp_path).out / "batches")
    shutil.rmtree(tmp_path / "out")
    text = SMALL.replace("[collection]", '[collection]\nthrough = "json"')
    assert files_of(small(tmp_path, text).out / "batches") == kept


@pytest.mark.parametrize("form", ["deployed", "paper"])
def test_what_is_counted_is_what_the_batches_hold(tmp_path: Path, form: str) -> None:
    """Open the batches as nobody but the service could, and recount: truth, waterfall and summary agree with them."""
    text = SMALL + f'[client]\nform = "{form}"\n' + ("l1 = 20000\nl0 = 2\n" if form == "paper" else "")
    text = text.replace('"80.5"', '"80.5"' if form == "deployed" else "50")
    result = small(tmp_path, text)
    keys = _keys_of_run(result)
    for answer, found in zip(result.answers, result.assessments, strict=True):
        sums: dict[int, int] = {}
        counts = [0] * 2
        seen: set[str] = set()
        for batch in answer.job.batches:
            for path in sorted((result.out / "batches" / f"{batch:03d}").glob("*.avro")):
                for block in read_reports(path):
                    for payload, key_id, info in zip(block.payloads, block.key_ids, block.shared_infos, strict=True):
                        if info.decode() in seen:
                            continue
                        seen.add(info.decode())
                        plain = open_sealed(payload, shared_info=info, key=keys.private_key(key_id.decode()))
                        for one in decode_payload(plain).contributions:
                            if one.value:
                                sums[one.bucket] = sums.get(one.bucket, 0) + one.value
                                measure = result.campaign.keys.field("measure")
                                low = np.array([one.bucket & (1 << 64) - 1], dtype=np.uint64)
                                counts[int(measure.decode(np.zeros(1, dtype=np.uint64), low)[0])] += 1
        for place, waterfall in enumerate(found.waterfalls):
            assert waterfall.adds_up
            reached = (Fate.COUNTED, Fate.OVER_BUDGET, Fate.BELOW_THRESHOLD, Fate.NOT_ASKED)
            assert sum(waterfall.conversions[fate] for fate in reached) == counts[place]
        if not found.paid:
            assert all(one.conversions[Fate.COUNTED] == 0 for one in found.waterfalls)
            continue
        assert {one.sent for one in found.slices} <= {0, *sums.values()}
        total = sum(sums.values())
        if not answer.job.query.discovery:
            assert sum(one.counted_amount for one in found.waterfalls) == total
    refused = [one.job for one in result.assessments if not one.paid]
    assert refused, "the rolling query runs out of budget in this campaign"


def _keys_of_run(result: RunResult) -> Any:
    """The service's keys are made from the run's seed."""
    from aggservice.mechanisms import ManualClock, SeededBits
    from aggservice.wire import KeySet

    bits = SeededBits(f"campaign {result.seed}").child("service keys")
    return KeySet.create(bits, ManualClock(result.campaign.population.start_ms))
