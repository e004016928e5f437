"""Slots for jobs: bounded, first come first served, and never all with one caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.service import Limits
from aggservice.service.errors import BusyError
from aggservice.service.jobs.slots import JobSlots
from aggservice.service.metrics import Metrics


class Job:
    """A job that holds its slot until ``end`` is set."""

    def __init__(self, slots: JobSlots, caller: str) -> None:
        self.caller = caller
        self.running = False
        self.end = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(slots))

    async def _run(self, slots: JobSlots) -> None:
        async with slots.take(self.caller):
            self.running = True
            try:
                await self.end.wait()
            finally:
                self.running = False


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 30))


def test_one_caller_leaves_a_slot_to_the_others() -> None:
    async def body() -> None:
        slots = JobSlots(jobs=3, per_caller=2, waiting=4, metrics=Metrics())
        greedy = [Job(slots, "greedy") for _ in range(4)]
        await settled()
        assert [job.running for job in greedy] == [True, True, False, False]
        with pytest.raises(BusyError, match="full; 2 of your jobs wait"):
            async with slots.take("greedy"):
                pass
        other = Job(slots, "other")
        await settled()
        assert other.running
        greedy[0].end.set()
        await settled()
        assert [job.running for job in greedy] == [False, True, True, False]
        for job in (*greedy, other):
            job.end.set()
        await asyncio.gather(*(job.task for job in (*greedy, other)))

    run(body())


def test_the_share_of_a_caller() -> None:
    assert Limits(jobs=4).share(0) == 4 == Limits(jobs=4).share(1)
    assert Limits(jobs=4).share(2) == 3
    assert Limits(jobs=1).share(2) == 1
    assert Limits(jobs=4, jobs_per_caller=2).share(1) == 2
    assert Limits(jobs=4, jobs_per_caller=9).share(5) == 4


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "end", "cancel"]), st.integers(0, 2), st.integers(0, 30)), max_size=40
)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 4), st.integers(1, 4), STEPS)
def test_whoever_comes_and_goes_no_slot_is_lost_or_given_twice(jobs: int, share: int, steps: list[Any]) -> None:
    async def body() -> None:
        metrics = Metrics()
        slots = JobSlots(jobs=jobs, per_caller=share, waiting=1000, metrics=metrics)
        alive: list[Job] = []
        everyone: list[Job] = []
        for action, caller, which in steps:
            if action == "begin":
                alive.append(Job(slots, f"caller {caller}"))
                everyone.append(alive[-1])
            elif alive:
                job = alive.pop(which % len(alive))
                if action == "end":
                    job.end.set()
                else:
                    job.task.cancel()
            if which % 3:
                await settled()  # else the next step comes in the same moment
        await settled()
        running = [job.caller for job in alive if job.running]
        assert len(running) <= jobs
        for name in {job.caller for job in alive}:
            mine = running.count(name)
            assert mine <= share
            # A caller that waits has its share, or no slot is left.
            if any(job.caller == name and not job.running for job in alive):
                assert mine == share or len(running) == jobs
        for job in alive:
            job.end.set()
        await asyncio.gather(*(job.task for job in everyone), return_exceptions=True)
        assert slots._free == jobs and not slots._held and not slots._queue

    run(body())


def test_a_slot_granted_to_a_call_that_ended_goes_to_the_next() -> None:
    """The call is cancelled after the slot was granted and before it wakes up."""

    async def body() -> None:
        slots = JobSlots(jobs=1, per_caller=1, waiting=4, metrics=Metrics())
        first, cancelled, last = (Job(slots, name) for name in ("first", "cancelled", "last"))
        await settled()
        first.end.set()
        await asyncio.sleep(0)
        assert first.task.done() and not cancelled.running and slots.free() == 0
        cancelled.task.cancel()
        await settled()
        assert last.running
        last.end.set()
        await asyncio.gather(first.task, cancelled.task, last.task, return_exceptions=True)
        assert slots.free() == 1

    run(body())
