"""createJob and getJob over HTTP: the documented requests, every error provoked, and isolation between callers."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.client import Client, Credentials
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service import Caller, EmbeddedService, Limits, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.wire import BucketRows, KeySet, ReportBatch, read_summary, write_buckets, write_reports
from aggservice.wire.hpke.summaries import open_document
from budget import EpsilonDeltaFilter

MINE, THEIRS = "https://adtech.example", "https://rival.example"


@dataclass
class World:
    service: EmbeddedService
    roots: Path
    maker: Any

    def call(self, path: str, body: Any = None, *, token: str | None = "adtech", **headers: str) -> tuple[int, Any]:
        """Send a request over HTTP; return status and JSON. ``body`` is sent as it is if it is bytes."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.service.service.http_port}{path}", data=raw)
        credentials = {"authorization": f"Bearer token-of-{token}"} if token else {}
        for name, value in (credentials | headers).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as problem:
            return problem.code, json.loads(problem.read())

    def create(self, body: Any, **more: Any) -> tuple[int, Any]:
        return self.call("/v1alpha/createJob", body, **more)

    def get(self, job: str, **more: Any) -> tuple[int, Any]:
        return self.call(f"/v1alpha/getJob?job_request_id={urllib.parse.quote(job)}", **more)

    def finished(self, job: str, **more: Any) -> Any:
        for _ in range(600):
            status, found = self.get(job, **more)
            assert status == 200, found
            if found["job_status"] == "FINISHED":
                return found
            assert found["job_status"] in ("RECEIVED", "IN_PROGRESS")
            assert "result_info" not in found
            time.sleep(0.05)
        raise AssertionError("the job did not end")


@pytest.fixture
def world(maker: Any, tmp_path: Path) -> Iterator[World]:
    roots = tmp_path / "roots"
    for bucket in ("reports", "summaries"):
        for name in ("adtech", "rival"):
            (roots / bucket / name).mkdir(parents=True)

    def caller(name: str, role: Role, origin: str) -> Caller:
        tokens = (Token(digest=token_digest(f"token-of-{name}")),)
        return Caller(
            name=name,
            roles=frozenset({role}),
            tokens=tokens,
            folder=name,
            origins=frozenset({origin}),
            sites=frozenset(),
        )

    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        filter=EpsilonDeltaFilter.parse(epsilon="10", delta="0.00001"),
        buckets={"my-reports": roots / "reports", "my.summaries": roots / "summaries"},
        limits=replace(Limits(), processes=0),
        callers=(
            caller("adtech", Role.ADTECH, MINE),
            caller("rival", Role.ADTECH, THEIRS),
            caller("auditor", Role.AUDITOR, MINE),
        ),
    )
    with embedded(config, keys=maker.keys, clock=maker.clock) as service:
        world = World(service=service, roots=roots, maker=maker)
        mine = [maker.report({1: 100}) for _ in range(4)]
        theirs = [maker.report({1: 100}, reporting_origin=THEIRS) for _ in range(4)]
        keys = np.array([1, 5], np.uint64)
        rows = BucketRows(key_high=np.zeros(2, np.uint64), key_low=keys, numbers=np.empty((2, 0), np.int64))
        for name, reports in (("adtech", mine), ("rival", theirs)):
            put(roots / "reports" / name / "day1" / "shard-1.avro", reports)
            write_buckets(roots / "reports" / name / "domain.avro", rows)
        folder = roots / "reports" / "adtech"
        put(folder / "day2.avro", [maker.report({1: 7}, debug_mode=True) for _ in range(2)])
        put(folder / "bad.avro", [maker.report({1: 7}, reporting_origin=THEIRS) for _ in range(2)])
        yield world


