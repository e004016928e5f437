"""Files that a job reads: whatever opens as a stream, here or in another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Protocol

from aggservice.engine.errors import InputReadError
from aggservice.wire import BucketRows, ReportBatch, read_domain, read_reports
from aggservice.wire.errors import AvroError


class InputFile(Protocol):
    """A file of reports or of keys. It pickles, so that another process can open it."""

    @property
    def name(self) -> str:
        """What errors call the file."""

    @property
    def size(self) -> int:
        """How many bytes the file has."""

    def open(self) -> BinaryIO:
        """Open the file for reading; InputReadError if that fails."""


def read_domain_file(file: InputFile) -> Iterator[BucketRows]:
    """Yield the keys of a domain file."""
    try:
        with file.open() as stream:
            yield from read_domain(stream)
    except AvroError as problem:
        raise InputReadError(str(problem)) from problem


def read_report_file(file: InputFile) -> Iterator[ReportBatch]:
    """Yield the reports of a file in batches."""
    try:
        with file.open() as stream:
            yield from read_reports(stream)
    except AvroError as problem:
        raise InputReadError(str(problem)) from problem
