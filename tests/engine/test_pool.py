"""Worker processes: the same columns as inline, a dead worker's batch done again, bounded waiting."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggservice.engine import (
    EngineError,
    InlineOpener,
    JudgedBatch,
    OpeningSpec,
    ReturnCode,
    WorkerLostError,
    WorkerPool,
)
from aggservice.engine.slots import Slot, batch_from_arrays, batch_to_arrays
from aggservice.wire import ReportBatch

SPEC = OpeningSpec(attribution_report_to="https://adtech.example", reporting_site=None, filtering_ids=(0,), oldest_s=0)


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
                for victim in pool.process_ids:
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
