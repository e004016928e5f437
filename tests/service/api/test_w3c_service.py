"""Reports of W3C browsers through the service: sealed, aggregated with noise for 2 · maxValue, and used once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.client import AttributionTask, Client, ClientError, JobParameters
from aggservice.commands import app
from aggservice.engine import PrivacyUnit, ledger_terms
from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import AggregatableReport, Api, Contribution, ReportBatch, SharedInfo, make_report, write_reports
from aggservice.wire.report.units import report_unit
from budget import (
    Epsilon,
    EpsilonDeltaFilter,
    JobKey,
    Ledger,
    MemoryStore,
    OneUseNoise,
    Receipt,
    Release,
    Signer,
    UnitSet,
)
from budget.errors import RecoveryForbiddenError, TermsError
from budget.terms import Terms
from stated import assert_frequencies
from w3c_client import DEFAULT_SERVICE, Browser, Config, ConversionOptions, ImpressionOptions, Page

from ...engine.conftest import Maker

SITE, SIZE, MOST = "https://shop.example", 4, 10
TASK = AttributionTask(conversion_site=SITE, histogram_size=SIZE, max_value=MOST)
COLLECTOR = "https://adtech.example"
ASKED = JobParameters(attribution_report_to=COLLECTOR, epsilon="1", attribution_task=TASK)
DAY_MS = 86_400_000


def measured(maker: Maker, devices: int, **options: object) -> tuple[list[tuple[int, ...]], list[AggregatableReport]]:
    """One conversion per device, measured by the ad-tech's frame; every third device has seen no ad."""
    wanted = {"aggregation_service": DEFAULT_SERVICE, "histogram_size": SIZE, "value": 7, "max_value": MOST}
    histograms, reports = [], []
    for device in range(devices):
        clock = ManualClock(maker.clock.now_ms() - DAY_MS)
        browser = Browser(clock=clock, bits=SecureBits(), config=Config(), keys=maker.keys.public(maker.clock))
        if device % 3:
            browser.save_impression("news.example", ImpressionOptions(histogram_index=device % SIZE))
        clock.advance(DAY_MS)
        page = Page(top_level="www.shop.example", frame="tag.adtech.example")
        done = browser.measure_conversion(page, ConversionOptions(**{**wanted, **options}))  # type: ignore[arg-type]
        assert done.sealed is not None
        histograms.append(done.histogram)
        reports.append(done.sealed)
    return histograms, reports


def forged(maker: Maker, contributions: dict[int, int], **changes: object) -> AggregatableReport:
    """A report that says what the caller likes, sealed for the service."""
    fields: dict[str, object] = {
        "api": Api.W3C_ATTRIBUTION,
        "reporting_origin": COLLECTOR,
        "attribution_destination": SITE,
        "histogram_size": SIZE,
        "max_value": MOST,
        "epsilon_micro": 1_000_000,
    }
    return make_report(
        [Contribution(bucket=bucket, value=value) for bucket, value in contributions.items()],
        shared_info=maker.info(**{**fields, **changes}),
        keys=maker.keys.public(maker.clock),
        bits=maker.bits,
        maximum=SIZE,
    )


