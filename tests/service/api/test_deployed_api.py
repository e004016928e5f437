"""createJob and getJob over HTTP: the documented requests, every error provoked, and isolation between callers."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, Credentials, JobParameters
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service import Limits
from aggservice.service.jobs.desk import JobDesk
from aggservice.wire import KeySet, read_reports, read_summary
from aggservice.wire.hpke.summaries import open_document

from .http_world import MINE, THEIRS, World, asks, error, http_world, put

PAGE = Path(__file__).resolve().parents[3] / "docs" / "service.md"


@pytest.fixture
def world(maker: Any, tmp_path: Path) -> Iterator[World]:
    with http_world(maker, tmp_path) as running:
        yield running


def test_the_documented_requests_are_answered_as_documented(world: World) -> None:
    body = asks("UNIQUEID12313", parameters={"debug_privacy_epsilon": 4.5, "report_error_threshold_percentage": 10.0})
    assert world.create(body) == (202, {})
    found = world.finished("UNIQUEID12313")
    times = [found.pop(name) for name in ("request_received_at", "request_processing_started_at", "request_updated_at")]
    assert all(one.endswith("Z") for one in times)
    info = found.pop("result_info")
    # Parameters are texts in the answer, whether the request had texts or numbers.
    body["job_parameters"] |= {"debug_privacy_epsilon": "4.5", "report_error_threshold_percentage": "10.0"}
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
    assert found["job_parameters"].items() >= (debug | {"input_report_count": "2"}).items()
    several = asks("e", input_data_blob_prefix=None, input_data_blob_prefixes=["day1", "day2"])
    assert world.create(several) == (202, {})
    found = world.finished("e")
    assert found["input_data_blob_prefixes"] == ["day1", "day2"]
    assert found["result_info"]["return_code"] == "PRIVACY_BUDGET_EXHAUSTED"


def unpaid_files(world: World, job: str) -> list[Path]:
    return sorted((world.roots / "summaries" / "adtech" / "out" / job).glob("privacy_budget_exhausted_*.json"))


def test_a_file_lists_the_reports_that_cannot_pay(world: World) -> None:
    """As the deployed service does: below the output prefix, named after the time at which the job was received."""
    assert world.create(asks("a", parameters={"debug_privacy_epsilon": "10"})) == (202, {})
    world.finished("a")
    assert not unpaid_files(world, "a")
    folder = world.roots / "reports" / "adtech"
    put(folder / "mixed.avro", [world.maker.report({1: 1})])
    body = asks("b", input_data_blob_prefix=None, input_data_blob_prefixes=["day1", "mixed"])
    body["job_parameters"] |= {"filtering_ids": "0,7", "debug_privacy_epsilon": "10"}
    assert world.create(body) == (202, {})
    found = world.finished("b")
    (path,) = unpaid_files(world, "b")
    assert path.name == f"privacy_budget_exhausted_debugging_information_{found['request_received_at']}.json"
    message = found["result_info"]["return_message"]
    assert message.startswith("4 of 10 privacy units cannot pay")
    assert f"bucket://my.summaries/out/b/{path.name}" in message
    document = json.loads(path.read_text())
    entries = document["privacy_budget_exhausted_info"]["aggregatable_input_budget_consumption_info"]
    (batch,) = read_reports(folder / "day1" / "shard-1.avro")
    expected = []
    for text in batch.shared_infos:
        info = json.loads(text)
        info["scheduled_report_time"] = int(info["scheduled_report_time"])
        expected.append({"aggregateable_input_budget_id": {"filtering_id": 0, "relevant_shared_info": info}})
    assert entries == expected
    # The folder is not in the way of the same output once the reports are left out.
    again = asks("c", "mixed.avro", output_data_blob_prefix="out/b")
    assert world.create(again) == (202, {})
    assert world.finished("c")["result_info"]["return_code"] == "SUCCESS"
    # A refusal stands where the file cannot be written: here a file has the folder's name.
    (world.roots / "summaries" / "adtech" / "out" / "d").write_text("")
    assert world.create(asks("d", parameters={"debug_privacy_epsilon": "10"})) == (202, {})
    info = world.finished("d")["result_info"]
    assert info["return_code"] == "PRIVACY_BUDGET_EXHAUSTED" and "lists" not in info["return_message"]


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
    "false as domain": (inner(output_domain_blob_prefix=False), "output_domain_blob_prefix is not text"),
    "a list as epsilon": (inner(debug_privacy_epsilon=[]), "debug_privacy_epsilon is not text"),
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


def limited(**changes: Any) -> dict[str, Any]:
    return {"limits": replace(Limits(), processes=0, **changes)}


def test_too_many_jobs_are_429_and_the_id_stays_free(maker: Any, tmp_path: Path) -> None:
    """A stream holds the one slot, and no job may wait: createJob is refused until the stream has ended."""
    reading, done = threading.Event(), threading.Event()
    report = maker.report({1: 1})

    def reports() -> Iterator[Any]:
        yield report
        reading.set()
        done.wait(30)

    with (
        http_world(maker, tmp_path, **limited(jobs=1, waiting=0)) as world,
        Client(world.service.address, credentials=Credentials(token="token-of-adtech")) as client,
    ):
        parameters = JobParameters(attribution_report_to=MINE)
        stream = threading.Thread(target=lambda: client.aggregate("stream", parameters, reports(), domain=[1]))
        stream.start()
        assert reading.wait(30)
        answer = world.create(asks("later"))
        assert error(answer) == (429, "RESOURCE_EXHAUSTED", "INTERNAL_ERROR")
        assert "Ask again later" in answer[1]["error"]["details"][0]["metadata"]["remedy"]
        assert error(world.get("later")) == (404, "NOT_FOUND", "JOB_NOT_FOUND")
        done.set()
        stream.join(30)
        assert world.create(asks("later")) == (202, {})
        assert world.finished("later")["result_info"]["return_code"] == "SUCCESS"


def test_a_ledger_that_does_not_answer_is_503(maker: Any, tmp_path: Path) -> None:
    """The table of jobs disappears below a running service; no error says where or what it was."""
    with http_world(maker, tmp_path, ledger="sqlite") as world:
        with sqlite3.connect(tmp_path / "state" / "ledger.sqlite") as other:
            (tables,) = [[name for (name,) in other.execute("select name from sqlite_master where type = 'table'")]]
            for name in tables:
                other.execute(f"drop table {name}")
        other.close()
        for answer in (world.get("a"), world.create(asks("a"))):
            assert error(answer) == (503, "UNAVAILABLE", "PRIVACY_BUDGET_ERROR")
            assert str(tmp_path) not in json.dumps(answer[1])


def test_a_body_that_stalls_is_504(maker: Any, tmp_path: Path) -> None:
    with http_world(maker, tmp_path, **limited(stall_s=1)) as world:
        port = world.service.service.http_port
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(
                b"POST /v1alpha/createJob HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
                b"Authorization: Bearer token-of-adtech\r\nConnection: close\r\n\r\n{"
            )
            raw = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        head, _, body = raw.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert error((status, json.loads(body))) == (504, "DEADLINE_EXCEEDED", "INTERNAL_ERROR")


def test_a_fault_of_the_service_is_500_and_tells_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(*_: Any) -> None:
        raise RuntimeError("a secret of the service")

    monkeypatch.setattr(JobDesk, "find", fault)
    for answer in (world.get("a"), world.create(asks("a"))):
        assert error(answer) == (500, "INTERNAL", "INTERNAL_ERROR")
        assert "secret" not in json.dumps(answer[1]) and "operator" in answer[1]["error"]["message"]


def test_every_answer_of_the_table_has_a_test_that_causes_it() -> None:
    """A new row of the table in docs/service.md needs a new entry here."""
    caused = {
        202: test_the_documented_requests_are_answered_as_documented,
        200: test_every_documented_return_code_that_a_caller_can_cause,
        400: test_bad_requests_are_refused_by_name_and_change_nothing,
        401: test_credentials_are_taken_from_one_place_in_one_form,
        403: test_callers_are_as_isolated_as_over_grpc,
        404: test_another_callers_job_looks_like_one_that_never_was,
        409: test_a_taken_id_is_refused_also_for_the_same_request,
        429: test_too_many_jobs_are_429_and_the_id_stays_free,
        500: test_a_fault_of_the_service_is_500_and_tells_nothing,
        503: test_a_ledger_that_does_not_answer_is_503,
        504: test_a_body_that_stalls_is_504,
    }
    table = PAGE.read_text(encoding="utf-8").split("| answer | when |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)
    assert {int(status) for row in rows for status in re.findall(r"\d{3}", row)} == caused.keys()


def test_the_curl_lines_of_the_page(maker: Any, tmp_path: Path) -> None:
    """Run as they stand but for the port, with the page's request in job.json and a token in TOKEN."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: the requests of the page are sent by the other tests only")
    section = PAGE.read_text(encoding="utf-8").split('<a id="http"></a>', 1)[1].split("\n## Errors", 1)[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (body,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    (tmp_path / "job.json").write_text(body)
    roots = tmp_path / "roots"
    buckets = {"my-reports": roots / "reports", "my-summaries": roots / "summaries"}
    with http_world(maker, tmp_path, buckets=buckets) as world:
        lines = script.replace("127.0.0.1:8080", f"127.0.0.1:{world.service.service.http_port}").strip().splitlines()
        create, get = (line for line in lines if line.startswith("curl "))
        environment = {**os.environ, "TOKEN": "token-of-adtech", "no_proxy": "*"}

        def run(line: str) -> Any:
            done = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=30, check=True
            )
            return json.loads(done.stdout)

        assert run(create) == {}
        assert world.finished("day1")["result_info"]["return_code"] == "SUCCESS"
        found = run(get)
        assert (found["job_request_id"], found["job_status"]) == ("day1", "FINISHED")
        assert found["job_parameters"] == json.loads(body)["job_parameters"]
        assert (roots / "summaries" / "adtech" / "day1" / "summary-1-of-1.avro").exists()
        again = run(create)["error"]
        assert (again["status"], again["details"][0]["reason"]) == ("ALREADY_EXISTS", "DUPLICATE_JOB_KEY")


def test_credentials_are_taken_from_one_place_in_one_form(world: World) -> None:
    assert world.create(asks("mine")) == (202, {})
    wrong = (
        "token-of-adtech",
        "Basic token-of-adtech",
        "Bearer",
        "Bearer ",
        "Bearer  token-of-adtech",
        "Bearer token-of-adtech, Bearer token-of-rival",
        f"Bearer {'x' * 5000}",
    )
    for header in wrong:
        assert error(world.get("mine", token=None, authorization=header))[0] == 401, header
    for query in ("token=token-of-adtech", "authorization=Bearer%20token-of-adtech", "access_token=token-of-adtech"):
        assert error(world.call(f"/v1alpha/getJob?job_request_id=mine&{query}", token=None))[0] == 401, query
    assert error(world.get("mine", token=None, cookie="token=token-of-adtech"))[0] == 401
    assert world.get("mine", token=None, authorization="bearer token-of-adtech")[0] == 200


def test_another_callers_job_looks_like_one_that_never_was(world: World) -> None:
    assert world.create(asks("mine")) == (202, {})
    world.finished("mine")
    theirs, nobodys = (world.get(job, token="rival") for job in ("mine", "none"))
    assert json.dumps(theirs).replace("mine", "none") == json.dumps(nobodys)
    # Neither an id of theirs nor their output is in the way of another caller's.
    body = asks("mine", parameters={"attribution_report_to": THEIRS})
    assert world.create(body, token="rival") == (202, {})
    assert world.finished("mine", token="rival")["job_parameters"]["attribution_report_to"] == THEIRS
    assert world.get("mine")[1]["job_parameters"]["attribution_report_to"] == MINE


def test_links_and_other_buckets_lead_nowhere(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    put(outside / "shard-1.avro", [world.maker.report({1: 1}, reporting_origin=THEIRS)])
    folder = world.roots / "reports" / "rival"
    (folder / "link").symlink_to(outside)
    (folder / "file.avro").symlink_to(world.roots / "reports" / "adtech" / "day1" / "shard-1.avro")
    (world.roots / "summaries" / "rival" / "link").symlink_to(outside)
    mine = {"attribution_report_to": THEIRS}
    tried = [
        *(asks("x", prefix, parameters=mine) for prefix in ("link/shard", "file.avro", "bucket://my-reports/day1")),
        asks("x", parameters=mine, output_data_blob_prefix="link/out"),
        asks("x", parameters=mine, input_data_bucket_name="adtech"),
        asks("x", parameters=mine | {"output_domain_blob_prefix": "../adtech/domain.avro"}),
        asks("x", parameters=mine | {"output_domain_bucket_name": "nobodys"}),
    ]
    for body in tried:
        status, name, _ = error(world.create(body, token="rival"))
        assert (status, name) in ((403, "PERMISSION_DENIED"), (400, "FAILED_PRECONDITION")), body
    assert error(world.get("x", token="rival"))[0] == 404
    assert [path.name for path in outside.iterdir()] == ["shard-1.avro"]


def test_a_mistaken_path_or_method_is_an_error_that_tools_can_read(world: World) -> None:
    for path in ("/", "/createjob", "/createJob", "/createJob/", "/getJob", "/getJob/x", "/listJobs"):
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
            if (method, path) in (("POST", "/createJob"), ("GET", "/getJob")):
                continue
            answer = world.call(f"/v1alpha{path}", method=method)
            assert error(answer) == (404, "NOT_FOUND", "INVALID_JOB"), (method, path)
            assert f"{method} '/v1alpha{path}'" in answer[1]["error"]["message"]
            assert "/v1alpha/getJob?job_request_id=ID" in answer[1]["error"]["details"][0]["metadata"]["remedy"]


def test_the_paths_of_the_page_are_those_of_the_app(world: World) -> None:
    section = PAGE.read_text(encoding="utf-8").split("| path on `http_listen` |", 1)[1].split("\n\n", 1)[0]
    named = re.findall(r"`(GET|POST) (/[^`]*)`", section)
    assert len(named) == 5
    expected = {"/metrics": 403, "/v1alpha/createJob": 400, "/v1alpha/getJob": 400}
    for method, path in named:
        body = b"" if method == "POST" else None
        assert world.raw(path, body)[0] == expected.get(path, 200), path
        assert world.raw(path, body, token=None)[0] == (401 if path in expected else 200), path
