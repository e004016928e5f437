"""A digest of settings and columns: the same for equal values in every process, so that finished stages are found."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

_SCALARS = (str, int, bool, type(None), Fraction, Path, datetime.date, datetime.time)


def digest_of(*parts: Any) -> str:
    """Return 40 hex digits of SHA-256 over values, each with its type and length, so that no two texts run together.

    Takes dataclasses, mappings (in order of their keys), sequences, arrays, enumerations, numbers, text and paths; an
    object with a ``digest`` of its own is known by that. Anything else raises ``TypeError``.
    """
    hasher = hashlib.sha256(b"aggservice stage v1\0")
    _feed(hasher, parts)
    return hasher.hexdigest()[:40]


def _feed(hasher: Any, value: Any) -> None:
    kind = type(value)
    if isinstance(value, np.ndarray):
        _mark(hasher, "array", value.dtype.str, value.shape)
        hasher.update(np.ascontiguousarray(value).data)
    elif isinstance(value, (bytes, bytearray)):
        _mark(hasher, "bytes", len(value))
        hasher.update(value)
    elif isinstance(value, Enum):
        _mark(hasher, kind.__qualname__, value.name)
    elif isinstance(value, float):
        _mark(hasher, "float", value.hex())
    elif isinstance(value, _SCALARS):
        _mark(hasher, kind.__name__, str(value))
    elif isinstance(getattr(value, "digest", None), str) and value.digest:
        _mark(hasher, kind.__qualname__, value.digest)
    elif is_dataclass(value) and not isinstance(value, type):
        _mark(hasher, kind.__qualname__, len(fields(value)))
        for field in fields(value):
            _mark(hasher, field.name)
            _feed(hasher, getattr(value, field.name))
    elif isinstance(value, Mapping):
        _mark(hasher, "mapping", len(value))
        for key in sorted(value):
            _feed(hasher, key)
            _feed(hasher, value[key])
    elif isinstance(value, (tuple, list)):
        _mark(hasher, "sequence", len(value))
        for one in value:
            _feed(hasher, one)
    else:
        raise TypeError(f"a stage cannot depend on a {kind.__name__}: give it columns, text, numbers or dataclasses")


def _mark(hasher: Any, *words: object) -> None:
    text = "\0".join(map(str, words)).encode()
    hasher.update(len(text).to_bytes(8, "big") + text)
