"""RAPPOR proper: exact privacy, permanent responses, decoding with its error rates, the limit on learning."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2, norm

from aggservice.mechanisms import SecureBits, SeededBits
from ldp_client import Rappor
from ldp_client.enumeration import distribution
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.experiments.rappor import draw_population, recover, zipf_shares
from ldp_client.protocols.rappor import RapporCounts
from ldp_client.protocols.rappor_decoding import decode, learning_limit
from ldp_client.sampling import bits_of
from twins.ldp_kernels import false_runs_limit, privacy_loss

F = Fraction


def rows_of(protocol: Rappor, value: str, reports: int = 1):  # type: ignore[no-untyped-def]
    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws)
        return tuple(client.report(value).row for _ in range(reports))

    return distribution(program)


def far_apart(protocol: Rappor) -> tuple[str, str]:
    """Two strings that set different bits, as many as there are hashes."""
    names = [f"word {number}" for number in range(200)]
    for one, two in itertools.combinations(names, 2):
        bits = set(protocol.positions(one, 0)) | set(protocol.positions(two, 0))
        if len(bits) == 2 * protocol.hashes:
            return one, two
    raise AssertionError("no two strings without a common bit")


@pytest.mark.parametrize("hashes", [1, 2])
def test_a_report_has_exactly_the_privacy_it_states(hashes: int) -> None:
    protocol = Rappor(size=5, hashes=hashes, cohorts=1)
    one, two = far_apart(protocol)
    assert privacy_loss(rows_of(protocol, one), rows_of(protocol, two)) == pytest.approx(
        protocol.privacy.first, abs=1e-12
    )


def test_reports_never_reveal_more_than_the_permanent_response() -> None:
    permanent = Rappor(size=4, hashes=2, cohorts=1, p=F(0), q=F(1))
    one, two = far_apart(permanent)
    limit = permanent.privacy.permanent
    assert limit == pytest.approx(2 * 2 * math.log(3))
    assert privacy_loss(rows_of(permanent, one), rows_of(permanent, two)) == pytest.approx(limit, abs=1e-12)
    narrow = Rappor(size=2, hashes=1, cohorts=1)
    left, right = far_apart(narrow)
    losses = [privacy_loss(rows_of(narrow, left, k), rows_of(narrow, right, k)) for k in (1, 2, 3)]
    assert losses == sorted(losses)
    assert losses[-1] < narrow.privacy.permanent


def test_the_stated_parameters() -> None:
    protocol = Rappor()
    assert protocol.set_chance == F(11, 16)
    assert protocol.clear_chance == F(9, 16)
    assert protocol.privacy.first == pytest.approx(2 * math.log(F(11 * 7, 9 * 5)))
    assert Rappor(f=F(0), p=F(1, 2), q=F(3, 4)).privacy.permanent == math.inf
    for bad in (
        {"f": F(1)},
        {"p": F(3, 4), "q": F(1, 2)},
        {"p": F(0)},
        {"size": 0},
        {"hashes": 0},
        {"cohorts": 0},
        {"f": 0.5},
    ):
        with pytest.raises(LdpParameterError):
            Rappor(**bad)  # type: ignore[arg-type]


def test_bloom_filters_differ_by_cohort_and_spread_evenly() -> None:
    protocol = Rappor(size=128, hashes=2, cohorts=64)
    patterns = {tuple(protocol.positions("http://example.com", cohort)) for cohort in range(64)}
    assert len(patterns) > 60
    hits = np.zeros(128)
    for number in range(500):
        for cohort in range(8):
            hits += protocol.bloom(f"word {number}", cohort)
    # 8,000 hashes over 128 bits, a fixed function: its chi-square is a number, not a chance.
    assert ((hits - hits.mean()) ** 2 / hits.mean()).sum() < chi2.isf(1e-6, 127)
    many = Rappor(size=512, hashes=11, cohorts=2)
    assert len(many.positions("word", 1)) == 11


def test_a_fleet_reports_what_clients_would() -> None:
    """Bits set by the string come up with q*, others with p*: 30,000 users, two strings, alarm 10⁻⁹ in all."""
    protocol = Rappor(size=64, hashes=2, cohorts=2)
    users = 30_000
    fleet = protocol.fleet(users, SecureBits(), ["one", "two"])
    columns = fleet.report((np.arange(users) % 2).astype(np.int64))
    bits = bits_of(columns.rows, 64)
    checks = 2 * 2 * 64
    for cohort in range(2):
        for number, name in enumerate(("one", "two")):
            chosen = bits[(columns.cohorts == cohort) & (np.arange(users) % 2 == number)]
            expected = np.where(protocol.bloom(name, cohort), float(protocol.set_chance), float(protocol.clear_chance))
            score = (chosen.mean(axis=0) - expected) / np.sqrt(expected * (1 - expected) / chosen.shape[0])
            assert np.abs(score).max() < norm.isf(1e-9 / (2 * checks))
    assert (fleet.memoized() == 1).all()


def test_a_fleet_keeps_its_permanent_responses() -> None:
    """With p = 0 and q = 1 a report is the permanent response: the same each time, whatever was in between."""
    protocol = Rappor(size=70, hashes=2, cohorts=4, p=F(0), q=F(1))
    fleet = protocol.fleet(50, SecureBits(), ["one", "two", "three"])
    ones, twos = np.zeros(50, dtype=np.int64), np.ones(50, dtype=np.int64)
    first, second, third = (fleet.report(values).rows for values in (ones, twos, ones))
    assert np.array_equal(first, third)
    assert not np.array_equal(first, second)
    assert (fleet.memoized() == 2).all()


def test_a_device_stops_and_goes_on() -> None:
    protocol = Rappor(size=24, hashes=2, cohorts=8, p=F(0), q=F(1))
    client = protocol.client(SeededBits("device"))
    sent = [client.report(word) for word in ("a", "b", "a", "\u00fc\u4e16")]
    assert sent[0] == sent[2]
    again = protocol.restore(client.save(), SeededBits("later"))
    assert [again.report(word) for word in ("a", "b", "a", "\u00fc\u4e16")] == sent
    assert again.memoized == 3
    assert again.cohort == client.cohort
    saved = client.save()
    for old, new in ((b'"rows"', b'"lines"'), (b'"cohort": ', b'"cohort": 99'), (b'"size": 24', b'"size": 23')):
        with pytest.raises(StateError):
            protocol.restore(saved.replace(old, new), SeededBits("later"))


def test_columns_of_clients_count_like_columns_of_a_fleet() -> None:
    protocol = Rappor(size=20, hashes=2, cohorts=3)
    bits = SeededBits("clients")
    reports = [protocol.client(bits).report("word") for _ in range(40)]
    counts = protocol.count(protocol.columns(reports))
    assert counts.reports.sum() == 40
    for cohort in range(3):
        rows = [report.row for report in reports if report.cohort == cohort]
        bits_set = [np.unpackbits(np.frombuffer(row, np.uint8), bitorder="little")[:20] for row in rows]
        assert counts.set_bits[cohort].tolist() == np.sum(bits_set, axis=0, dtype=np.int64).tolist()
    doubled = counts + counts
    assert doubled.reports.tolist() == (2 * counts.reports).tolist()


def expected_counts(protocol: Rappor, shares: dict[str, float], users: int) -> RapporCounts:
    """The counts that would come of it without any chance, to the nearest whole number."""
    reports = np.full(protocol.cohorts, users // protocol.cohorts, dtype=np.int64)
    rows = []
    for cohort, size in enumerate(reports):
        share = sum(weight * protocol.bloom(name, cohort) for name, weight in shares.items())
        high, low = float(protocol.set_chance), float(protocol.clear_chance)
        rows.append(np.rint(size * (low + (high - low) * share)))
    return RapporCounts(reports=reports, set_bits=np.array(rows, dtype=np.int64))


def test_decoding_without_chance_gives_the_shares_back() -> None:
    protocol = Rappor(size=64, hashes=2, cohorts=16)
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    counts = expected_counts(protocol, shares, 16 * 10**9)
    decoded = decode(protocol, counts, ["c", "a", "x", "b", "y"])
    found = {candidate.string: candidate for candidate in decoded.candidates}
    for name, share in shares.items():
        assert found[name].frequency == pytest.approx(share, abs=1e-6)
        assert found[name].detected
        low, high = found[name].interval()
        assert low < share < high
    assert not found["x"].detected and not found["y"].detected
    assert decoded.others == pytest.approx(0, abs=1e-6)
    assert decoded.dispersion == 1.0
    assert decoded.tests == 5


def test_strings_that_nobody_named_are_others() -> None:
    """Half of the population holds strings that are not candidates: they show as others, and widen the deviations."""
    protocol = Rappor(size=64, hashes=2, cohorts=32)
    shares = {"a": 0.5, **{f"unknown {number}": 0.05 for number in range(10)}}
    counts = expected_counts(protocol, shares, 32 * 10**6)
    decoded = decode(protocol, counts, ["a", "x"])
    assert decoded.detected() == ["a"]
    assert decoded.dispersion > 5
    assert decoded.candidates[0].frequency == pytest.approx(0.5, abs=6 * decoded.candidates[0].deviation)
    assert decoded.others == pytest.approx(0.5, abs=0.1)


def test_deviations_are_true() -> None:
    """Scores of estimates against the truth are standard normal: 12 runs of 40 strings, chi-square, alarm 10⁻⁹.

    Estimates of one run are nearly independent of each other; the dependence left is covered by a factor of 1.3.
    """
    protocol = Rappor(size=128, hashes=2, cohorts=16)
    total, scores = 0.0, 0
    for _ in range(12):
        run = recover(protocol, users=60_000, strings=20, decoys=20, bits=SecureBits())
        truth = dict(zip((f"string {rank}" for rank in range(1, 21)), run.truth, strict=True))
        for candidate in run.decoded.candidates:
            total += ((candidate.frequency - truth.get(candidate.string, 0.0)) / candidate.deviation) ** 2
            scores += 1
    assert scores == 480
    assert chi2.isf(1 - 1e-9, scores) / 1.3 < total < 1.3 * chi2.isf(1e-9, scores)


def test_a_zipf_population_of_a_million() -> None:
    """The eight commonest of 100 strings are found among 50 decoys.

    The eighth has a share of 0.0241 against a threshold of 0.0099 and a deviation of 0.0029: the alarm is 5·10⁻⁷.
    """
    run = recover(Rappor(), users=1_000_000, strings=100, decoys=50, bits=SecureBits())
    assert run.leading >= 8
    assert run.decoded.reports == 1_000_000
    assert run.decoded.tests == 150


def test_false_detections_keep_to_bonferronis_rate() -> None:
    """25 small runs with 60 decoys each: at most as many with a false detection as Bin(25, 0.05) allows at 10⁻⁹."""
    protocol = Rappor(size=64, hashes=2, cohorts=8)
    runs = [recover(protocol, users=20_000, strings=20, decoys=60, bits=SecureBits()) for _ in range(25)]
    assert sum(bool(run.false) for run in runs) <= false_runs_limit(25, 0.05, 1e-9)
    assert all(run.leading >= 1 for run in runs)


@pytest.mark.soak
def test_two_hundred_runs_of_a_million() -> None:
    """The eight commonest in every run (alarm 1.6·10⁻⁴ over all), false detections within Bonferroni's rate."""
    protocol = Rappor()
    limit = learning_limit(reports=1_000_000, tests=200, p=protocol.p, q=protocol.q)
    falsely, leading, found = [], [], []
    for number in range(200):
        run = recover(protocol, users=1_000_000, strings=100, decoys=100, bits=SecureBits())
        falsely.append(len(run.false))
        leading.append(run.leading)
        found.append(run.found)
        print(f"run {number + 1}: {run.leading} commonest, {run.found} detected, {len(run.false)} false", flush=True)
    wrong = sum(count > 0 for count in falsely)
    print(
        f"200 runs: at least {min(leading)} commonest in each, {np.mean(found):.1f} detected on average, {wrong} runs "
        f"with a false detection (Bonferroni: 10 expected at most); limit on learning {limit:.1f} strings"
    )
    assert min(leading) >= 8
    assert wrong <= false_runs_limit(200, 0.05)
    assert max(found) <= limit


