"""What a job over several APIs states, over gRPC: the bounds of all units that one person can use add up."""

from __future__ import annotations

from typing import Any

import pytest

from aggservice.client import Client, JobParameters
from aggservice.wire import Api

from ...engine.conftest import NOW_MS, ORIGIN, Maker

L1 = 65_536
DAY_S = 86_400
ASKS = JobParameters(attribution_report_to=ORIGIN, epsilon="1")
PRIVATE_AGGREGATION = ({"api": Api.SHARED_STORAGE}, {"api": Api.PROTECTED_AUDIENCE})
DEBUG: dict[str, Any] = {"api": Api.ATTRIBUTION_REPORTING_DEBUG}
ATTRIBUTION: dict[str, Any] = {"api": Api.ATTRIBUTION_REPORTING}


def days(count: int) -> list[dict[str, Any]]:
    return [DEBUG | {"scheduled_report_time_s": NOW_MS // 1000 - day * DAY_S} for day in range(count)]


@pytest.mark.parametrize(
    ("reports", "times"),
    [
        ([ATTRIBUTION], 1),
        (list(PRIVATE_AGGREGATION[:1]), 1),
        (list(PRIVATE_AGGREGATION), 2),
        ([ATTRIBUTION, *PRIVATE_AGGREGATION], 3),
        (days(1), 2),
        (days(20), 21),
        ([ATTRIBUTION, *days(20)], 21),
    ],
)
def test_bounds_add_up_over_apis_and_days(
    maker: Maker, client: Client, reports: list[dict[str, Any]], times: int
) -> None:
    """A device has a budget in each API of Private Aggregation, and a pair of sites one for debug reports each day."""
    sealed = [
        maker.report({1: L1}, **({} if one["api"].has_destination else {"attribution_destination": None}), **one)
        for one in reports
    ]
    summary = client.aggregate("job", ASKS, sealed, domain=[1])
    assert (summary.statement.l1, summary.statement.l0) == (times * L1, times * L1)
    # At ε = 1 the noise has a standard deviation of √2·Λ₁ for the stated Λ₁.
    assert float(summary.statement.noise_standard_deviation) == pytest.approx(2**0.5 * times * L1, rel=1e-4)
    for one in reports:
        assert f"{one['api'].value} protects" in summary.statement.text
