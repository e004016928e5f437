"""Isolation: every way in which one caller might reach what is another's, each refused or harmless, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from aggservice.client import Client, ClientError, Credentials, JobParameters
from aggservice.engine import PrivacyUnit
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service import Caller, EmbeddedService, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import RIGHTS, Token
from aggservice.service.config.settings import TlsFiles
from aggservice.wire import BucketRows, ReportBatch, SharedInfo, make_report, write_buckets, write_reports

from .authority import Authority

MINE, THEIRS = "https://adtech.example", "https://rival.example"
OURS = "https://one.shared.example", "https://two.shared.example"
"""Two origins of one site, one of each of the two ad-techs."""


@dataclass
class World:
    """A service on loopback with TLS, two ad-techs, an auditor and an operator."""

    service: EmbeddedService
    authority: Authority
    inputs: Path
    outputs: Path
    maker: Any

    def client(self, token: str | None, **more: Any) -> Client:
        credentials = Credentials(token=token, root_certificates=self.authority.certificate, **more)
        return Client(self.service.address.replace("127.0.0.1", "localhost"), credentials=credentials, attempts=1)

    def mutual(self, certificate: bytes, private_key: bytes) -> Client:
        credentials = Credentials(
            root_certificates=self.authority.certificate, certificate=certificate, private_key=private_key
        )
        return Client(f"localhost:{self.service.service.mtls_port}", credentials=credentials, attempts=1)


def token(name: str) -> str:
    return f"token-of-{name}"


@pytest.fixture(params=list(PrivacyUnit))
def world(maker: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    authority = Authority()
    certificate, key, root = authority.write_server(tmp_path)
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    for folder in (inputs, outputs):
        for name in ("adtech", "rival"):
            (folder / name).mkdir(parents=True)
    now = maker.clock.now_ms()

    def caller(name: str, role: Role, **more: Any) -> Caller:
        return Caller(
            name=name,
            roles=frozenset({role}),
            tokens=(Token(digest=token_digest(token(name))), Token(digest=token_digest(f"old-{name}"), expires_ms=now)),
            folder=name,
            **more,
        )

    config = ServiceConfig(
        state=tmp_path / "state",
        listen="localhost:0",
        listen_mtls="localhost:0",
        http_listen="127.0.0.1:0",
        tls=TlsFiles(certificate=certificate, private_key=key, client_authority=root),
        ledger="sqlite",
        unit=request.param,
        input_folder=inputs,
        output_folder=outputs,
        callers=(
            caller(
                "adtech", Role.ADTECH, origins=frozenset({MINE, OURS[0]}), certificates=frozenset({"adtech-client"})
            ),
            caller("rival", Role.ADTECH, origins=frozenset({THEIRS, OURS[1]})),
            caller("auditor", Role.AUDITOR),
            caller("operator", Role.OPERATOR),
        ),
    )
    config = replace(config, limits=replace(config.limits, processes=0))
    with embedded(config, keys=maker.keys, clock=maker.clock) as service:
        yield World(service=service, authority=authority, inputs=inputs, outputs=outputs, maker=maker)


def asks(origin: str = MINE, **more: Any) -> JobParameters:
    return JobParameters(attribution_report_to=origin, **more)


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.status, caught.value.return_code


def every_method() -> list[tuple[str, bool, bool]]:
    """Return (path, client streams, server streams) of every method of every service that is registered."""
    pool = descriptor_pool.Default()
    found = []
    for name in (
        "aggservice.v1.AggregationService",
        "aggservice.v1.BudgetService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    ):
        service = pool.FindServiceByName(name)
        for method in service.methods:
            found.append((f"/{name}/{method.name}", method.client_streaming, method.server_streaming))
    return found


def raw_call(channel: grpc.Channel, path: str, client_streams: bool, server_streams: bool) -> grpc.StatusCode:
    """Call a method with an empty message and return how it ended."""
    shape = f"{'stream' if client_streams else 'unary'}_{'stream' if server_streams else 'unary'}"
    call = getattr(channel, shape)(path, request_serializer=bytes, response_deserializer=bytes)
    try:
        answer = call(iter([b""]) if client_streams else b"", timeout=3)
        if server_streams:
            next(iter(answer), None)
            answer.cancel()
    except grpc.RpcError as problem:
        return problem.code()
    return grpc.StatusCode.OK


def test_a_client_without_tls_is_told_that_the_service_has_it(world: World) -> None:
    with Client(world.service.address.replace("127.0.0.1", "localhost"), attempts=1) as client:
        with pytest.raises(ClientError, match="TLS") as caught:
            client.public_keys()
        assert "--root-certificates" in caught.value.remedy


STRANGERS = {
    "/aggservice.v1.AggregationService/ListPublicKeys",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
}


def test_strangers_get_public_keys_and_health_and_nothing_else(world: World) -> None:
    methods = every_method()
    assert len(methods) >= 16
    assert {path for path, _, _ in methods} <= set(RIGHTS)
    credentials = grpc.ssl_channel_credentials(world.authority.certificate)
    address = world.service.address.replace("127.0.0.1", "localhost")
    open_to_all = set()
    with grpc.secure_channel(address, credentials) as channel:
        for path, client_streams, server_streams in methods:
            ended = raw_call(channel, path, client_streams, server_streams)
            if ended == grpc.StatusCode.UNAUTHENTICATED:
                continue
            assert ended in (grpc.StatusCode.OK, grpc.StatusCode.UNIMPLEMENTED), (path, ended)
            open_to_all.add(path)
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert open_to_all <= STRANGERS
    assert "/aggservice.v1.AggregationService/ListPublicKeys" in open_to_all
    # Plaintext does not get anywhere on a port with TLS.
    with grpc.insecure_channel(address) as channel:
        assert raw_call(channel, "/aggservice.v1.AggregationService/ListPublicKeys", False, False) != grpc.StatusCode.OK


def test_wrong_and_expired_tokens_are_refused_and_never_taken_for_none(world: World) -> None:
    tried = 0
    for wrong in ("nonsense", "old-adtech", token("adtech") + "x", "token-of-ADTECH"):
        with world.client(wrong) as client:
            for call in (
                lambda client=client: client.get_job("a"),
                lambda client=client: client.public_keys(),
                lambda client=client: list(client.entries()),
                lambda client=client: client.aggregate("a", asks(), [], domain=[1]),
            ):
                assert refused(call) == (grpc.StatusCode.UNAUTHENTICATED, "PERMISSION_ERROR")
                tried += 1
    assert tried == 16


def test_a_client_certificate_of_another_authority_does_not_connect(world: World) -> None:
    with world.mutual(*world.authority.issue("adtech-client")) as client:
        summary = client.aggregate("mine", asks(), [world.maker.report({1: 5})], domain=[1])
        assert summary.return_code == "SUCCESS"
    with world.mutual(*Authority("other authority").issue("adtech-client")) as client:
        assert refused(client.public_keys)[0] == grpc.StatusCode.UNAVAILABLE
    with world.mutual(*world.authority.issue("unknown-client")) as client:
        assert refused(lambda: client.get_job("a")) == (grpc.StatusCode.UNAUTHENTICATED, "PERMISSION_ERROR")


def test_each_role_is_kept_to_its_own(world: World) -> None:
    report = world.maker.report({1: 5})
    with world.client(token("auditor")) as auditor:
        for call in (
            lambda: auditor.aggregate("a", asks(), [report], domain=[1]),
            lambda: auditor.create_job("a", asks(), input_data_blob_prefix="x", output_data_blob_prefix="y"),
            lambda: auditor.get_job("a"),
            lambda: auditor.summary("a"),
            lambda: auditor.cancel_job("a"),
            lambda: auditor.watch_job("a"),
            lambda: auditor.check_budget(asks(), [report.shared_info]),
            lambda: list(auditor.unpaid_units("a")),
            lambda: auditor.balances([report.shared_info]),
        ):
            assert refused(call) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_ERROR")
        assert auditor.verify_ledger().ok
        assert len(list(auditor.entries())) == 1
        assert auditor.unit_balances([bytes(20)])[0].spent.epsilon == "0"
    with world.client(token("adtech")) as adtech:
        assert refused(adtech.verify_ledger)[0] == grpc.StatusCode.PERMISSION_DENIED
        assert refused(lambda: adtech.unit_balances([bytes(20)]))[0] == grpc.StatusCode.PERMISSION_DENIED
    with world.client(token("operator")) as operator:
        assert refused(lambda: operator.aggregate("a", asks(), [report], domain=[1]))[0] == (
            grpc.StatusCode.PERMISSION_DENIED
        )
        assert operator.verify_ledger().ok
    _check_reflection(world)


def _check_reflection(world: World) -> None:
    """Reflection is the operator's."""
    credentials = grpc.ssl_channel_credentials(world.authority.certificate)
    address = world.service.address.replace("127.0.0.1", "localhost")
    ask = [reflection_pb2.ServerReflectionRequest(list_services="")]
    with grpc.secure_channel(address, credentials) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        for name, allowed in (("operator", True), ("adtech", False), ("auditor", False)):
            metadata = (("authorization", f"Bearer {token(name)}"),)
            try:
                answer = next(iter(stub.ServerReflectionInfo(iter(ask), metadata=metadata, timeout=5)))
                names = {one.name for one in answer.list_services_response.service}
                assert allowed and "aggservice.v1.AggregationService" in names
            except grpc.RpcError as problem:
                assert not allowed and problem.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_job_touches_only_reports_of_the_callers_origins(world: World) -> None:
    theirs = [world.maker.report({1: 50}, reporting_origin=THEIRS) for _ in range(3)]
    mine = [world.maker.report({1: 5}) for _ in range(3)]
    with world.client(token("adtech")) as client, world.client(token("rival")) as rival:
        # Asking for the other's origin or site is refused.
        assert refused(lambda: client.aggregate("a", asks(THEIRS), theirs, domain=[1])) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "PERMISSION_ERROR",
        )
        site = JobParameters(reporting_site=THEIRS)
        assert refused(lambda: client.aggregate("a", site, theirs, domain=[1]))[0] == grpc.StatusCode.PERMISSION_DENIED
        # The other's reports among one's own are left out and pay nothing.
        loose = asks(report_error_threshold_percentage="100")
        summary = client.aggregate("mixed", loose, mine + theirs, domain=[1])
        assert summary.error_counts["ATTRIBUTION_REPORT_TO_MISMATCH"] == 3
        assert {one.spent.epsilon for one in rival.balances([report.shared_info for report in theirs])} == {"0"}
        # Nor can one ask about, or dry-run against, the other's units, alone or among one's own.
        infos = [report.shared_info for report in (mine[0], theirs[0])]
        for asked in (infos[1:], infos, infos[::-1]):
            assert refused(lambda asked=asked: client.balances(asked))[0] == grpc.StatusCode.PERMISSION_DENIED
            assert refused(lambda asked=asked: client.check_budget(asks(), asked))[0] == (
                grpc.StatusCode.PERMISSION_DENIED
            )


