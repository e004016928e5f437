"""A job reads the reports of its origin or site that are its caller's, and pays for those only."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aggservice.engine import EngineSettings, LocalEngine, Scope
from aggservice.job.errors import InvalidJobError
from aggservice.job.request import HistogramRequest, ShuffleRequest
from budget import UnitSet

from .conftest import Maker
from .test_flow import NoNoise
from .test_shuffle_job import NAME, report_unit_of, sealed

EngineOf = Callable[..., LocalEngine]
MINE, SIBLING, STRANGER = "https://a.adtech.example", "https://b.adtech.example", "https://a.other.example"
SITE = "https://adtech.example"
ONE_ORIGIN = Scope(caller="a", origins=frozenset({MINE}), sites=frozenset())
WHOLE_SITE = Scope(caller="a", origins=frozenset(), sites=frozenset({SITE}))
NOTHING = Scope(caller="a", origins=frozenset(), sites=frozenset())
CASES = [
    (ONE_ORIGIN, {"reporting_site": SITE}, (MINE,)),
    (ONE_ORIGIN, {"attribution_report_to": MINE}, (MINE,)),
    (ONE_ORIGIN, {"attribution_report_to": SIBLING}, ()),
    (ONE_ORIGIN, {"reporting_site": "https://other.example"}, ()),
    (WHOLE_SITE, {"reporting_site": SITE}, (MINE, SIBLING)),
    (WHOLE_SITE, {"attribution_report_to": SIBLING}, (SIBLING,)),
    (WHOLE_SITE, {"attribution_report_to": STRANGER}, ()),
    (NOTHING, {"reporting_site": SITE}, ()),
]


@pytest.mark.parametrize(("scope", "asked", "read"), CASES)
def test_sums_hold_the_callers_reports_only(
    maker: Maker, engine_of: EngineOf, scope: Scope, asked: dict[str, Any], read: tuple[str, ...]
) -> None:
    engine = engine_of(maker, noise=NoNoise())
    values = {MINE: 1, SIBLING: 10, STRANGER: 100}
    reports = {origin: maker.report({1: value}, reporting_origin=origin) for origin, value in values.items()}
    request = HistogramRequest(job_request_id="job", error_threshold_percent=Fraction(100), **asked)
    session = engine.begin(scope, request)
    session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
    session.add(maker.batch(list(reports.values())))
    outcome = session.finish()
    assert outcome.rows is not None and outcome.rows.to_dict() == {1: sum(values[origin] for origin in read)}
    assert outcome.header.error_counts.get("NUM_REPORTS_WITH_ERRORS", 0) == 3 - len(read)
    for origin, report in reports.items():
        spent = engine.ledger.balances(UnitSet.packed(report_unit_of(report)))
        assert spent.uses.tolist() == [int(origin in read)]


@pytest.mark.parametrize(("scope", "asked", "read"), CASES)
def test_a_shuffle_releases_the_callers_reports_only(
    maker: Maker, engine_of: EngineOf, scope: Scope, asked: dict[str, Any], read: tuple[str, ...]
) -> None:
    values = {MINE: 1, SIBLING: 2, STRANGER: 3}
    reports = [sealed(maker, [value], reporting_origin=origin)[0] for origin, value in values.items()]
    request = ShuffleRequest(job_request_id="job", error_threshold_percent=Fraction(100), randomizer=NAME, **asked)
    session = engine_of(maker, settings=EngineSettings()).begin(scope, request)
    session.add(maker.batch(reports))
    if not read:
        with pytest.raises(InvalidJobError, match="nothing to shuffle"):
            session.finish()
        return
    shuffled = session.finish().shuffled
    assert shuffled is not None
    assert sorted(row[-1] for row in shuffled.to_list()) == sorted(values[origin] for origin in read)
