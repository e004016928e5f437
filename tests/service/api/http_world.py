"""A service with HTTP, two ad-techs, an auditor and their files, for the tests of createJob and getJob."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aggservice.mechanisms import Bits
from aggservice.service import Caller, EmbeddedService, Limits, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.wire import BucketRows, ReportBatch, write_buckets, write_reports
from budget import EpsilonDeltaFilter

MINE, THEIRS = "https://adtech.example", "https://rival.example"


@dataclass
class World:
    service: EmbeddedService
    roots: Path
    maker: Any

    def call(self, path: str, body: Any = None, *, token: str | None = "adtech", **headers: str) -> tuple[int, Any]:
        """Send a request over HTTP; return status and JSON. ``body`` is sent as it is if it is bytes."""
        status, answer = self.raw(path, body, token=token, **headers)
        return status, json.loads(answer)

    def raw(
        self, path: str, body: Any = None, *, token: str | None = "adtech", method: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Send a request over HTTP; return status and body."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.service.service.http_port}{path}", data=raw, method=method
        )
        credentials = {"authorization": f"Bearer token-of-{token}"} if token else {}
        for name, value in (credentials | headers).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read()

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


@contextmanager
def http_world(maker: Any, tmp_path: Path, *, bits: Bits | None = None, **changes: Any) -> Iterator[World]:
    """Run a service with HTTP, two ad-techs, an auditor and files; ``changes`` are of its configuration."""
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

    given = ServiceConfig(
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
    with embedded(replace(given, **changes), keys=maker.keys, clock=maker.clock, bits=bits) as service:
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
