"""The one encoding of everything that is hashed or signed: JSON with sorted keys, no spaces, ASCII, no floats.

Every object has exactly one encoding, and decoding refuses any other, so that any changed byte of a log, checkpoint or
receipt is detected. Numbers are integers below 2⁵³; larger ones and amounts are decimal text; bytes are lower-case hex.
"""

from __future__ import annotations

import json
from typing import Any, Final

from budget.errors import FormatError

_NUMBER_MAX: Final = 2**53
_DEPTH_MAX: Final = 12


def _check(value: object, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise FormatError(f"the value is nested more than {_DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise FormatError(f"a key must be text, not {type(key).__name__}")
            _check(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if not -_NUMBER_MAX < value < _NUMBER_MAX:
            raise FormatError(f"the number {value} is not below 2^53: write it as text")
    elif not isinstance(value, str):
        raise FormatError(f"{type(value).__name__} has no canonical encoding")


def encode(value: dict[str, Any]) -> bytes:
    """Return the canonical bytes of ``value``: dicts, lists, texts and integers only.

    >>> encode({"b": [1, "é"], "a": {}})
    b'{"a":{},"b":[1,"\\\\u00e9"]}'
    """
    _check(value, 0)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def decode(raw: bytes) -> dict[str, Any]:
    """Return the object that ``raw`` encodes, or FormatError if ``raw`` is not its canonical encoding."""
    try:
        value = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError) as problem:
        raise FormatError(f"these bytes are not canonical JSON: {problem}") from problem
    if not isinstance(value, dict):
        raise FormatError("these bytes are not a JSON object")
    if encode(value) != raw:
        raise FormatError("these bytes are JSON, but not in canonical form")
    return value
