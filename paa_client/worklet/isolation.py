"""Running worklet code: in this process, or in a child process that ends at a deadline.

Worklet code acts on the browser through effects (``paa_client.effects``), which are applied as they happen.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from paa_client.effects import Effect, Emit

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class WorkletOutcome:
    """How worklet code ended. ``message`` says what it threw, for the console; ``result`` is what it returned."""

    result: object = None
    message: str | None = None
    deadline_reached: bool = False


def run_worklet(work: Callable[[Emit], object], apply: Emit, deadline_ms: int | None) -> WorkletOutcome:
    """Run ``work`` and apply each of its effects as it happens; an exception in ``work`` goes to the outcome.

    With a deadline, ``work`` runs in a child process that is stopped after that much real time; effects before the
    deadline count. The result must then consist of plain values.
    """
    if deadline_ms is None:
        return _contain(work, apply)
    return _in_child(work, apply, deadline_ms)


def _contain(work: Callable[[Emit], object], emit: Emit) -> WorkletOutcome:
    try:
        return WorkletOutcome(result=work(emit))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return WorkletOutcome(message=_describe(error))


def _describe(error: BaseException) -> str:
    """Return one line about ``error``. Its ``__str__`` is worklet code too and may throw."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def _in_child(work: Callable[[Emit], object], apply: Emit, deadline_ms: int) -> WorkletOutcome:
    """Run ``work`` in a forked child, which sends each effect as a line of JSON: the parent reads only plain values."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        os.close(reader)
        _be_child(work, writer)
    os.close(writer)
    try:
        return _follow(reader, apply, deadline_ms)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _be_child(work: Callable[[Emit], object], writer: int) -> None:  # pragma: no cover - runs in the child
    def emit(effect: Effect) -> None:
        line = json.dumps(effect).encode() + b"\n"
        while line:
            line = line[os.write(writer, line) :]

    try:
        outcome = _contain(work, emit)
        try:
            emit(("end", outcome.message, outcome.result))
        except (TypeError, ValueError, RecursionError):
            emit(("end", "what the worklet returned is not plain values", None))
    finally:
        os._exit(0)


def _follow(reader: int, apply: Emit, deadline_ms: int) -> WorkletOutcome:
    """Apply the child's effects until it ends or the deadline passes; return how it ended."""
    deadline = time.monotonic() + deadline_ms / 1000
    poll = select.poll()  # unlike select(), for descriptors of any number
    poll.register(reader, select.POLLIN)
    pending = b""
    while True:
        remaining_ms = 1000 * (deadline - time.monotonic())
        if remaining_ms <= 0 or not poll.poll(math.ceil(remaining_ms)):
            return WorkletOutcome(message=f"ended at the deadline of {deadline_ms} ms", deadline_reached=True)
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            return WorkletOutcome(message="the worklet's process died")
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            effect = tuple(json.loads(line))
            if effect[0] == "end":
                return WorkletOutcome(message=effect[1], result=effect[2])
            apply(effect)
