"""Nothing that a caller sees before a charge depends on what reports hold (docs/design.md, semantics 8).

Hypothesis drives histories of calls in pairs of worlds whose reports differ in their sealed payloads alone; see
``histories`` for what they contain and ``interference`` for what is compared. A failure prints the history.
``AGGSERVICE_HISTORIES_SEED`` gives the soak other histories; ``replay`` runs one of them again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service.embedded import run_service

from .histories import Asks, Drawing, History, Part, Seeded, Stream
from .in_process import Answer
from .interference import STEP_MS, Driver, InterferenceError, Machine, Seen, running_machine
from .mutants import MUTANTS, Mutant
from .worlds import Setup

KINDS: dict[str, dict[str, bool]] = {
    "streams": {},
    "files": {"files": True},
    "full disks": {"faults": True},
    "files on full disks": {"files": True, "faults": True},
    "worker processes": {"pool": True},
    "a second caller": {"spied": True},
}
SHARES = ["streams"] * 9 + ["files"] * 4 + ["a second caller"] * 2
SHARES += ["full disks"] * 2 + ["files on full disks"] * 2 + ["worker processes"]
EXAMPLES = {kind: 2_000 * SHARES.count(kind) // len(SHARES) for kind in KINDS}
SOAK_HISTORIES = 200_000
SOAK_SEED = os.environ.get("AGGSERVICE_HISTORIES_SEED", "soak")
MUTANT_HISTORIES = 3_000


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with running_machine() as running:
        yield running


@cache
def _below(number: int) -> st.SearchStrategy[int]:
    return st.integers(0, number - 1)


class _Drawn:
    """Choices of hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        return self._draw(_below(count))


