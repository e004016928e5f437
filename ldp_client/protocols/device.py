"""The base classes of protocols, of single devices and of fleets, and the saved state of a device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import short_text
from ldp_client.errors import StateError
from ldp_client.estimation.steps import Step
from ldp_client.sampling.draws import Draws
from ldp_client.sampling.memo import MemoizedAnswers
from ldp_client.sampling.packed import pack, unpack

Key = TypeVar("Key")
Answer = TypeVar("Answer")

_MOST_DIGITS = 30
MEMOIZED_ANSWERS = "memoized answers"


class _Named(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def kind(self) -> str: ...


class _Describes(Protocol):
    def describe(self) -> dict[str, Any]: ...


Owner = TypeVar("Owner", bound=_Describes)


class _OverValues(Protocol):
    @property
    def k(self) -> int: ...


class Described:
    """The base of a protocol: a frozen dataclass whose fields, with its ``kind``, identify it in a saved state."""

    __slots__ = ()

    def describe(self: _Named) -> dict[str, Any]:
        """Return the kind and the parameters, as a saved state holds them."""
        return {"kind": self.kind} | {each.name: getattr(self, each.name) for each in fields(self) if each.init}


class CountsValues(Described):
    """The base of a protocol that estimates the frequency of each of its values 0, …, k − 1."""

    __slots__ = ()

    @property
    def cells(self: _OverValues) -> int:
        """The number of frequencies that are estimated."""
        return self.k

    def cell(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell in which each value is counted: the value itself."""
        return values


class Device(Generic[Owner, Key, Answer]):
    """One device of a protocol: it draws its answer to each key once and keeps it."""

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

    def save(self) -> bytes:
        """Return the state as JSON, for the protocol's ``restore``."""
        return json.dumps({"protocol": self.protocol.describe(), "memo": self._saved()}, sort_keys=True).encode()

    def _saved(self) -> dict[str, Any]:
        """Return what ``save`` stores: the memoized answer to each key. A device with more state overrides this."""
        return {str(key): kept.hex() if isinstance(kept, bytes) else kept for key, kept in self._memo.items()}


class DeviceColumns(Generic[Owner]):
    """The base of a fleet: many devices of one protocol in columns."""

    def __init__(self, protocol: Owner, users: int, bits: Bits) -> None:
        self.protocol = protocol
        self.users = users
        self._bits = bits


class MemoizingColumns(DeviceColumns[Owner]):
    """The base of a fleet that keeps one answer per (user, key), with keys below ``span``, in rows of words."""

    def __init__(self, protocol: Owner, users: int, bits: Bits, *, span: int, width: int = 1) -> None:
        super().__init__(protocol, users, bits)
        self._memo = MemoizedAnswers(users, span, width)

    def memoized(self) -> NDArray[np.int64]:
        """Return how many answers each user has memoized."""
        return self._memo.counts()


def flip_row(draws: Draws, row: NDArray[np.bool_], step: Step) -> bytes:
    """Randomize each bit of a row by ``step``; return the new row, packed."""
    return pack(np.array([draws.coin(step.p if bit else step.q) for bit in row], dtype=np.bool_))


def as_draws(source: Bits | Draws) -> Draws:
    """Return the draws of a client, made from bits if needed."""
    return source if isinstance(source, Draws) else Draws(source)


def load_state(saved: bytes, protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memo of a saved state; StateError if it is broken or of another protocol."""
    state: Any = None
    # Raised below, outside of any handler: the parser's error would hold the whole text, and so the user's values.
    with suppress(ValueError, TypeError, RecursionError):
        state = json.loads(saved)
    if not isinstance(state, dict) or not {"protocol", "memo"} <= state.keys():
        raise StateError("this is not a saved client: give the JSON that `save` returned")
    owner, memo = state["protocol"], state["memo"]
    if owner != protocol:
        raise StateError(
            f"the state belongs to {short_text(owner, 300)}, not to {dict(protocol)}: answers would not be private"
        )
    if not isinstance(memo, dict):
        raise StateError("this is not a saved client: its memo is not a JSON object")
    return memo


def memo_row(text: Any, size: int) -> bytes:
    """Return a packed row of a saved memo from hexadecimal digits; StateError unless it has ``size`` bits."""
    try:
        row = bytes.fromhex(text)
        unpack(row, size)
    except (TypeError, ValueError) as error:
        raise StateError(f"a saved row of bits cannot be read: {error}") from error
    return row


def memo_int(value: Any, size: int, what: str) -> int:
    """Return an integer of a saved memo; StateError if it is outside [0, size)."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise StateError(f"{what} in a saved client must be in [0, {size})")
    return value
