"""Requests over gRPC and HTTP, and the bytes that an earlier version answered.

``golden_answers.json`` holds calls in order: what was sent, and every message that came back but progress. The service
runs with a seed, so that noise, receipts and sealed rows are the same. A change that means to change an answer records
again and says why in CHANGELOG.md: ``python -m tests.service.api.test_golden_answers`` from the project's root.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from aggservice.mechanisms import SeededBits
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.wire import Api
from budget import EpsilonDeltaFilter, ZcdpFilter
from ldp_client import randomized_response, randomizer_of, seal_report

from ...engine.conftest import ORIGIN, Maker
from .http_world import World, asks, http_world

GOLDEN = Path(__file__).parent / "golden_answers.json"
SEALED_TO = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")  # RFC 7748, 6.1
_AGGREGATION, _BUDGET = "/aggservice.v1.AggregationService/", "/aggservice.v1.BudgetService/"
FILTERS = {
    "epsilon": EpsilonDeltaFilter.parse(epsilon="10", delta="0.01"),
    "zcdp": ZcdpFilter.parse(rho="20", delta="0"),
}


@contextmanager
def world(folder: Path, filter: str) -> Iterator[World]:
    """A service with a seed and its files."""
    maker = Maker(SeededBits("golden reports"))
    with http_world(maker, folder, bits=SeededBits("golden service"), filter=FILTERS[filter]) as running:
        yield running


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def ask_grpc(running: World, call: dict[str, Any]) -> list[str]:
    """Send recorded bytes; return the bytes of each answer, and status and details of an error."""
    raw = [base64.b64decode(one) for one in call["sent"]]
    metadata = (("authorization", f"Bearer token-of-{call['caller']}"),)
    with grpc.insecure_channel(running.service.address) as channel:
        stream = call["method"].endswith("Aggregate")
        make = channel.stream_stream if stream else channel.unary_stream
        found = []
        try:
            for answer in make(call["method"])(iter(raw) if stream else raw[0], metadata=metadata, timeout=60):
                message = aggregation_pb2.AggregateResponse()
                if not (stream and message.FromString(answer).HasField("progress")):
                    found.append(text(answer))
        except grpc.RpcError as problem:
            details = [text(value) for key, value in problem.trailing_metadata() if key == "grpc-status-details-bin"]
            found.append(f"{problem.code().name}: {problem.details()} {' '.join(details)}")
    return found


def ask_http(running: World, call: dict[str, Any]) -> list[str]:
    """Send a recorded request; a job is asked for until it has ended."""
    body = call["sent"][0] if call["sent"] else None
    if call["method"].startswith("/v1alpha/getJob"):
        running.finished(call["method"].partition("=")[2], token=call["caller"])
    status, answer = running.raw(call["method"], body and body.encode(), token=call["caller"])
    return [f"{status} {answer.decode()}"]


def ask(running: World, call: dict[str, Any]) -> list[str]:
    return (ask_grpc if call["method"].startswith("/aggservice") else ask_http)(running, call)


@pytest.mark.parametrize("filter", sorted(FILTERS))
def test_every_answer_has_the_bytes_of_before(filter: str, tmp_path: Path) -> None:
    calls = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert len(calls) >= 30
    with world(tmp_path, filter) as running:
        for number, call in enumerate(calls):
            assert ask(running, call) == call["answers"][filter], f"call {number}: {call['name']}"


def streamed(job: str, reports: list[Any], domain: tuple[int, ...] = (), **parameters: Any) -> list[bytes]:
    """Return the messages of a streamed job."""
    asked = aggregation_pb2.JobParameters(job_request_id=job, **{"attribution_report_to": ORIGIN, **parameters})
    batch = aggregation_pb2.ReportBatch(
        payloads=[one.payloads[0].payload for one in reports],
        key_ids=[one.payloads[0].key_id for one in reports],
        shared_infos=[one.shared_info for one in reports],
    )
    keys = b"".join(key.to_bytes(16, "big") for key in domain)
    parts = [
        aggregation_pb2.AggregateRequest(job_parameters=asked),
        *([aggregation_pb2.AggregateRequest(domain=keys)] if domain else []),
        aggregation_pb2.AggregateRequest(reports=batch),
        aggregation_pb2.AggregateRequest(end=aggregation_pb2.EndOfReports(report_count=len(reports))),
    ]
    return [one.SerializeToString(deterministic=True) for one in parts]


def questions(maker: Maker) -> Iterator[tuple[str, str, str, list[bytes]]]:
    """Yield name, caller, method and messages of every call over gRPC."""
    first = [maker.report({1: 100 + at, 2: 5}) for at in range(6)]
    laplace = {"privacy_params": {"laplace_dp_params": {"job_epsilon": "4.5"}}}
    yield "public keys", "adtech", _AGGREGATION + "ListPublicKeys", [b""]
    yield "histogram", "adtech", _AGGREGATION + "Aggregate", streamed("sums", first, (1, 2, 9), **laplace)
    yield "again", "adtech", _AGGREGATION + "Aggregate", streamed("sums", first, (1, 2, 9), **laplace)
    yield "job id taken", "adtech", _AGGREGATION + "Aggregate", streamed("sums", first, (1,), **laplace)
    yield "another caller's origin", "rival", _AGGREGATION + "Aggregate", streamed("sums", first, (1,), **laplace)
    found = [maker.report({7: 60_000, 8: 5_000}) for _ in range(12)]
    discovery = {**laplace, "key_discovery": {"delta": "0.000001"}, "others": {"epsilon": "0.5"}}
    yield "discovery", "adtech", _AGGREGATION + "Aggregate", streamed("found", found, (1,), **discovery)
    sealed = {**laplace, "output_public_key": SEALED_TO}
    yield "sealed", "adtech", _AGGREGATION + "Aggregate", streamed("sealed", found, (7,), **sealed)
    yield "too dear", "adtech", _AGGREGATION + "Aggregate", streamed("dear", first, (1,), debug_privacy_epsilon="9")
    marked = [maker.report({3: 4}, debug_mode=True) for _ in range(3)]
    yield "debug run", "adtech", _AGGREGATION + "Aggregate", streamed("debug", marked, (3, 4), debug_run=True)
    w3c = [
        maker.report({at % 4: 3}, api=Api.W3C_ATTRIBUTION, histogram_size=4, max_value=10, epsilon_micro=1_000_000)
        for at in range(30)
    ]
    task = {"conversion_site": "https://shop.example", "histogram_size": 4, "max_value": 10}
    asked = {"privacy_params": {"laplace_dp_params": {"job_epsilon": "1"}}, "attribution_task": task}
    yield "attribution task", "adtech", _AGGREGATION + "Aggregate", streamed("w3c", w3c, **asked)
    yield (
        "task with discovery",
        "adtech",
        _AGGREGATION + "Aggregate",
        streamed("bad", w3c, **asked, **{"key_discovery": {"delta": "0.000001"}}),
    )
    bad = [maker.report({1: 1}, reporting_origin="https://rival.example") for _ in range(3)]
    yield "bad reports", "adtech", _AGGREGATION + "Aggregate", streamed("errors", bad, (1,), **laplace)
    gaussian = {"privacy_params": {"gaussian_dp_params": {"job_rho": "0.5"}}}
    yield "gaussian", "adtech", _AGGREGATION + "Aggregate", streamed("gauss", first, (1,), **gaussian)
    for name, wrong in {
        "no keys": {},
        "bad epsilon": {"debug_privacy_epsilon": "ten"},
        "no delta": {"key_discovery": {}},
        "two ways": {"reporting_site": "https://adtech.example"},
        "filtering ids": {"filtering_ids": "1,x"},
        "threshold": {"report_error_threshold_percentage": "101"},
        "shuffle": {"shuffle": {"randomizer": "00"}},
    }.items():
        yield name, "adtech", _AGGREGATION + "Aggregate", streamed("wrong", first, **wrong)
    protocol = randomized_response(k=12, epsilon_micro=450_000)
    noisy = protocol.fleet(8, SeededBits("golden devices")).report(np.arange(8)).tolist()
    infos = [maker.info(api=Api.SHARED_STORAGE, attribution_destination=None) for _ in noisy]
    keys = maker.keys.public(maker.clock)
    local = [
        seal_report(protocol, one, shared_info=info, keys=keys, bits=maker.bits)
        for one, info in zip(noisy, infos, strict=True)
    ]
    shuffle = {"shuffle": {"randomizer": randomizer_of(protocol).hex}}
    yield "local reports", "adtech", _AGGREGATION + "Aggregate", streamed("local", local, **shuffle)
    infos = [one.shared_info for one in first]
    parameters = aggregation_pb2.JobParameters(
        job_request_id="dry", attribution_report_to=ORIGIN, debug_privacy_epsilon="8"
    )
    dry = budget_pb2.CheckBudgetRequest(job_parameters=parameters, shared_infos=infos)
    balance = budget_pb2.GetBalanceRequest(shared_infos=infos[:2])
    yield "balance", "adtech", _BUDGET + "GetBalance", [balance.SerializeToString()]
    yield "dry run", "adtech", _BUDGET + "CheckBudget", [dry.SerializeToString()]
    yield "entries", "auditor", _BUDGET + "ListEntries", [b""]
    yield "verify", "auditor", _BUDGET + "VerifyLedger", [b""]
    yield "forbidden", "auditor", _AGGREGATION + "Aggregate", streamed("sums", first, (1,), **laplace)
    create = aggregation_pb2.CreateJobRequest(
        job_request_id="files",
        input_data_blob_prefix="my-reports/day1",
        output_data_blob_prefix="my.summaries/none",
        job_parameters=parameters,
    )
    yield "job without keys", "adtech", _AGGREGATION + "CreateJob", [create.SerializeToString()]
    yield "unknown job", "adtech", _AGGREGATION + "GetJob", [b"\n\x04none"]


def web_questions() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield name, caller, path and body of every request over HTTP."""
    yield "keys over HTTP", "adtech", "/.well-known/aggregation-service/v1/public-keys", []
    yield "health", "adtech", "/healthz", []
    yield "create", "adtech", "/v1alpha/createJob", [json.dumps(asks("web", parameters={"debug_privacy_epsilon": 2.5}))]
    yield "get", "adtech", "/v1alpha/getJob?job_request_id=web", []
    wrong = asks("wrong", parameters={"debug_privacy_epsilon": "many"})
    yield "create wrongly", "adtech", "/v1alpha/createJob", [json.dumps(wrong)]
    yield "unknown", "rival", "/v1alpha/createJob?x", ["{}"]
    yield "strangers", "nobody", "/v1alpha/createJob", ["{}"]


def record(folder: Path) -> list[dict[str, Any]]:
    """Ask everything of a service with each filter, and return the calls with their answers."""
    calls: list[dict[str, Any]] = []
    for filter in FILTERS:
        with world(folder / filter, filter) as running:
            for name, caller, method, raw in () if calls else (*questions(running.maker), *web_questions()):
                sent = [one if isinstance(one, str) else text(one) for one in raw]
                calls.append({"name": name, "caller": caller, "method": method, "sent": sent, "answers": {}})
            for call in calls:
                call["answers"][filter] = ask(running, call)
    return calls


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        recorded = record(Path(scratch))
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"recorded {len(recorded)} calls\n")
