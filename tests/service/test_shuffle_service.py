"""Local reports through the service: sealed, streamed, shuffled, estimated and charged, both ways."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from aggservice.client import Client, ClientError, JobParameters, ShuffleParameters, Summary
from aggservice.engine import ShuffleSettings
from aggservice.service import ConfigError, ServiceConfig, embedded, load_config
from aggservice.wire import AggregatableReport, Api, ReportBatch, read_shuffled, write_reports
from budget import EpsilonDeltaFilter, Receipt
from ldp_client import columns_of, l_osue, loloha, randomizer_of, seal_report
from mechanisms import SecureBits, shuffled_epsilon

from ..engine.conftest import ORIGIN, Maker

PROTOCOL = loloha(k=12, epsilon_permanent_micro=2_000_000, epsilon_first_micro=450_000, calibration="exact")
NAME = randomizer_of(PROTOCOL)
ALARM = 1e-9


def configured(folder: Path, *, authenticated: bool, **changes: object) -> ServiceConfig:
    config = ServiceConfig(
        state=folder / "state",
        listen="127.0.0.1:0",
        filter=EpsilonDeltaFilter.parse(delta="0.01"),
        shuffle=ShuffleSettings(origins=frozenset([ORIGIN] if authenticated else [])),
        **changes,  # type: ignore[arg-type]
    )
    return replace(config, limits=replace(config.limits, processes=0))


def collection(maker: Maker, users: int) -> tuple[np.ndarray, list[AggregatableReport]]:
    """One collection of ``users`` devices: their values, and their randomized reports, sealed."""
    values = np.minimum(np.arange(users) * 12 // users, (np.arange(users) * 7) % 12).astype(np.int64)
    columns = PROTOCOL.fleet(users, SecureBits()).report(values)
    keys = maker.keys.public(maker.clock)
    reports = []
    for report in reports_of(columns):
        info = maker.info(api=Api.SHARED_STORAGE, attribution_destination=None)
        reports.append(seal_report(PROTOCOL, report, shared_info=info, keys=keys, bits=maker.bits))
    return values, reports


def reports_of(columns):  # type: ignore[no-untyped-def]
    from ldp_client import HashedReport, UniversalHash

    for multiplier, addend, value in zip(columns.multipliers, columns.addends, columns.values, strict=True):
        function = UniversalHash(multiplier=int(multiplier), addend=int(addend), g=PROTOCOL.g)
        yield HashedReport(function=function, value=int(value))


def shuffle(client: Client, job_id: str, reports: list[AggregatableReport], **asked: str) -> Summary:
    wanted = ShuffleParameters(randomizer=NAME.hex, **asked)
    return client.aggregate(job_id, JobParameters(attribution_report_to=ORIGIN, shuffle=wanted), reports)


def check_estimates(values: np.ndarray, summary: Summary) -> float:
    """Every frequency is within its normal bound (alarm 10⁻⁹ over all) of the truth; return the largest error."""
    estimate = PROTOCOL.estimate(columns_of(PROTOCOL, summary.reports))
    truth = np.bincount(values, minlength=12) / values.size
    deviations = np.sqrt(PROTOCOL.support.variance(values.size, truth))
    errors = np.abs(estimate.frequencies - truth)
    assert (errors <= norm.isf(ALARM / 24) * deviations).all()
    return float(errors.max())


def both_ways(maker: Maker, folder: Path, users: int) -> list[str]:
    """Shuffle one collection in a service that knows its clients and in one that does not; return what was shown."""
    values, reports = collection(maker, users)
    lines = []
    for authenticated in (False, True):
        config = configured(folder / str(authenticated), authenticated=authenticated)
        with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
            summary = shuffle(client, "collection", reports, delta="0.000001")
            assert summary.return_code == "SUCCESS"
            assert len(summary.reports) == users
            error = check_estimates(values, summary)
            part = summary.statement.shuffle
            assert part is not None and part.amplified is authenticated
            assert part.local_epsilon == "0.45" and part.permanent_epsilon == "2"
            if authenticated:
                expected = math.ceil(shuffled_epsilon(0.45, users, 1e-6) * 1e6)
                assert summary.statement.cost == {"epsilon": str(expected / 1e6), "delta": "0.000001"}
                assert part.assumption == "n honest clients, one collection" in summary.statement.text
                assert "ε∞ = 2" in summary.statement.text
            else:
                assert summary.statement.cost == {"epsilon": "0.45", "delta": "0"}
                assert "authenticated" in part.not_amplified
            receipt = Receipt.from_bytes(summary.receipt)
            assert receipt.entry["result"]["sha256"] == summary.result_digest().hex()
            verified = client.verify_ledger([summary.receipt])
            assert verified.ok and verified.entry_count == 2 and verified.unit_count == users
            fetched = client.summary("collection")
            assert fetched.reports == summary.reports and fetched.result_digest() == summary.result_digest()
            lines.append(
                f"{users} sealed reports, clients {'' if authenticated else 'not '}authenticated: each paid epsilon "
                f"{summary.statement.cost['epsilon']}, delta {summary.statement.cost['delta']}; largest error of 12 "
                f"frequencies {error:.5f}; ledger verified: {verified.entry_count} entries, {verified.unit_count} units"
            )
    return lines


def test_a_collection_is_shuffled_estimated_and_charged_both_ways(maker: Maker, tmp_path: Path) -> None:
    assert len(both_ways(maker, tmp_path, 1200)) == 2


@pytest.mark.soak
def test_a_hundred_thousand_reports_both_ways(maker: Maker, tmp_path: Path) -> None:
    for line in both_ways(maker, tmp_path, 100_000):
        print(line)


def test_the_bound_that_needs_a_thousand_reports_says_so(maker: Maker, tmp_path: Path) -> None:
    _, reports = collection(maker, 999)
    config = configured(tmp_path, authenticated=True)
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        parameters = JobParameters(
            attribution_report_to=ORIGIN, shuffle=ShuffleParameters(randomizer=NAME.hex, delta="0.002", bound="small")
        )
        dry = client.check_budget(parameters, [report.shared_info for report in reports])
        assert dry.sufficient and dry.cost.epsilon == "0.45"
        summary = shuffle(client, "small", reports, delta="0.002", bound="small")
        part = summary.statement.shuffle
        assert part is not None and not part.amplified
        assert summary.statement.cost == {"epsilon": "0.45", "delta": "0"}
        assert "at least 1000 reports of the same randomizer and there are 999" in part.not_amplified
        again = client.check_budget(parameters, [report.shared_info for report in reports])
        assert not again.sufficient and again.unpaid_count == 999
        with pytest.raises(ClientError) as refused:
            shuffle(client, "again", reports[1:], delta="0.002")
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED" and refused.value.count == 998


def test_a_shuffle_over_files(maker: Maker, tmp_path: Path) -> None:
    values, reports = collection(maker, 300)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    config = configured(tmp_path, authenticated=True, input_folder=tmp_path / "in", output_folder=tmp_path / "out")
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        write_reports(tmp_path / "in" / "reports.avro", [ReportBatch.of(reports)])
        parameters = JobParameters(
            attribution_report_to=ORIGIN, shuffle=ShuffleParameters(randomizer=NAME.hex, delta="0.0001")
        )
        client.create_job(
            "files",
            parameters,
            input_data_blob_prefix="reports.avro",
            output_data_blob_prefix="shuffled.avro",
        )
        done = client.watch_job("files")
        assert done.summary.statement.shuffle.amplified
        (name,) = done.summary.files
        with (tmp_path / "out" / name).open("rb") as file:
            found = list(read_shuffled(file))
        assert len(found) == 300
        assert PROTOCOL.estimate(columns_of(PROTOCOL, found)).reports == values.size
        with pytest.raises(ClientError, match="no output domain"):
            client.create_job(
                "domain",
                parameters,
                input_data_blob_prefix="reports.avro",
                output_data_blob_prefix="x.avro",
                output_domain_blob_prefix="reports.avro",
            )


def test_requests_that_make_no_sense_are_refused(maker: Maker, tmp_path: Path) -> None:
    other = randomizer_of(l_osue(k=9, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000))
    _, reports = collection(maker, 3)
    with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        for asked, words in (
            (ShuffleParameters(randomizer="zz"), "hexadecimal"),
            (ShuffleParameters(randomizer=NAME.hex, bound="best"), "numerical, closed, small"),
            (ShuffleParameters(randomizer=NAME.hex, delta="-1"), "negative"),
            (ShuffleParameters(randomizer=other.hex), "nothing to shuffle"),
        ):
            with pytest.raises(ClientError, match=words):
                client.aggregate("bad", JobParameters(attribution_report_to=ORIGIN, shuffle=asked), reports)
        with pytest.raises(ClientError, match="no epsilon"):
            wanted = ShuffleParameters(randomizer=NAME.hex)
            client.aggregate("bad", JobParameters(attribution_report_to=ORIGIN, epsilon="1", shuffle=wanted), reports)
        with pytest.raises(ClientError, match="no output domain"):
            client.aggregate("bad", JobParameters(attribution_report_to=ORIGIN, shuffle=wanted), reports, domain=[1, 2])


def test_the_operator_declares_clients_in_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text('state = "state"\n[shuffle]\nauthenticated_origins = ["https://adtech.example"]\n')
    assert load_config(path).shuffle.declared(origin=ORIGIN, site=None) == ORIGIN
    assert not load_config(path).shuffle.declared(origin=None, site=ORIGIN)
    path.write_text('state = "state"\n[shuffle]\nauthenticated_sites = ["https://adtech.example"]\n')
    assert load_config(path).shuffle.declared(origin="https://a.adtech.example", site=None) == ORIGIN
    path.write_text('state = "state"\n')
    assert not load_config(path).shuffle.declared(origin=ORIGIN, site=None)
    for wrong in ('authenticated_origins = ["adtech.example"]', 'authenticated_sites = ["https://a.adtech.example"]'):
        path.write_text(f'state = "state"\n[shuffle]\n{wrong}\n')
        with pytest.raises(ConfigError, match="such as https"):
            load_config(path)
