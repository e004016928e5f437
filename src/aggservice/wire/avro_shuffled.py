"""Shuffled local reports in Avro: ``ShuffledReport{report: bytes}``, in the order in which they were shuffled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import fastavro

from aggservice.wire.avro_schemas import RecordSchema
from aggservice.wire.errors import AvroError

SHUFFLED = RecordSchema("ShuffledReport", (("report", "bytes"),))


def write_shuffled(path: Path, reports: Iterable[bytes]) -> None:
    """Write reports, one a record."""
    schema = fastavro.parse_schema(json.loads(SHUFFLED.to_json()))
    with path.open("wb") as file:
        fastavro.writer(file, schema, ({"report": report} for report in reports), codec="null")


def read_shuffled(file: BinaryIO, name: str = "shuffled reports") -> Iterator[bytes]:
    """Yield the reports of a file; raise ``AvroError`` when it is none of shuffled reports."""
    try:
        reader = fastavro.reader(file)
        SHUFFLED.check(json.dumps(reader.writer_schema).encode())
        for record in reader:
            yield record["report"]
    except (ValueError, KeyError, EOFError, StopIteration) as error:
        raise AvroError(name, 0, f"not a file of shuffled reports: {error}") from None
