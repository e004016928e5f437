"""Seals reports in columns into Avro shards, in this process or in several.

Each task has its own random bits and its own file, so the result does not depend on the number of processes. Payloads
are made by writing contributions into copies of the null payload, which is already padded.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import ReportColumns
from aggservice.campaign.settings.campaign import Campaign
from aggservice.engine.opening import pool
from aggservice.mechanisms import Bits, SecureBits, SeededBits, uniform_below_batch
from aggservice.wire import (
    AggregatableReport,
    Api,
    Contribution,
    PublicKeySet,
    ReportBatch,
    ReportWriter,
    SharedInfo,
    Spans,
    encode_payload,
    seal,
)
from aggservice.wire.avro.shards import shard_name
from aggservice.wire.hpke.sealing import OVERHEAD_BYTES
from aggservice.wire.report.body import SealedPayload

ARA_SLOTS = 20
PIECE_REPORTS = 10_000
POOL_FROM_REPORTS = 20_000
"""With fewer reports, starting processes takes longer than it saves."""

_ROWS_AT_ONCE = 2_000
_MARK = 0x7F7E7D7C


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingSettings:
    """What all reports of a campaign have in common: the fields of ``shared_info`` and the service's keys.

    ``numbers`` are further public numbers of every report by their names in ``SharedInfo``.
    """

    api: Api
    reporting_origin: str
    destinations: tuple[str, ...]
    slots: int
    public_keys: str
    through_json: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict)


def sealing_settings(campaign: Campaign, public_keys: str) -> SealingSettings:
    """Return what all reports of the campaign have in common."""
    return SealingSettings(
        api=campaign.client.wire_api,
        reporting_origin=campaign.reporting_origin,
        destinations=campaign.population.destinations,
        slots=ARA_SLOTS,
        public_keys=public_keys,
        through_json=campaign.collection.through == "json",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingTask:
    """Reports that one process seals into one file; ``seed`` is None in a private run."""

    path: Path
    columns: ReportColumns
    seed: bytes | None


def sealing_tasks(
    reports: ReportColumns, rows: Sequence[NDArray[np.int64]], folder: Path, bits: Bits
) -> list[SealingTask]:
    """Return one task per file ``folder/003/reports-01-of-12.avro`` of every batch; an empty batch has one file."""
    pieces = []
    for number, members in enumerate(rows):
        place = folder / f"{number:03d}"
        total = max(1, -(-members.size // PIECE_REPORTS))
        for shard in range(total):
            part = members[shard * PIECE_REPORTS : (shard + 1) * PIECE_REPORTS]
            pieces.append(
                SealingTask(
                    path=place / shard_name("reports.avro", shard + 1, total),
                    columns=reports.taken(part),
                    seed=None if bits.private else bits.child(f"batch {number} shard {shard}").read(32),
                )
            )
    return pieces


def start_fork_server() -> None:
    """Start the process that forks the workers for sealing and opening, so that it imports during other work."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", __name__, *pool.PRELOADED])
    forkserver.ensure_running()


