"""A domain of tens of millions of keys against pyarrow's group_by of the same rows.

Ours reads an Avro domain and Avro reports with cleartext payloads, sums, draws exact noise for every key, charges a
SQLite ledger and stages an Avro summary. The peer groups and sums rows that are in memory already: one row of
value 0 per domain key and one row per contribution. The faster of its threaded and its plain form counts.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.bench import conclude
from aggservice.bench.engine import NOW_MS, ORIGIN, engine_seconds, in_process
from aggservice.wire import Api as Apis
from aggservice.wire import BucketRows, Contribution, ReportBatch, ReportWriter, SharedInfo, Spans, encode_payload
from aggservice.wire.avro.buckets import BucketWriter
from aggservice.wire.avro.schemas import BUCKET

CONTRIBUTIONS = 10
PADDED = 20
_CHUNK = 1 << 20
_GIB = 1 << 30
_SPREAD = 0x9E3779B97F4A7C15


def _domain_keys(start: int, stop: int) -> tuple[Any, Any]:
    """Return distinct keys, spread over the 128 bits, for these rows of the domain."""
    index = np.arange(start, stop, dtype=np.uint64)
    return index * np.uint64(_SPREAD), index


def _chosen(reports: int, keys: int) -> Any:
    """Return the rows of the domain that the reports contribute to."""
    return np.random.default_rng(4).integers(0, keys, reports * CONTRIBUTIONS)


def _prepare(folder: Path, reports: int, keys: int) -> None:
    """Write the domain and the reports."""
    with BucketWriter(folder / "domain.avro", BUCKET) as writer:
        for start in range(0, keys, _CHUNK):
            high, low = _domain_keys(start, min(start + _CHUNK, keys))
            writer.write(BucketRows(key_high=high, key_low=low, numbers=np.empty((high.size, 0), dtype=np.int64)))
    chosen = _chosen(reports, keys)
    head, entry, tail = _payload_parts()
    info = SharedInfo(
        api=Apis.ATTRIBUTION_REPORTING,
        report_id="00000000-0000-4000-8000-000000000000",
        reporting_origin=ORIGIN,
        scheduled_report_time_s=NOW_MS // 1000 - 3600,
        attribution_destination="https://shop.example",
    ).serialise()
    before, after = info.encode().split(b"00000000-0000-4000-8000-000000000000")
    with ReportWriter(folder / "reports.avro") as reports_writer:
        for start in range(0, reports, 10_000):
            stop = min(start + 10_000, reports)
            rows = chosen[start * CONTRIBUTIONS : stop * CONTRIBUTIONS].astype(np.uint64)
            payloads = _payloads(head, entry, tail, rows * np.uint64(_SPREAD), rows, stop - start)
            infos = [before + f"{row:08x}-0000-4000-8000-000000000000".encode() + after for row in range(start, stop)]
            reports_writer.write(
                ReportBatch(
                    payloads=Spans.of(payloads),
                    key_ids=Spans.of([b""] * len(payloads)),
                    shared_infos=Spans.of(infos),
                )
            )


def _payload_parts() -> tuple[bytes, bytes, bytes]:
    """Return the canonical payload around its entries, and one entry, from the encoder itself."""
    one = encode_payload([Contribution(bucket=0, value=1)], maximum=PADDED)
    null = encode_payload([], maximum=PADDED)
    head = one[: one.index(b"\xa3")]
    size = (len(one) - len(head) - len(one[one.rindex(b"ioperation") :])) // PADDED
    assert len(null) == len(one)
    return head, one[len(head) : len(head) + size], one[len(head) + size * PADDED :]


def _payloads(head: bytes, entry: bytes, tail: bytes, high: Any, low: Any, count: int) -> list[bytes]:
    """Return payloads with the given buckets, each with a value of 1, padded with nulls."""
    table = np.tile(np.frombuffer(head + entry * PADDED + tail, dtype=np.uint8), (count, 1))
    value_at = entry.index(b"value") + len(b"valueD")
    bucket_at = entry.index(b"bucket") + len(b"bucketP")
    for slot in range(PADDED):
        at = len(head) + slot * len(entry)
        if slot >= CONTRIBUTIONS:
            table[:, at + value_at : at + value_at + 4] = 0
            continue
        rows = slice(slot, None, CONTRIBUTIONS)
        table[:, at + bucket_at : at + bucket_at + 8] = high[rows].astype(">u8").view(np.uint8).reshape(-1, 8)
        table[:, at + bucket_at + 8 : at + bucket_at + 16] = low[rows].astype(">u8").view(np.uint8).reshape(-1, 8)
    raw, width = table.tobytes(), table.shape[1]
    return [raw[row * width : (row + 1) * width] for row in range(count)]


def _group(reports: int, keys: int, threads: bool, out: Any) -> None:
    """Group and sum the same rows with pyarrow; making the table is not counted."""
    import pyarrow

    chosen = _chosen(reports, keys).astype(np.uint64)
    high, low = _domain_keys(0, keys)
    table = pyarrow.table(
        {
            "high": np.concatenate((high, chosen * np.uint64(_SPREAD))),
            "low": np.concatenate((low, chosen)),
            "value": np.concatenate((np.zeros(keys, dtype=np.int64), np.ones(chosen.size, dtype=np.int64))),
        }
    )
    del high, low, chosen
    start = time.perf_counter()
    grouped = table.group_by(["high", "low"], use_threads=threads).aggregate([("value", "sum")])
    taken = time.perf_counter() - start
    assert grouped.num_rows == keys
    out.put((taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def command(
    keys: Annotated[int, typer.Option(help="Keys of the domain.")] = 5_000_000,
    reports: Annotated[int, typer.Option(help="Reports with cleartext payloads, 10 contributions each.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians count.")] = 3,
    full: Annotated[bool, typer.Option("--full", help="50 million keys and a million reports.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Keep the input in this folder for the next run.")] = None,
) -> None:
    """A large domain: rows per second over pyarrow's group_by.

    Ours goes from Avro domain and reports to an Avro summary; group_by sums the same rows in memory.
    """
    if full:
        keys, reports = 50_000_000, 1_000_000
    rows = keys + reports * CONTRIBUTIONS
    with tempfile.TemporaryDirectory(prefix="aggservice-bench-") as scratch:
        inputs = folder or Path(scratch)
        if not (inputs / "reports.avro").exists():
            inputs.mkdir(parents=True, exist_ok=True)
            print(f"writing {keys:,} keys and {reports:,} reports …", flush=True)
            _prepare(inputs, reports, keys)
        ours: list[float] = []
        theirs: list[float] = []
        peak = 0
        for number in range(rounds):
            plain = in_process(_group, (reports, keys, False))[0][0]
            threaded = in_process(_group, (reports, keys, True))[0][0]
            theirs.append(min(plain, threaded))
            taken, released, seen = engine_seconds(inputs, 2, cleartext=True)
            if released != keys:
                raise RuntimeError(f"the job released {released} rows of {keys}")
            ours.append(taken)
            peak = max(peak, seen)
            print(
                f"round {number + 1}: group_by {plain:.2f} s plain, {threaded:.2f} s threaded; "
                f"engine {taken:.2f} s, peak RSS {seen / _GIB:.2f} GiB",
                flush=True,
            )
    conclude(
        median(theirs) / median(ours),
        "rows per second from domain and reports to an Avro summary over pyarrow's group_by of the same rows in memory",
        f"{rows / median(ours):,.0f} against {rows / median(theirs):,.0f} per second, {keys:,} keys; "
        f"peak RSS of all processes {peak / _GIB:.2f} GiB",
    )
