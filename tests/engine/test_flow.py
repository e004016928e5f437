"""Jobs through the local engine: counters, dedupe, threshold, charge, release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.engine import AvroShards, LocalEngine, PrivacyUnit, ledger_terms
from aggservice.engine.opening.coverage import PROTECTED
from aggservice.job.errors import (
    CancelledError,
    InvalidJobError,
    JobIdTakenError,
    ReportVersionError,
    ReturnCode,
    TooManyBadReportsError,
    UnpaidError,
)
from aggservice.job.parameters import AttributionTask
from aggservice.job.request import (
    Discovery,
    HistogramRequest,
    JobRequest,
    KeyMask,
    ShuffleRequest,
    TaskRequest,
    parse_mechanism,
)
from aggservice.job.result import Outcome
from aggservice.mechanisms import AmplificationBound, SeededBits
from aggservice.wire import Api, Contribution, KeySet, Randomizer
from budget import Delta, EpsilonDeltaFilter, GaussianNoise, LaplaceNoise, Sensitivity, ZcdpFilter

NOW_S = 1_700_000_000
ORIGIN = "https://adtech.example"


class NoNoise:
    """Noise of zero, so that sums can be read."""

    def draw(self, noise: object, size: int) -> np.ndarray:
        return np.zeros(size, dtype=np.int64)


def request(job: str = "job", **changes: Any) -> JobRequest:
    given: dict[str, Any] = {"job_request_id": job, "attribution_report_to": ORIGIN, **changes}
    kind = TaskRequest if "task" in given else ShuffleRequest if "randomizer" in given else HistogramRequest
    return kind(**given)


def run(
    engine: LocalEngine, maker: Any, asked: JobRequest, reports: list[Any], domain: tuple[int, ...] = (1, 2)
) -> Outcome:
    from aggservice.engine import Scope

    session = engine.begin(Scope(caller="adtech"), asked)
    session.declare(np.zeros(len(domain), dtype=np.uint64), np.array(domain, dtype=np.uint64))
    session.add(maker.batch(reports))
    return session.finish()


def test_sums_over_a_declared_domain(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker, noise=NoNoise())
    outcome = run(engine, maker, request(), [maker.report({1: 5, 3: 9}), maker.report({1: 7}), maker.report()], (1, 2))
    assert outcome.rows is not None
    assert outcome.rows.to_dict() == {1: 12, 2: 0}
    assert outcome.header.return_code == ReturnCode.SUCCESS
    assert outcome.header.error_counts == {}
    # A report of nulls only pays as well: three units.
    assert outcome.committed is not None and outcome.committed.entry.units.count == 3


def test_a_repeated_report_id_counts_once_under_our_own_name(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    report = maker.report({1: 5})
    outcome = run(engine_of(maker, noise=NoNoise()), maker, request(), [report, maker.report({1: 1}), report, report])
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: 6, 2: 0}
    assert outcome.header.error_counts == {"REPEATED_REPORT_ID": 2}
    assert outcome.header.return_code == ReturnCode.SUCCESS
    assert outcome.committed is not None and outcome.committed.entry.units.count == 2


def broken(maker: Any) -> dict[str, Any]:
    """One report for every counter that a report alone can have."""
    from dataclasses import replace

    good = maker.report({1: 1})
    sealed = good.payloads[0]

    def with_payload(payload: bytes, key_id: str | None = None) -> Any:
        return replace(good, payloads=(replace(sealed, payload=payload, key_id=key_id or sealed.key_id),))

    def with_info(old: str, new: str) -> Any:
        assert old in good.shared_info
        return replace(good, shared_info=good.shared_info.replace(old, new))

    import cbor2

    from aggservice.wire import seal

    info = maker.info().serialise()
    key = maker.keys.public(maker.clock).keys[0]
    operation = seal(cbor2.dumps({"data": [], "operation": "sum"}), shared_info=info, key=key.key)
    not_cbor = seal(b"\xff\xff", shared_info=info, key=key.key)
    return {
        "DECRYPTION_ERROR": with_payload(sealed.payload[:-1] + bytes([sealed.payload[-1] ^ 1])),
        "DECRYPTION_KEY_NOT_FOUND": with_payload(sealed.payload, "no-such-key"),
        "REPORT_PARSING_ERROR": replace(with_payload(not_cbor), shared_info=info),
        "UNSUPPORTED_OPERATION": replace(with_payload(operation), shared_info=info),
        "UNSUPPORTED_REPORT_API_TYPE": with_info('"attribution-reporting"', '"topics"'),
        "UNSUPPORTED_SHAREDINFO_VERSION": with_info('"version":"1.0"', '"version":"0.0"'),
        "REQUIRED_SHAREDINFO_FIELD_INVALID": with_info('"attribution_destination"', '"destination"'),
        "INVALID_REPORT_ID": with_info('"report_id"', '"identifier"'),
        "ATTRIBUTION_REPORT_TO_MALFORMED": with_info(ORIGIN, "adtech"),
        "ATTRIBUTION_REPORT_TO_MISMATCH": maker.report({1: 1}, reporting_origin="https://other.example"),
        "ORIGINAL_REPORT_TIME_TOO_OLD": maker.report({1: 1}, scheduled_report_time_s=NOW_S - 90 * 86_400),
    }


def test_every_counter_of_a_report(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    cases = broken(maker)
    good = [maker.report({1: 1}) for _ in range(3)]
    outcome = run(
        engine_of(maker, noise=NoNoise()),
        maker,
        request(error_threshold_percent=Fraction(100)),
        good + list(cases.values()),
    )
    expected = dict.fromkeys(cases, 1) | {"NUM_REPORTS_WITH_ERRORS": len(cases)}
    assert dict(outcome.header.error_counts) == expected
    assert len(cases) == 11
    assert outcome.header.return_code == ReturnCode.SUCCESS_WITH_ERRORS
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: 3, 2: 0}
    assert outcome.committed is not None and outcome.committed.entry.units.count == 3


def test_debug_and_site_counters(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    reports = [maker.report({1: 1}, debug_mode=True), maker.report({1: 1})]
    outcome = run(
        engine_of(maker, noise=NoNoise()),
        maker,
        request(debug_run=True, error_threshold_percent=Fraction(100)),
        reports,
    )
    assert dict(outcome.header.error_counts) == {"DEBUG_NOT_ENABLED": 1, "NUM_REPORTS_WITH_ERRORS": 1}
    site = request(
        "site",
        attribution_report_to=None,
        reporting_site="https://adtech.example",
        error_threshold_percent=Fraction(100),
    )
    mixed = [
        maker.report({1: 1}, reporting_origin="https://ads.adtech.example"),
        maker.report({1: 1}, reporting_origin="https://adtech.other"),
        maker.report({1: 1}, reporting_origin="https://192.0.2.1"),
    ]
    outcome = run(engine_of(maker, noise=NoNoise()), maker, site, mixed)
    assert dict(outcome.header.error_counts) == {
        "ATTRIBUTION_REPORT_TO_MALFORMED": 1,
        "REPORTING_SITE_MISMATCH": 1,
        "NUM_REPORTS_WITH_ERRORS": 2,
    }
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: 1, 2: 0}


def test_too_many_bad_reports_end_a_job_before_any_charge(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker, noise=NoNoise())
    good = [maker.report({1: 1}) for _ in range(9)]
    bad = [maker.report({1: 1}, reporting_origin="https://other.example") for _ in range(2)]
    with pytest.raises(TooManyBadReportsError) as caught:
        run(engine, maker, request(), good + bad)
    assert caught.value.code == ReturnCode.REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD
    assert caught.value.counts["NUM_REPORTS_WITH_ERRORS"] == 2
    # Exactly ten in a hundred is not too many: one of ten.
    outcome = run(engine, maker, request(), good + bad[:1])
    assert outcome.committed is not None and outcome.committed.entry.seq == 1


def test_an_announced_count_lets_a_bad_job_fail_early(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    from aggservice.engine import Scope

    session = engine_of(maker).begin(Scope(caller="adtech"), request(input_report_count=20))
    session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
    bad = [maker.report({1: 1}, reporting_origin="https://other.example") for _ in range(3)]
    with pytest.raises(TooManyBadReportsError):
        session.add(maker.batch(bad))


def test_a_newer_major_version_fails_the_whole_job(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    from dataclasses import replace

    good = maker.report({1: 1})
    newer = replace(good, shared_info=good.shared_info.replace('"version":"1.0"', '"version":"2.0"'))
    with pytest.raises(ReportVersionError) as caught:
        run(engine_of(maker), maker, request(), [maker.report({1: 1}) for _ in range(50)] + [newer])
    assert caught.value.code == ReturnCode.UNSUPPORTED_REPORT_VERSION


def test_a_job_pays_for_every_filtering_id_it_asks_for(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker, noise=NoNoise())
    report = maker.report([Contribution(bucket=1, value=3), Contribution(bucket=1, value=40, filtering_id=7)])
    first = run(engine, maker, request("a", filtering_ids=(0, 5), mechanism=LaplaceNoise.parse(epsilon="64")), [report])
    assert first.rows is not None and first.rows.to_dict() == {1: 3, 2: 0}
    assert first.committed is not None and first.committed.entry.units.count == 2
    # The same report may be aggregated once for each disjoint set of ids, and 5 was paid for although absent.
    second = run(engine, maker, request("b", filtering_ids=(7,), mechanism=LaplaceNoise.parse(epsilon="64")), [report])
    assert second.rows is not None and second.rows.to_dict() == {1: 40, 2: 0}
    for job, ids in (("c", (5,)), ("d", (0, 9)), ("e", (7,))):
        with pytest.raises(UnpaidError) as caught:
            run(
                engine,
                maker,
                request(job, filtering_ids=ids, mechanism=LaplaceNoise.parse(epsilon="0.01")),
                [report],
            )
        assert (caught.value.count, caught.value.total) == (1, len(ids))


def test_shared_id_mode_charges_what_reports_share(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker, noise=NoNoise(), terms=ledger_terms(PrivacyUnit.SHARED_ID))
    reports = [maker.report({1: 1}) for _ in range(20)]
    outcome = run(engine, maker, request("a", mechanism=LaplaceNoise.parse(epsilon="64")), reports)
    assert outcome.committed is not None and outcome.committed.entry.units.count == 1
    # Another report of the same hour shares the budget.
    with pytest.raises(UnpaidError):
        run(engine, maker, request("b"), [maker.report({1: 1})])
    # One of another hour does not.
    later = maker.report({1: 1}, scheduled_report_time_s=NOW_S - 10_000)
    run(engine, maker, request("c"), [later])


def test_requerying_until_the_budget_is_gone(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker)
    reports = [maker.report({1: 1}) for _ in range(30)]
    for job, epsilon in (("a", "16"), ("b", "32"), ("c", "16")):
        run(engine, maker, request(job, mechanism=LaplaceNoise.parse(epsilon=epsilon)), reports)
    before = engine.ledger.checkpoint()
    with pytest.raises(UnpaidError) as caught:
        run(engine, maker, request("d", mechanism=LaplaceNoise.parse(epsilon="0.01")), reports)
    assert (caught.value.count, caught.value.total, len(caught.value.first)) == (30, 30, 20)
    assert engine.ledger.checkpoint() == before


def test_uses_and_deltas_run_out_like_epsilon(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    from .conftest import new_ledger  # type: ignore[import-not-found]

    ledger = new_ledger(EpsilonDeltaFilter.parse(epsilon="64", delta="0.00001", uses=3))
    engine = engine_of(maker, ledger=ledger)
    reports = [maker.report({1: 1})]
    discovery = Discovery(delta=Delta.parse("0.000006"))
    run(engine, maker, request("a", mechanism=LaplaceNoise.parse(epsilon="1"), discovery=discovery), reports)
    with pytest.raises(UnpaidError):
        run(
            engine,
            maker,
            request("b", mechanism=LaplaceNoise.parse(epsilon="1"), discovery=discovery),
            reports,
        )
    run(engine, maker, request("c", mechanism=LaplaceNoise.parse(epsilon="1")), reports)
    run(engine, maker, request("d", mechanism=LaplaceNoise.parse(epsilon="1")), reports)
    with pytest.raises(UnpaidError):
        run(engine, maker, request("e", mechanism=LaplaceNoise.parse(epsilon="1")), reports)


def test_the_same_job_id_gives_the_same_summary_and_another_request_is_refused(
    maker: Any, engine_of: Callable[..., LocalEngine]
) -> None:
    engine = engine_of(maker)
    reports = [maker.report({1: 1})]
    first = run(engine, maker, request(), reports)
    again = run(engine, maker, request(), reports)
    assert again.repeated and not first.repeated
    assert again.rows is not None and first.rows is not None
    assert again.rows.to_dict() == first.rows.to_dict()
    assert again.header == first.header
    with pytest.raises(JobIdTakenError):
        run(engine, maker, request(mechanism=LaplaceNoise.parse(epsilon="1")), reports)


def test_a_cancelled_job_leaves_nothing(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    from aggservice.engine import Scope

    engine = engine_of(maker)
    before = engine.ledger.checkpoint()
    session = engine.begin(Scope(caller="adtech"), request())
    session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
    session.add(maker.batch([maker.report({1: 1})]))
    session.cancel()
    with pytest.raises(CancelledError):
        session.finish()
    assert engine.ledger.checkpoint() == before
    assert engine.ledger.job("adtech", "job") is None


def test_each_api_has_the_operators_sensitivity(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    limits = {
        Api.ATTRIBUTION_REPORTING: Sensitivity(l1=100, l0=10),
        Api.SHARED_STORAGE: Sensitivity(l1=50, l0=20),
    }
    engine = engine_of(maker, terms=ledger_terms(sensitivities=limits))
    outcome = run(engine, maker, request("a"), [maker.report({1: 1})])
    assert (outcome.header.statement.l1, outcome.header.statement.l0) == (100, 10)
    both = [maker.report({1: 1}), maker.report({1: 1}, api=Api.SHARED_STORAGE, attribution_destination=None)]
    outcome = run(engine, maker, request("b"), both)
    assert (outcome.header.statement.l1, outcome.header.statement.l0) == (150, 30)
    assert outcome.committed is not None
    assert dict(outcome.committed.entry.release.covers) == {"attribution-reporting": 1, "shared-storage": 1}
    assert all(PROTECTED[api].sentence(api) in outcome.header.statement.text for api in limits)


def test_bounds_of_debug_reports_count_once_per_context_site_and_day(
    maker: Any, engine_of: Callable[..., LocalEngine]
) -> None:
    engine = engine_of(maker)
    days = [
        maker.report(
            {1: 1},
            api=Api.ATTRIBUTION_REPORTING_DEBUG,
            attribution_destination=site,
            scheduled_report_time_s=NOW_S - day * 86_400,
        )
        for day in range(3)
        for site in ("https://shop.example", "https://news.example")
    ]
    outcome = run(engine, maker, request("a"), days)
    assert outcome.header.statement.l1 == 7 * 65_536
    assert run(engine, maker, request("b"), days[:1] * 3).header.statement.l1 == 2 * 65_536
    mixed = run(engine, maker, request("c"), [days[0], maker.report({1: 1})])
    assert mixed.header.statement.l1 == 2 * 65_536


def test_a_report_beyond_the_bounds_of_its_api_is_a_bad_report(
    maker: Any, engine_of: Callable[..., LocalEngine]
) -> None:
    limits = {Api.ATTRIBUTION_REPORTING: Sensitivity(l1=100, l0=2)}
    engine = engine_of(maker, noise=NoNoise(), terms=ledger_terms(sensitivities=limits))
    split = [Contribution(bucket=1, value=60), Contribution(bucket=2, value=41, filtering_id=9)]
    bad = [maker.report({1: 101}), maker.report(split), maker.report({1: 1, 2: 1, 3: 1})]
    good = [maker.report({1: 60, 2: 40}), maker.report({}), maker.report({2: 100})]
    outcome = run(engine, maker, request(error_threshold_percent=Fraction(50)), [*bad, *good])
    assert outcome.header.error_counts == {"CONTRIBUTIONS_EXCEED_BOUNDS": 3, "NUM_REPORTS_WITH_ERRORS": 3}
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: 60, 2: 140}
    assert outcome.committed is not None and outcome.committed.entry.units.count == 3


def test_the_others_total_pays_its_own_epsilon(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker, noise=NoNoise())
    reports = [maker.report({1: 5, 3: 9, 4: 2})]
    outcome = run(engine, maker, request("a", others=LaplaceNoise.parse(epsilon="2.5")), reports)
    assert outcome.header.others == 11
    assert outcome.committed is not None
    assert outcome.committed.entry.cost.loss_micro == 12_500_000
    small = ledger_terms(sensitivities={Api.ATTRIBUTION_REPORTING: Sensitivity(l1=10, l0=3)})
    engine = engine_of(maker, noise=NoNoise(), terms=small)
    discovery = Discovery(delta=Delta.parse("0.000001"))
    asked = request("b", others=LaplaceNoise.parse(epsilon="1"), discovery=discovery)
    outcome = run(engine, maker, asked, [maker.report({1: 5, 3: 4, 4: 1}), *(maker.report({3: 9}) for _ in range(10))])
    tau = outcome.header.statement.threshold
    assert 1 < tau < 94
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: 5, 2: 0, 3: 94}
    assert (outcome.header.undeclared, outcome.header.others) == (95, 1)


def test_gaussian_noise_needs_a_zcdp_ledger(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    from budget.errors import MechanismNotAllowedError

    from .conftest import new_ledger  # type: ignore[import-not-found]

    reports = [maker.report({1: 1})]
    with pytest.raises(MechanismNotAllowedError):
        run(engine_of(maker), maker, request(mechanism=GaussianNoise.parse(rho="0.5")), reports)
    engine = engine_of(maker, ledger=new_ledger(ZcdpFilter.parse(rho="2")))
    outcome = run(engine, maker, request("g", mechanism=GaussianNoise.parse(rho="0.5")), reports)
    assert outcome.header.statement.mechanism == "discrete_gaussian"
    assert float(outcome.header.statement.noise_standard_deviation) == pytest.approx(65_536, rel=1e-5)
    run(engine, maker, request("l", mechanism=LaplaceNoise.parse(epsilon="1.5")), reports)  # costs 1.125
    with pytest.raises(UnpaidError):
        run(engine, maker, request("m", mechanism=LaplaceNoise.parse(epsilon="1")), reports)


def test_a_rho_too_large_for_the_sensitivity_is_refused_by_name(
    maker: Any, engine_of: Callable[..., LocalEngine]
) -> None:
    from .conftest import new_ledger  # type: ignore[import-not-found]

    terms = ledger_terms(sensitivities={api: Sensitivity(l1=1, l0=1) for api in Api})
    engine = engine_of(maker, ledger=new_ledger(ZcdpFilter.parse(rho="2000"), terms=terms))
    with pytest.raises(InvalidJobError, match="Λ₁ = 1"):
        run(engine, maker, request("g", mechanism=GaussianNoise.parse(rho="100")), [maker.report({1: 1})])
    assert engine.ledger.checkpoint().entries == 1


def test_a_debug_run_shows_true_values_and_charges_nothing(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker)
    before = engine.ledger.checkpoint()
    reports = [maker.report({1: 5, 3: 9}, debug_mode=True)]
    outcome = run(engine, maker, request(debug_run=True), reports)
    assert outcome.rows is not None and outcome.rows.unnoised is not None and outcome.rows.annotations is not None
    shown = dict(zip(outcome.rows.low.tolist(), outcome.rows.unnoised.tolist(), strict=True))
    assert shown == {1: 5, 2: 0, 3: 9}
    assert dict(zip(outcome.rows.low.tolist(), outcome.rows.annotations.tolist(), strict=True)) == {1: 3, 2: 1, 3: 2}
    assert engine.ledger.checkpoint() == before
    assert not outcome.header.statement.private
    text = outcome.header.statement.text
    assert "This protects nobody" in text and "ε*" not in text and "between neighbours" not in text
    run(engine, maker, request("spend", mechanism=LaplaceNoise.parse(epsilon="64")), reports)
    again = run(engine, maker, request("debug", debug_run=True), reports)
    assert again.header.return_code == ReturnCode.DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_EXHAUSTED


def test_a_seeded_run_is_the_same_to_the_byte_and_says_that_it_is_not_private(
    maker: Any, engine_of: Callable[..., LocalEngine]
) -> None:
    reports = [maker.report({1: 5})]
    runs = [run(engine_of(maker, bits=SeededBits("s")), maker, request(), reports) for _ in range(2)]
    assert runs[0].rows is not None and runs[1].rows is not None
    assert runs[0].rows.to_dict() == runs[1].rows.to_dict()
    assert not runs[0].header.statement.private
    assert "NOT PRIVATE" in runs[0].header.statement.text
    assert "ε*" not in runs[0].header.statement.text


def test_a_statement_says_the_total_and_what_it_assumes(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    from .conftest import new_ledger

    reports = [maker.report({1: 5})]
    engine = engine_of(maker, ledger=new_ledger(EpsilonDeltaFilter.parse(epsilon="12.5", delta="0.001")))
    text = run(engine, maker, request(), reports).header.statement.text
    assert "private within ε* = 12.5, δ* = 0.001. Assumed: clients keep the stated bounds" in text
    assert "random bits stay secret" in text and "one source of one browser" in text
    engine = engine_of(maker, ledger=new_ledger(ZcdpFilter.parse(rho="2")))
    text = run(engine, maker, request(mechanism=GaussianNoise.parse(rho="0.5")), reports).header.statement.text
    assert "private within ρ* = 2, δ* = 0.00001" in text


def test_a_job_that_could_release_nothing_is_refused(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    with pytest.raises(InvalidJobError, match="nothing to release"):
        run(engine_of(maker), maker, request(), [maker.report({1: 1})], ())


def test_an_unknown_key_id_is_counted_until_the_key_comes(maker: Any, engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(maker, noise=NoNoise())
    report = maker.report({1: 4})
    engine.parts.opener.use_keys(KeySet.create(maker.bits, maker.clock))
    loose = request("a", error_threshold_percent=Fraction(100))
    outcome = run(engine, maker, loose, [report])
    assert outcome.header.error_counts["DECRYPTION_KEY_NOT_FOUND"] == 1
    engine.parts.opener.use_keys(maker.keys.rotate(maker.bits, maker.clock))
    outcome = run(engine, maker, request("b"), [report])
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: 4, 2: 0}


def test_shards_have_the_names_of_the_deployed_service(tmp_path: Path) -> None:
    shards = AvroShards(prefix=tmp_path / "summary.avro", rows_per_shard=1)
    assert shards.names(2) == ("summary-1-of-2.avro", "summary-2-of-2.avro")
    assert shards.names(12)[8:10] == ("summary-09-of-12.avro", "summary-10-of-12.avro")


@pytest.mark.parametrize("parameters", [{"cls": "x"}, {"self": "x"}, {"epsilon": "1", "cls": "2"}, {}])
def test_a_named_mechanism_with_other_parameters_is_an_invalid_job(parameters: dict[str, str]) -> None:
    with pytest.raises(InvalidJobError):
        parse_mechanism("discrete_laplace", parameters)


def test_jobs_with_different_noise_are_different_requests() -> None:
    class Other(LaplaceNoise):
        __slots__ = ()
        name = "other_noise"

    asked = [
        LaplaceNoise.parse(epsilon="1"),
        Other.parse(epsilon="1"),
        GaussianNoise.parse(rho="1"),
        GaussianNoise.parse(rho="1", delta="0.1"),
    ]
    assert [one.job_form for one in asked] == [
        ("laplace", "1"),
        ("other_noise", "epsilon=1"),
        ("gaussian", "1"),
        ("discrete_gaussian", "rho=1,delta=0.1"),
    ]
    assert len({request(mechanism=one).digest() for one in asked}) == 4


def test_every_parameter_is_part_of_what_a_repeated_job_is_recognised_by() -> None:
    """The same job id with any other parameter, paths and filtering IDs included, is another request."""
    discovery = Discovery(delta=Delta.parse("0.000001"))
    randomizers = [Randomizer.from_hex(f"{number:032x}000000040016e3600016e360") for number in (1, 2)]
    others: dict[str, list[JobRequest]] = {
        "job_request_id": [request("another")],
        "attribution_report_to": [request(attribution_report_to="https://other.example")],
        "reporting_site": [request(attribution_report_to=None, reporting_site=ORIGIN)],
        "mechanism": [request(mechanism=LaplaceNoise.parse(epsilon="2"))],
        "discovery": [
            request(discovery=discovery),
            request(discovery=replace(discovery, delta=Delta.parse("0.000002"))),
            request(discovery=replace(discovery, mask=KeyMask.of(5))),
        ],
        "others": [request(others=LaplaceNoise.parse(epsilon="1")), request(others=LaplaceNoise.parse(epsilon="2"))],
        "error_threshold_percent": [request(error_threshold_percent=Fraction(11))],
        "input_report_count": [request(input_report_count=7)],
        "minimum_report_count": [request(minimum_report_count=7)],
        "filtering_ids": [request(filtering_ids=(0, 1)), request(filtering_ids=(1,))],
        "debug_run": [request(debug_run=True)],
        "source": [request(source=("a",)), request(source=("a", "b")), request(source=("ab",))],
        **{
            name: [request(**{"randomizer": randomizers[0], name: value}) for value in values]
            for name, values in {
                "randomizer": randomizers,
                "delta": [Delta.parse("0.000001"), Delta.parse("0.000002")],
                "bound": [AmplificationBound.CLOSED, AmplificationBound.SMALL],
                "collection": ["monday", "tuesday"],
            }.items()
        },
        "task": [
            request(task=AttributionTask(conversion_site="https://shop.example", histogram_size=size, max_value=most))
            for size, most in ((4, 7), (5, 7), (4, 8))
        ],
        "output_key": [request(output_key=bytes([9, *bytes(31)])), request(output_key=bytes([8, *bytes(31)]))],
    }
    kinds = (HistogramRequest, TaskRequest, ShuffleRequest)
    assert others.keys() == {one.name for kind in kinds for one in fields(kind)}
    asked = [request(), *(one for listed in others.values() for one in listed)]
    digests = [one.digest() for one in asked]
    assert len(set(digests)) == len(asked) and asked[0].digest(b"streamed") not in digests


def test_a_job_with_fewer_usable_reports_than_its_minimum_is_free(maker: Any, engine_of: Any) -> None:
    """Bad reports and repeated ids do not count; the same reports then pay for a job with a smaller minimum."""
    engine = engine_of(maker)
    reports = [maker.report({1: 1}) for _ in range(3)]
    given = [*reports, reports[0]]
    with pytest.raises(InvalidJobError, match="has 3 usable reports, and its minimum_report_count is 4; nothing was"):
        run(engine, maker, request(minimum_report_count=4), given)
    assert engine.ledger.job("adtech", "job") is None
    assert run(engine, maker, request(minimum_report_count=3), given).committed is not None
    with pytest.raises(InvalidJobError, match="minimum_report_count is negative"):
        request(minimum_report_count=-1)
