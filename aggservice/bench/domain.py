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
from aggservice.bench.engine import domain_keys, engine_seconds, in_process, report_columns, sealing_settings
from aggservice.campaign.service.sealing import plain_batches
from aggservice.wire import BucketRows, ReportBatch, ReportWriter, Spans
from aggservice.wire.avro.buckets import BucketWriter
from aggservice.wire.avro.schemas import BUCKET

CONTRIBUTIONS = 10
_CHUNK = 1 << 20
_GIB = 1 << 30


def _chosen(reports: int, keys: int) -> Any:
    """Return the rows of the domain that the reports contribute to."""
    return np.random.default_rng(4).integers(0, keys, reports * CONTRIBUTIONS)


def write_domain(folder: Path, keys: int) -> None:
    """Write a domain of that many keys."""
    with BucketWriter(folder / "domain.avro", BUCKET) as writer:
        for start in range(0, keys, _CHUNK):
            writer.write(BucketRows.domain(*domain_keys(np.arange(start, min(start + _CHUNK, keys)))))


def write_clear_reports(path: Path, rows: Any, *, first: int = 0) -> None:
    """Write reports that are not sealed, of ten contributions each to these rows of the domain."""
    columns = report_columns(rows, CONTRIBUTIONS, first=first)
    with ReportWriter(path) as writer:
        for payloads, infos in plain_batches(columns, sealing_settings()):
            batch = ReportBatch(
                payloads=Spans.of(payloads),
                key_ids=Spans.of([b""] * len(payloads)),
                shared_infos=Spans.of(infos),
            )
            writer.write(batch)


def _group(reports: int, keys: int, threads: bool, out: Any) -> None:
    """Group and sum the same rows with pyarrow; making the table is not counted."""
    import pyarrow

    rows = np.concatenate((np.arange(keys), _chosen(reports, keys)))
    high, low = domain_keys(rows)
    table = pyarrow.table({"high": high, "low": low, "value": (np.arange(rows.size) >= keys).astype(np.int64)})
    del high, low, rows
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
            write_domain(inputs, keys)
            write_clear_reports(inputs / "reports.avro", _chosen(reports, keys))
        ours: list[float] = []
        theirs: list[float] = []
        peak = 0
        for number in range(rounds):
            plain = in_process(_group, (reports, keys, False))[0][0]
            threaded = in_process(_group, (reports, keys, True))[0][0]
            theirs.append(min(plain, threaded))
            taken, released, used = engine_seconds(inputs, 2, cleartext=True)
            if released != keys:
                raise RuntimeError(f"the job released {released} rows instead of {keys}: its time means nothing")
            ours.append(taken)
            peak = max(peak, used.peak)
            print(
                f"round {number + 1}: group_by {plain:.2f} s plain, {threaded:.2f} s threaded; "
                f"engine {taken:.2f} s, peak RSS {used.peak / _GIB:.2f} GiB",
                flush=True,
            )
    conclude(
        median(theirs) / median(ours),
        "rows per second from domain and reports to an Avro summary over pyarrow's group_by of the same rows in memory",
        f"{rows / median(ours):,.0f} against {rows / median(theirs):,.0f} per second, {keys:,} keys; "
        f"peak RSS of all processes {peak / _GIB:.2f} GiB",
    )
