"""Every unit of a job pays, also beyond the 65,536 that the ledger charges at a time, and the first and the last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aggservice.engine import LocalEngine, PrivacyUnit, ledger_terms
from aggservice.job.errors import UnpaidError
from aggservice.job.request import HistogramRequest
from aggservice.wire import SharedInfo
from aggservice.wire.report.units import report_unit, shared_id_unit
from budget import LaplaceNoise

from .conftest import NOW_MS, ORIGIN, SCOPE, Maker

IDS = tuple(range(256))
REPORTS = 260
"""256 filtering IDs each: 66,560 units, more than one piece of a charge."""


@pytest.mark.parametrize("unit", PrivacyUnit)
def test_every_unit_of_a_large_job_is_spent(
    maker: Maker, engine_of: Callable[..., LocalEngine], unit: PrivacyUnit
) -> None:
    engine = engine_of(maker, terms=ledger_terms(unit))
    reports = [
        maker.report({1: 1}, scheduled_report_time_s=NOW_MS // 1000 - 3600 * number) for number in range(REPORTS)
    ]

    def ask(job: str, epsilon: str, ids: tuple[int, ...] = IDS):  # type: ignore[no-untyped-def]
        request = HistogramRequest(
            job_request_id=job,
            attribution_report_to=ORIGIN,
            mechanism=LaplaceNoise.parse(epsilon=epsilon),
            filtering_ids=ids,
        )
        session = engine.begin(SCOPE, request)
        session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
        session.add(maker.batch(reports))
        return session.finish()

    paid = ask("all", "64")
    assert paid is not None and paid.committed.entry.units.count == REPORTS * len(IDS) > 65_536
    unit_of = report_unit if unit == PrivacyUnit.REPORT else shared_id_unit
    infos = [SharedInfo.parse(report.shared_info) for report in reports]
    units = b"".join(unit_of(info, filtering_id) for info in infos for filtering_id in IDS)
    spent = engine.ledger.balances(units)
    assert spent.loss_micro.size == REPORTS * len(IDS)
    assert set(spent.loss_micro.tolist()) == {64_000_000} and set(spent.uses.tolist()) == {1}
    with pytest.raises(UnpaidError) as caught:
        ask("again", "0.000001")
    assert caught.value.count == caught.value.total == REPORTS * len(IDS)
    ask("another filtering ID", "1", (256,))