def test_reports_are_summed_noised_and_used_once(maker: Maker) -> None:
    """False alarm: the total is off its 4 noises' bound with probability 4 · 10⁻⁹ (the exact tail of the noise)."""
    histograms, reports = measured(maker, 30)
    with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        dry = client.check_budget(ASKED, [report.shared_info for report in reports])
        assert dry.sufficient and dry.unit_count == 30 and dry.cost.epsilon == "1"
        summary = client.aggregate("first", ASKED, reports)
        assert summary.low.tolist() == list(range(SIZE)) and not summary.high.any()
        truth = np.sum(histograms, axis=0)
        scale = 2 * MOST
        assert np.abs(summary.metrics - truth).max() < scale * 9 * math.log(10) + 1
        statement = summary.statement
        assert (statement.l1, statement.epsilon, statement.privacy_unit) == (2 * MOST, "1", "report")
        assert "2 · maxValue = 20" in statement.text and "one epoch of the device" in statement.text
        assert "Assumed: devices keep their budgets" in statement.text and "ε*" not in statement.text
        entry = Receipt.from_bytes(summary.receipt).entry["release"]
        assert entry["mechanisms"] == [{"name": "discrete_laplace_one_use", "epsilon": "1", "max_value": "10"}]
        assert entry["covers"] == {"w3c-attribution": 1} and entry["parameters"]["conversion_site"] == SITE
        assert client.aggregate("first", ASKED, reports).metrics.tolist() == summary.metrics.tolist()

        more = measured(maker, 5)[1]
        with pytest.raises(ClientError, match="can be used once") as refused:
            client.aggregate("second", replace(ASKED, epsilon="0.000001"), reports[:25] + more)
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED" and refused.value.count == 25
        used = sorted(report_unit(SharedInfo.parse(report.shared_info)) for report in reports[:25])
        assert [bytes(unit) for unit in refused.value.units] == used[:20]
        listed = list(client.unpaid_units("second"))
        assert [one.unit for one in listed] == used
        assert {one.job_request_ids for one in listed} == {("first",)}
        assert not client.check_budget(ASKED, [reports[0].shared_info]).sufficient
        assert [one.uses for one in client.balances([more[0].shared_info])] == [0]
        assert client.verify_ledger([summary.receipt]).ok


def test_the_noise_has_the_scale_of_twice_the_maximum_value(maker: Maker) -> None:
    """4,096 draws of noise over empty histograms against its exact probabilities; false alarm 10⁻⁸."""
    size, most = 4096, 3
    task = replace(TASK, histogram_size=size, max_value=most)
    _, reports = measured(maker, 20, histogram_size=size, value=1, max_value=most, match_values=(7,))
    with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        summary = client.aggregate("noise", replace(ASKED, attribution_task=task), reports)
    decay = math.exp(-1 / (2 * most))
    reach = 60
    chance = np.array([(1 - decay) / (1 + decay) * decay ** abs(x) for x in range(-reach, reach + 1)])
    seen = np.bincount(np.clip(summary.metrics, -reach, reach) + reach, minlength=2 * reach + 1)
    assert_frequencies(seen, size * chance)
    halved = np.array([chance[abs(2 * x) + reach] if abs(2 * x) <= reach else 0.0 for x in range(-reach, reach + 1)])
    with pytest.raises(AssertionError):
        assert_frequencies(seen, size * halved / halved.sum())


def test_every_report_of_a_task_has_the_same_size(maker: Maker) -> None:
    histograms, reports = measured(maker, 12, credit=(1, 1, 1))
    assert len(set(histograms)) > 2 and (0,) * SIZE in histograms
    bodies = {len(report.to_json()) for report in reports}
    assert len(bodies) == 1 and len({len(report.payloads[0].payload) for report in reports}) == 1
    assert all(report.payloads[0].debug_cleartext_payload is None for report in reports)
    info = SharedInfo.parse(reports[0].shared_info)
    assert (info.api, info.histogram_size, info.max_value, info.epsilon_micro) == (
        Api.W3C_ATTRIBUTION,
        SIZE,
        MOST,
        1_000_000,
    )
    assert (info.reporting_origin, info.attribution_destination) == (COLLECTOR, SITE)
    assert info.scheduled_report_time_s == maker.clock.now_ms() // 1000


