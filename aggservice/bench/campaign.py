"""A whole campaign against bare cryptography: time of as many bare seals and opens, over the wall time of the run.

The run simulates people, attributes, collects, seals, writes Avro, asks the service for a summary over files, charges a
SQLite ledger, and compares the summary with the truth. The bare work is measured before and after it and averaged.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggservice.bench import at_once, conclude
from aggservice.campaign import parse_campaign, run_campaign
from aggservice.wire import encode_payload
from aggservice.wire.hpke.sealing import SUITE

_MIB = 1 << 20
_INFO_BYTES = 290
_PAYLOAD_SLOTS = 20

CAMPAIGN = """
name = "benchmark"
[population]
size = {people}
days = 30
impressions = {{ name = "poisson", mean = 4.4 }}
click_rate = 0.02
conversion_rate = 0.115
organic = {{ name = "poisson", mean = 0.05 }}
delay_days = {{ name = "exponential", mean = 2.0 }}
value = {{ name = "lognormal", median = 60, sigma = 0.6 }}
[[keys.fields]]
name = "campaign"
count = 200
zipf = 0.8
offset = 64
[[keys.fields]]
name = "product"
from = "conversion"
count = 50
zipf = 0.8
offset = 8
[[measures]]
name = "purchases"
of = "count"
scale = 4096
[[measures]]
name = "money"
of = "value"
most = 500
scale = 64
[collection]
batch_hours = 24
lost = 0.005
retried = 0.005
[[queries]]
name = "month"
by = ["campaign"]
"""


def _bare_child(count: int, begin: Any, times: Any) -> None:
    """Seal and open ``count`` payloads of a report's size; nothing else is timed."""
    private = X25519PrivateKey.generate()
    public = private.public_key()
    info, plain = bytes(_INFO_BYTES), encode_payload([], maximum=_PAYLOAD_SLOTS)
    encrypt, decrypt = SUITE.encrypt, SUITE.decrypt
    begin.wait()
    start = time.perf_counter()
    sealed = [encrypt(plain, public, info) for _ in range(count)]
    for one in sealed:
        decrypt(one, private, info)
    times.put((start, time.perf_counter()))


def bare_seconds(count: int, workers: int) -> float:
    """Return how long ``workers`` processes take to seal and to open ``count`` reports in all."""
    found = at_once(_bare_child, [(count // workers,)] * workers)
    return max(stop for _, stop in found) - min(start for start, _ in found)


def command(
    people: Annotated[int, typer.Option(help="Number of people; each sees 4.4 ads on average.")] = 60_000,
    full: Annotated[bool, typer.Option("--full", help="A million people: about 5 million events.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run in this folder.")] = None,
) -> None:
    """A whole run: bare seals and opens over its wall time.

    The bare work is as many seals and opens as the run has reports, on all cores.
    """
    if full:
        people = 1_000_000
    workers = min(2, os.cpu_count() or 1)
    campaign = parse_campaign(CAMPAIGN.format(people=people), folder=Path())
    _warm(workers)
    with tempfile.TemporaryDirectory(prefix="aggservice-bench-") as scratch:
        guess = people // 2
        before = bare_seconds(guess, workers) / guess
        start = time.perf_counter()
        result = run_campaign(campaign, out or Path(scratch) / "run", workers=workers, draw=False)
        wall = time.perf_counter() - start
        sealed = result.metrics.reports.in_batches
        after = bare_seconds(sealed, workers) / sealed
    events = len(result.truth.events)
    print(f"{people:,} people, {events:,} events, {sealed:,} sealed reports, {workers} processes")
    peaks = result.timings["peak_bytes_so_far"]
    for stage, taken in result.timings["seconds"].items():
        own, child = peaks[stage]["process"] / _MIB, peaks[stage]["largest_child"] / _MIB
        print(f"{stage:>10} {taken:8.2f} s   peak so far {own:7.0f} MiB, largest worker {child:5.0f} MiB")
    print(f"{'rest':>10} {wall - result.timings['total_seconds']:8.2f} s   starting and stopping the service")
    bare = (before + after) / 2 * sealed
    print(f"bare seals and opens: {before * sealed:.2f} s before the run, {after * sealed:.2f} s after it")
    assert all(one.adds_up for found in result.assessments for one in found.waterfalls)
    conclude(
        bare / wall,
        f"time of {sealed:,} bare seals and opens on {workers} processes over the wall time of the run",
        f"{bare:.1f} s against {wall:.1f} s; {sealed / wall:,.0f} reports and {events / wall:,.0f} events per second",
    )


def _warm(workers: int) -> None:
    """Compile every kernel before anything is timed."""
    with tempfile.TemporaryDirectory(prefix="aggservice-bench-") as scratch:
        campaign = parse_campaign(CAMPAIGN.format(people=300), folder=Path())
        run_campaign(campaign, Path(scratch) / "warm", workers=workers, draw=False)
