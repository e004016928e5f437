"""The client library: jobs over streams and files, progress, retries, errors that say what to do."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.client import Client, ClientError, Credentials, JobParameters, JobStatus
from aggservice.job.messages import parameters_message
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import aggregation_service_pb2_grpc as aggregation_grpc
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import BucketRows, KeySet, ReportBatch, Spans, read_summary, write_buckets, write_reports
from aggservice.wire.avro.buckets import read_debug_summary

ORIGIN = "https://adtech.example"


def asks(**more: Any) -> JobParameters:
    return JobParameters(attribution_report_to=ORIGIN, **more)


def write_domain(path: Path, keys: list[int]) -> None:
    low = np.array(keys, dtype=np.uint64)
    high = np.zeros(low.size, dtype=np.uint64)
    write_buckets(path, BucketRows(key_high=high, key_low=low, numbers=np.empty((low.size, 0), dtype=np.int64)))


@pytest.fixture
def files(maker: Any, tmp_path: Path) -> Any:
    """A service with folders, and a client."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        input_folder=tmp_path / "in",
        output_folder=tmp_path / "out",
    )
    from dataclasses import replace

    config = replace(config, limits=replace(config.limits, processes=0))
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        yield service, client, tmp_path


def test_a_job_over_files(maker: Any, files: Any) -> None:
    _service, client, folder = files
    for number in range(3):
        reports = [maker.report({1: 10, 2: 1}) for _ in range(5)]
        write_reports(folder / "in" / f"day1-{number}.avro", [ReportBatch.of(reports)])
    write_domain(folder / "in" / "domain.avro", [1, 2, 3])
    seen: list[tuple[int, str]] = []
    begun = client.create_job(
        "a",
        asks(epsilon="20"),
        input_data_blob_prefix="day1-",
        output_data_blob_prefix="sum/day1.avro",
        output_domain_blob_prefix="domain",
    )
    assert begun.job_request_id == "a"
    done = client.watch_job("a", lambda read, stage: seen.append((read, stage)))
    assert seen and done.summary.row_count == 3
    assert list(done.summary.files) == ["day1-1-of-1.avro"]
    rows = np.concatenate([part.key_low for part in read_summary(folder / "out" / "sum" / "day1-1-of-1.avro")])
    assert rows.tolist() == [1, 2, 3]
    assert (folder / "out" / "sum" / "day1-statement.json").exists()
    # The same request again is the same job; another is refused; the files of the first are as they were.
    again = client.create_job(
        "a",
        asks(epsilon="20"),
        input_data_blob_prefix="day1-",
        output_data_blob_prefix="sum/day1.avro",
        output_domain_blob_prefix="domain",
    )
    assert again.summary.receipt == done.summary.receipt
    with pytest.raises(ClientError) as caught:
        client.create_job(
            "a",
            asks(epsilon="21"),
            input_data_blob_prefix="day1-",
            output_data_blob_prefix="sum/day1.avro",
            output_domain_blob_prefix="domain",
        )
    assert caught.value.status == grpc.StatusCode.ALREADY_EXISTS
    assert client.summary("a").files == ("day1-1-of-1.avro",)
    assert not list((folder / "state" / "staging").iterdir())
    # The caller may move or change what was written; the service then says so and does not present it as its own.
    statement = folder / "out" / "sum" / "day1-statement.json"
    statement.write_text(statement.read_text().replace("20", "10"))
    with pytest.raises(ClientError, match="moved or changed"):
        client.summary("a")


