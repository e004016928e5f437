"""Running worklet code: in this process, or in a child process that ends at a deadline.

Worklet code acts on the browser through effects, tuples of plain values, that are passed on as they happen.
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
from typing import Any

Effect = tuple[Any, ...]
"""One thing worklet code did: a name and plain values (text, whole numbers, floats, truth values, lists of them)."""

Emit = Callable[[Effect], None]

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """How worklet code ended. ``message`` says what it threw, for the console; ``result`` is what it returned."""

    result: object = None
    message: str | None = None
    deadline_reached: bool = False


def execute(work: Callable[[Emit], object], apply: Emit, deadline_ms: int | None) -> Outcome:
    """Do ``work``, with each of its effects applied as it happens; nothing it throws comes out.

    With a deadline the work runs in a child process (its result must then be plain values) and is ended when that
    much real time has passed; what it did before that counts.
    """
    if deadline_ms is None:
        return _contain(work, apply)
    return _in_child(work, apply, deadline_ms)


def _contain(work: Callable[[Emit], object], emit: Emit) -> Outcome:
    try:
        return Outcome(result=work(emit))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(message=_describe(error))


def _describe(error: BaseException) -> str:
    """Return a line about ``error``, whose own ``__str__`` may throw: it is worklet code too."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def _in_child(work: Callable[[Emit], object], apply: Emit, deadline_ms: int) -> Outcome:
    """Fork; the child writes each effect as a line of JSON, so the parent only ever reads plain values."""
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


def _follow(reader: int, apply: Emit, deadline_ms: int) -> Outcome:
    """Apply what the child says until it ends or its time is over."""
    deadline = time.monotonic() + deadline_ms / 1000
    poll = select.poll()  # unlike select(), for descriptors of any number
    poll.register(reader, select.POLLIN)
    pending = b""
    while True:
        remaining_ms = 1000 * (deadline - time.monotonic())
        if remaining_ms <= 0 or not poll.poll(math.ceil(remaining_ms)):
            return Outcome(message=f"ended at the deadline of {deadline_ms} ms", deadline_reached=True)
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            return Outcome(message="the worklet's process died")
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            effect = tuple(json.loads(line))
            if effect[0] == "end":
                return Outcome(message=effect[1], result=effect[2])
            apply(effect)
