"""The collector: bodies at the well-known endpoints in, Avro batches out, nothing acknowledged that is not on disk."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from aggservice.client import Client, JobParameters
from aggservice.service import Collector, collector_routes
from aggservice.service.http import collector as collector_module
from aggservice.service.http.collector import ENDPOINTS, accept
from aggservice.wire import AggregatableReport, Api, SharedInfo, WireError, read_reports

from .collecting import collecting

ARA = "/.well-known/attribution-reporting/report-aggregate-attribution"
STORAGE = "/.well-known/private-aggregation/report-shared-storage"


@dataclass
class Answer:
    status_code: int
    text: str


class Http:
    """A collector behind a real socket."""

    def __init__(self, collector: Collector, port: int) -> None:
        self.collector = collector
        self.port = port

    def post(self, path: str, *, content: str, method: str = "POST") -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=content.encode(), headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode())
        finally:
            connection.close()


@pytest.fixture
def http(tmp_path: Path, maker: Any) -> Iterator[Http]:
    collector = Collector(tmp_path / "in", clock=maker.clock, origins=["https://adtech.example"])
    with collecting(collector) as port:
        yield Http(collector, port)


def avro_of(folder: Path) -> list[tuple[bytes, bytes]]:
    batches = [batch for path in sorted(folder.rglob("*.avro")) for batch in read_reports(path)]
    return [row for batch in batches for row in zip(batch.payloads, batch.shared_infos, strict=True)]


def test_a_report_is_on_disk_when_it_is_answered(http: Any, maker: Any, tmp_path: Path) -> None:
    reports = [maker.report({1: 5}) for _ in range(3)]
    late = maker.report({1: 5}, scheduled_report_time_s=maker.clock.now_ms() // 1000 + 3 * 86_400)
    for number, report in enumerate([*reports, late], 1):
        assert http.post(ARA, content=report.to_json()).status_code == 200
        assert len(avro_of(tmp_path / "in")) == number
    found = avro_of(tmp_path / "in" / "attribution-reporting")
    assert {payload for payload, _ in found} == {report.payloads[0].payload for report in [*reports, late]}
    assert len(list((tmp_path / "in" / "attribution-reporting").iterdir())) == 2


def test_many_at_once_are_all_kept(http: Any, maker: Any, tmp_path: Path) -> None:
    bodies = [maker.report({1: 5}).to_json() for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: http.post(ARA, content=body).status_code, bodies))
    assert answers == [200] * 40
    assert len({info for _, info in avro_of(tmp_path / "in")}) == 40


def test_batches_are_input_of_a_job(http: Any, maker: Any, client: Client, tmp_path: Path) -> None:
    for _ in range(5):
        assert http.post(ARA, content=maker.report({7: 1000}).to_json()).status_code == 200
    http.collector.close()
    batches = [batch for path in (tmp_path / "in").rglob("*.avro") for batch in read_reports(path)]
    parameters = JobParameters(attribution_report_to="https://adtech.example", epsilon="64")
    summary = client.aggregate("job", parameters, batches, domain=[7])
    assert abs(int(summary.metrics[0]) - 5000) < 100_000 and not summary.error_counts


def test_what_is_wrong_is_said_and_not_kept(http: Any, maker: Any, tmp_path: Path) -> None:
    report = maker.report({1: 5})
    other = maker.report({1: 5}, reporting_origin="https://other.example")
    storage = maker.report({1: 5}, api=Api.SHARED_STORAGE, attribution_destination=None)
    for path, body, status, words in (
        (ARA, "{", 400, "JSON"),
        (ARA, "[]", 400, "JSON object"),
        (ARA, "{}", 400, "aggregation_service_payloads"),
        (ARA, storage.to_json(), 400, "attribution-reporting"),
        (STORAGE, report.to_json(), 400, "shared-storage"),
        (ARA, other.to_json(), 400, "reporting origin"),
        (ARA, "x" * 300_000, 413, "larger than"),
        ("/.well-known/else", "{}", 404, ""),
    ):
        answer = http.post(path, content=body)
        assert (answer.status_code, words in answer.text) == (status, True)
    assert http.post(ARA, content="", method="GET").status_code == 405
    assert avro_of(tmp_path / "in") == []
    assert http.post(STORAGE, content=storage.to_json()).status_code == 200
    assert len(avro_of(tmp_path / "in" / "shared-storage")) == 1


def test_event_level_reports_are_lines_and_debug_copies_stay_apart(http: Any, maker: Any, tmp_path: Path) -> None:
    event = "/.well-known/attribution-reporting/report-event-attribution"
    assert http.post(event, content='{"trigger_data": "2",\n "source_event_id": "9"}').status_code == 200
    for wrong in ("no", "NaN", '{"x": -Infinity}'):
        assert http.post(event, content=wrong).status_code == 400
    (path,) = (tmp_path / "in" / "event-level").iterdir()
    assert path.read_text() == '{"trigger_data":"2","source_event_id":"9"}\n'
    debug = "/.well-known/attribution-reporting/debug/report-aggregate-attribution"
    assert http.post(debug, content=maker.report({1: 5}).to_json()).status_code == 200
    assert len(avro_of(tmp_path / "in" / "debug-attribution-reporting")) == 1
    assert avro_of(tmp_path / "in" / "attribution-reporting") == []


def test_a_restart_keeps_what_was_there(maker: Any, tmp_path: Path) -> None:
    for _ in range(2):
        collector = Collector(tmp_path, clock=maker.clock)
        collector.receive(ARA, maker.report({1: 5}).to_json().encode())
        collector.close()
    assert len(avro_of(tmp_path)) == 2


def test_half_characters_and_odd_hosts_spoil_nobody_elses_report(http: Any, maker: Any, tmp_path: Path) -> None:
    event = "/.well-known/attribution-reporting/report-event-attribution"
    good = maker.report({1: 5}).to_json()
    half = good.replace('"key_id":"', '"key_id":"\\ud800')
    odd = good.replace("https://adtech.example", "https://-1.1.1.1")
    with ThreadPoolExecutor(12) as pool:
        posted = [good, half, odd] * 4
        answers = list(pool.map(lambda body: http.post(ARA, content=body).status_code, posted))
    assert answers == [200, 400, 400] * 4
    assert len(avro_of(tmp_path / "in")) == 4
    assert http.post(event, content='{"a": "\\ud800"}').status_code == 200
    (path,) = (tmp_path / "in" / "event-level").iterdir()
    assert path.read_bytes() == b'{"a":"\\ud800"}\n'


def test_a_body_that_never_ends_is_given_up(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_module, "_BODY_S", 0.3)
    with socket.create_connection(("127.0.0.1", http.port), timeout=30) as slow:
        slow.sendall(f"POST {ARA} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{{".encode())
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
    assert http.collector.received == 0


@contextmanager
def disk_with(size: int) -> Iterator[None]:
    """Let no file of this process grow past ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_half_block_before_what_comes_later(maker: Any, tmp_path: Path) -> None:
    event = "/.well-known/attribution-reporting/report-event-attribution"
    collector = Collector(tmp_path, clock=maker.clock)
    bodies = [maker.report({1: number}).to_json().encode() for number in range(1, 40)]
    kept = []
    for room in (10, 3000, 1 << 30, 5000, 1 << 30):
        for body in bodies:
            collector.receive(ARA, body)
        collector.receive(event, b'"' + b"x" * 2000 + b'"')
        with disk_with(room):
            if room < 1 << 30:
                with pytest.raises(OSError, match="too large"):
                    collector.flush()
            else:
                collector.flush()
                kept += bodies
        assert len(avro_of(tmp_path)) == len(kept)
    collector.receive(event, b'"' + b"y" * 2000 + b'"')
    with disk_with(5000), pytest.raises(OSError, match="too large"):
        collector.flush()
    collector.close()
    assert len(avro_of(tmp_path)) == len(kept) == 2 * len(bodies)
    (path,) = (tmp_path / "event-level").iterdir()
    assert path.read_text() == ('"' + "x" * 2000 + '"\n') * 2