@st.composite
def histories(draw: Callable[[st.SearchStrategy[int]], int], machine: Machine, kind: str) -> History:
    return Drawing(_Drawn(draw), machine.reports, machine.names).history(**KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_worlds_that_differ_in_sealed_payloads_look_the_same(machine: Machine, kind: str) -> None:
    before = machine.tally.charged

    @settings(
        max_examples=EXAMPLES[kind],
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(histories(machine, kind))
    def run(history: History) -> None:
        machine.run(history)

    run()
    assert machine.tally.charged > before  # histories in which nobody pays compare little


def seeded(machine: Machine, number: int, seed: str = SOAK_SEED) -> History:
    """Return the history of a number; the same on every machine."""
    return Drawing(Seeded(f"{seed} {number}"), machine.reports, machine.names).history(
        **KINDS[SHARES[number % len(SHARES)]]
    )


def replay(number: int, seed: str = SOAK_SEED) -> None:
    """Run one history of the soak again."""
    with running_machine() as machine:
        machine.run(seeded(machine, number, seed))


@pytest.mark.soak
@pytest.mark.parametrize("quarter", range(4))
def test_200_000_histories_look_the_same(machine: Machine, quarter: int) -> None:
    """All quarters together; each can run in a process of its own (``-n 2``)."""
    start = time.process_time()
    for number in range(quarter, SOAK_HISTORIES, 4):
        try:
            machine.run(seeded(machine, number))
        except BaseException as problem:
            problem.add_note(f"run it again with replay({number}, {SOAK_SEED!r})")
            raise
    seconds = time.process_time() - start
    print(f"\n{SOAK_HISTORIES // 4:,} histories, {4e3 * seconds / SOAK_HISTORIES:.1f} ms each: {machine.tally}")
    assert machine.tally.differing > 0


def test_histories_charge_refuse_fail_and_cancel(machine: Machine) -> None:
    """What is compared is worth comparing: of every way to end, histories have some."""
    tally = type(machine.tally)()
    kept, machine.tally = machine.tally, tally
    try:
        for number in range(300):
            machine.run(seeded(machine, number, "ends"))
    finally:
        machine.tally = kept
    assert tally.charged > 50 and tally.differing > 20
    ends = {"OK", "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION"}
    assert ends | {"ALREADY_EXISTS", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED"} <= set(tally.codes)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_each_break_put_back_is_found(machine: Machine, mutant: Mutant) -> None:
    """A history tells two worlds apart with the break, and cannot without it."""
    for number in range(MUTANT_HISTORIES):
        choices = Seeded(f"{mutant.__name__} {number}")  # type: ignore[attr-defined]
        history = Drawing(choices, machine.reports, machine.names).history(**MUTANTS[mutant])
        try:
            with mutant():
                machine.run(history)
        except InterferenceError:
            try:
                machine.run(history)
            except InterferenceError:
                continue
            return
    pytest.fail(f"{MUTANT_HISTORIES} histories did not find it")


FOUND = {
    "SQLite empties its log between the two attempts at a result": History(
        setup=Setup(epsilon="128", sqlite=True, rows_in_ledger=3, file_bytes=94_802),
        steps=(
            Stream(
                job="a",
                asks=Asks(delta="0.000000000000000001", filtering_ids="0"),
                parts=(
                    Part("parameters"),
                    Part("domain", (7, 6, 4)),
                    Part("reports", (6, 9)),
                    Part("reports", (4,)),
                    Part("end", (3,)),
                ),
            ),
        ),
    ),
}
"""Histories that told two worlds apart, by what was wrong."""


@pytest.mark.parametrize("wrong", FOUND)
def test_histories_that_were_found_look_the_same(machine: Machine, wrong: str) -> None:
    machine.run(FOUND[wrong])


class _OverGrpc:
    """Makes the calls of a history to a real server."""

    def __init__(self, driver: Driver, address: str) -> None:
        self._driver = driver
        self._channel = grpc.insecure_channel(address)

    def close(self) -> None:
        self._channel.close()

    def again(self, seen: Seen) -> Answer:
        """Make a call that was made in process, and return its answer."""
        service = "Aggregation" if seen.method in _OF_JOBS else "Budget"
        path = f"/aggservice.v1.{service}Service/{seen.method}"
        if seen.method == "Aggregate":
            call = self._channel.stream_stream(path)(iter(seen.requests[:-1]), timeout=60)
        else:
            call = self._channel.unary_stream(path)(seen.requests[0], timeout=60)
        messages = []
        with suppress(grpc.RpcError):
            messages = list(call)
        trailers = [(key, value) for key, value in call.trailing_metadata() or () if key == "grpc-status-details-bin"]
        return self._driver.world.without_paths(
            Answer(messages=tuple(messages), code=call.code().name, text=call.details(), trailers=tuple(trailers))
        )


_OF_JOBS = ("Aggregate", "CreateJob", "GetJob", "WatchJob", "CancelJob", "GetSummary")


def _comparable(seen: Seen, answer: Answer) -> object:
    """Return what does not depend on time: not progress, nor how often a watcher was told."""
    messages = answer.messages
    if seen.method == "WatchJob":
        messages = messages[-1:] if answer.code == "OK" else ()
    elif seen.method == "Aggregate":
        parts = [aggregation_pb2.AggregateResponse.FromString(raw).WhichOneof("part") for raw in messages]
        messages = tuple(raw for raw, part in zip(messages, parts, strict=True) if part != "progress")
    if answer.code == "RESOURCE_EXHAUSTED" and "larger than max" in answer.text:
        return messages, answer.code, "", ()
    return messages, answer.code, answer.text, answer.trailers


def test_a_real_server_gives_the_answers_that_were_compared(machine: Machine) -> None:
    """50 histories, call by call, in process and over gRPC, to services of the same seed: the same bytes."""
    calls = 0
    for number in range(50):
        drawing = Drawing(Seeded(f"grpc {number}"), machine.reports, machine.names)
        history = drawing.history(calm=True, files=number % 2 == 1)
        with history.setup.applied():
            here = machine.driver(history)
            expected = [here.take(step) for step in history.steps]
            here.close()
            there = machine.driver(history)
            with run_service(there.world.service) as running:
                over = _OverGrpc(there, running.address)
                for step in expected:
                    there.world.clock.advance(STEP_MS)
                    for seen in step:
                        found, wanted = over.again(seen), seen.answer
                        assert _comparable(seen, found) == _comparable(seen, wanted), (number, history, seen.method)
                        calls += 1
                over.close()
            shutil.rmtree(there.world.root, ignore_errors=True)
    assert calls >= 100
