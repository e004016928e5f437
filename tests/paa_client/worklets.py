"""Operations and the browsers that run them, for the tests of what a worklet may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aggservice import wire
from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Browser, specification
from paa_client.config import AWS_COORDINATOR

ORIGIN = "https://ad.example"
START_MS = 1_700_000_040_000
CLOCK = ManualClock(START_MS)
KEYS = wire.KeySet.create(SeededBits("isolation keys"), CLOCK)
#: Far longer than any operation that is expected to end takes, on a busy machine too.
AMPLE_MS = 60_000

Operation = Callable[[Any, Any, Any], object]


def secret_of(storage: Any) -> str:
    return storage.get("secret") or ""


def returns(storage: Any, aggregation: Any, data: Any) -> str:
    return secret_of(storage)


def browser_with(operation: Operation, secret: str, deadline_ms: int | None) -> Browser:
    config = specification(operation_deadline_ms=deadline_ms, debug_mode_allowed=False)
    keys = {AWS_COORDINATOR: KEYS.public(CLOCK)}
    browser = Browser(clock=ManualClock(START_MS), bits=SeededBits("same"), config=config, keys=keys)
    browser.storage(ORIGIN).set("secret", secret)
    browser.register(ORIGIN, "operation", operation)
    return browser