def test_a_job_over_a_site_leaves_out_the_origins_of_other_callers(world: World) -> None:
    """As a stream and over files: reports of the other's origin of the site are not summed and pay nothing."""
    mine, theirs = ([world.maker.report({1: 5}, reporting_origin=one) for _ in range(3)] for one in OURS)
    site = JobParameters(reporting_site="https://shared.example", report_error_threshold_percentage="100", epsilon="1")
    _write_inputs(world.inputs / "adtech", mine + theirs)
    with world.client(token("adtech")) as client, world.client(token("rival")) as rival:
        counts = client.aggregate("stream", site, mine + theirs, domain=[1]).error_counts
        assert counts == {"NUM_REPORTS_WITH_ERRORS": 3, "REPORTING_SITE_MISMATCH": 3}
        client.create_job(
            "files",
            site,
            input_data_blob_prefix="reports.avro",
            output_data_blob_prefix="summary",
            output_domain_blob_prefix="domain.avro",
        )
        client.watch_job("files")
        assert client.summary("files").error_counts == counts
        assert {one.spent.epsilon for one in client.balances([one.shared_info for one in mine])} == {"2"}
        assert {one.spent.epsilon for one in rival.balances([one.shared_info for one in theirs])} == {"0"}


def test_another_callers_job_does_not_exist(world: World) -> None:
    with world.client(token("adtech")) as client, world.client(token("rival")) as rival:
        client.aggregate("secret", asks(), [world.maker.report({1: 5})], domain=[1])
        for call in (
            lambda: rival.get_job("secret"),
            lambda: rival.summary("secret"),
            lambda: rival.cancel_job("secret"),
            lambda: rival.watch_job("secret"),
            lambda: list(rival.unpaid_units("secret")),
        ):
            assert refused(call)[0] == grpc.StatusCode.NOT_FOUND
        assert list(rival.jobs()) == []
        assert [one.job_request_id for one in client.jobs()] == ["secret"]
        assert list(rival.entries()) == []
        assert list(rival.entries(caller="adtech")) == []
        assert [one.job_request_id for one in client.entries()] == ["secret"]
        # The same id is free for the other, and the two never meet.
        own = rival.aggregate("secret", asks(THEIRS), [world.maker.report({1: 7}, reporting_origin=THEIRS)], domain=[1])
        assert own.ledger_entry == 2 and not own.repeated


