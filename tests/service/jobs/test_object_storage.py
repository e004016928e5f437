"""Jobs from s3:// to s3:// against a real S3 server on loopback: isolation, interrupted uploads, manifests."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.client import Client, ClientError, Credentials, JobParameters, JobStatus
from aggservice.service import Caller, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.wire import BucketRows, ReportBatch, write_buckets, write_reports
from aggservice.wire.avro.buckets import read_summary

from .s3 import BUCKET, s3_server

ORIGIN = "https://adtech.example"
ASKS = JobParameters(attribution_report_to=ORIGIN, epsilon="1")
ROOT = f"s3://{BUCKET}"
TOKENS = {"mine": "a" * 43, "theirs": "b" * 43}


class Stand:
    """A service over object storage with two callers, and the bucket itself."""

    def __init__(self, maker: Any, proxy: Any, bucket: Any, service: Any, folder: Path) -> None:
        self.maker, self.proxy, self.bucket, self.service = maker, proxy, bucket, service
        self._folder = folder
        self.client = Client(service.address, credentials=Credentials(token=TOKENS["mine"]))
        for caller in TOKENS:
            self.put_reports(f"in/{caller}/day/reports-1.avro", 3)
            self.put_reports(f"in/{caller}/day/reports-2.avro", 2)
            self.put_domain(f"in/{caller}/domain.avro", 2)

    def put_reports(self, key: str, count: int) -> None:
        path = self._folder / "put"
        write_reports(path, [ReportBatch.of([self.maker.report({1: 1}, debug_mode=True) for _ in range(count)])])
        self.bucket.put(key, path.read_bytes())

    def put_domain(self, key: str, count: int) -> None:
        path = self._folder / "put"
        keys = np.arange(count, dtype=np.uint64)
        rows = BucketRows(key_high=np.zeros_like(keys), key_low=keys, numbers=np.empty((count, 0), dtype=np.int64))
        write_buckets(path, rows)
        self.bucket.put(key, path.read_bytes())

    def create(self, job: str, *, reports: str = "day/reports", output: str = "sums/a", domain: str = "domain") -> None:
        self.client.create_job(
            job,
            ASKS,
            input_data_blob_prefix=reports,
            output_data_blob_prefix=output,
            output_domain_blob_prefix=domain,
        )

    def entries(self) -> int:
        return sum(1 for entry in self.client.entries() if entry.kind == "release")


@pytest.fixture
def stand(maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    callers = tuple(
        Caller(
            name=name,
            roles=frozenset({Role.ADTECH}),
            origins=frozenset({ORIGIN}),
            tokens=(Token(digest=token_digest(token)),),
            folder=name,
        )
        for name, token in TOKENS.items()
    )
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        ledger="sqlite",
        input_folder=f"{ROOT}/in",
        output_folder=f"{ROOT}/out",
        callers=callers,
    )
    config = replace(config, limits=replace(config.limits, processes=0, lease_s=1))
    with s3_server(monkeypatch) as (proxy, bucket), embedded(config, keys=maker.keys, clock=maker.clock) as service:
        stand = Stand(maker, proxy, bucket, service, tmp_path)
        yield stand
        stand.client.close()


def manifest_of(stand: Stand, prefix: str) -> dict[str, Any]:
    """Return a summary's manifest after comparing every file with its digest."""
    found = json.loads(stand.bucket.get(f"{prefix}-manifest.json"))
    folder = prefix.rpartition("/")[0]
    for one in found["files"]:
        raw = stand.bucket.get(f"{folder}/{one['name']}")
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (one["size"], one["sha256"])
    return dict(found)


def test_a_job_from_s3_to_s3(stand: Stand) -> None:
    stand.create("by-path")
    done = stand.client.watch_job("by-path").summary
    assert done is not None and (done.return_code, done.row_count) == ("SUCCESS", 2)
    assert [one["name"] for one in manifest_of(stand, "out/mine/sums/a")["files"]] == ["a-1-of-1", "a-statement.json"]
    (rows,) = read_summary(io.BytesIO(stand.bucket.get("out/mine/sums/a-1-of-1")))
    assert rows.key_low.tolist() == [0, 1]
    mine = f"{ROOT}/in/mine"
    stand.create("by-url", reports=f"{mine}/day/reports-2", domain=f"{mine}/domain", output=f"{ROOT}/out/mine/b.avro")
    assert stand.client.watch_job("by-url").job_status == JobStatus.FINISHED
    assert manifest_of(stand, "out/mine/b")["format"] == "aggservice-summary-1"
    # The same request gives the same summary again, and what the ledger has is what was published.
    before = stand.bucket.get("out/mine/sums/a-statement.json")
    stand.create("by-path")
    again = stand.client.watch_job("by-path").summary
    assert again is not None and again.receipt == done.receipt and stand.entries() == 2
    assert stand.bucket.get("out/mine/sums/a-statement.json") == before
    assert stand.client.summary("by-path").files == done.files
    assert list((stand.service.service.config.state / "staging").iterdir()) == []


