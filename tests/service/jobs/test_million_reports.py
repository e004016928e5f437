"""Many sealed reports through the whole service: over gRPC and from files, counted exactly, charged once per job."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.job.result import SummaryHeader
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import (
    BucketRows,
    Contribution,
    ReportBatch,
    Spans,
    encode_payload,
    read_summary,
    seal,
    write_buckets,
    write_reports,
)

from ...engine.conftest import ORIGIN, Maker

VALUE = 65_536
BUCKETS = 8
SCALE = VALUE // 32
ASKS = JobParameters(attribution_report_to=ORIGIN, epsilon="32")


def sealed(maker: Maker, count: int) -> list[ReportBatch]:
    """Return reports that each add Λ₁ to one bucket, in batches of a few thousand."""
    key = maker.keys.public(maker.clock).keys[0]
    plain = [encode_payload([Contribution(bucket=bucket, value=VALUE)]) for bucket in range(BUCKETS)]
    batches = []
    for start in range(0, count, 4096):
        rows = range(start, min(start + 4096, count))
        infos = [maker.info().serialise() for _ in rows]
        payloads = [
            seal(plain[row % BUCKETS], shared_info=info, key=key.key) for row, info in zip(rows, infos, strict=True)
        ]
        batches.append(
            ReportBatch(
                payloads=Spans.of(payloads),
                key_ids=Spans.of([key.id.encode()] * len(rows)),
                shared_infos=Spans.of([info.encode() for info in infos]),
            )
        )
    return batches


def check(rows: dict[int, int], count: int) -> None:
    """Noise stays within 25 scales in all 16 rows but with probability 2·10⁻¹⁰; one report more is 32 scales."""
    assert sorted(rows) == list(range(BUCKETS))
    for bucket, value in rows.items():
        assert abs(value - VALUE * len(range(bucket, count, BUCKETS))) <= 25 * SCALE


def through_the_service(maker: Maker, folder: Path, count: int) -> list[str]:
    """Run the same reports as a stream and as files, then once more; return what took how long."""
    lines = []
    began = time.monotonic()
    batches = sealed(maker, count)
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    for number, batch in enumerate(batches):
        write_reports(folder / "in" / f"reports-{number:04d}.avro", [batch])
    low = np.arange(BUCKETS, dtype=np.uint64)
    write_buckets(
        folder / "in" / "domain.avro",
        BucketRows(key_high=np.zeros_like(low), key_low=low, numbers=np.empty((BUCKETS, 0), dtype=np.int64)),
    )
    lines.append(f"{count} reports sealed and written in {time.monotonic() - began:.1f} s")
    config = ServiceConfig(state=folder / "state", input_folder=folder / "in", output_folder=folder / "out")
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:

        def took(name: str, summary: SummaryHeader) -> str:
            assert summary.return_code == "SUCCESS"
            return f"{name}: {count / (time.monotonic() - began):.0f} reports per second"

        began = time.monotonic()
        streamed = client.aggregate("stream", ASKS, batches, domain=range(BUCKETS))
        lines.append(took("streamed over gRPC", streamed))
        check(streamed.to_dict(), count)

        def create(job: str) -> None:
            client.create_job(
                job,
                ASKS,
                input_data_blob_prefix="reports-",
                output_data_blob_prefix=job,
                output_domain_blob_prefix="domain.avro",
            )

        began = time.monotonic()
        create("files")
        done = client.watch_job("files")
        assert done.summary is not None
        lines.append(took("from files", done.summary))
        (name,) = done.summary.files
        (rows,) = read_summary(folder / "out" / name)
        check(dict(zip(rows.key_low.tolist(), rows.numbers[:, 0].tolist(), strict=True)), count)
        create("again")
        with pytest.raises(ClientError) as refused:
            client.watch_job("again")
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED" and refused.value.count == count
        verified = client.verify_ledger([streamed.receipt, done.summary.receipt])
        assert verified.ok and verified.unit_count == count
        lines.append(f"a third job refused, {refused.value.count} units unpaid; ledger verified")
    return lines


def test_reports_through_the_service(maker: Maker, tmp_path: Path) -> None:
    assert len(through_the_service(maker, tmp_path, 10_000)) == 4


@pytest.mark.soak
def test_a_million_reports_through_the_service(maker: Maker, tmp_path: Path) -> None:
    for line in through_the_service(maker, tmp_path, 1_000_000):
        print(line)
