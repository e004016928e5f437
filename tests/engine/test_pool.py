"""Worker processes: the same columns as inline, a dead worker's batch done again, bounded waiting."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggservice.engine import InlineOpener, WorkerPool
from aggservice.engine.jobs.batches import pieces
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.judging import OpeningSpec
from aggservice.engine.opening.pool import SLOT_BYTES
from aggservice.engine.opening.shared_memory import Slot, batch_from_arrays, batch_to_arrays
from aggservice.job.errors import EngineError, ReturnCode, WorkerLostError
from aggservice.wire import Api, ReportBatch, Spans

from .conftest import process_ids

SPEC = OpeningSpec(
    attribution_report_to="https://adtech.example",
    reporting_site=None,
    filtering_ids=(0,),
    oldest_s=0,
    bounds=((65_536, 65_536),) * len(Api),
)


def same(one: JudgedBatch, other: JudgedBatch) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.arrays(), other.arrays(), strict=True))


def test_batches_survive_being_taken_apart(maker: Any) -> None:
    batch = ReportBatch.of([maker.report({1: index}) for index in range(5)])
    part = batch.slice(2, 4)
    again = batch_from_arrays(batch_to_arrays(part))
    for column in ("payloads", "key_ids", "shared_infos"):
        assert list(getattr(again, column)) == list(getattr(part, column))
    shared = ReportBatch(payloads=batch.payloads, key_ids=batch.payloads, shared_infos=batch.payloads).slice(1, 3)
    assert len(batch_to_arrays(shared)) == 7
    assert list(batch_from_arrays(batch_to_arrays(shared)).key_ids) == list(shared.key_ids)


def test_a_batch_that_does_not_fit_its_slot_goes_beside_it() -> None:
    slot = Slot.create(4096)
    try:
        small, large = [np.arange(10)], [np.arange(100_000)]
        assert not isinstance(slot.put(small), list)
        parcel = slot.put(large)
        assert isinstance(parcel, list)
        assert np.array_equal(slot.get(parcel, copy=True)[0], large[0])
    finally:
        slot.close()


def test_workers_give_what_inline_gives_even_when_they_are_killed(maker: Any) -> None:
    batches = [ReportBatch.of([maker.report({1: row, 2: 3}) for row in range(40)]) for _ in range(12)]
    inline = InlineOpener(maker.keys)
    expected = [inline.submit(SPEC, batch).result() for batch in batches]
    pool = WorkerPool(maker.keys, processes=2)
    try:
        futures = []
        for number, batch in enumerate(batches):
            futures.append(pool.submit(SPEC, batch))
            if number in (4, 8):
                futures[number - 1].result(60)
                for victim in process_ids(pool):
                    os.kill(victim, signal.SIGKILL)
        found = [future.result(120) for future in futures]
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))
        assert pool.replaced >= 1
        # A worker that stops answering is not a dead one, but keys still change under way.
        pool.use_keys(maker.keys.rotate(maker.bits, maker.clock))
        assert same(pool.submit(SPEC, batches[0]).result(60), expected[0])
    finally:
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < 30
    with pytest.raises(EngineError):
        pool.submit(SPEC, batches[0])


def test_a_batch_that_ends_every_worker_fails_alone(maker: Any) -> None:
    batch = ReportBatch.of([maker.report({1: 5})])
    poison = replace(SPEC, filtering_ids=("not a number",))  # type: ignore[arg-type]
    pool = WorkerPool(maker.keys, processes=1)
    try:
        lost = pool.submit(poison, batch)
        good = pool.submit(SPEC, batch)
        with pytest.raises(WorkerLostError) as caught:
            lost.result(120)
        assert caught.value.code == ReturnCode.RETRIES_EXHAUSTED
        assert good.result(120).values.tolist() == [5]
        assert pool.replaced == 3
    finally:
        pool.close()


def test_no_piece_of_a_batch_outgrows_the_shared_memory_on_its_way_there_or_back(maker: Any) -> None:
    """Through the pipe, a reply of many filtering IDs and a batch of long key ids waited for each other for ever."""
    many = replace(SPEC, filtering_ids=tuple(range(256)))
    good = ReportBatch.of([maker.report({1: 1}) for _ in range(1000)])
    long_ids = ReportBatch(
        payloads=Spans.of([b"x"] * 1024),
        key_ids=Spans.of([b"k" * 4080] * 1024),
        shared_infos=Spans.of([b"{}"] * 1024),
    )
    inline = InlineOpener(maker.keys)
    for batch in (good, long_ids):
        divided = pieces(batch, len(many.filtering_ids))
        assert sum(map(len, divided)) == len(batch)
        for piece in divided:
            reply = inline.submit(many, piece).result()
            for arrays in (batch_to_arrays(piece), reply.arrays()):
                assert sum(array.nbytes + 8 for array in arrays) <= SLOT_BYTES
    pool = WorkerPool(maker.keys, processes=1)
    try:
        ready: queue.Queue[Any] = queue.Queue()

        def feed() -> None:
            for batch in (good, long_ids, good, long_ids):
                for piece in pieces(batch, len(many.filtering_ids)):
                    ready.put(pool.submit(many, piece))

        thread = threading.Thread(target=feed, daemon=True)
        thread.start()
        opened = sum(ready.get(timeout=60).result(60).ids.shape[0] for _ in range(2 * _pieces_of(good, long_ids)))
        assert opened == 2 * len(good)
    finally:
        pool.close()


def _pieces_of(*batches: ReportBatch) -> int:
    return sum(len(pieces(batch, 256)) for batch in batches)


def test_a_pool_outlives_a_system_that_has_no_process_to_give(maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ReportBatch.of([maker.report({1: 5})])
    pool = WorkerPool(maker.keys, processes=1)
    try:
        assert pool.submit(SPEC, batch).result(60).values.tolist() == [5]
        real, refused = pool._start, threading.Event()

        def start(*arguments: Any) -> Any:
            refused.set()
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(pool, "_start", start)
        os.kill(process_ids(pool)[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            pool.submit(SPEC, batch).result(60)
        assert refused.is_set()
        monkeypatch.setattr(pool, "_start", real)
        assert pool.submit(SPEC, batch).result(60).values.tolist() == [5]
    finally:
        pool.close()
