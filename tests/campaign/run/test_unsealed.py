"""Unsealed runs: the same rows, to the byte, as sealed runs with the same seed; by the engine's own functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggservice.campaign import CampaignError, RunError, RunResult, parse_campaign, run_campaign, run_sweep
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.optimise.proposal import optimise
from aggservice.campaign.service.config import local_engine, memory_ledger, service_config
from aggservice.campaign.service.jobs import jobs_of
from aggservice.campaign.service.sealing import plain_batches, sealing_settings
from aggservice.campaign.service.unsealed import Payers, _contributions, _public, tally_job
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_reports
from aggservice.engine import LocalEngine, Scope
from aggservice.engine.jobs.histogram import HistogramSession
from aggservice.engine.opening.judging import Opener, OpeningSpec, judge_columns
from aggservice.job.errors import InvalidJobError
from aggservice.job.request import HistogramRequest
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.service.server import Service
from aggservice.wire import KeySet, ReportBatch, Spans
from small_examples import NAMES, smaller

DISCOVERY = """
name = "others"
[population]
size = 300
days = 4
impressions = { name = "poisson", mean = 3 }
conversion_rate = 0.5
value = { name = "lognormal", median = 60, sigma = 0.6 }
destinations = ["https://a.example", "https://b.example"]
[[keys.fields]]
name = "ad"
count = 30
zipf = 1.0
[[measures]]
name = "purchases"
of = "count"
scale = 4096
[[measures]]
name = "money"
of = "value"
most = 500
scale = 32
[client]
FORM
[collection]
batch_hours = 24
lost = 0.1
retried = 0.2
late = 0.2
[service]
epsilon = "20"
unit = "UNIT"
[[queries]]
name = "found"
over = "each"
discovery = true
delta = "0.00001"
others_epsilon = "2"
epsilon = "6"
[[queries]]
name = "week"
over = "rolling"
window = 2
epsilon = "5"
[[queries]]
name = "spent"
epsilon = "6"
others_epsilon = "1"
[queries.rows]
ad = ["ad 0", "ad 1", "ad 2"]
"""


def both(campaign: Campaign, folder: Path) -> tuple[RunResult, RunResult]:
    """Run a campaign sealed and unsealed; assert that all it found and released is the same to the byte."""
    sealed = run_campaign(campaign, folder / "sealed", seed="same", workers=1, draw=False)
    plain = run_campaign(campaign, folder / "plain", seed="same", workers=1, draw=False, unsealed=True)
    files = [
        {path.relative_to(run.out): path.read_bytes() for path in run.out.rglob("*") if path.is_file()}
        for run in (sealed, plain)
    ]
    same = [name for name in files[0] if name.parts[0] == "summaries" and name.suffix == ".avro"]
    same += [Path(name) for name in ("metrics.json", "transcript.json", "losses.csv", "labels.csv")]
    for name in same:
        assert files[0].get(name) == files[1].get(name), name
    assert len(sealed.answers) == len(plain.answers)
    for one, other in zip(sealed.answers, plain.answers, strict=True):
        assert np.array_equal(one.high, other.high) and np.array_equal(one.low, other.low)
        assert np.array_equal(one.metrics, other.metrics)
    return sealed, plain


@pytest.mark.parametrize("name", NAMES)
def test_every_example(name: str, tmp_path: Path) -> None:
    sealed, plain = both(smaller(name, 500), tmp_path)
    assert sealed.metrics == plain.metrics
    assert not list(plain.out.glob("batches/*"))


def with_api(api: str) -> Campaign:
    campaign = smaller("three_apis", 300)
    client = {**campaign.document.get("client", {}), "api": api}
    return campaign_of({**campaign.document, "client": client}, folder=campaign.folder)


def test_conversions_through_private_aggregation(tmp_path: Path) -> None:
    sealed, _ = both(with_api("paa"), tmp_path)
    assert sealed.metrics.reports.in_batches > 0


def test_w3c_reports_are_always_sealed(tmp_path: Path) -> None:
    campaign = with_api("w3c")
    with pytest.raises(RunError, match="leave --unsealed out"):
        run_campaign(campaign, tmp_path / "run", unsealed=True)
    with pytest.raises(RunError, match="sweep it with --sealed"):
        run_sweep(campaign, [], tmp_path / "sweep")
    with pytest.raises(CampaignError, match="divide their own budgets"):
        optimise(campaign)


@pytest.mark.parametrize("form", ["deployed", "paper"])
@pytest.mark.parametrize("unit", ["report", "shared-id"])
def test_discovery_others_and_refusals(form: str, unit: str, tmp_path: Path) -> None:
    text = DISCOVERY.replace("FORM", f'form = "{form}"').replace("UNIT", unit)
    sealed, _ = both(parse_campaign(text, folder=tmp_path), tmp_path)
    jobs = sealed.assessments
    assert any(not one.paid and "units could not pay" in one.refusal for one in jobs)
    assert all(one.discovery is not None and one.discovery.others is not None for one in jobs if one.query == "found")
    assert any("REPEATED_REPORT_ID" in one.error_counts for one in jobs)


def new_engine(campaign: Campaign) -> LocalEngine:
    clock, bits = ManualClock(campaign.population.start_ms), SeededBits("engine")
    config = service_config(campaign, Path())
    return local_engine(memory_ledger(config.filter, config.terms, clock=clock, bits=bits), clock=clock, bits=bits)


def _mixed_reports() -> tuple[Campaign, ReportBatch, object]:
    """Return unsealed reports with several filtering IDs, nulls, old reports and ones beyond their bounds."""
    campaign = parse_campaign(DISCOVERY.replace("FORM", "").replace("UNIT", "report"), folder=Path())
    reports = simulate_reports(campaign, RunChain(SeededBits("mixed"))).reports
    draws = np.random.default_rng(5)
    value = reports.value.copy()
    value[draws.random(value.size) < 0.1] = 0
    value[draws.random(value.size) < 0.05] = 70_000
    scheduled = reports.scheduled_ms.copy()
    scheduled[::7] -= 200 * 86_400_000
    reports = replace(
        reports,
        value=value,
        scheduled_ms=scheduled,
        filtering_id=draws.integers(0, 4, value.size).astype(np.uint64),
    )
    payloads, infos = [], []
    for plain, info in plain_batches(reports, sealing_settings(campaign, "")):
        payloads += plain
        infos += info
    keys = Spans.of([b"none"] * len(payloads))
    batch = ReportBatch(payloads=Spans.of(payloads), key_ids=keys, shared_infos=Spans.of(infos))
    return campaign, batch, reports


@pytest.mark.parametrize("filtering_ids", [(0,), (1, 3), (0, 1, 2, 3), (9,)])
def test_columns_are_judged_as_opened_reports_are(filtering_ids: tuple[int, ...]) -> None:
    campaign, batch, reports = _mixed_reports()
    spec = OpeningSpec(
        attribution_report_to=campaign.reporting_origin,
        reporting_site=None,
        filtering_ids=filtering_ids,
        oldest_s=campaign.population.start_ms // 1000 - 90 * 86_400,
        bounds=((65536, 65536),) * 8,
        cleartext=True,
    )
    opened = Opener(KeySet(())).open(spec, batch)
    judged = judge_columns(spec, _public(campaign, reports), _contributions(reports))  # type: ignore[arg-type]
    for one, other in zip(opened.arrays(), judged.arrays(), strict=True):
        assert np.array_equal(one, other)
    assert len(np.unique(judged.statuses)) == 3  # good, too old, beyond the bounds


def test_filtering_ids_release_the_same_rows() -> None:
    campaign, batch, reports = _mixed_reports()
    outcomes = []
    for plain in (False, True):
        clock, bits = ManualClock(campaign.population.start_ms), SeededBits("engine")
        config = service_config(campaign, Path())
        engine = local_engine(
            memory_ledger(config.filter, config.terms, clock=clock, bits=bits), clock=clock, bits=bits
        )
        request = HistogramRequest(
            job_request_id="job",
            attribution_report_to=campaign.reporting_origin,
            filtering_ids=(1, 2),
            error_threshold_percent=100,
        )
        session = engine.begin(Scope(caller="local"), request, cleartext=True)
        assert isinstance(session, HistogramSession)
        session.declare(*campaign.keys.domain())
        if plain:
            session.add_judged(
                judge_columns(session.spec, _public(campaign, reports), _contributions(reports))  # type: ignore[arg-type]
            )
        else:
            session.add(batch)
        outcomes.append(session.finish())
    assert outcomes[0].rows is not None and outcomes[1].rows is not None
    assert np.array_equal(outcomes[0].rows.metrics, outcomes[1].rows.metrics)
    assert outcomes[0].header == outcomes[1].header


def test_one_unit_of_a_class_pays_for_all() -> None:
    campaign = parse_campaign(DISCOVERY.replace("FORM", "").replace("UNIT", "report"), folder=Path())
    chain = RunChain(SeededBits("payers"))
    truth = simulate_reports(campaign, chain)
    jobs = jobs_of(campaign, truth.collected.closes_ms)
    tallies = [tally_job(campaign, chain, truth, job) for job in jobs]
    payers = Payers.of(jobs, tallies)
    patterns: dict[bytes, set[str]] = {}
    for job, tally in zip(jobs, tallies, strict=True):
        for unit in tally.units:
            patterns.setdefault(unit.tobytes(), set()).add(job.name)
    for job, tally in zip(jobs, tallies, strict=True):
        mine = [unit.tobytes() for unit in payers.units[job.name]]
        assert mine == sorted(mine) and payers.counts[job.name].sum() == len(tally.units)
        chosen = [frozenset(patterns[unit]) for unit in mine]
        assert len(set(chosen)) == len(chosen)
        for pattern, count in zip(chosen, payers.counts[job.name].tolist(), strict=True):
            assert count == sum(jobs_of_unit == pattern for jobs_of_unit in patterns.values())


def test_the_engine_is_that_of_a_service(tmp_path: Path) -> None:
    campaign = smaller("thanksgiving", 100)
    clock, bits = ManualClock(0), SeededBits("x")
    service = Service(service_config(campaign, tmp_path), clock=clock, bits=bits)
    assert new_engine(campaign).settings == service.engine.settings
    service.ledger.store.close()


def test_what_is_refused(tmp_path: Path) -> None:
    from aggservice.campaign import RemoteService

    campaign = smaller("thanksgiving", 100)
    with pytest.raises(RunError, match="leave --unsealed out"):
        run_campaign(campaign, tmp_path / "x", unsealed=True, service=RemoteService(address="127.0.0.1:1"))
    with pytest.raises(InvalidJobError, match="nothing to release"):
        clock, bits = ManualClock(0), SeededBits("x")
        config = service_config(campaign, Path())
        engine = local_engine(
            memory_ledger(config.filter, config.terms, clock=clock, bits=bits), clock=clock, bits=bits
        )
        session = engine.begin(
            Scope(caller="a"), HistogramRequest(job_request_id="j", attribution_report_to="https://a.example")
        )
        session.finish()
