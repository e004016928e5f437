"""A shuffle in the engine: what is released, in which order, what is charged, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import chi2

from aggservice.engine import (
    OTHER_RANDOMIZER,
    DomainError,
    EngineSettings,
    InvalidJobError,
    JobIdTakenError,
    JobRequest,
    LocalEngine,
    PrivacyUnit,
    ResultWriteError,
    ReturnCode,
    ShufflePlan,
    ShuffleRequest,
    ShuffleSettings,
    TooManyBadReportsError,
    UnpaidError,
    WorkerPool,
    ledger_terms,
    random_order,
)
from aggservice.wire import AggregatableReport, Api, Randomizer, report_unit
from budget import Delta, EpsilonDeltaFilter, LocalReports, ShuffledReports, ZcdpFilter, verify_store
from ldp_client import columns_of, l_grr, randomized_response, randomizer_of, seal_report
from mechanisms import AmplificationBound, SecureBits, SeededBits, shuffled_epsilon, small_epsilon

from .conftest import ORIGIN, SCOPE, Maker, new_ledger

EngineOf = Callable[..., LocalEngine]
PROTOCOL = l_grr(k=5, epsilon_permanent_micro=1_000_000, epsilon_first_micro=400_000, calibration="exact")
NAME = randomizer_of(PROTOCOL)
AUTHENTICATED = EngineSettings(shuffle=ShuffleSettings(origins=frozenset([ORIGIN])))
DELTA = Delta.parse("0.00000001")


def local_info(maker: Maker, **changes: object):  # type: ignore[no-untyped-def]
    return maker.info(api=Api.SHARED_STORAGE, attribution_destination=None, **changes)


def sealed(maker: Maker, values: Sequence[int], protocol=PROTOCOL, **changes: object) -> list[AggregatableReport]:  # type: ignore[no-untyped-def]
    """Reports as they are, not randomized: what is shuffled can then be compared."""
    keys = maker.keys.public(maker.clock)
    return [
        seal_report(protocol, value, shared_info=local_info(maker, **changes), keys=keys, bits=maker.bits)
        for value in values
    ]


def job(job_id: str = "shuffle", **changes: object) -> JobRequest:
    asked = {"randomizer": NAME, "delta": DELTA, **changes}
    return JobRequest(job_request_id=job_id, attribution_report_to=ORIGIN, shuffle=ShuffleRequest(**asked))  # type: ignore[arg-type]


def run(engine: LocalEngine, maker: Maker, reports: Sequence[AggregatableReport], request: JobRequest | None = None):  # type: ignore[no-untyped-def]
    session = engine.begin(SCOPE, request or job())
    session.add(maker.batch(list(reports)))
    return session.finish()


def test_the_multiset_comes_out(maker: Maker, engine_of: EngineOf) -> None:
    values = [index % 5 for index in range(300)]
    outcome = run(engine_of(maker), maker, sealed(maker, values))
    assert outcome.rows is None and outcome.shuffled is not None
    assert outcome.header.return_code == ReturnCode.SUCCESS
    reports = outcome.shuffled.to_list()
    assert Counter(columns_of(PROTOCOL, reports).tolist()) == Counter(values)
    assert columns_of(PROTOCOL, reports).tolist() != values


def test_every_order_is_as_likely_as_any_other() -> None:
    """48,000 permutations of four places, chi-square over all 24, alarm 10⁻⁹."""
    bits = SecureBits()
    seen = Counter(tuple(random_order(bits, 4).tolist()) for _ in range(48_000))
    assert set(seen) == set(itertools.permutations(range(4)))
    assert sum((count - 2000) ** 2 / 2000 for count in seen.values()) < chi2.isf(1e-9, 23)


def test_equal_words_are_drawn_again() -> None:
    class Repeating(SeededBits):
        calls = 0

        def words(self, count: int):  # type: ignore[no-untyped-def]
            self.calls += 1
            return np.full(count, 7, dtype=np.uint64) if self.calls < 3 else super().words(count)

    bits = Repeating("order")
    assert sorted(random_order(bits, 5).tolist()) == [0, 1, 2, 3, 4]
    assert bits.calls == 3
    assert random_order(SeededBits("one"), 1).tolist() == [0]


def test_reports_pay_their_own_epsilon_unless_clients_are_authenticated(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker)
    reports = sealed(maker, [1] * 50)
    outcome = run(engine, maker, reports)
    assert outcome.receipted is not None
    entry = outcome.receipted.committed.entry
    assert [type(one) for one in entry.release.mechanisms] == [LocalReports]
    assert entry.cost.loss_micro == 400_000 and entry.cost.delta_atto == 0
    statement = outcome.header.statement
    assert statement.mechanism == "local_response" and statement.epsilon == "0.4"
    assert statement.shuffle is not None and not statement.shuffle.amplified
    assert "has not declared the clients of https://adtech.example authenticated" in statement.text
    assert "ε∞ = 1." in statement.text
    assert entry.release.parameters["not_amplified"] == statement.shuffle.not_amplified
    spent = engine.ledger.balances(b"".join(report_unit_of(report) for report in reports))
    assert set(spent.loss_micro.tolist()) == {400_000}


def report_unit_of(report: AggregatableReport) -> bytes:
    from aggservice.wire import SharedInfo

    return report_unit(SharedInfo.parse(report.shared_info))


def test_authenticated_clients_pay_what_shuffling_leaves(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker, settings=AUTHENTICATED)
    outcome = run(engine, maker, sealed(maker, [1] * 400))
    assert outcome.receipted is not None
    entry = outcome.receipted.committed.entry
    assert [type(one) for one in entry.release.mechanisms] == [ShuffledReports]
    expected = math.ceil(shuffled_epsilon(0.4, 400, 1e-8) * 1e6)
    assert entry.cost.loss_micro == expected < 400_000
    assert entry.cost.delta_atto == DELTA.atto
    statement = outcome.header.statement
    assert statement.shuffle is not None and statement.shuffle.amplified
    assert statement.shuffle.assumption == "n honest clients, one collection"
    assert statement.shuffle.permanent_epsilon == "1" and statement.shuffle.local_epsilon == "0.4"
    assert statement.shuffle.reports == 400 and statement.shuffle.bound == "numerical"
    for words in ("n honest clients, one collection", "ε∞ = 1.", "ε₀ = 0.4", "n = 400"):
        assert words in statement.text
    assert verify_store(engine.ledger.store).ok


@pytest.mark.parametrize("count, amplified", [(999, False), (1000, True)])
def test_the_bound_that_needs_a_thousand_reports(
    maker: Maker, engine_of: EngineOf, count: int, amplified: bool
) -> None:
    """At 1,000 reports this bound is below ε₀ only for a δ above 0.00097, so the ledger has to allow one."""
    ledger = new_ledger(EpsilonDeltaFilter.parse(delta="0.01"))
    engine = engine_of(maker, settings=AUTHENTICATED, ledger=ledger)
    request = job(bound=AmplificationBound.SMALL, delta=Delta.parse("0.002"))
    outcome = run(engine, maker, sealed(maker, [2] * count), request)
    statement = outcome.header.statement
    assert statement.shuffle is not None and statement.shuffle.amplified is amplified
    if amplified:
        assert statement.epsilon == str(math.ceil(small_epsilon(0.4, 1000, 0.002) * 1e6) / 1e6)
    else:
        assert statement.epsilon == "0.4" and statement.delta == "0"
        assert "at least 1000 reports of the same randomizer and there are 999" in statement.shuffle.not_amplified
        assert "at least 1000 reports of the same randomizer and there are 999" in statement.text


def test_only_reports_of_the_same_randomizer_count(maker: Maker, engine_of: EngineOf) -> None:
    """999 of one randomizer and 300 of another: the small bound sees 999, and the others are not even charged."""
    other = l_grr(k=5, epsilon_permanent_micro=1_000_000, epsilon_first_micro=400_000, calibration="paper")
    engine = engine_of(maker, settings=AUTHENTICATED)
    strangers = sealed(maker, [0] * 300, other)
    outcome = run(engine, maker, [*sealed(maker, [2] * 999), *strangers], job(bound=AmplificationBound.SMALL))
    assert outcome.header.error_counts == {OTHER_RANDOMIZER: 300}
    assert outcome.header.return_code == ReturnCode.SUCCESS
    assert outcome.shuffled is not None and len(outcome.shuffled) == 999
    assert "there are 999" in outcome.header.statement.text
    spent = engine.ledger.balances(b"".join(report_unit_of(report) for report in strangers))
    assert set(spent.loss_micro.tolist()) == {0}


def test_a_report_is_shuffled_once(maker: Maker, engine_of: EngineOf) -> None:
    """Shuffling all but one of them a second time would show that one's report: it is refused, in either price."""
    reports = sealed(maker, [index % 5 for index in range(60)])
    for settings in (AUTHENTICATED, EngineSettings()):
        engine = engine_of(maker, settings=settings)
        first = run(engine, maker, reports)
        with pytest.raises(UnpaidError) as refused:
            run(engine, maker, reports[1:], job("again"))
        assert refused.value.count == 59
        again = run(engine, maker, reports)
        assert again.repeated and again.shuffled is not None and first.shuffled is not None
        assert again.shuffled.to_list() == first.shuffled.to_list()
        assert again.header == first.header
        with pytest.raises(JobIdTakenError):
            run(engine, maker, reports, job(delta=None))
        assert verify_store(engine.ledger.store).ok