def test_another_callers_refusal_does_not_exist(world: World) -> None:
    """Which units could not pay, and for what, is told to the caller of the refused job alone."""
    report = world.maker.report({1: 5})
    with world.client(token("adtech")) as client, world.client(token("rival")) as rival:
        client.aggregate("first", asks(epsilon="64"), [report], domain=[1])
        assert refused(lambda: client.aggregate("second", asks(), [report], domain=[1]))[1] == (
            "PRIVACY_BUDGET_EXHAUSTED"
        )
        assert [one.job_request_ids for one in client.unpaid_units("second")] == [("first",)]
        for job in ("first", "second"):
            assert refused(lambda job=job: list(rival.unpaid_units(job)))[0] == grpc.StatusCode.NOT_FOUND
        assert refused(lambda: rival.get_job("second"))[0] == grpc.StatusCode.NOT_FOUND


def test_a_forged_report_with_anothers_report_id_spends_nothing_of_his(world: World) -> None:
    real = world.maker.report({1: 5})
    info = SharedInfo.parse(real.shared_info)
    forged = make_report(
        [],
        shared_info=replace(info, reporting_origin=THEIRS),
        keys=world.maker.keys.public(world.maker.clock),
        bits=world.maker.bits,
        maximum=20,
    )
    with world.client(token("adtech")) as client, world.client(token("rival")) as rival:
        spent = rival.aggregate("forgery", asks(THEIRS, epsilon="64"), [forged], domain=[1])
        assert spent.statement.remaining["epsilon"] == "0"
        assert client.balances([real.shared_info])[0].remaining.epsilon == "64"
        assert client.aggregate("real", asks(epsilon="64"), [real], domain=[1]).return_code == "SUCCESS"
        # A forgery that names the victim's own origin cannot be aggregated by the forger at all.
        same = make_report(
            [], shared_info=info, keys=world.maker.keys.public(world.maker.clock), bits=world.maker.bits, maximum=20
        )
        tried = asks(THEIRS, report_error_threshold_percentage="100")
        answer = rival.aggregate("again", tried, [same], domain=[1])
        assert answer.error_counts["ATTRIBUTION_REPORT_TO_MISMATCH"] == 1