def put(path: Path, reports: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_reports(path, [ReportBatch.of(reports)])


def asks(job: str, prefix: str = "day1/shard", parameters: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Return the documented request; a change to None leaves a name out."""
    inner = {
        "output_domain_blob_prefix": "domain.avro",
        "output_domain_bucket_name": "my-reports",
        "attribution_report_to": MINE,
        **(parameters or {}),
    }
    body = {
        "job_request_id": job,
        "input_data_blob_prefix": prefix,
        "input_data_bucket_name": "my-reports",
        "output_data_blob_prefix": f"out/{job}.avro",
        "output_data_bucket_name": "my.summaries",
        "job_parameters": {name: value for name, value in inner.items() if value is not None},
        **changes,
    }
    return {name: value for name, value in body.items() if value is not None}


def error(answer: tuple[int, Any]) -> tuple[int, str, str]:
    """Return HTTP status, status and reason of an error, whose body has the documented shape."""
    status, body = answer
    assert list(body) == ["error"]
    found = body["error"]
    assert set(found) == {"code", "message", "status", "details"}
    assert found["message"]
    (detail,) = found["details"]
    assert set(detail) == {"reason", "domain", "metadata"}
    return status, found["status"], detail["reason"]


def test_the_documented_requests_are_answered_as_documented(world: World) -> None:
    body = asks("UNIQUEID12313", parameters={"debug_privacy_epsilon": 4.5, "report_error_threshold_percentage": 10.0})
    assert world.create(body) == (202, {})
    found = world.finished("UNIQUEID12313")
    times = [found.pop(name) for name in ("request_received_at", "request_processing_started_at", "request_updated_at")]
    assert all(one.endswith("Z") for one in times)
    info = found.pop("result_info")
    assert found == {**body, "job_status": "FINISHED"}
    assert info["return_code"] == "SUCCESS"
    assert info["finished_at"].endswith("Z")
    assert info["error_summary"] == {"error_counts": [], "error_messages": []}
    # The file layout of the deployed service, in the caller's folder of the bucket, with the ε that was asked for.
    folder = world.roots / "summaries" / "adtech" / "out"
    assert sum(len(rows) for rows in read_summary(folder / "UNIQUEID12313-1-of-1.avro")) == 2
    statement = json.loads((folder / "UNIQUEID12313-statement.json").read_text())
    assert "4.5" in json.dumps(statement)
    # The same job over gRPC.
    credentials = Credentials(token="token-of-adtech")
    with Client(world.service.address, credentials=credentials) as client:
        assert client.get_job("UNIQUEID12313").summary is not None


def test_every_documented_return_code_that_a_caller_can_cause(world: World) -> None:
    assert world.create(asks("a", parameters={"debug_privacy_epsilon": "10"})) == (202, {})
    assert world.finished("a")["result_info"]["return_code"] == "SUCCESS"
    assert world.create(asks("b", parameters={"debug_privacy_epsilon": 10})) == (202, {})
    assert world.finished("b")["result_info"]["return_code"] == "PRIVACY_BUDGET_EXHAUSTED"
    assert world.create(asks("c", "bad.avro")) == (202, {})
    info = world.finished("c")["result_info"]
    assert info["return_code"] == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    counts = {one["category"]: one["count"] for one in info["error_summary"]["error_counts"]}
    assert counts["ATTRIBUTION_REPORT_TO_MISMATCH"] == 2
    debug = {"debug_run": "true", "filtering_ids": "0", "input_report_count": 2}
    assert world.create(asks("d", "day2.avro", parameters=debug)) == (202, {})
    found = world.finished("d")
    assert found["result_info"]["return_code"] == "SUCCESS"
    assert found["job_parameters"]["debug_run"] is True
    several = asks("e", input_data_blob_prefix=None, input_data_blob_prefixes=["day1", "day2"])
    assert world.create(several) == (202, {})
    found = world.finished("e")
    assert found["input_data_blob_prefixes"] == ["day1", "day2"]
    assert found["result_info"]["return_code"] == "PRIVACY_BUDGET_EXHAUSTED"


def test_a_taken_id_is_refused_also_for_the_same_request(world: World) -> None:
    assert world.create(asks("a")) == (202, {})
    assert error(world.create(asks("a"))) == (409, "ALREADY_EXISTS", "DUPLICATE_JOB_KEY")
    world.finished("a")
    assert error(world.create(asks("a"))) == (409, "ALREADY_EXISTS", "DUPLICATE_JOB_KEY")
    assert world.create(asks("b", "bad.avro")) == (202, {})
    world.finished("b")
    assert error(world.create(asks("b", "bad.avro"))) == (409, "ALREADY_EXISTS", "DUPLICATE_JOB_KEY")


def inner(**changes: Any) -> Any:
    return asks("x", parameters=changes)


BAD_REQUESTS = {
    "empty body": (b"", "JSON"),
    "not JSON": (b"{", "JSON"),
    "not UTF-8": (b'{"job_request_id": "\xff"}', "JSON"),
    "NaN": (json.dumps(inner(debug_privacy_epsilon=float("nan"))).encode(), "JSON"),
    "nested deeply": (b"[" * 100_000, "JSON"),
    "a list": ([], "object"),
    "too large": (b" " * (1 << 18) + b"{}", "larger"),
    "a name twice": (b'{"job_request_id": "a", "job_request_id": "b"}', "twice"),
    "empty": ({}, "job_parameters"),
    "no id": (asks("x", job_request_id=None), "job_request_id"),
    "a long id": (asks("x", job_request_id="x" * 129), "job_request_id"),
    "an id with a bar": (asks("x", job_request_id="a|b"), "job_request_id"),
    "an id with a space": (asks("x", job_request_id="a b"), "job_request_id"),
    "a number as id": (asks("x", job_request_id=5), "job_request_id"),
    "half a character": (asks("x", output_data_blob_prefix="\ud800"), "printed"),
    "no input": (asks("x", input_data_blob_prefix=None), "input_data_blob_prefix"),
    "two inputs": (asks("x", input_data_blob_prefixes=["a"]), "exactly one"),
    "no input bucket": (asks("x", input_data_bucket_name=None), "input_data_bucket_name"),
    "a path as bucket": (asks("x", input_data_bucket_name="a/b"), "input_data_bucket_name"),
    "no output": (asks("x", output_data_blob_prefix=None), "output_data_blob_prefix"),
    "no output bucket": (asks("x", output_data_bucket_name=None), "output_data_bucket_name"),
    "no parameters": (asks("x", job_parameters=None), "job_parameters"),
    "no domain": (inner(output_domain_blob_prefix=None), "output_domain_blob_prefix"),
    "no domain bucket": (inner(output_domain_bucket_name=None), "output_domain_bucket_name"),
    "no origin": (inner(attribution_report_to=None), "attribution_report_to"),
    "epsilon 0": (inner(debug_privacy_epsilon=0), "epsilon"),
    "epsilon 65": (inner(debug_privacy_epsilon=65), "epsilon"),
    "epsilon of a billion digits": (b'{"job_parameters": {"debug_privacy_epsilon": 1e999999999}}', "out of range"),
    "an unreadable exponent": (b'{"job_parameters": {"debug_privacy_epsilon": 1e99999999999999999999}}', "JSON"),
    "epsilon a word": (inner(debug_privacy_epsilon="ten"), "epsilon"),
    "threshold 101": (inner(report_error_threshold_percentage=101), "report_error_threshold_percentage"),
    "half a report": (inner(input_report_count=1.5), "input_report_count"),
    "filtering ids": (inner(filtering_ids="a"), "filtering"),
    "debug_run 1": (inner(debug_run=1), "debug_run"),
    "a misspelt name": (inner(debugRun=True), "debugRun"),
    "no such file": (asks("x", "nothing"), "nothing"),
}


def test_bad_requests_are_refused_by_name_and_change_nothing(world: World) -> None:
    before = world.service.ledger.checkpoint()
    for what, (body, named) in BAD_REQUESTS.items():
        answer = world.create(body)
        status, name, _ = error(answer)
        expected = "FAILED_PRECONDITION" if what == "no such file" else "INVALID_ARGUMENT"
        assert (status, name) == (400, expected), what
        assert named in answer[1]["error"]["message"], (what, answer)
    assert error(world.get("x")) == (404, "NOT_FOUND", "JOB_NOT_FOUND")
    for query in ("", "?job_request_id=", "?job_request_id=a&job_request_id=b", "?id=a", "?job_request_id=%00"):
        assert error(world.call(f"/v1alpha/getJob{query}"))[:2] == (400, "INVALID_ARGUMENT")
    assert error(world.create(asks("x", output_data_bucket_name="theirs")))[0] == 403
    assert world.service.ledger.checkpoint() == before


def test_callers_are_as_isolated_as_over_grpc(world: World) -> None:
    assert world.create(asks("mine")) == (202, {})
    world.finished("mine")
    for token in (None, "nobody"):
        for answer in (world.create(asks("x"), token=token), world.get("mine", token=token)):
            assert error(answer) == (401, "UNAUTHENTICATED", "PERMISSION_ERROR")
    for answer in (world.create(asks("x"), token="auditor"), world.get("mine", token="auditor")):
        assert error(answer) == (403, "PERMISSION_DENIED", "PERMISSION_ERROR")
    # Another caller's job does not exist, and its id is free for one's own.
    assert error(world.get("mine", token="rival")) == (404, "NOT_FOUND", "JOB_NOT_FOUND")
    theirs = asks("mine", parameters={"attribution_report_to": THEIRS})
    assert world.create(theirs, token="rival") == (202, {})
    assert world.finished("mine", token="rival")["result_info"]["return_code"] == "SUCCESS"
    assert (world.roots / "summaries" / "rival" / "out" / "mine-1-of-1.avro").exists()
    assert error(world.create(asks("y", "day2.avro", parameters={"attribution_report_to": THEIRS}), token="rival")) == (
        400,
        "FAILED_PRECONDITION",
        "INPUT_DATA_READ_FAILED",
    )
    assert error(world.create(asks("x"), token="rival"))[0] == 403
    for prefix in ("../adtech/day1", "/day1", f"file://{world.roots}/reports/adtech/day1"):
        for body in (asks("x", prefix), asks("x", output_data_blob_prefix=prefix)):
            body["job_parameters"]["attribution_report_to"] = THEIRS
            assert error(world.create(body, token="rival")) == (403, "PERMISSION_DENIED", "PERMISSION_ERROR"), prefix
    # A web page that reaches the listener through a browser is refused.
    assert error(world.create(asks("x"), Origin="https://page.example"))[0] == 403


def test_a_summary_sealed_to_its_caller(world: World) -> None:
    keys = KeySet.create(SecureBits(), SystemClock())
    text = base64.b64encode(keys.pairs[0].public.key.public_bytes_raw()).decode()
    body = asks("sealed", parameters={"output_public_key": text})
    assert world.create(body) == (202, {})
    found = world.finished("sealed")
    assert found["result_info"]["return_code"] == "SUCCESS" and found["job_parameters"]["output_public_key"] == text
    raw = (world.roots / "summaries" / "adtech" / "out" / "sealed-1-of-1.avro.sealed").read_bytes()
    assert len(open_document(raw, keys, job_request_id="sealed")) == 2 * 24
    for bad in ("AAAA", base64.b64encode(bytes(32)).decode(), "?", 5):
        answer = world.create(asks("bad", parameters={"output_public_key": bad}))
        assert error(answer) == (400, "INVALID_ARGUMENT", "INVALID_JOB")
        assert "output_public_key" in answer[1]["error"]["message"]
    debug = asks("bad", "day2.avro", parameters={"output_public_key": text, "debug_run": True})
    assert "debug run" in world.create(debug)[1]["error"]["message"]
