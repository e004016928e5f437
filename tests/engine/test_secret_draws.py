"""Noise and order come from secret bits of their own: not from what is public about a job, and never from a seed twice.

The service's form of these tests is ``tests/service/promises/test_entropy.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aggservice.engine import InlineOpener, LocalEngine
from aggservice.engine.jobs import shuffle as shuffle_job
from aggservice.engine.release.noise import ExactNoise
from aggservice.engine.shuffle import random_order
from aggservice.job.errors import UnpaidError
from aggservice.job.request import Discovery, HistogramRequest
from aggservice.mechanisms import Bits, SecureBits
from budget import Delta, EpsilonDeltaFilter, GaussianNoise, LaplaceNoise, ZcdpFilter

from .conftest import ORIGIN, SCOPE, Maker, new_ledger
from .test_shuffle_job import job as shuffle_request
from .test_shuffle_job import run as shuffled
from .test_shuffle_job import sealed

EngineOf = Callable[..., LocalEngine]
KEYS = 64
"""As many draws at a scale of 65,536 are equal twice with a chance below 10⁻³⁰⁰."""
KINDS: dict[str, dict[str, Any]] = {
    "laplace": {},
    "gaussian": {"mechanism": GaussianNoise.parse(rho="0.5")},
    "discovery": {"discovery": Discovery(delta=Delta.parse("0.000001"))},
    "debug": {"debug_run": True},
}


def drawn(engine: LocalEngine, maker: Maker, job: str, reports: list[Any], **asked: Any) -> list[int]:
    """Return the metrics of a job over 64 declared keys."""
    request = HistogramRequest(
        job_request_id=job, attribution_report_to=ORIGIN, **{"mechanism": LaplaceNoise.parse(epsilon="1"), **asked}
    )
    session = engine.begin(SCOPE, request)
    session.declare(np.zeros(KEYS, dtype=np.uint64), np.arange(KEYS, dtype=np.uint64))
    session.add(maker.batch(reports))
    rows = session.finish().rows
    assert rows is not None
    return rows.metrics.tolist()


def engine_with(maker: Maker, noise_of: Callable[[Bits], Any] = ExactNoise, *, rho: bool = False) -> LocalEngine:
    return LocalEngine(
        ledger=new_ledger(ZcdpFilter.parse(rho="10") if rho else EpsilonDeltaFilter()),
        opener=InlineOpener(maker.keys),
        clock=maker.clock,
        bits=SecureBits(),
        noise_of=noise_of,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_two_engines_given_the_same_job_draw_other_noise(maker: Maker, kind: str) -> None:
    reports = [maker.report({1: 5}, debug_mode=True)]
    engines = [engine_with(maker, rho=kind == "gaussian") for _ in range(2)]
    assert len({tuple(drawn(engine, maker, "same", reports, **KINDS[kind])) for engine in engines}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_each_job_draws_from_secret_bits_of_its_own(maker: Maker, kind: str) -> None:
    """Not even a job that repeats one that was refused, or that differs in its id alone, sees the same bits."""
    given: list[Bits] = []

    def noise_of(bits: Bits) -> ExactNoise:
        given.append(bits)
        return ExactNoise(bits)

    engine = engine_with(maker, noise_of, rho=kind == "gaussian")
    reports = [maker.report({1: 5}, debug_mode=True)]
    metrics = [tuple(drawn(engine, maker, name, reports, **KINDS[kind])) for name in ("a", "b")]
    assert len(set(metrics)) == 2
    again = drawn(engine, maker, "a", reports, **KINDS[kind])
    assert tuple(again) in metrics or kind == "debug"
    assert all(type(bits) is SecureBits for bits in given)
    assert len({bits.read(16) for bits in given}) == len(given) == 3


def test_noise_that_was_drawn_for_a_refused_job_is_never_seen(maker: Maker) -> None:
    """The draws of a job that could not pay and of the one that could are not the same."""
    given: list[bytes] = []

    def noise_of(bits: Bits) -> ExactNoise:
        given.append(bits.child("copy").read(16))
        return ExactNoise(bits)

    engine = engine_with(maker, noise_of)
    poor, fresh = maker.report({1: 5}), maker.report({1: 5})
    drawn(engine, maker, "spend", [poor], mechanism=LaplaceNoise.parse(epsilon="64"))
    with pytest.raises(UnpaidError):
        drawn(engine, maker, "job", [poor])
    drawn(engine, maker, "job", [fresh])
    assert len(set(given)) == 3


def test_the_order_of_a_shuffle_comes_from_secret_bits_of_its_own(
    maker: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Bits] = []

    def order(bits: Bits, count: int) -> Any:
        given.append(bits)
        return random_order(bits, count)

    monkeypatch.setattr(shuffle_job, "random_order", order)
    reports = sealed(maker, [index % 5 for index in range(300)])
    orders = []
    for _ in range(2):
        outcome = shuffled(engine_of(maker), maker, reports, shuffle_request("same"))
        assert outcome.shuffled is not None
        orders.append(outcome.shuffled.to_list())
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    assert all(type(bits) is SecureBits for bits in given) and len(given) == 2
    assert given[0].read(16) != given[1].read(16)