def test_a_file_in_the_output_lists_the_reports_that_cannot_pay(stand: Stand) -> None:
    stand.create("paid")
    stand.client.watch_job("paid")
    stand.client.create_job(
        "refused",
        replace(ASKS, epsilon="64"),
        input_data_blob_prefix="day/reports",
        output_data_blob_prefix="sums/refused.avro",
        output_domain_blob_prefix="domain",
    )
    with pytest.raises(ClientError, match="sums/refused/privacy_budget_exhausted_"):
        stand.client.watch_job("refused")
    (name,) = [one for one in stand.bucket.names() if one.startswith("out/mine/sums/refused")]
    found = json.loads(stand.bucket.get(name))["privacy_budget_exhausted_info"]
    entries = found["aggregatable_input_budget_consumption_info"]
    infos = [entry["aggregateable_input_budget_id"]["relevant_shared_info"] for entry in entries]
    assert len({info["report_id"] for info in infos}) == 5


def test_another_callers_prefix_and_prefixes_outside_the_roots_are_refused_unseen(stand: Stand) -> None:
    before = stand.bucket.names()
    asked = len(stand.proxy.asked)
    refused = [
        {"reports": f"{ROOT}/in/theirs/day/reports"},
        {"reports": f"{ROOT}/in/mine/../theirs/day/reports"},
        {"reports": "../theirs/day/reports"},
        {"reports": f"{ROOT}/out/mine/day"},
        {"reports": f"{ROOT}/secret"},
        {"reports": "s3://other-bucket/in/mine/day/reports"},
        {"reports": "gs://bucket/in/mine/day/reports"},
        {"reports": "file:///etc/passwd"},
        {"reports": f"{ROOT}/in/mineral/day/reports"},
        {"domain": f"{ROOT}/in/theirs/domain"},
        {"output": f"{ROOT}/out/theirs/sum"},
        {"output": f"{ROOT}/elsewhere/sum"},
        {"output": f"{ROOT}/in/mine/sum"},
    ]
    for number, change in enumerate(refused):
        with pytest.raises(ClientError) as caught:
            stand.create(f"refused-{number}", **change)
        assert caught.value.return_code == "PERMISSION_ERROR", change
    seen = " ".join(stand.proxy.asked[asked:])
    assert not [word for word in ("theirs", "secret", "other-bucket", "mineral", "elsewhere") if word in seen]
    assert stand.bucket.names() == before and stand.entries() == 0


def test_an_interrupted_upload_is_taken_up_again_and_nothing_counts_before_the_manifest(stand: Stand) -> None:
    stand.put_domain("in/mine/large.avro", 300_000)
    stand.proxy.cut_after = 100_000
    stand.create("cut", domain="large", output="cut/sum")
    deadline = time.monotonic() + 60
    while stand.service.service.queue.find("mine", "cut").state != "running" or not stand.proxy.cuts:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while stand.service.service.dispatcher.runs("mine", "cut"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # It is paid for and not published: no manifest, no shard, and the staged files are kept.
    assert stand.entries() == 1 and not [key for key in stand.bucket.names() if key.startswith("out/")]
    (attempt,) = (stand.service.service.config.state / "staging").iterdir()
    assert stand.client.get_job("cut").job_status == JobStatus.IN_PROGRESS
    stand.proxy.cut_after = None
    stand.maker.clock.advance(5_000)  # its lease runs out
    done = stand.client.watch_job("cut").summary
    assert done is not None and done.row_count == 300_000 and stand.entries() == 1
    manifest_of(stand, "out/mine/cut/sum")
    assert not attempt.exists()


def test_what_cannot_be_read_or_written_is_told_before_anything_is_charged(stand: Stand) -> None:
    stand.bucket.put("out/mine/taken/sum-1-of-1", b"old")
    stand.bucket.put("in/mine/cut.avro", stand.bucket.get("in/mine/day/reports-1.avro")[:-30])
    for change, code in (
        ({"reports": "missing"}, "INPUT_DATA_READ_FAILED"),
        ({"output": "taken/sum"}, "RESULT_WRITE_ERROR"),
        ({"output": "folder/"}, "PERMISSION_ERROR"),
    ):
        with pytest.raises(ClientError) as caught:
            stand.create("told", **change)
        assert caught.value.return_code == code
    stand.create("cut", reports="cut")
    with pytest.raises(ClientError) as caught:
        stand.client.watch_job("cut")
    assert caught.value.return_code == "INPUT_DATA_READ_FAILED"
    assert stand.entries() == 0 and stand.bucket.get("out/mine/taken/sum-1-of-1") == b"old"


def test_a_debug_run_and_a_foreign_manifest(stand: Stand) -> None:
    stand.client.create_job(
        "debug",
        replace(ASKS, debug_run=True),
        input_data_blob_prefix="day/reports",
        output_data_blob_prefix="debug/sum",
        output_domain_blob_prefix="domain",
    )
    assert stand.client.watch_job("debug").job_status == JobStatus.FINISHED
    found = [key for key in stand.bucket.names() if key.startswith("out/")]
    assert found == [
        "out/mine/debug/debug/sum-1-of-1",
        "out/mine/debug/sum-1-of-1",
        "out/mine/debug/sum-statement.json",
    ]
    # A manifest that appears while the job runs is not replaced: the job is paid for, and says what to do.
    publisher = stand.service.ledger._staging._remote
    real = publisher.publish

    def late(manifest: Any, folder: Path) -> None:
        stand.bucket.put("out/mine/late/sum-manifest.json", b"somebody's")
        real(manifest, folder)

    publisher.publish = late
    stand.create("late", output="late/sum")
    with pytest.raises(ClientError, match="belongs to another summary") as caught:
        stand.client.watch_job("late")
    assert caught.value.return_code == "RESULT_WRITE_ERROR" and stand.entries() == 1
    assert stand.bucket.get("out/mine/late/sum-manifest.json") == b"somebody's"