def seal_all(
    pieces: Sequence[SealingTask],
    addressee: SealingSettings,
    *,
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Run every task and return the number of reports.

    One worker means this process; with several, it seals until the first of them has started.
    """
    for folder in {piece.path.parent for piece in pieces}:
        folder.mkdir(parents=True, exist_ok=True)
    done, left = 0, list(pieces)

    def seal_until(stop: Callable[[], bool]) -> None:
        nonlocal done
        while left and not stop():
            add(seal_piece(left.pop(), addressee))

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done)

    few = sum(len(piece.columns) for piece in pieces) < POOL_FROM_REPORTS
    if workers <= 1 or len(pieces) <= 1 or few:
        seal_until(lambda: False)
        return done
    context = multiprocessing.get_context("forkserver")
    with (
        ProcessPoolExecutor(max_workers=min(workers, len(pieces)), mp_context=context) as sealers,
        ThreadPoolExecutor(max_workers=1) as starter,
    ):
        started = starter.submit(sealers.submit, int)  # waits until the fork server has finished its imports
        seal_until(started.done)
        started.result()
        for finished in as_completed([sealers.submit(seal_piece, piece, addressee) for piece in left]):
            add(finished.result())
    return done


def seal_piece(piece: SealingTask, addressee: SealingSettings) -> int:
    """Seal the reports of one task into its Avro file."""
    with ReportWriter(piece.path) as writer:
        bits = SecureBits() if piece.seed is None else SeededBits(piece.seed)
        for batch in sealed_batches(piece.columns, addressee, bits):
            writer.write(through_collector(batch, addressee.api) if addressee.through_json else batch)
    return len(piece.columns)


def through_collector(batch: ReportBatch, api: Api) -> ReportBatch:
    """Return the reports after posting each as JSON to a collector, at the well-known endpoint of its API."""
    # Imported here because it is large and most worker processes do not need it.
    from aggservice.service.http.collector import ENDPOINTS, accept

    path = next(path for path, endpoint in ENDPOINTS.items() if endpoint.api == api)
    taken = []
    for payload, key_id, info in zip(batch.payloads, batch.key_ids, batch.shared_infos, strict=True):
        sealed = SealedPayload(payload=payload, key_id=key_id.decode())
        body = AggregatableReport(shared_info=info.decode(), payloads=(sealed,)).to_json()
        _, report, _ = accept(path, body.encode())
        assert report is not None
        taken.append(report)
    return ReportBatch.of(taken)


def sealed_batches(reports: ReportColumns, addressee: SealingSettings, bits: Bits) -> Iterator[ReportBatch]:
    """Seal the reports and yield them in batches of a few thousand."""
    keys = PublicKeySet.parse(addressee.public_keys).keys
    for plain, infos in plain_batches(reports, addressee):
        count = len(plain)
        picks = uniform_below_batch(bits, len(keys), count).tolist() if len(keys) > 1 else [0] * count
        sealed = bytearray()
        for payload, info, pick in zip(plain, infos, picks, strict=True):
            sealed += seal(payload, shared_info=info, key=keys[pick].key, bits=bits)
        size = len(plain[0]) + OVERHEAD_BYTES
        starts = np.arange(count, dtype=np.int64) * size
        yield ReportBatch(
            payloads=Spans(buffer=np.frombuffer(sealed, dtype=np.uint8), starts=starts, stops=starts + size),
            key_ids=Spans.of([keys[pick].id.encode() for pick in picks]),
            shared_infos=Spans.of(infos),
        )


def plain_batches(reports: ReportColumns, addressee: SealingSettings) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield the payloads, not sealed, and the ``shared_info`` of a few thousand reports at a time."""
    payloads = Payloads(addressee.slots)
    heads, tail = _shared_info_parts(addressee)
    for start in range(0, len(reports), _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, len(reports))
        ids = reports.report_id[start:stop].tobytes().hex()
        times = (reports.scheduled_ms[start:stop] // 1000).tolist()
        infos = []
        for row, destination in enumerate(reports.destination[start:stop].tolist()):
            h = ids[32 * row : 32 * row + 32]
            before, middle = heads[destination]
            text = f"{before}{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}{middle}{times[row]}{tail}"
            infos.append(text.encode())
        yield payloads.encode(reports, start, stop), infos


def _shared_info_parts(addressee: SealingSettings) -> tuple[list[tuple[str, str]], str]:
    """Return the text of ``shared_info`` around the report id and the time, per destination, as ``wire`` writes it."""
    heads, tail = [], ""
    nothing = "00000000-0000-0000-0000-000000000000"
    for destination in addressee.destinations:
        text = SharedInfo(
            api=addressee.api,
            report_id=nothing,
            reporting_origin=addressee.reporting_origin,
            scheduled_report_time_s=_MARK,
            attribution_destination=destination if addressee.api.has_destination else None,
            **addressee.numbers,  # type: ignore[arg-type]
        ).serialise()
        before, _, rest = text.partition(nothing)
        middle, _, tail = rest.partition(str(_MARK))
        heads.append((before, middle))
    return heads, tail


class Payloads:
    """Encodes payloads with a fixed number of slots, byte for byte as ``wire.encode_payload`` does."""

    def __init__(self, slots: int) -> None:
        null = encode_payload([], maximum=slots)
        mark = Contribution(bucket=int.from_bytes(b"\xf1" * 16, "big"), value=0x61626364, filtering_id=0xF7)
        one = encode_payload([mark], maximum=slots)
        self.size = len(null)
        self.slots = slots
        self._null = np.frombuffer(null, dtype=np.uint8)
        self._bucket = one.index(b"\xf1" * 16)
        self._value = one.index(b"abcd")
        self._id = one.index(b"\xf7")
        self._step = (self.size - len(encode_payload([], maximum=0))) // slots if slots < 24 else 0
        if slots >= 24:
            self._step = len(encode_payload([], maximum=25)) - len(encode_payload([], maximum=24))

    def encode(self, reports: ReportColumns, start: int, stop: int) -> list[bytes]:
        """Return the payloads of reports ``start`` to ``stop``."""
        count = stop - start
        out = np.tile(self._null, (count, 1))
        first, last = int(reports.offset[start]), int(reports.offset[stop])
        sizes = np.diff(reports.offset[start : stop + 1])
        if sizes.max(initial=0) > self.slots:
            raise ValueError(f"a report has {sizes.max()} contributions: it has room for {self.slots}")
        row = np.repeat(np.arange(count), sizes)
        slot = np.arange(first, last) - np.repeat(reports.offset[start:stop], sizes)
        base = (slot * self._step)[:, None]
        keys = np.empty((last - first, 2), dtype=">u8")
        keys[:, 0], keys[:, 1] = reports.key_high[first:last], reports.key_low[first:last]
        values = reports.value[first:last].astype(">u4")
        where: Any = row[:, None]
        out[where, self._bucket + base + np.arange(16)] = keys.view(np.uint8).reshape(-1, 16)
        out[where, self._value + base + np.arange(4)] = values.view(np.uint8).reshape(-1, 4)
        out[where, self._id + base] = reports.filtering_id[first:last].astype(np.uint8)[:, None]
        whole = out.tobytes()
        return [whole[self.size * one : self.size * (one + 1)] for one in range(count)]
