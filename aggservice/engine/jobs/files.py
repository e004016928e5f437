"""Input files of a job: anything that can be opened as a stream, in this process or in another one."""

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
        """The name of the file in error messages."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""

    def open(self) -> BinaryIO:
        """Open the file for reading; InputReadError if that fails."""


def read_domain_file(file: InputFile) -> Iterator[BucketRows]:
    """Yield the keys of a domain file; InputReadError if it cannot be read."""
    try:
        with file.open() as stream:
            yield from read_domain(stream)
    except AvroError as problem:
        raise InputReadError(str(problem)) from problem


def read_report_file(file: InputFile) -> Iterator[ReportBatch]:
    """Yield the reports of a file in batches; InputReadError if it cannot be read."""
    try:
        with file.open() as stream:
            yield from read_reports(stream)
    except AvroError as problem:
        raise InputReadError(str(problem)) from problem