def test_within_a_job_a_repeated_id_counts_once(maker: Maker, engine_of: EngineOf) -> None:
    reports = sealed(maker, [1, 2, 3])
    outcome = run(engine_of(maker), maker, [*reports, reports[0], reports[2]])
    assert outcome.header.error_counts == {"REPEATED_REPORT_ID": 2}
    assert outcome.shuffled is not None
    assert sorted(columns_of(PROTOCOL, outcome.shuffled.to_list()).tolist()) == [1, 2, 3]


def test_histograms_and_shuffles_do_not_read_each_other(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker)
    histograms = [maker.report({1: 2}) for _ in range(9)]
    with pytest.raises(TooManyBadReportsError) as refused:
        run(engine, maker, [*sealed(maker, [1] * 40), *histograms])
    assert refused.value.counts["UNSUPPORTED_OPERATION"] == 9
    session = engine.begin(SCOPE, JobRequest(job_request_id="sums", attribution_report_to=ORIGIN))
    session.declare(np.zeros(1, np.uint64), np.ones(1, np.uint64))
    session.add(maker.batch([*histograms, *sealed(maker, [1])]))
    outcome = session.finish()
    assert outcome.header.error_counts["UNSUPPORTED_OPERATION"] == 1
    assert outcome.header.statement.shuffle is None