def test_many_candidates_are_screened_by_other_cohorts() -> None:
    """3,000 candidates on 32 × 128 bits: half of the cohorts choose, the other half tests; alarm far below 10⁻⁹."""
    protocol = Rappor(size=128, hashes=2, cohorts=32)
    names = [f"string {rank}" for rank in range(1, 4)]
    values = draw_population(np.array([0.5, 0.3, 0.2]), 200_000, SecureBits())
    counts = protocol.count(protocol.fleet(200_000, SecureBits(), names).report(values))
    decoded = decode(protocol, counts, [*(f"decoy {number}" for number in range(2997)), *names])
    assert set(names) <= set(decoded.detected())
    assert decoded.screened == 3000 - decoded.tests
    assert decoded.tests == 16 * 128 // 16


def test_decoding_says_what_is_wrong() -> None:
    protocol = Rappor(size=8, hashes=1, cohorts=1)
    counts = protocol.count(protocol.columns([protocol.client(SeededBits("x")).report("a")]))
    with pytest.raises(ReportError, match="no string twice"):
        decode(protocol, counts, ["a", "a"])
    with pytest.raises(ReportError, match="too many for one cohort"):
        decode(protocol, counts, [f"word {number}" for number in range(9)])
    with pytest.raises(ReportError, match="no reports"):
        decode(protocol, RapporCounts(reports=np.zeros(1, np.int64), set_bits=np.zeros((1, 8), np.int64)), ["a"])
    with pytest.raises(ReportError, match="cohorts"):
        decode(Rappor(size=8, hashes=1, cohorts=2), counts, ["a"])
    with pytest.raises(ReportError):
        decode(protocol, counts, ["a"], significance=0.0)
    clash = next(
        (one, two)
        for one, two in itertools.combinations([f"word {number}" for number in range(30)], 2)
        if protocol.positions(one, 0) == protocol.positions(two, 0)
    )
    with pytest.raises(ReportError, match="equal those of other candidates"):
        decode(protocol, counts, list(clash))


