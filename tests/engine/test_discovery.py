"""Key discovery: what must never appear never does, and what may appear does so with the pmf's probability."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from aggservice.engine import InlineOpener, LocalEngine, ReleasePlan, Scope
from aggservice.engine.release.noise import ExactNoise, release
from aggservice.engine.tables.sums import KeySums
from aggservice.job.request import Discovery, HistogramRequest, KeyMask
from aggservice.mechanisms import SecureBits
from aggservice.wire import Contribution, KeySet, OpenedBatch, ReportBatch, Spans, encode_payload
from budget import Delta, LaplaceDiscovery, LaplaceNoise, Sensitivity

from .conftest import Maker, new_ledger

MASK = (1 << 40) - 1
ALARM = 1e-6


def plan_of(epsilon: str = "1", delta: str = "0.001", l1: int = 4, l0: int = 4) -> ReleasePlan:
    return ReleasePlan(
        mechanism=LaplaceDiscovery.parse(epsilon=epsilon, delta=delta), sensitivity=Sensitivity(l1=l1, l0=l0)
    )


def filled(sums_at: dict[int, int]) -> KeySums:
    """Return sums of exactly these values at these keys."""
    sums = KeySums(salt=1, discover=True)
    keys = np.array(list(sums_at), dtype=np.uint64)
    values = np.array(list(sums_at.values()), dtype=np.uint32)
    rows, fresh = np.zeros(keys.size, dtype=np.int32), np.ones(1, dtype=bool)
    sums.add(np.zeros(keys.size, dtype=np.uint64), keys, values, rows, fresh)
    return sums


def test_a_key_appears_with_the_probability_that_the_pmf_gives() -> None:
    """False-alarm rate: 10⁻⁶ in all, shared evenly by two tails of every sum tried."""
    plan = plan_of()
    tau, noise = plan.threshold, plan.discovered_noise
    tried = [1, 2, tau // 2, tau - 3, tau - 2, tau - 1, tau, tau + 1, tau + 2, tau + 5, 2 * tau, 2 * tau + 1]
    each = 20_000
    for number, true_sum in enumerate(tried):
        summary = release(filled(dict.fromkeys(range(each), true_sum)).columns(), plan, ExactNoise(SecureBits()))
        chance = float(1 - noise.cdf(tau - true_sum))
        count = len(summary)
        level = ALARM / (2 * len(tried))
        assert binom.cdf(count, each, chance) > level, (number, true_sum, count, chance)
        assert binom.sf(count - 1, each, chance) > level, (number, true_sum, count, chance)
        assert (summary.metrics > tau).all()
    # At sums above 2τ truncated noise cannot hide a key, and at 0 it cannot show one.
    assert float(1 - noise.cdf(tau - (2 * tau + 1))) == 1.0
    assert float(1 - noise.cdf(tau)) == 0.0


class LargestNoise:
    """Truncated noise at its upper end: whatever sum there is then passes the threshold."""

    def draw(self, noise: Any, size: int) -> np.ndarray:
        return np.full(size, noise.tau if size else 0, dtype=np.int64)


def cleartext_batch(maker: Maker, contributions: list[Contribution]) -> ReportBatch:
    """Return reports whose payloads are not sealed, with a thousand contributions each."""
    payloads, infos = [], []
    for start in range(0, len(contributions), 1000):
        payloads.append(encode_payload(contributions[start : start + 1000]))
        infos.append(maker.info().serialise().encode())
    return ReportBatch(
        payloads=Spans.of(payloads), key_ids=Spans.of([b""] * len(payloads)), shared_infos=Spans.of(infos)
    )


@pytest.mark.parametrize("kind", ["null", "filtered", "masked"])
def test_a_million_keys_without_a_contribution_that_counts_never_appear(kind: str) -> None:
    """Each of 10⁶ keys is one chance to appear; the noise is the largest there is, so that any leak would show."""
    maker = Maker()
    count = 1_000_000 // 3
    if kind == "null":
        hidden = [Contribution(bucket=key, value=0) for key in range(1, count)]
    elif kind == "filtered":
        hidden = [Contribution(bucket=key, value=60, filtering_id=3) for key in range(1, count)]
    else:
        hidden = [Contribution(bucket=1 << 100 | key, value=60) for key in range(1, count)]
    shown = [Contribution(bucket=(1 << 39) | key, value=60) for key in range(500)]
    engine = LocalEngine(
        ledger=new_ledger(),
        opener=InlineOpener(KeySet(())),
        clock=maker.clock,
        bits=SecureBits(),
        noise_of=lambda _: LargestNoise(),
    )
    request = HistogramRequest(
        job_request_id="discover",
        attribution_report_to="https://adtech.example",
        mechanism=LaplaceNoise.parse(epsilon="1"),
        discovery=Discovery(delta=Delta.parse("0.000001"), mask=KeyMask.of(MASK)),
    )
    session = engine.begin(Scope(caller="adtech"), request, cleartext=True)
    session.add(cleartext_batch(maker, hidden + shown))
    rows = session.finish().rows
    assert rows is not None
    assert sorted(rows.to_dict()) == [one.bucket for one in shown]


@pytest.mark.soak
def test_a_million_releases_never_show_what_they_must_not() -> None:
    _releases(1_000_000)


def test_many_releases_never_show_what_they_must_not() -> None:
    _releases(3_000)


def _releases(count: int) -> None:
    """Release the same sums again and again: nulls, filtered and masked keys are not there to be found."""
    plan, noise = plan_of(delta="0.1"), ExactNoise(SecureBits())
    zeros, fresh = np.zeros(5, dtype=np.uint64), np.ones(1, dtype=bool)
    keys = np.array([1, 2, 3, 4, 1 << 50], dtype=np.uint64)
    values = np.array([0, 60, 1, 0, 900], dtype=np.uint32)
    appeared: dict[int, int] = {}
    for _ in range(count):
        sums = KeySums(salt=1, discover=True, mask=KeyMask.of(MASK))
        sums.add(zeros, keys, values, np.zeros(5, dtype=np.int32), fresh)
        for key in release(sums.columns(), plan, noise).low.tolist():
            appeared[key] = appeared.get(key, 0) + 1
    assert set(appeared) <= {2, 3}
    assert appeared[2] == count
    chance = float(1 - plan.discovered_noise.cdf(plan.threshold - 1))
    assert binom.cdf(appeared.get(3, 0), count, chance) > ALARM / 2
    assert binom.sf(appeared.get(3, 0) - 1, count, chance) > ALARM / 2


def test_declared_keys_are_always_there_beside_discovered_ones() -> None:
    plan = plan_of()
    sums = KeySums(salt=1, discover=True)
    sums.declare(np.zeros(2, dtype=np.uint64), np.array([7, 5], dtype=np.uint64))
    keys = np.array([9, 8, 5], dtype=np.uint64)
    values = np.array([10_000, 10_000, 1], dtype=np.uint32)
    sums.add(np.zeros(3, dtype=np.uint64), keys, values, np.zeros(3, dtype=np.int32), np.ones(1, dtype=bool))
    summary = release(sums.columns(), plan, ExactNoise(SecureBits()))
    # Declared keys in the order of the domain, then discovered ones in ascending order, not in that of arrival.
    assert summary.low.tolist() == [7, 5, 8, 9]


def test_the_order_of_discovered_rows_says_nothing_about_the_reports() -> None:
    plan = plan_of()
    orders = []
    for keys in ([5, 3, 9], [9, 5, 3]):
        sums = filled(dict.fromkeys(keys, 10_000))
        orders.append(release(sums.columns(), plan, ExactNoise(SecureBits())).low.tolist())
    assert orders[0] == orders[1] == [3, 5, 9]


def test_opened_cleartext_is_what_the_cleartext_mode_reads(maker: Any) -> None:
    batch = cleartext_batch(maker, [Contribution(bucket=1, value=2)])
    assert OpenedBatch.of_cleartext(batch).plaintexts[0] == encode_payload([Contribution(bucket=1, value=2)])


@pytest.mark.parametrize(("l1", "l0"), [(65_536, 1), (65_536, 20), (100, 7), (5, 5)])
def test_the_threshold_of_a_job_is_that_of_algorithm_1(l1: int, l0: int) -> None:
    """τ = Λ₁(1 + ln(Λ₀/δ)/ε), rounded up: Λ₁ outside of the logarithm, Λ₀ inside."""
    plan = ReleasePlan(
        mechanism=LaplaceDiscovery.parse(epsilon="2", delta="0.00001"), sensitivity=Sensitivity(l1=l1, l0=l0)
    )
    exact = l1 * (1 + math.log(l0 / 1e-5) / 2)
    assert plan.threshold == plan.discovered_noise.tau == math.ceil(exact)
