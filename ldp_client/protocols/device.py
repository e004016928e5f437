"""What every device of these protocols is: its protocol, its draws, and the answers it keeps for good."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import shown
from ldp_client.errors import StateError
from ldp_client.estimation.steps import Step
from ldp_client.sampling.draws import Draws
from ldp_client.sampling.packed import pack

Owner = TypeVar("Owner")
Key = TypeVar("Key")
Answer = TypeVar("Answer")

_MOST_DIGITS = 30


class Device(Generic[Owner, Key, Answer]):
    """One device of a protocol: it answers each key once and remembers the answer."""

    def __init__(self, protocol: Owner, draws: Draws, memo: dict[Key, Answer]) -> None:
        self.protocol = protocol
        self._draws = draws
        self._memo = memo

    @property
    def memoized(self) -> int:
        """How many answers are memoized; each has cost ε∞ on the user's values."""
        return len(self._memo)

    def _kept(self, key: Key, draw: Callable[[], Answer]) -> Answer:
        """Return the memoized answer to ``key``, drawing it at its first use."""
        kept = self._memo.get(key)
        if kept is None:
            kept = self._memo[key] = draw()
        return kept


def flip_row(draws: Draws, row: NDArray[np.bool_], step: Step) -> bytes:
    """Return a row of bits after one step on each of them, packed."""
    return pack(np.array([draws.coin(step.p if bit else step.q) for bit in row], dtype=np.bool_))


def as_draws(source: Bits | Draws) -> Draws:
    """Return the draws of a client: from bits, or as given."""
    return source if isinstance(source, Draws) else Draws(source)


def save_state(protocol: Mapping[str, Any], memo: Mapping[str, Any]) -> bytes:
    """Return a client's state as JSON: which protocol it is of, and what it has memoized."""
    return json.dumps({"protocol": protocol, "memo": memo}, sort_keys=True).encode()


def load_state(saved: bytes, protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memo of a saved state, refusing one that is broken or of another protocol."""
    state: Any = None
    # Refused below, outside of any handler: the error of a parser holds the whole text, and so the user's values.
    with suppress(ValueError, TypeError, RecursionError):
        state = json.loads(saved)
    if not isinstance(state, dict) or not {"protocol", "memo"} <= state.keys():
        raise StateError("not a saved client: it must be JSON with a protocol and a memo, as `save` returns it")
    owner, memo = state["protocol"], state["memo"]
    if owner != protocol:
        raise StateError(
            f"the state is of a client of {shown(owner, 300)}, not of {dict(protocol)}: answers would not be private"
        )
    if not isinstance(memo, dict):
        raise StateError("not a saved client: the memo is not a table")
    return memo


def memo_int(value: Any, size: int, what: str) -> int:
    """Return a whole number of a saved memo, refusing one outside [0, size)."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise StateError(f"{what} in a saved client must be in [0, {size})")
    return value