def test_the_limit_on_learning() -> None:
    """For p = ½ it is (2q − 1)√N/Q; with x strings of share 1/x the estimate is exactly Q deviations from nothing."""
    reports, tests = 1_000_000, 128
    critical = norm.isf(0.05 / tests)
    limit = learning_limit(reports=reports, tests=tests, p=F(1, 2), q=F(3, 4))
    assert limit == pytest.approx(0.5 * 1000 / critical)
    assert limit == pytest.approx(148.84, abs=0.01)
    deviation = math.sqrt(0.25 * reports) / 0.25
    assert reports / limit == pytest.approx(critical * deviation)
    assert learning_limit(reports=reports, tests=1, p=0.5, q=0.75, significance=0.5) == math.inf
    for bad in ({"reports": 0}, {"tests": 0}, {"p": 0.8}, {"significance": math.nan}):
        with pytest.raises(ReportError):
            learning_limit(**{"reports": 10, "tests": 5, "p": 0.5, "q": 0.75, **bad})  # type: ignore[arg-type]


def test_the_population_is_zipfs() -> None:
    shares = zipf_shares(100)
    assert shares[0] / shares[7] == pytest.approx(8)
    assert shares.sum() == pytest.approx(1)
    users = 200_000
    seen = np.bincount(draw_population(shares, users, SecureBits()), minlength=100)
    assert (((seen - users * shares) ** 2) / (users * shares)).sum() < chi2.isf(1e-9, 99)
    assert false_runs_limit(200, 0.05) == 27
    with pytest.raises(LdpParameterError):
        zipf_shares(0)
    with pytest.raises(LdpParameterError):
        recover(Rappor(), users=10, strings=2, decoys=-1, bits=SeededBits("x"))
