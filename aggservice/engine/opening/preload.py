"""Imported by the process that workers fork from: writes and judges one report, so that every kernel is loaded.

Compiled kernels are read from numba's cache on first use, which takes half a second of CPU time in each process; a
forked worker inherits those of its parent. Importing this module does the work, since a fork server can only import.
"""

from __future__ import annotations

from io import BytesIO

from aggservice.compiler import start_numba
from aggservice.engine.opening.judging import Opener, OpeningSpec
from aggservice.wire import Api, Contribution, KeySet, ReportBatch, ReportWriter, SharedInfo, Spans, encode_payload


def load_kernels() -> None:
    """Write one cleartext report to memory and judge it."""
    start_numba()
    origin = "https://load.example"
    info = SharedInfo(
        api=Api.ATTRIBUTION_REPORTING,
        report_id="00000000-0000-4000-8000-000000000000",
        reporting_origin=origin,
        scheduled_report_time_s=1,
        attribution_destination=origin,
    )
    batch = ReportBatch(
        payloads=Spans.of([encode_payload([Contribution(bucket=1, value=1)], maximum=2)]),
        key_ids=Spans.of([b"key"]),
        shared_infos=Spans.of([info.serialise().encode()]),
    )
    with ReportWriter(BytesIO()) as writer:
        writer.write(batch)
    spec = OpeningSpec(
        attribution_report_to=origin,
        reporting_site=None,
        filtering_ids=(0,),
        oldest_s=0,
        bounds=((1, 1),) * len(Api),
        cleartext=True,
    )
    Opener(KeySet(())).open(spec, batch)


load_kernels()