def test_reports_that_disagree_are_counted_and_left_out(maker: Maker) -> None:
    _, reports = measured(maker, 40)
    other = [
        forged(maker, {0: 1}, attribution_destination="https://other.example"),
        forged(maker, {0: 1}, histogram_size=SIZE + 1),
        forged(maker, {0: 1}, max_value=MOST + 1),
    ]
    low = [forged(maker, {0: 1}, epsilon_micro=999_999)]
    beyond = [forged(maker, {0: MOST, 1: 1}), forged(maker, {SIZE: 1})]
    api = [maker.report({0: 1})]
    asked = replace(ASKED, report_error_threshold_percentage="50")
    with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        summary = client.aggregate("mixed", asked, reports + other + low + beyond + api)
        assert summary.error_counts == {
            "ATTRIBUTION_TASK_MISMATCH": 3,
            "CONTRIBUTIONS_EXCEED_BOUNDS": 2,
            "NUM_REPORTS_WITH_ERRORS": 7,
            "REPORT_EPSILON_TOO_LOW": 1,
            "UNSUPPORTED_REPORT_API_TYPE": 1,
        }
        assert client.balances([one.shared_info for one in other])[0].uses == 0
        with pytest.raises(ClientError, match="had errors"):
            client.aggregate("other", replace(ASKED, epsilon="1.000001"), measured(maker, 30)[1])
        plain = JobParameters(
            attribution_report_to=COLLECTOR,
            epsilon="1",
            discovery_delta="0.000001",
            report_error_threshold_percentage="100",
        )
        summary = client.aggregate("plain", plain, measured(maker, 3)[1] + [maker.report({0: 1})])
        assert summary.error_counts["UNSUPPORTED_REPORT_API_TYPE"] == 3


def test_a_batch_below_the_operators_minimum_is_refused_and_charges_nothing(maker: Maker, tmp_path: Path) -> None:
    _, reports = measured(maker, 20)
    config = ServiceConfig(state=tmp_path / "state", listen="127.0.0.1:0", ledger="memory")
    for least, enough in ((20, 20), (3, 3)):
        limits = replace(config.limits, processes=0, w3c_minimum_batch=least)
        with (
            embedded(replace(config, limits=limits), keys=maker.keys, clock=maker.clock) as service,
            Client(service.address) as client,
        ):
            # A report that is repeated, or of another API, does not count.
            fillers = [reports[0], maker.report({1: 1})]
            loose = replace(ASKED, report_error_threshold_percentage="100")
            with pytest.raises(ClientError, match=f"needs at least {least}"):
                client.aggregate("few", loose, [*reports[: enough - 1], *fillers])
            assert {one.uses for one in client.balances([one.shared_info for one in reports])} == {0}
            assert client.aggregate("enough", ASKED, reports[:enough]).metrics.size == SIZE


def test_a_ledger_of_shared_ids_still_charges_each_w3c_report(maker: Maker, tmp_path: Path) -> None:
    _, reports = measured(maker, 40)
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        unit=PrivacyUnit.SHARED_ID,
        filter=EpsilonDeltaFilter.parse(uses=1),
    )
    config = replace(config, limits=replace(config.limits, processes=0))
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        client.aggregate("half", ASKED, reports[:20])
        client.aggregate("other half", ASKED, reports[20:])
        with pytest.raises(ClientError, match="20 of 20"):
            client.aggregate("again", ASKED, reports[:20])
        assert {one.uses for one in client.balances([one.shared_info for one in reports])} == {1}
        assert client.verify_ledger().ok


def over_files(folder: Path, reports: list[AggregatableReport]) -> ServiceConfig:
    """Write the reports where a service reads them, and return its configuration."""
    for name in ("in", "out"):
        (folder / name).mkdir()
    write_reports(folder / "in" / "reports.avro", [ReportBatch.of(reports)])
    config = ServiceConfig(
        state=folder / "state", listen="127.0.0.1:0", input_folder=folder / "in", output_folder=folder / "out"
    )
    return replace(config, limits=replace(config.limits, processes=0))


def test_a_job_over_files(maker: Maker, tmp_path: Path) -> None:
    config = over_files(tmp_path, measured(maker, 20)[1])
    paths = {"input_data_blob_prefix": "reports.avro", "output_data_blob_prefix": "summary.avro"}
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        client.create_job("files", ASKED, **paths)
        done = client.watch_job("files")
        assert done.summary is not None and done.summary.row_count == SIZE and done.parameters == ASKED
        with pytest.raises(ClientError, match="no output domain"):
            client.create_job("domain", ASKED, output_domain_blob_prefix="reports.avro", **paths)
        client.create_job("again", ASKED, **{**paths, "output_data_blob_prefix": "again.avro"})
        with pytest.raises(ClientError, match="can be used once"):
            client.watch_job("again")