def test_many_periods_make_few_files(maker: Any, tmp_path: Path) -> None:
    collector = Collector(tmp_path, clock=maker.clock, batch_hours=1)
    report = maker.report({1: 5}).to_json()
    now = SharedInfo.parse(AggregatableReport.from_json(report).shared_info).scheduled_report_time_s
    for period in [*range(70), *[1] * 10]:
        collector.receive(ARA, report.replace(str(now), str(now + 3600 * period)).encode())
        collector.flush()
    collector.close()
    assert len(avro_of(tmp_path)) == 80
    assert len(list(tmp_path.rglob("*.avro"))) == 71


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_its_port_and_what_it_took(stop: signal.Signals, maker: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aggservice", "collect", "--out", str(tmp_path / "in"), "--listen"]
    with subprocess.Popen([*command, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        found = re.match(r"collecting on 127\.0\.0\.1:(\d+) into ", program.stdout.readline())
        assert found is not None
        http = Http(Collector(tmp_path / "unused", clock=maker.clock), int(found[1]))
        assert http.post(ARA, content=maker.report({1: 5}).to_json()).status_code == 200
        program.send_signal(stop)
        assert program.stdout.read() == "1 reports taken, 0 refused\n"
    assert program.returncode == 0
    assert len(avro_of(tmp_path / "in")) == 1
    for more in (["127.0.0.1:²"], ["127.0.0.1:0", "--origin", "https://adtech.example/"]):
        wrong = subprocess.run([*command, *more], capture_output=True, text=True, check=False, timeout=60)
        assert (wrong.returncode, "Traceback" in wrong.stderr) == (2, False)


def test_what_a_crash_left_half_written_is_cut_off_at_the_next_start(maker: Any, tmp_path: Path) -> None:
    event = "/.well-known/attribution-reporting/report-event-attribution"
    root = tmp_path / "in"
    command = [sys.executable, "-m", "aggservice", "collect", "--out", str(root), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        found = re.match(r"collecting on 127\.0\.0\.1:(\d+) into ", program.stdout.readline())
        assert found is not None
        http = Http(Collector(tmp_path / "unused", clock=maker.clock), int(found[1]))
        for _ in range(3):
            assert http.post(ARA, content=maker.report({1: 5}).to_json()).status_code == 200
        assert http.post(event, content="{}").status_code == 200
        (avro,), (lines,) = list(root.rglob("*.avro")), list(root.rglob("*.jsonl"))
        whole = avro.read_bytes()
        with avro.open("ab") as torn:
            torn.write(whole[-300:-20])
        with lines.open("ab") as torn:
            torn.write(b'{"half')
        Collector(root, clock=maker.clock).close()  # while the other one runs, it is left alone
        assert lines.read_bytes() == b'{}\n{"half'
        program.kill()
    with pytest.raises(WireError):
        avro_of(root)
    Collector(root, clock=maker.clock).close()
    assert (avro.read_bytes(), lines.read_bytes()) == (whole, b"{}\n")
    assert len(avro_of(root)) == 3
    assert list(root.glob(".*")) == []


def test_all_endpoints_are_there() -> None:
    assert len(ENDPOINTS) == 10
    with pytest.raises(WireError):
        accept(ARA, b"\xff")


async def _posted_together(collector: Collector, bodies: list[str], seen: list[int]) -> None:
    """Post bodies to the routes in one loop; append each status to ``seen`` when it is sent."""
    app = Starlette(routes=collector_routes(collector))

    async def post(body: str) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body.encode(), "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append(message["status"])

        head = {"type": "http", "method": "POST", "path": ARA, "raw_path": ARA.encode(), "query_string": b""}
        await app({**head, "headers": [], "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)

    await asyncio.gather(*map(post, bodies))


@pytest.mark.parametrize("fails", [False, True])
def test_nobody_in_a_group_is_answered_before_the_disk_has_its_report(
    fails: bool, maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five reports share a flush. All are answered after it: 200 if it worked, 503 if not, and then none is kept."""
    collector = Collector(tmp_path / "in", clock=maker.clock, origins=["https://adtech.example"])
    answered: list[int] = []
    before: list[int] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        before.append(len(answered))
        if fails and len(before) > 1:  # the first is that of the marker file
            raise OSError(errno.ENOSPC, "no space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    asyncio.run(_posted_together(collector, [maker.report({1: 5}).to_json() for _ in range(5)], answered))
    monkeypatch.undo()
    assert before and not any(before)
    assert answered == [503 if fails else 200] * 5
    again: list[int] = []
    asyncio.run(_posted_together(collector, [maker.report({1: 5}).to_json()], again))
    collector.close()
    assert again == [200] and len(avro_of(tmp_path / "in")) == (1 if fails else 6)