def test_the_price_is_decided_from_the_request_alone() -> None:
    settings = ShuffleSettings(origins=frozenset([ORIGIN]), sites=frozenset(["https://other.example"]))

    def plan(
        reports: int = 10_000, origin: str | None = ORIGIN, site: str | None = None, **changes: object
    ) -> ShufflePlan:
        request = ShuffleRequest(**{"randomizer": NAME, "delta": DELTA, **changes})  # type: ignore[arg-type]
        return ShufflePlan.of(request, reports, settings, origin=origin, site=site)

    assert plan().amplified and plan().declared == ORIGIN
    assert plan(origin="https://sub.other.example").declared == "https://other.example"
    assert plan(origin=None, site="https://other.example").amplified
    # An origin vouches for itself alone: neither for its site nor for another port or a sibling.
    for stranger in ("https://stranger.example", "https://forge.adtech.example", "https://adtech.example:8443"):
        assert "has not declared" in plan(origin=stranger).reason
    assert "has not declared" in plan(origin=None, site=ORIGIN).reason
    assert "no delta" in plan(delta=None).reason
    assert "not below the local epsilon" in plan(reports=2, bound=AmplificationBound.CLOSED).reason
    for bound in AmplificationBound:
        assert "at least two reports" in plan(reports=1, bound=bound).reason
    prices = [plan(bound=bound).epsilon.micro for bound in AmplificationBound]
    assert prices[0] < prices[1] < prices[2] < 400_000
    loose = Randomizer(identity=bytes(16), report_bytes=1, epsilon_micro=600_000, epsilon_permanent_micro=None)
    reason = plan(randomizer=loose, bound=AmplificationBound.SMALL).reason
    assert "local epsilon below 0.5" in reason
    assert plan(reports=10**9).epsilon.micro >= 1