def test_a_debug_job_over_files_writes_to_a_separate_place(maker: Any, files: Any) -> None:
    _service, client, folder = files
    reports = [maker.report({1: 10, 9: 4}, debug_mode=True) for _ in range(3)]
    write_reports(folder / "in" / "debug.avro", [ReportBatch.of(reports)])
    write_domain(folder / "in" / "domain.avro", [1, 2])
    client.create_job(
        "d",
        asks(debug_run=True),
        input_data_blob_prefix="debug",
        output_data_blob_prefix="result",
        output_domain_blob_prefix="domain",
    )
    done = client.watch_job("d")
    assert done.summary.debug_run and not done.summary.receipt
    regular = list(read_summary(folder / "out" / "result-1-of-1"))
    assert regular[0].key_low.tolist() == [1, 2]
    debug = list(read_debug_summary(folder / "out" / "debug" / "result-1-of-1"))
    assert debug[0].key_low.tolist() == [1, 2, 9]
    assert debug[0].numbers[:, 0].tolist() == [30, 0, 12]
    assert debug[0].tags is not None and debug[0].tags.tolist() == [3, 1, 2]
    noise = dict(zip(debug[0].key_low.tolist(), debug[0].numbers[:, 1].tolist(), strict=True))
    shown = dict(zip(regular[0].key_low.tolist(), regular[0].numbers[:, 0].tolist(), strict=True))
    assert shown == {1: 30 + noise[1], 2: noise[2]}
    assert client.verify_ledger().entry_count == 1


