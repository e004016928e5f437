"""Each number that a job releases has noise of exactly the law that the job was charged for."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aggservice.engine import LocalEngine, ledger_terms
from aggservice.engine.release.debug import regular_rows
from aggservice.engine.release.noise import ReleasePlan, release
from aggservice.engine.tables.sums import SumColumns
from aggservice.job.request import Discovery, HistogramRequest
from aggservice.job.result import Rows
from aggservice.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    NoiseLaw,
    TruncatedDiscreteLaplace,
    discovery_threshold,
)
from aggservice.wire import Api
from aggservice.wire.avro.schemas import IN_DOMAIN, IN_REPORTS
from budget import Delta, Epsilon, GaussianNoise, LaplaceDiscovery, LaplaceNoise, Sensitivity, ZcdpFilter

from .conftest import ORIGIN, SCOPE, Maker, new_ledger

EngineOf = Callable[..., LocalEngine]
BOUNDS = {Api.ATTRIBUTION_REPORTING: Sensitivity(l1=700, l0=30), Api.SHARED_STORAGE: Sensitivity(l1=50, l0=7)}
BOTH = Sensitivity(l1=750, l0=37)


class Asked:
    """Notes each law and how often it is drawn from; draws zeros."""

    def __init__(self) -> None:
        self.laws: list[tuple[NoiseLaw, int]] = []

    def draw(self, noise: NoiseLaw, size: int) -> np.ndarray:
        self.laws.append((noise, size))
        return np.zeros(size, dtype=np.int64)


def asked_of(maker: Maker, engine_of: EngineOf, *, rho: bool = False, **asked: Any) -> tuple[Asked, Any]:
    """Run a job over both APIs with two declared and three other keys; return the laws and the ledger's entry."""
    noise = Asked()
    terms = ledger_terms(sensitivities=BOUNDS)
    engine = engine_of(maker, noise=noise, ledger=new_ledger(ZcdpFilter.parse(rho="5") if rho else None, terms=terms))
    session = engine.begin(SCOPE, HistogramRequest(job_request_id="job", attribution_report_to=ORIGIN, **asked))
    session.declare(np.zeros(2, dtype=np.uint64), np.array([1, 2], dtype=np.uint64))
    local = maker.report({3: 4, 5: 1}, api=Api.SHARED_STORAGE, attribution_destination=None)
    session.add(maker.batch([maker.report({1: 5, 3: 600, 4: 9}), local]))
    outcome = session.finish()
    return noise, outcome.committed and outcome.committed.entry


@pytest.mark.parametrize("others", [None, "0.25"])
@pytest.mark.parametrize("epsilon", ["1", "0.000001", "64"])
def test_declared_keys_and_the_others_total(
    maker: Maker, engine_of: EngineOf, epsilon: str, others: str | None
) -> None:
    if epsilon == "64" and others:
        epsilon = "63.75"
    more = None if others is None else LaplaceNoise.parse(epsilon=others)
    noise, entry = asked_of(maker, engine_of, mechanism=LaplaceNoise.parse(epsilon=epsilon), others=more)
    own = DiscreteLaplace(epsilon_micro=Epsilon.parse(epsilon).micro, sensitivity=BOTH.l1)
    rest = [] if more is None else [(DiscreteLaplace(epsilon_micro=more.pure_micro, sensitivity=BOTH.l1), 1)]
    assert noise.laws == [*rest, (own, 2)]
    assert entry.cost.loss_micro == Epsilon.parse(epsilon).micro + (0 if more is None else more.pure_micro)
    assert entry.cost.delta_atto == 0


@pytest.mark.parametrize("others", [None, "2"])
def test_discovered_keys(maker: Maker, engine_of: EngineOf, others: str | None) -> None:
    delta = Delta.parse("0.000003")
    more = None if others is None else LaplaceNoise.parse(epsilon=others)
    noise, entry = asked_of(
        maker,
        engine_of,
        mechanism=LaplaceNoise.parse(epsilon="5"),
        discovery=Discovery(delta=delta),
        others=more,
    )
    tau = discovery_threshold(epsilon_micro=5_000_000, delta_atto=delta.atto, l0=BOTH.l0, l1=BOTH.l1)
    own = DiscreteLaplace(epsilon_micro=5_000_000, sensitivity=BOTH.l1)
    found = TruncatedDiscreteLaplace(epsilon_micro=5_000_000, sensitivity=BOTH.l1, tau=tau)
    rest = [] if more is None else [(DiscreteLaplace(epsilon_micro=more.pure_micro, sensitivity=BOTH.l1), 1)]
    assert noise.laws == [*rest, (own, 2), (found, 3)]
    assert (entry.cost.loss_micro, entry.cost.delta_atto) == (
        5_000_000 + (0 if more is None else more.pure_micro),
        delta.atto,
    )