def _write_inputs(folder: Path, reports: list[Any]) -> None:
    write_reports(folder / "reports.avro", [ReportBatch.of(reports)])
    keys = np.array([1, 2], dtype=np.uint64)
    write_buckets(
        folder / "domain.avro",
        BucketRows(key_high=np.zeros(2, dtype=np.uint64), key_low=keys, numbers=np.empty((2, 0), dtype=np.int64)),
    )


def test_paths_outside_the_callers_folder_are_refused_by_name(world: World, tmp_path: Path) -> None:
    reports = [world.maker.report({1: 5})]
    _write_inputs(world.inputs / "adtech", reports)
    _write_inputs(world.inputs / "rival", reports)
    outside = tmp_path / "outside"
    outside.mkdir()
    _write_inputs(outside, reports)
    (world.inputs / "adtech" / "link.avro").symlink_to(outside / "reports.avro")
    (world.inputs / "adtech" / "linked").symlink_to(outside)
    (world.outputs / "adtech" / "linked").symlink_to(outside)
    bad_inputs = [
        "../rival/reports.avro",
        "a/../../rival/reports.avro",
        str(outside / "reports.avro"),
        "link.avro",
        "linked/reports.avro",
        "./reports.avro",
        "~root/reports.avro",
        "reports.avro\0",
        "a//b",
    ]
    bad_outputs = ["../rival/out", str(outside / "out"), "linked/out", "..", "x/../../out"]
    with world.client(token("adtech")) as client:
        number = 0
        for path in bad_inputs:
            for domain in ("domain.avro", path):
                number += 1
                call = lambda path=path, domain=domain, number=number: client.create_job(  # noqa: E731
                    f"bad-{number}",
                    asks(),
                    input_data_blob_prefix=path if domain == "domain.avro" else "reports.avro",
                    output_data_blob_prefix="out",
                    output_domain_blob_prefix=domain,
                )
                assert refused(call) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_ERROR"), path
        for path in bad_outputs:
            number += 1
            call = lambda path=path, number=number: client.create_job(  # noqa: E731
                f"bad-{number}",
                asks(),
                input_data_blob_prefix="reports.avro",
                output_data_blob_prefix=path,
                output_domain_blob_prefix="domain.avro",
            )
            assert refused(call) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_ERROR"), path
        assert number == 2 * len(bad_inputs) + len(bad_outputs) == 23
        assert sorted(path.name for path in outside.iterdir()) == ["domain.avro", "reports.avro"]
        assert not list((world.outputs / "rival").iterdir())
        # The right paths work, once: a summary never takes the place of another.
        client.create_job(
            "good",
            asks(),
            input_data_blob_prefix="reports",
            output_data_blob_prefix="day1/summary.avro",
            output_domain_blob_prefix="domain",
        )
        assert client.watch_job("good").summary.row_count == 2
        assert sorted(path.name for path in (world.outputs / "adtech" / "day1").iterdir()) == [
            "summary-1-of-1.avro",
            "summary-statement.json",
        ]
        taken = lambda: client.create_job(  # noqa: E731
            "again",
            asks(),
            input_data_blob_prefix="reports",
            output_data_blob_prefix="day1/summary.avro",
            output_domain_blob_prefix="domain",
        )
        assert refused(taken)[1] == "RESULT_WRITE_ERROR"