def test_a_failed_job_says_why_and_may_be_sent_again(maker: Any, files: Any) -> None:
    _service, client, folder = files
    bad = [maker.report({1: 1}, reporting_origin="https://other.example") for _ in range(3)]
    write_reports(folder / "in" / "reports.avro", [ReportBatch.of(bad)])
    write_domain(folder / "in" / "domain.avro", [1])
    where = {
        "input_data_blob_prefix": ["reports"],
        "output_data_blob_prefix": "out",
        "output_domain_blob_prefix": "domain",
    }
    client.create_job("a", asks(), **where)
    with pytest.raises(ClientError) as caught:
        client.watch_job("a")
    assert caught.value.return_code == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    assert caught.value.error_counts["ATTRIBUTION_REPORT_TO_MISMATCH"] == 3
    assert "report_error_threshold_percentage" in caught.value.remedy
    (folder / "in" / "broken.avro").write_bytes(b"Obj\x01nonsense")
    client.create_job("b", asks(), **{**where, "input_data_blob_prefix": "broken"})
    with pytest.raises(ClientError) as caught:
        client.watch_job("b")
    assert caught.value.return_code == "INPUT_DATA_READ_FAILED"
    (folder / "in" / "reports.avro").unlink()
    write_reports(folder / "in" / "reports.avro", [ReportBatch.of([maker.report({1: 1})])])
    client.create_job("a", asks(), **where)
    assert client.watch_job("a").summary.row_count == 1


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        (JobParameters(), "exactly one"),
        (JobParameters(attribution_report_to=ORIGIN, reporting_site=ORIGIN), "exactly one"),
        (asks(epsilon="0"), "epsilon"),
        (asks(epsilon="65"), "epsilon"),
        (asks(epsilon="NaN"), "epsilon"),
        (asks(epsilon="0.0000001"), "epsilon"),
        (asks(epsilon="-1"), "epsilon"),
        (asks(epsilon="1" * 1000), "epsilon"),
        (asks(rho="1"), "zCDP"),
        (asks(rho="1", discovery_delta="0.1"), "job_epsilon"),
        (asks(discovery_delta="0"), "delta"),
        (asks(discovery_delta="1.5"), "delta"),
        (asks(discovery_delta="1e-19"), "delta"),
        (asks(others_epsilon="nan"), "epsilon"),
        (asks(report_error_threshold_percentage="101"), "report_error_threshold_percentage"),
        (asks(report_error_threshold_percentage="nan"), "report_error_threshold_percentage"),
        (asks(input_report_count=-1), "input_report_count"),
        (asks(minimum_report_count=-1), "minimum_report_count is negative"),
        (asks(minimum_report_count=1_000), "usable reports, and its minimum_report_count is 1000"),
        (asks(filtering_ids=(1 << 64,)), "filtering ID"),
        (asks(filtering_ids=(-1,)), "filtering_ids"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(
    parameters: JobParameters, word: str, maker: Any, client: Client
) -> None:
    with pytest.raises(ClientError, match=word) as caught:
        client.aggregate("a", parameters, [maker.report({1: 1})], domain=[1])
    assert caught.value.return_code == "INVALID_JOB"
    assert client.verify_ledger().entry_count == 1


@pytest.mark.parametrize("name", ["", "x" * 129, "naïve", "a\nb"])
def test_job_ids_are_short_and_printable(name: str, maker: Any, client: Client) -> None:
    with pytest.raises(ClientError, match="job_request_id"):
        client.aggregate(name, asks(), [maker.report({1: 1})], domain=[1])


def test_a_large_stream_is_divided_and_its_progress_told(maker: Any, client: Client) -> None:
    report = maker.report({1: 1})
    stages: list[str] = []
    batch = ReportBatch.of([report] * 3000)
    domain = (np.zeros(200_000, dtype=np.uint64), np.arange(200_000, dtype=np.uint64))
    summary = client.aggregate(
        "a", asks(), [batch] * 6, domain=domain, progress=lambda read, stage: stages.append(stage)
    )
    assert len(summary) == 200_000
    assert summary.error_counts == {"REPEATED_REPORT_ID": 17_999}
    assert "reading" in stages


def test_keys_rotate_under_a_running_service(maker: Any, service: Any, client: Client) -> None:
    before = client.public_keys()
    old = maker.report({1: 1})
    rotated = maker.keys.rotate(maker.bits, maker.clock)
    service.service.keys.replace(rotated)
    after = client.public_keys()
    assert {key.id for key in before.keys} < {key.id for key in after.keys}
    maker.keys = rotated
    summary = client.aggregate("a", asks(), [old, maker.report({1: 1})], domain=[1])
    assert summary.error_counts == {}
    stranger = KeySet.create(maker.bits, maker.clock)
    maker.keys = stranger
    foreign = maker.report({1: 1})
    loose = asks(report_error_threshold_percentage="100")
    assert client.aggregate("b", loose, [foreign], domain=[1]).error_counts["DECRYPTION_KEY_NOT_FOUND"] == 1


def test_a_key_file_that_cannot_be_read_is_another_error_than_a_missing_key(maker: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    from aggservice.wire import write_key_set
    from aggservice.wire.errors import KeySetError

    path = tmp_path / "keys.json"
    write_key_set(path, maker.keys)
    config = ServiceConfig(state=tmp_path / "state", listen="127.0.0.1:0", keys=path)
    config = replace(config, limits=replace(config.limits, processes=0))
    known = maker.report({1: 1})
    with embedded(config, clock=maker.clock) as service, Client(service.address) as client:
        ring = service.service.keys
        maker.keys = KeySet.create(maker.bits, maker.clock)
        unknown = [maker.report({1: 1}) for _ in range(2)]
        loose = asks(report_error_threshold_percentage="100", epsilon="1")
        path.write_text("not a key set")
        with pytest.raises(KeySetError):
            ring.refresh()
        counts = client.aggregate("a", loose, [known, *unknown], domain=[1]).error_counts
        assert counts == {"DECRYPTION_KEY_FETCH_ERROR": 2, "NUM_REPORTS_WITH_ERRORS": 2}
        path.unlink()
        write_key_set(path, maker.keys)
        assert ring.refresh() and not ring.refresh()
        # The key that the operator removed opens nothing any more.
        counts = client.aggregate("b", loose, [known, *unknown], domain=[1]).error_counts
        assert counts == {"DECRYPTION_KEY_NOT_FOUND": 1, "NUM_REPORTS_WITH_ERRORS": 1}


def test_what_the_caller_gives_wrongly_is_said_and_not_charged(maker: Any, client: Client) -> None:
    reports = [maker.report({1: 5}) for _ in range(20)]

    class Broken:
        """Ends in an error each time it is read."""

        def __iter__(self) -> Iterator[Any]:
            yield from reports
            raise LookupError("my own")

    asked = asks(epsilon="64")
    for number, once in enumerate((Broken(), iter(Broken()))):
        with pytest.raises(LookupError, match="my own"):
            client.aggregate(f"broken-{number}", asked, once, domain=[1])  # type: ignore[arg-type]
    for bucket in (-1, 1 << 128):
        with pytest.raises(ClientError, match=f"bucket {bucket} of the domain"):
            client.aggregate(f"domain-{bucket}", asked, reports, domain=[1, bucket])
    for wrong in ({"discovery_delta": "0.000001", "key_mask": -1}, {"input_report_count": 1 << 70}):
        with pytest.raises(ClientError, match="INVALID_JOB"):
            client.aggregate("wrong", dataclasses.replace(asked, **wrong), reports, domain=[1])  # type: ignore[arg-type]
    batch = ReportBatch.of(reports)
    infos = list(batch.shared_infos)
    infos[7] = infos[7].replace(b"adtech", b"\xff\xfe")
    damaged = ReportBatch(payloads=batch.payloads, key_ids=batch.key_ids, shared_infos=Spans.of(infos))
    summary = client.aggregate("damaged", asked, [damaged], domain=[1])
    assert summary.error_counts["NUM_REPORTS_WITH_ERRORS"] == 1
    assert summary.statement.remaining["epsilon"] == "0"


def test_credentials_that_would_not_be_used_or_not_be_safe_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {"token": ""}, {"token": "two\nlines"}, {"token": "é"}, {"certificate": b"c", "private_key": b"k"},
        {"certificate": b"c", "root_certificates": b"r"}, {"private_key": b"k"},
    ):  # fmt: skip
        with pytest.raises(ClientError):
            Credentials(**wrong)  # type: ignore[arg-type]
    token = Credentials(token="secret")
    assert "secret" not in repr(token)
    for address in ("adtech.example:50051", "10.0.0.1:50051", "[2001:db8::1]:50051", "dns:///adtech.example:50051"):
        with pytest.raises(ClientError, match="TLS only"):
            Client(address, credentials=token)
        Client(address).close()
    for address in ("127.0.0.1:50051", "localhost:50051", "[::1]:50051", "unix:/tmp/socket"):
        Client(address, credentials=token).close()
    (tmp_path / "token").write_bytes(b"\xff\xa0")
    with pytest.raises(ClientError, match="printable"):
        Credentials.from_files(token_file=tmp_path / "token")


def test_no_method_takes_or_returns_a_protobuf_message() -> None:
    methods = {name: kind for name, kind in vars(Client).items() if not name.startswith("_")}
    assert len(methods) == 15
    for name, method in methods.items():
        for said in typing.get_type_hints(method).values():
            assert said is not typing.Any and "pb2" not in str(said), name


def test_an_address_where_nothing_listens_is_told_after_retries() -> None:
    with Client("127.0.0.1:1", attempts=2, first_wait_s=0.01) as client, pytest.raises(ClientError) as caught:
        client.public_keys()
    assert caught.value.status == grpc.StatusCode.UNAVAILABLE
    assert "running" in caught.value.remedy


def test_the_job_commands(maker: Any, files: Any) -> None:
    import json

    from aggservice.commands import app

    service, _client, folder = files
    write_reports(folder / "in" / "reports.avro", [ReportBatch.of([maker.report({1: 10})])])
    write_domain(folder / "in" / "domain.avro", [1])
    runner = CliRunner()

    def run(*arguments: str) -> Any:
        return runner.invoke(app, ["job", *arguments, "--service", service.address])

    create = ("--input-data-blob-prefix", "reports", "--output-domain-blob-prefix", "domain")
    created = run(
        "create", "a", *create, "--output-data-blob-prefix", "o", "--attribution-report-to", ORIGIN, "--watch", "--json"
    )
    assert created.exit_code == 0, created.output
    assert json.loads(created.stdout)["job_status"] == "FINISHED"
    assert json.loads(run("get", "a", "--json").stdout)["summary"]["row_count"] == 1
    receipt = folder / "receipt"
    plain = json.loads(run("summary", "a", "--json", "--receipt", str(receipt)).stdout)
    assert plain["return_code"] == "SUCCESS" and plain["files"] == ["o-1-of-1"]
    assert receipt.read_bytes()
    assert "FINISHED" in run("watch", "a").output
    missing = run("get", "none")
    assert missing.exit_code == 2 and "none" in missing.output and "Traceback" not in missing.output
    refused = run(
        "create",
        "b",
        *create,
        "--output-data-blob-prefix",
        "p",
        "--attribution-report-to",
        ORIGIN,
        "--epsilon",
        "60",
        "--watch",
    )
    assert refused.exit_code == 2 and "PRIVACY_BUDGET_EXHAUSTED" in refused.output
    listed = run("unpaid", "b", "--json")
    assert len(json.loads(listed.stdout)) == 1
    assert "jobs: a" in run("unpaid", "b").stdout


def test_jobs_are_listed_newest_first_and_by_page(maker: Any, files: Any) -> None:
    from aggservice.commands import app

    service, client, folder = files
    write_reports(folder / "in" / "reports.avro", [ReportBatch.of([maker.report({1: 10})])])
    write_domain(folder / "in" / "domain.avro", [1])
    expected = []
    for number in range(4):
        job = f"job-{number}"
        if number % 2:
            client.aggregate(job, asks(epsilon="1"), [maker.report({1: 1})], domain=[1])
        else:
            client.create_job(
                job,
                asks(epsilon="1"),
                input_data_blob_prefix="reports",
                output_data_blob_prefix=f"o{number}",
                output_domain_blob_prefix="domain",
            )
            client.watch_job(job)
        expected.insert(0, job)
        maker.clock.advance(1)
    with pytest.raises(ClientError):  # a failed stream, which a job over files of the same id then follows
        client.aggregate(
            "twice", asks(epsilon="1"), [maker.report({1: 1}, reporting_origin="https://other.example")], domain=[1]
        )
    maker.clock.advance(1)
    client.create_job(
        "twice",
        asks(epsilon="1"),
        input_data_blob_prefix="reports",
        output_data_blob_prefix="o9",
        output_domain_blob_prefix="domain",
    )
    client.watch_job("twice")
    expected.insert(0, "twice")
    for size in (1, 2, 3, 100):
        found = list(client.jobs(size))
        assert [one.job_request_id for one in found] == expected, size
        assert found == [client.get_job(job) for job in expected]
    with pytest.raises(ClientError, match="page_size is 1001"):
        list(client.jobs(1001))
    shown = CliRunner().invoke(app, ["job", "list", "--most", "2", "--service", service.address])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert len(lines) == 2 and "  files   twice  SUCCESS" in lines[0] and "  stream  job-3  SUCCESS" in lines[1]


def test_a_page_token_is_one_that_the_service_gave(service: Any) -> None:
    channel = grpc.insecure_channel(service.address)
    stub = aggregation_grpc.AggregationServiceStub(channel)
    for token in ("x", "1:2", "-1:0:0:", "1:0:0", "9" * 19 + ":0:0:"):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListJobs(aggregation_pb2.ListJobsRequest(page_token=token))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "page_token" in caught.value.details()
    channel.close()


def test_a_job_over_files_without_folders_says_to_stream(maker: Any, service: Any) -> None:
    from aggservice.commands import app

    given = ["--input-data-blob-prefix", "x", "--output-data-blob-prefix", "o", "--output-domain-blob-prefix", "d"]
    asked = ["job", "create", "a", *given, "--attribution-report-to", ORIGIN, "--service", service.address]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 2 and "no folders" in shown.output
    assert "'aggservice job aggregate'" in shown.output and "relative to your folder" not in shown.output


def test_a_job_gives_its_parameters_back(maker: Any, files: Any) -> None:
    _service, client, folder = files
    write_reports(folder / "in" / "reports.avro", [ReportBatch.of([maker.report({1: 10})])])
    asked = asks(
        epsilon="2.5", discovery_delta="0.000001", key_mask=(1 << 100) - 1, others_epsilon="1", filtering_ids=(0, 7)
    )
    where = {"input_data_blob_prefix": ["reports"], "output_data_blob_prefix": "o"}
    begun = client.create_job("a", asked, **where)
    assert begun.parameters == asked and begun.received_ms is not None
    assert (begun.input_data_blob_prefixes, begun.output_data_blob_prefix) == (("reports",), "o")
    done = client.watch_job("a")
    assert done.job_status == JobStatus.FINISHED and done.result is not None and done.summary is not None
    assert done.result.return_code == done.summary.return_code == "SUCCESS"
    assert done.result.finished_ms == done.summary.finished_ms


def test_a_key_mask_alone_asks_for_no_discovery() -> None:
    assert not parameters_message(JobParameters(reporting_site="https://a.test", key_mask=5), "a").HasField(
        "key_discovery"
    )