@pytest.mark.parametrize("discovery", [None, Discovery(delta=Delta.parse("0.000003"))])
@pytest.mark.parametrize("true", [0, 1, 1 << 40])
def test_a_total_has_its_draw_whatever_it_is(discovery: Discovery | None, true: int) -> None:
    """A total of nothing without noise would tell that nobody contributed to any other key."""

    class Sevens:
        def draw(self, noise: NoiseLaw, size: int) -> np.ndarray:
            return np.full(size, 7, dtype=np.int64)

    asked = HistogramRequest(
        job_request_id="job",
        attribution_report_to=ORIGIN,
        others=LaplaceNoise.parse(epsilon="1"),
        discovery=discovery,
    )
    plan = ReleasePlan.of(asked, ledger_terms(sensitivities=BOUNDS), {Api.ATTRIBUTION_REPORTING: 1})
    keys = np.arange(2, dtype=np.uint64)
    sums = SumColumns(high=keys, low=keys, sums=np.array([0, 5]), declared=2, outside=true)
    summary = release(sums, plan, Sevens())
    assert summary.metrics.tolist() == [7, 12]
    assert (summary.others, summary.undeclared) == (true + 7, true + 7)


def test_gaussian_noise(maker: Maker, engine_of: EngineOf) -> None:
    noise, entry = asked_of(maker, engine_of, rho=True, mechanism=GaussianNoise.parse(rho="0.5"))
    assert noise.laws == [(DiscreteGaussian(variance_parameter=Fraction(BOTH.l1**2)), 2)]
    assert entry.cost.loss_micro == 500_000


def test_a_noisy_sum_is_the_sum_and_its_own_draw(maker: Maker, engine_of: EngineOf) -> None:
    """Each row has a draw of its own: none is left out, none is used twice."""

    class Counting(Asked):
        def draw(self, noise: NoiseLaw, size: int) -> np.ndarray:
            before = sum(count for _, count in self.laws)
            super().draw(noise, size)
            return np.int64(1000) ** 2 * np.arange(before + 1, before + size + 1)

    engine = engine_of(maker, noise=Counting())
    asked = HistogramRequest(
        job_request_id="job",
        attribution_report_to=ORIGIN,
        mechanism=LaplaceNoise.parse(epsilon="10"),
        others=LaplaceNoise.parse(epsilon="1"),
        discovery=Discovery(delta=Delta.parse("0.000003")),
    )
    session = engine.begin(SCOPE, asked)
    session.declare(np.zeros(2, dtype=np.uint64), np.array([1, 2], dtype=np.uint64))
    session.add(maker.batch([maker.report({1: 5, 3: 7, 4: 9})]))
    outcome = session.finish()
    assert outcome.rows is not None
    million = 1000**2
    assert outcome.rows.to_dict() == {1: 5 + 2 * million, 2: 3 * million, 3: 7 + 4 * million, 4: 9 + 5 * million}
    assert outcome.header.undeclared == 16 + million
    assert outcome.header.others == 16 + million - (16 + 9 * million)


def test_a_debug_run_shows_a_real_summary_with_noise() -> None:
    """The rows that a debug run writes where real summaries go are those with noise, and only those kept."""
    rows = Rows(
        high=np.zeros(3, dtype=np.uint64),
        low=np.arange(3, dtype=np.uint64),
        metrics=np.array([17, 901, 902]),
        unnoised=np.array([5, 1, 2]),
        annotations=np.array([IN_DOMAIN | IN_REPORTS, IN_REPORTS, IN_REPORTS], dtype=np.uint8),
    )
    bounds = Sensitivity(l1=100, l0=1)
    declared = ReleasePlan(mechanism=LaplaceNoise.parse(epsilon="1"), sensitivity=bounds)
    assert regular_rows(rows, declared).to_dict() == {0: 17}
    discovering = ReleasePlan(mechanism=LaplaceDiscovery.parse(epsilon="1", delta="0.000335"), sensitivity=bounds)
    assert discovering.threshold == 901
    assert regular_rows(rows, discovering).to_dict() == {0: 17, 2: 902}