def test_the_command_names_a_task_whole_or_not_at_all(maker: Maker, tmp_path: Path) -> None:
    config = over_files(tmp_path, measured(maker, 20)[1])
    with embedded(config, keys=maker.keys, clock=maker.clock) as service:
        given = ["job", "create", "--service", service.address, "first", "--attribution-report-to", COLLECTOR]
        given += ["--input-data-blob-prefix", "reports.avro", "--output-data-blob-prefix", "out.avro"]
        given += ["--epsilon", "1", "--watch", "--json", "--conversion-site", SITE, "--histogram-size", str(SIZE)]
        half = CliRunner().invoke(app, given)
        assert half.exit_code == 2 and "belong together" in half.output
        whole = CliRunner().invoke(app, [*given, "--max-value", str(MOST)])
        assert whole.exit_code == 0, whole.output
        shown = json.loads(whole.output)
        assert shown["parameters"]["attribution_task"] == {
            "conversion_site": SITE,
            "histogram_size": SIZE,
            "max_value": MOST,
        }
        assert shown["summary"]["row_count"] == SIZE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rho": "1", "epsilon": ""}, "Laplace"),
        ({"discovery_delta": "0.000001"}, "every index"),
        ({"others_epsilon": "1"}, "others"),
        ({"filtering_ids": (0, 1)}, "filtering"),
        ({"debug_run": True}, "debug"),
        ({"attribution_task": replace(TASK, conversion_site="shop.example")}, "https://shop.example"),
        ({"attribution_task": replace(TASK, histogram_size=0)}, "histogram_size is 0"),
        ({"attribution_task": replace(TASK, max_value=1 << 31)}, "max_value is"),
        ({"attribution_task": replace(TASK, max_value=1 << 32)}, "32 bits"),
        ({"attribution_task": replace(TASK, histogram_size=300_000_000)}, "200,000,000 keys"),
    ],
)
def test_requests_that_make_no_sense_are_refused_by_name(maker: Maker, changes: dict[str, object], words: str) -> None:
    asked = replace(ASKED, **changes)  # type: ignore[arg-type]
    with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        with pytest.raises(ClientError, match=words) as refused:
            client.aggregate("bad", asked, [])
        assert refused.value.return_code == "INVALID_JOB"
        with pytest.raises(ClientError, match="send no domain"):
            client.aggregate("domain", ASKED, [], domain=[1])


def test_a_final_release_cannot_be_recovered_or_lent_to_another_api() -> None:
    bits = SecureBits()
    ledger = Ledger.create(
        MemoryStore(),
        filter=EpsilonDeltaFilter(),
        terms=Terms(bounds={}),
        recovery=True,
        signer=Signer.generate(bits),
        clock=ManualClock(1),
        bits=bits,
    )
    noise = OneUseNoise(epsilon=Epsilon.parse("1"), max_value=5)
    good = Release(mechanisms=(noise,), covers={"w3c-attribution": 1}, parameters={"l1": "10", "l0": "10"})
    units = UnitSet(np.arange(40, dtype=np.uint8).reshape(2, 20))
    ledger.commit(job=JobKey(caller="a", job_id="1"), request_digest=bytes(32), release=good, units=units, result=b"")
    with pytest.raises(RecoveryForbiddenError, match="final"):
        ledger.recover_budget(operator="o", reason="r", seq=1)
    terms = ledger_terms()
    terms.check(good, 2)
    for bad in (
        Release(mechanisms=(noise,), covers={"attribution-reporting": 1}, parameters=dict(good.parameters)),
        Release(mechanisms=(noise,), covers=dict(good.covers), parameters={"l1": "5", "l0": "5"}),
        Release(mechanisms=(noise, noise), covers=dict(good.covers), parameters=dict(good.parameters)),
    ):
        with pytest.raises(TermsError):
            terms.check(bad, 2)