def test_what_a_shuffle_cannot_do_is_refused(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker)
    with pytest.raises(DomainError):
        engine.begin(SCOPE, job()).declare(np.zeros(1, np.uint64), np.ones(1, np.uint64))
    with pytest.raises(InvalidJobError, match="nothing to shuffle"):
        engine.begin(SCOPE, job()).finish()
    for changes in ({"debug_run": True}, {"filtering_ids": (1,)}):
        with pytest.raises(InvalidJobError):
            JobRequest(job_request_id="x", attribution_report_to=ORIGIN, shuffle=job().shuffle, **changes)  # type: ignore[arg-type]
    for text in ({"randomizer": "zz"}, {"bound": "best"}, {"delta": "2"}):
        with pytest.raises(InvalidJobError):
            ShuffleRequest.parse(**{"randomizer": NAME.hex, **text})
    with pytest.raises(InvalidJobError):
        ShuffleRequest.parse(randomizer=NAME.hex, delta="0")
    huge = Randomizer(identity=bytes(16), report_bytes=1, epsilon_micro=65_000_000, epsilon_permanent_micro=None)
    with pytest.raises(InvalidJobError, match="above 64"):
        ShuffleRequest(randomizer=huge)


def test_other_ledgers_charge_their_own_way(maker: Maker, engine_of: EngineOf) -> None:
    """In a zCDP ledger ε₀ costs ε₀²/2; in a ledger by shared ID a local report still pays for itself."""
    engine = engine_of(maker, ledger=new_ledger(ZcdpFilter.parse(rho="1")))
    outcome = run(engine, maker, sealed(maker, [1] * 20))
    assert outcome.receipted is not None and outcome.receipted.committed.entry.cost.loss_micro == 80_000
    reports = sealed(maker, [1] * 20)
    outcome = run(engine_of(maker, terms=ledger_terms(PrivacyUnit.SHARED_ID)), maker, reports)
    assert outcome.receipted is not None and outcome.receipted.committed.entry.units.count == 20
    assert outcome.header.statement.privacy_unit == "report"


def test_a_ledger_that_bounds_uses_keeps_its_bound(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker, ledger=new_ledger(EpsilonDeltaFilter.parse(uses=3)))
    outcome = run(engine, maker, sealed(maker, [1] * 5))
    assert outcome.receipted is not None and outcome.receipted.committed.entry.cost.uses == 3
    assert verify_store(engine.ledger.store).ok


def test_workers_in_other_processes_open_the_same(maker: Maker) -> None:
    pool = WorkerPool(maker.keys, processes=1)
    try:
        engine = LocalEngine(ledger=new_ledger(), opener=pool, clock=maker.clock, bits=SecureBits())
        values = [index % 5 for index in range(1500)]
        outcome = run(engine, maker, sealed(maker, values))
        assert outcome.shuffled is not None
        assert Counter(columns_of(PROTOCOL, outcome.shuffled.to_list()).tolist()) == Counter(values)
        empty = engine.begin(SCOPE, job("none", randomizer=randomizer_of(randomized_response(k=3, epsilon_micro=1))))
        empty.add(maker.batch(sealed(maker, [1, 2])))
        with pytest.raises(InvalidJobError, match="nothing to shuffle"):
            empty.finish()
    finally:
        pool.close()


def test_a_seeded_shuffle_says_that_it_is_not_private(maker: Maker, engine_of: EngineOf) -> None:
    outcome = run(engine_of(maker, bits=SeededBits("order")), maker, sealed(maker, [1, 2]))
    assert "NOT PRIVATE" in outcome.header.statement.text
    assert not outcome.header.statement.private


def test_more_reports_than_fit_are_refused_before_anything_is_charged(
    maker: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = sealed(maker, [1] * 40)
    engine = engine_of(maker)
    monkeypatch.setattr("aggservice.engine.shuffle.MOST_BYTES_IN_LEDGER", 40 * NAME.report_bytes - 1)
    with pytest.raises(ResultWriteError, match="too many for a stream"):
        run(engine, maker, reports)
    monkeypatch.setattr("aggservice.engine.shuffle.MOST_BYTES_IN_MEMORY", 40 * NAME.report_bytes - 1)
    with pytest.raises(ResultWriteError, match="does not fit into memory"):
        run(engine, maker, reports)
    spent = engine.ledger.balances(b"".join(report_unit_of(report) for report in reports))
    assert set(spent.loss_micro.tolist()) == {0}
