"""The Avro schemas of the deployed service: reports, output domains, summaries and debug summaries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from aggservice.wire.errors import WireError

_TAGS = {"type": "enum", "name": "bucket_tags", "symbols": ["in_domain", "in_reports"]}
IN_DOMAIN, IN_REPORTS = 1, 2
"""The annotations of a debug summary's row, as bits: the symbols above in order."""


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A record's name and its fields in order, each a name and a type."""

    name: str
    fields: tuple[tuple[str, Any], ...]

    def to_json(self) -> str:
        """Return the schema as it is written in a file's header."""
        fields = [{"name": name, "type": kind} for name, kind in self.fields]
        return json.dumps({"type": "record", "name": self.name, "fields": fields}, separators=(",", ":"))

    def check(self, text: bytes) -> None:
        """Raise ``WireError`` unless ``text`` is this schema; documentation and namespaces are ignored."""
        try:
            found = json.loads(text)
            fields = tuple((field["name"], _plain(field["type"])) for field in found["fields"])
            kind = found["type"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise WireError("the schema of the file is not a record schema") from None
        if kind != "record" or fields != tuple((name, _plain(wanted)) for name, wanted in self.fields):
            raise WireError(f"the schema of the file is {_brief(found)}: expected {_brief(json.loads(self.to_json()))}")


def _plain(kind: Any) -> Any:
    """Return a type without the parts that do not change its encoding."""
    if isinstance(kind, dict):
        inner = kind["type"]
        if inner == "array":
            return ("array", _plain(kind["items"]))
        if inner == "enum":
            return ("enum", tuple(kind["symbols"]))
        return _plain(inner)
    return kind


def _brief(schema: Any) -> str:
    names = ", ".join(f"{field['name']}: {_plain(field['type'])}" for field in schema["fields"])
    return f"{schema.get('name')}{{{names}}}"


REPORT = RecordSchema("AggregatableReport", (("payload", "bytes"), ("key_id", "string"), ("shared_info", "string")))
BUCKET = RecordSchema("AggregationBucket", (("bucket", "bytes"),))
FACT = RecordSchema("AggregatedFact", (("bucket", "bytes"), ("metric", "long")))
DEBUG_FACT = RecordSchema(
    "DebugAggregatedFact",
    (
        ("bucket", "bytes"),
        ("unnoised_metric", "long"),
        ("noise", "long"),
        ("annotations", {"type": "array", "items": _TAGS}),
    ),
)


LONG_BYTES = 10
"""The most bytes that a 64-bit number takes."""


@njit(cache=True)
def read_long(buffer, at, stop):  # type: ignore[no-untyped-def]
    """Return (number, position after it), reading no further than ``stop``; the position is -1 on failure."""
    zigzag = np.uint64(0)
    for index in range(LONG_BYTES):
        if at >= stop:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(buffer[at])
        at += 1
        if index == LONG_BYTES - 1 and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        zigzag |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(0x80):
            half = np.int64(zigzag >> np.uint64(1))
            return half ^ -np.int64(zigzag & np.uint64(1)), np.int64(at)
    return np.int64(0), np.int64(-1)


@njit(cache=True)
def write_long(number, buffer, at):  # type: ignore[no-untyped-def]
    """Write ``number`` at ``at`` and return the position after it; there must be room for ten bytes."""
    wide = np.int64(number)
    zigzag = np.uint64(wide << np.int64(1)) ^ np.uint64(wide >> np.int64(63))
    while zigzag > np.uint64(0x7F):
        buffer[at] = np.uint8(zigzag & np.uint64(0x7F)) | np.uint8(0x80)
        zigzag >>= np.uint64(7)
        at += 1
    buffer[at] = np.uint8(zigzag)
    return at + 1
