"""A collector: writes reports that browsers post to the well-known endpoints into Avro batches that jobs can read.

It belongs to the ad-tech and holds no key: payloads stay sealed. A batch covers a period of ``scheduled_report_time``.
The answer 200 means that the report is on disk. Debug copies and event-level reports go into separate folders, so that
no job reads a report twice.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NoReturn

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from aggservice.mechanisms import Clock
from aggservice.service.http.app import BodyError, read_body
from aggservice.wire import AggregatableReport, Api, ReportBatch, ReportWriter, SharedInfo, WireError
from aggservice.wire.avro.container import whole_bytes
from aggservice.wire.avro.schemas import REPORT
from aggservice.wire.errors import ReportBodyError
from aggservice.wire.report.body import MAX_BODY_BYTES

_ARA = "/.well-known/attribution-reporting"
_PAA = "/.well-known/private-aggregation"
_GROUP_S = 0.05
_BODY_S = 60
_MAX_OPEN_FILES = 64
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a well-known path accepts: reports of an API, or (``api`` None) documents kept as lines of JSON."""

    folder: str
    api: Api | None = None


#: Every path that a browser posts reports to.
ENDPOINTS = {
    f"{_ARA}/report-aggregate-attribution": Endpoint("attribution-reporting", Api.ATTRIBUTION_REPORTING),
    f"{_ARA}/debug/report-aggregate-attribution": Endpoint("debug-attribution-reporting", Api.ATTRIBUTION_REPORTING),
    f"{_ARA}/debug/report-aggregate-debug": Endpoint("attribution-reporting-debug", Api.ATTRIBUTION_REPORTING_DEBUG),
    f"{_ARA}/report-event-attribution": Endpoint("event-level"),
    f"{_ARA}/debug/report-event-attribution": Endpoint("debug-event-level"),
    f"{_ARA}/debug/verbose": Endpoint("verbose"),
    f"{_PAA}/report-shared-storage": Endpoint("shared-storage", Api.SHARED_STORAGE),
    f"{_PAA}/debug/report-shared-storage": Endpoint("debug-shared-storage", Api.SHARED_STORAGE),
    f"{_PAA}/report-protected-audience": Endpoint("protected-audience", Api.PROTECTED_AUDIENCE),
    f"{_PAA}/debug/report-protected-audience": Endpoint("debug-protected-audience", Api.PROTECTED_AUDIENCE),
}


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities: Python accepts them, but they are not JSON, and other readers would fail."""
    raise ValueError(name)


def accept(path: str, body: bytes) -> tuple[Endpoint, AggregatableReport | None, SharedInfo | None]:
    """Parse a posted body; raise ``WireError`` naming what is wrong with it.

    A report must belong to the API of its endpoint; a document of an event-level endpoint must be JSON.
    """
    endpoint = ENDPOINTS[path]
    if endpoint.api is None:
        try:
            json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ReportBodyError("the report body is not valid JSON") from None
        return endpoint, None, None
    report = AggregatableReport.from_json(body)
    info = SharedInfo.parse(report.shared_info)
    if info.api != endpoint.api:
        raise ReportBodyError(f"this endpoint takes only reports of {endpoint.api.value}")
    return endpoint, report, info


@dataclass(slots=True)
class _Open:
    """A file being written. Its first ``whole`` bytes are on disk and end with a complete block."""

    path: Path
    file: BinaryIO
    writer: ReportWriter
    whole: int = 0


class Collector:
    """Writes accepted reports below ``root``: ``api/20261118T00/reports-….avro`` and ``event-level/….jsonl``.

    Each start opens new files; each flush leaves them complete and on disk. After a crash the next start cuts off
    half-written blocks: a locked file ``.open-…`` names the files being written. Not thread-safe.
    """

    def __init__(
        self, root: Path, *, clock: Clock, batch_hours: int = 24, origins: Sequence[str] = (), tag: str = ""
    ) -> None:
        if not 1 <= batch_hours <= 24 * 366:
            raise ReportBodyError(f"batch_hours is {batch_hours}: give 1 to {24 * 366} hours")
        self.root = root
        self.received = 0
        self.refused = 0
        self._origins = frozenset(origins)
        self._length_s = batch_hours * _HOUR_S
        self._pending: dict[Path, list[AggregatableReport]] = {}
        self._lines: dict[Path, list[bytes]] = {}
        self._files: dict[Path, _Open] = {}
        self._named: set[Path] = set()
        root.mkdir(parents=True, exist_ok=True)
        _mend(root)
        self._tag, self._marker = _marker(root, tag or f"{clock.now_ms()}")

    def receive(self, path: str, body: bytes) -> None:
        """Accept a posted body; the next ``flush`` stores it. A bad one raises ``WireError`` and is dropped."""
        try:
            endpoint, report, info = accept(path, body)
            if info is not None and self._origins and info.reporting_origin not in self._origins:
                raise ReportBodyError(
                    f"this collector takes no reports for {info.reporting_origin}: check the reporting origin"
                )
            line = b"" if report is not None else json.dumps(json.loads(body), separators=(",", ":")).encode()
        except RecursionError:
            self.refused += 1
            raise ReportBodyError("the report body is nested too deeply") from None
        except WireError:
            self.refused += 1
            raise
        self.received += 1
        if report is None or info is None:
            self._lines.setdefault(self.root / endpoint.folder / f"reports-{self._tag}.jsonl", []).append(line)
            return
        start = info.scheduled_report_time_s // self._length_s * self._length_s
        period = datetime.fromtimestamp(start, tz=UTC).strftime("%Y%m%dT%H")
        file = self.root / endpoint.folder / period / f"reports-{self._tag}.avro"
        self._pending.setdefault(file, []).append(report)

    def flush(self) -> None:
        """Write everything received to disk, and wait until it is there.

        If that fails, ``OSError`` is raised, the reports are dropped and the file is cut back: later reports must not
        follow half a block.
        """
        pending, self._pending = self._pending, {}
        lines, self._lines = self._lines, {}
        for path, reports in pending.items():
            held = self._open(path)
            try:
                held.writer.write(ReportBatch.of(reports))
                held.file.flush()
                os.fsync(held.file.fileno())
                held.whole = held.file.tell()
            except OSError:
                self._abandon(path)
                raise
        for path, documents in lines.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._name(path)
            before = path.stat().st_size if path.exists() else 0
            try:
                with path.open("ab") as file:
                    file.write(b"".join(line + b"\n" for line in documents))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                _cut(path, before)
                raise

    def _open(self, path: Path) -> _Open:
        """Return the open file for ``path``; if that file was closed before, a new one with a number in its name."""
        if path not in self._files:
            if len(self._files) >= _MAX_OPEN_FILES:
                self._close_files()
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh, number = path, 1
            while fresh.exists():
                number += 1
                fresh = path.with_name(f"{path.stem}-{number}.avro")
            self._name(fresh)
            file = fresh.open("xb")
            self._files[path] = _Open(path=fresh, file=file, writer=ReportWriter(file))
        return self._files[path]

    def _name(self, path: Path) -> None:
        """Add ``path`` to the marker file, before anything is written to ``path``."""
        if path not in self._named:
            self._marker.write(f"{path.relative_to(self.root)}\n".encode())
            self._marker.flush()
            os.fsync(self._marker.fileno())
            self._named.add(path)

    def _abandon(self, path: Path) -> None:
        """Close a file after a failed write, and cut it back to its complete blocks."""
        held = self._files.pop(path)
        with suppress(OSError):
            held.file.close()
        _cut(held.path, held.whole)

    def _close_files(self) -> None:
        for held in self._files.values():
            held.writer.close()
            held.file.close()
        self._files = {}

    def close(self) -> None:
        """Flush and close every file."""
        if self._marker.closed:
            return
        try:
            self.flush()
        finally:
            self._close_files()
        (self.root / f".open-{self._tag}").unlink(missing_ok=True)
        self._marker.close()


def _marker(root: Path, tag: str) -> tuple[str, BinaryIO]:
    """Return a tag that no other collector below ``root`` uses, and its marker file, locked by this process."""
    while True:
        with suppress(FileExistsError):
            file = (root / f".open-{tag}").open("xb")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return tag, file
            file.close()  # another collector removed it as left behind, before it was locked
        tag += "x"


def _mend(root: Path) -> None:
    """Cut off half-written blocks in the files that crashed collectors name in their markers."""
    for marker in sorted(root.glob(".open-*")):
        with marker.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its collector is running
            for line in file.read().decode().splitlines():
                path = root / line
                if path.is_file():
                    whole = _whole(path)
                    if whole < path.stat().st_size or not whole:
                        _cut(path, whole)
            marker.unlink()


def _whole(path: Path) -> int:
    """Return the size of the complete blocks, or lines, at the start of a file."""
    with path.open("rb") as file:
        if path.suffix == ".avro":
            return whole_bytes(file, str(path), REPORT)
        return file.read().rfind(b"\n") + 1


def _cut(path: Path, size: int) -> None:
    """Shorten a file to ``size`` bytes; remove it if nothing remains."""
    with suppress(OSError):
        if size:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)


def collector_routes(collector: Collector) -> list[BaseRoute]:
    """Return the routes of a collector, for ``build_app`` or an app of their own.

    Requests that arrive within 50 ms share one flush, and are answered after it.
    """
    lock = asyncio.Lock()
    waiting: list[asyncio.Future[None]] = []

    async def settle() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(done)
        await asyncio.sleep(_GROUP_S)
        async with lock:
            if not done.done():
                group, waiting[:] = waiting[:], []
                try:
                    collector.flush()
                except Exception as problem:  # every request that waits gets the error
                    for one in filter(lambda one: not one.done(), group):
                        one.set_exception(problem)
                else:
                    for one in filter(lambda one: not one.done(), group):
                        one.set_result(None)
        await done

    async def post(request: Request) -> Response:
        try:
            body = await read_body(request, most=MAX_BODY_BYTES, within_s=_BODY_S, what="report body")
        except BodyError as problem:
            return PlainTextResponse(f"{problem}\n", status_code=problem.status)
        try:
            collector.receive(request.url.path, body)
        except WireError as problem:
            return PlainTextResponse(f"{problem}\n", status_code=400)
        try:
            await settle()
        except OSError:
            return PlainTextResponse("the report could not be stored: send it again\n", status_code=503)
        return PlainTextResponse("", status_code=200)

    return [Route(path, post, methods=["POST"]) for path in ENDPOINTS]
