"""A shuffle in the engine: what is released, in which order, what is charged, and what is refused."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from aggservice.engine import EngineSettings, LocalEngine, PrivacyUnit, ShuffleSettings, WorkerPool, ledger_terms
from aggservice.engine.shuffle import ShufflePlan, random_order
from aggservice.job.errors import (
    NO_DEVICE_TOKEN,
    OTHER_RANDOMIZER,
    DomainError,
    InvalidJobError,
    JobIdTakenError,
    ResultWriteError,
    ReturnCode,
    TooManyBadReportsError,
    UnpaidError,
)
from aggservice.job.messages import parameters_message, request_of
from aggservice.job.parameters import JobParameters, ShuffleParameters
from aggservice.job.request import HistogramRequest, JobRequest, ShuffleRequest
from aggservice.mechanisms import (
    AmplificationBound,
    SecureBits,
    SeededBits,
    amplified_micro,
    shuffled_epsilon,
    small_epsilon,
)
from aggservice.wire import AggregatableReport, Api, Randomizer, SharedInfo
from aggservice.wire.report.registry import RegistryKey, RegistryKeyPair, sign_token
from aggservice.wire.report.units import report_unit
from budget import Delta, EpsilonDeltaFilter, LocalReports, ShuffledReports, ZcdpFilter, verify_store
from ldp_client import columns_of, l_grr, loloha, randomized_response, randomizer_of, seal_report

from .conftest import ORIGIN, SCOPE, Maker, new_ledger

EngineOf = Callable[..., LocalEngine]
PROTOCOL = randomized_response(k=5, epsilon_micro=400_000)
MEMOIZED = l_grr(k=5, epsilon_permanent_micro=1_000_000, epsilon_first_micro=400_000, calibration="exact")
NAME = randomizer_of(PROTOCOL)
REGISTRY = RegistryKeyPair.create(SeededBits("registry"))
COLLECTION = "2023-11-14"
REGISTERED = EngineSettings(shuffle=ShuffleSettings(origins={ORIGIN: REGISTRY.public}))
DELTA = Delta.parse("0.00000001")


def local_info(maker: Maker, **changes: object):  # type: ignore[no-untyped-def]
    return maker.info(api=Api.SHARED_STORAGE, attribution_destination=None, **changes)


def sealed(  # type: ignore[no-untyped-def]
    maker: Maker, values: Sequence[int], protocol=PROTOCOL, *, tokens: bool = True, **changes: object
) -> list[AggregatableReport]:
    """Reports as they are, not randomized: what is shuffled can then be compared. Each has its device token."""
    keys = maker.keys.public(maker.clock)
    reports = []
    for value in values:
        info = local_info(maker, **changes)
        token = sign_token(
            REGISTRY, origin=info.reporting_origin, collection=COLLECTION, report_id=info.report_id_bytes
        )
        reports.append(
            seal_report(protocol, value, shared_info=info, keys=keys, bits=maker.bits, token=token if tokens else None)
        )
    return reports


def job(job_id: str = "shuffle", **changes: Any) -> ShuffleRequest:
    scope = {"job_request_id": job_id, "attribution_report_to": ORIGIN}
    return ShuffleRequest(**{**scope, "randomizer": NAME, "delta": DELTA, "collection": COLLECTION, **changes})


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


def test_reports_pay_their_own_epsilon_unless_a_registry_is_known(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker)
    reports = sealed(maker, [1] * 50)
    outcome = run(engine, maker, reports)
    assert outcome.committed is not None
    entry = outcome.committed.entry
    assert [type(one) for one in entry.release.mechanisms] == [LocalReports]
    assert entry.cost.loss_micro == 400_000 and entry.cost.delta_atto == 0
    statement = outcome.header.statement
    assert statement.mechanism == "local_response" and statement.epsilon == "0.4"
    assert statement.shuffle is not None and not statement.shuffle.amplified
    assert "has configured no device registry for https://adtech.example" in statement.text
    assert entry.release.parameters["registry_key_sha256"] == statement.shuffle.registry_key_sha256 == ""
    assert "each costs ε₀ anew" in statement.text
    assert entry.release.parameters["not_amplified"] == statement.shuffle.not_amplified
    spent = engine.ledger.balances(b"".join(report_unit_of(report) for report in reports))
    assert set(spent.loss_micro.tolist()) == {400_000}


def report_unit_of(report: AggregatableReport) -> bytes:
    return report_unit(SharedInfo.parse(report.shared_info))


def test_clients_with_tokens_pay_what_shuffling_leaves(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker, settings=REGISTERED)
    outcome = run(engine, maker, sealed(maker, [1] * 400))
    assert outcome.committed is not None
    entry = outcome.committed.entry
    assert [type(one) for one in entry.release.mechanisms] == [ShuffledReports]
    expected = math.ceil(shuffled_epsilon(0.4, 400, 1e-8) * 1e6)
    assert entry.cost.loss_micro == expected < 400_000
    assert entry.cost.delta_atto == DELTA.atto
    statement = outcome.header.statement
    assert statement.shuffle is not None and statement.shuffle.amplified
    assert statement.shuffle.assumption == "n honest clients, one collection"
    assert statement.shuffle.permanent_epsilon == "" and statement.shuffle.local_epsilon == "0.4"
    assert "a device's reports of this randomizer share nothing" in statement.text
    assert statement.shuffle.reports == 400 and statement.shuffle.bound == "numerical"
    assert statement.shuffle.collection == entry.release.parameters["collection"] == COLLECTION
    digest = hashlib.sha256(REGISTRY.public.raw).hexdigest()
    assert statement.shuffle.registry_key_sha256 == entry.release.parameters["registry_key_sha256"] == digest
    assumed = "Assumed: the registry signs one token per client and collection, and its clients are honest"
    for words in ("n honest clients, one collection", "ε₀ = 0.4", "n = 400", COLLECTION, digest, assumed):
        assert words in statement.text
    assert verify_store(engine.ledger.store).ok


@pytest.mark.parametrize("count, amplified", [(999, False), (1000, True)])
def test_the_bound_that_needs_a_thousand_reports(
    maker: Maker, engine_of: EngineOf, count: int, amplified: bool
) -> None:
    """At 1,000 reports this bound is below ε₀ only for a δ above 0.00097, so the ledger has to allow one."""
    ledger = new_ledger(EpsilonDeltaFilter.parse(delta="0.01"))
    engine = engine_of(maker, settings=REGISTERED, ledger=ledger)
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


def test_a_later_report_finds_the_first_one_and_that_was_paid_for(maker: Maker, engine_of: EngineOf) -> None:
    """A device's report of Tuesday alone shows its hash function, and so which row of Monday was its own.

    Then Monday's price must be what that row tells about its value, ε₀, and not what shuffling 1,000 reports leaves.
    """
    protocol = loloha(k=12, epsilon_permanent_micro=2_000_000, epsilon_first_micro=948_000, calibration="exact")
    devices = [protocol.client(SecureBits()) for _ in range(1000)]
    engine = engine_of(maker, settings=REGISTERED)
    monday = [device.report(index % 12) for index, device in enumerate(devices)]
    outcome = run(engine, maker, sealed(maker, monday, protocol), job(randomizer=randomizer_of(protocol)))
    assert outcome.shuffled is not None and outcome.committed is not None
    released = [protocol.decode(row) for row in outcome.shuffled.to_list()]
    found = 0
    for index in range(20):
        tuesday = devices[index].report(3)
        rows = [row for row in released if row.function == tuesday.function]
        found += rows == [monday[index]]
    assert found == 20
    entry = outcome.committed.entry
    amplified = amplified_micro(AmplificationBound.NUMERICAL, local_micro=948_000, reports=1000, delta_atto=DELTA.atto)
    assert amplified < 200_000
    assert entry.cost.loss_micro >= protocol.privacy.first * 1e6 - 1e-3 > 900_000
    assert entry.cost.delta_atto == 0 and [type(one) for one in entry.release.mechanisms] == [LocalReports]
    assert "a later report can show which one was its own" in outcome.header.statement.text


def test_only_reports_of_the_same_randomizer_count(maker: Maker, engine_of: EngineOf) -> None:
    """999 of one randomizer and 300 of another: the small bound sees 999, and the others are not even charged."""
    other = l_grr(k=5, epsilon_permanent_micro=1_000_000, epsilon_first_micro=400_000, calibration="paper")
    engine = engine_of(maker, settings=REGISTERED)
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
    for settings in (REGISTERED, EngineSettings()):
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
    session = engine.begin(SCOPE, HistogramRequest(job_request_id="sums", attribution_report_to=ORIGIN))
    session.declare(np.zeros(1, np.uint64), np.ones(1, np.uint64))
    session.add(maker.batch([*histograms, *sealed(maker, [1])]))
    outcome = session.finish()
    assert outcome.header.error_counts["UNSUPPORTED_OPERATION"] == 1
    assert outcome.header.statement.shuffle is None


def test_only_reports_with_a_valid_token_are_shuffled_and_charged(maker: Maker, engine_of: EngineOf) -> None:
    """A report without a token neither counts nor takes the place of the report whose id it has."""
    engine = engine_of(maker, settings=REGISTERED)
    good = sealed(maker, [3] * 60)
    ids = [SharedInfo.parse(report.shared_info).report_id for report in good]
    impostors = [sealed(maker, [0], tokens=False, report_id=one)[0] for one in ids]
    without = sealed(maker, [1] * 40, tokens=False)
    outcome = run(engine, maker, [*impostors, *without, *good, good[0]])
    assert outcome.header.error_counts == {NO_DEVICE_TOKEN: 100, "REPEATED_REPORT_ID": 1}
    assert outcome.header.return_code == ReturnCode.SUCCESS
    assert outcome.shuffled is not None and outcome.committed is not None
    assert columns_of(PROTOCOL, outcome.shuffled.to_list()).tolist() == [3] * 60
    assert outcome.header.statement.shuffle is not None and outcome.header.statement.shuffle.reports == 60
    assert outcome.committed.entry.cost.loss_micro == math.ceil(shuffled_epsilon(0.4, 60, 1e-8) * 1e6)
    spent = engine.ledger.balances(b"".join(report_unit_of(report) for report in without))
    assert set(spent.loss_micro.tolist()) == {0}
    with pytest.raises(InvalidJobError, match="none of 40 reports of this randomizer has a valid device token"):
        run(engine, maker, without, job("without"))
    plain = run(engine, maker, without, job("plain", collection=""))
    assert plain.shuffled is not None and len(plain.shuffled) == 40
    assert "names no collection" in plain.header.statement.text


def test_a_job_over_a_site_checks_each_token_for_its_own_origin(maker: Maker, engine_of: EngineOf) -> None:
    settings = EngineSettings(shuffle=ShuffleSettings(sites={ORIGIN: REGISTRY.public}))
    engine = engine_of(maker, settings=settings)
    other = "https://two.adtech.example"
    good = [*sealed(maker, [1] * 40), *sealed(maker, [2] * 40, reporting_origin=other)]
    moved = []
    for _ in range(30):
        info = local_info(maker, reporting_origin=other)
        token = sign_token(REGISTRY, origin=ORIGIN, collection=COLLECTION, report_id=info.report_id_bytes)
        keys = maker.keys.public(maker.clock)
        moved.append(seal_report(PROTOCOL, 0, shared_info=info, keys=keys, bits=maker.bits, token=token))
    request = job("site", attribution_report_to=None, reporting_site=ORIGIN)
    outcome = run(engine, maker, [*good, *moved], request)
    assert outcome.header.error_counts == {NO_DEVICE_TOKEN: 30}
    assert outcome.shuffled is not None
    assert Counter(columns_of(PROTOCOL, outcome.shuffled.to_list()).tolist()) == {1: 40, 2: 40}
    assert outcome.header.statement.shuffle is not None and outcome.header.statement.shuffle.amplified


def test_the_price_is_decided_from_request_and_evidence() -> None:
    own, sitewide = REGISTRY.public, RegistryKeyPair.create(SeededBits("another registry")).public
    settings = ShuffleSettings(origins={ORIGIN: own}, sites={"https://other.example": sitewide})

    def plan(
        reports: int = 10_000, origin: str | None = ORIGIN, site: str | None = None, **changes: object
    ) -> ShufflePlan:
        request = job(attribution_report_to=origin, reporting_site=site, **changes)
        return ShufflePlan.of(request, reports, evidence=settings.evidence(request))

    def key(**changes: str | None) -> RegistryKey | None:
        evidence = plan(**changes).evidence  # type: ignore[arg-type]
        return None if evidence is None else evidence.key

    assert plan().amplified and key() == own
    assert key(origin="https://sub.other.example") == sitewide
    assert plan(origin=None, site="https://other.example").amplified
    # An origin's key is for itself alone: neither for its site nor for another port or a sibling.
    for stranger in ("https://stranger.example", "https://forge.adtech.example", "https://adtech.example:8443"):
        assert "no device registry" in plan(origin=stranger).reason and key(origin=stranger) is None
    assert "no device registry" in plan(origin=None, site=ORIGIN).reason
    assert "no delta" in plan(delta=None).reason and plan(delta=None).evidence is None
    assert "names no collection" in plan(collection="").reason and plan(collection="").evidence is None
    assert "not below the local epsilon" in plan(reports=2, bound=AmplificationBound.CLOSED).reason
    for bound in AmplificationBound:
        assert "at least two reports" in plan(reports=1, bound=bound).reason
    prices = [plan(bound=bound).epsilon.micro for bound in AmplificationBound]
    assert prices[0] < prices[1] < prices[2] < 400_000
    loose = Randomizer(
        identity=bytes(16), report_bytes=1, epsilon_micro=600_000, epsilon_permanent_micro=None, independent=True
    )
    for shares in (randomizer_of(MEMOIZED), replace(loose, independent=False)):
        assert "share something" in plan(randomizer=shares).reason
        assert plan(randomizer=shares).epsilon.micro == shares.epsilon_micro
    reason = plan(randomizer=loose, bound=AmplificationBound.SMALL).reason
    assert "local epsilon below 0.5" in reason
    assert plan(reports=10**9).epsilon.micro >= 1


def test_what_a_shuffle_cannot_do_is_refused(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker)
    with pytest.raises(DomainError):
        engine.begin(SCOPE, job()).declare(np.zeros(1, np.uint64), np.ones(1, np.uint64))
    with pytest.raises(InvalidJobError, match="nothing to shuffle"):
        engine.begin(SCOPE, job()).finish()
    shuffle = ShuffleParameters(randomizer=NAME.hex)

    def asked(**changes: Any) -> JobRequest:
        given = JobParameters(**{"attribution_report_to": ORIGIN, "shuffle": shuffle, **changes})
        return request_of(parameters_message(given, "x"))

    assert asked() == job("x", delta=None, collection="")
    for changes, told in (
        ({"debug_run": True}, "no key discovery, others total or debug run"),
        ({"discovery_delta": "0.000001"}, "no key discovery, others total or debug run"),
        ({"others_epsilon": "1"}, "no key discovery, others total or debug run"),
        ({"filtering_ids": (1,)}, "no filtering IDs"),
        ({"epsilon": "1"}, "no epsilon and no rho"),
    ):
        with pytest.raises(InvalidJobError, match=told):
            asked(**changes)
    for text in ({"randomizer": "zz"}, {"bound": "best"}, {"delta": "2"}, {"delta": "0"}):
        with pytest.raises(InvalidJobError):
            asked(shuffle=replace(shuffle, **text))
    for label in ("x" * 65, "naïve", "two\nlines"):
        with pytest.raises(InvalidJobError, match="64 printable ASCII"):
            asked(shuffle=replace(shuffle, collection=label))
    huge = Randomizer(identity=bytes(16), report_bytes=1, epsilon_micro=65_000_000, epsilon_permanent_micro=None)
    with pytest.raises(InvalidJobError, match="above 64"):
        job(randomizer=huge)


def test_other_ledgers_charge_their_own_way(maker: Maker, engine_of: EngineOf) -> None:
    """In a zCDP ledger ε₀ costs ε₀²/2; in a ledger by shared ID a local report still pays for itself."""
    engine = engine_of(maker, ledger=new_ledger(ZcdpFilter.parse(rho="1")))
    outcome = run(engine, maker, sealed(maker, [1] * 20))
    assert outcome.committed is not None and outcome.committed.entry.cost.loss_micro == 80_000
    reports = sealed(maker, [1] * 20)
    outcome = run(engine_of(maker, terms=ledger_terms(PrivacyUnit.SHARED_ID)), maker, reports)
    assert outcome.committed is not None and outcome.committed.entry.units.count == 20
    assert outcome.header.statement.privacy_unit == "report"
    assert dict(outcome.committed.entry.release.covers) == {"shared-storage": 1}


def test_a_ledger_that_bounds_uses_keeps_its_bound(maker: Maker, engine_of: EngineOf) -> None:
    engine = engine_of(maker, ledger=new_ledger(EpsilonDeltaFilter.parse(uses=3)))
    outcome = run(engine, maker, sealed(maker, [1] * 5))
    assert outcome.committed is not None and outcome.committed.entry.cost.uses == 3
    assert verify_store(engine.ledger.store).ok


def test_workers_in_other_processes_open_the_same(maker: Maker) -> None:
    pool = WorkerPool(maker.keys, processes=1)
    try:
        engine = LocalEngine(ledger=new_ledger(), opener=pool, clock=maker.clock, bits=SecureBits())
        values = [index % 5 for index in range(1500)]
        outcome = run(engine, maker, sealed(maker, values))
        assert outcome.shuffled is not None
        assert Counter(columns_of(PROTOCOL, outcome.shuffled.to_list()).tolist()) == Counter(values)
        known = LocalEngine(ledger=new_ledger(), opener=pool, clock=maker.clock, bits=SecureBits(), settings=REGISTERED)
        mixed = [*sealed(maker, [1] * 1500), *sealed(maker, [2] * 700, tokens=False)]
        outcome = run(known, maker, mixed)
        assert outcome.header.error_counts == {NO_DEVICE_TOKEN: 700}
        assert outcome.header.statement.shuffle is not None and outcome.header.statement.shuffle.amplified
        assert outcome.shuffled is not None
        assert columns_of(PROTOCOL, outcome.shuffled.to_list()).tolist() == [1] * 1500
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
    monkeypatch.setattr("aggservice.engine.jobs.shuffle.MOST_BYTES_IN_LEDGER", 40 * NAME.report_bytes - 1)
    with pytest.raises(ResultWriteError, match="too many for a stream"):
        run(engine, maker, reports)
    monkeypatch.setattr("aggservice.engine.jobs.shuffle.MOST_BYTES_IN_MEMORY", 40 * NAME.report_bytes - 1)
    with pytest.raises(ResultWriteError, match="does not fit into memory"):
        run(engine, maker, reports)
    spent = engine.ledger.balances(b"".join(report_unit_of(report) for report in reports))
    assert set(spent.loss_micro.tolist()) == {0}