def test_metrics_are_the_operators_and_public_keys_everybodys(world: World) -> None:
    import ssl
    import urllib.error
    import urllib.request

    context = ssl.create_default_context(cadata=world.authority.certificate.decode())
    base = f"https://localhost:{world.service.service.http_port}"

    def fetch(path: str, name: str | None = None) -> tuple[int, str]:
        request = urllib.request.Request(base + path)
        if name is not None:
            request.add_header("Authorization", f"Bearer {token(name)}")
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as problem:
            return problem.code, ""

    status, document = fetch("/.well-known/aggregation-service/v1/public-keys")
    assert status == 200
    with world.client(None) as stranger:
        assert stranger.public_keys().serialise() == document
    assert fetch("/metrics")[0] == 401
    assert fetch("/metrics", "nobody")[0] == 401
    assert fetch("/metrics", "adtech")[0] == 403
    status, text = fetch("/metrics", "operator")
    assert status == 200 and 'aggservice_calls_total{method="ListPublicKeys",status="OK"} 1' in text
    assert 'aggservice_call_seconds_count{method="ListPublicKeys"} 1.0' in text
    assert "process_resident_memory_bytes" in text and "aggservice_workers_replaced_total 0.0" in text
    words = text.lower().replace("_seconds_bucket{", "")  # the histogram's own buckets
    for word in ("report", "unit", "bucket", "key_id", "epsilon"):
        assert word not in words


def test_an_aggregate_stream_must_begin_with_its_parameters(world: World) -> None:
    credentials = grpc.ssl_channel_credentials(world.authority.certificate)
    address = world.service.address.replace("127.0.0.1", "localhost")
    metadata = (("authorization", f"Bearer {token('adtech')}"),)
    with grpc.secure_channel(address, credentials) as channel:
        call = channel.stream_stream(
            "/aggservice.v1.AggregationService/Aggregate",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=aggregation_pb2.AggregateResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([aggregation_pb2.AggregateRequest(domain=bytes(16))]), metadata=metadata))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
