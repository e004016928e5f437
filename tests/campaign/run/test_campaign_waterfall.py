"""The waterfall of random campaigns adds up exactly, and agrees with a recount of the reports themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggservice.campaign.columns import LOSSES, Fate
from aggservice.campaign.file.campaign import campaign_of
from aggservice.mechanisms import SeededBits
from campaign_bench import Bench, bench

CAPS = [("deployed", 65_536, None), ("paper", 2_000, 3), ("paper", 65_536, 2)]


def document(draw: Callable[[Any], Any], caps: tuple[str, int, int | None]) -> dict[str, Any]:
    form, l1, l0 = caps
    client: dict[str, Any] = {"form": form, "expiry_days": draw(st.sampled_from([0.5, 3.0]))}
    if form == "paper":
        client |= {"l1": l1, "l0": l0}
    else:
        client["max_reports"] = draw(st.integers(1, 4))
    kinds = ["attribution", "attribution", "reach", "frequency"] if form == "deployed" else ["attribution"]
    kind = draw(st.sampled_from(kinds))
    fields: list[dict[str, Any]] = [{"name": "ad", "values": ["a", "b", "c"]}]
    found: dict[str, Any] = {
        "name": "random",
        "population": {
            "size": draw(st.integers(1, 25)),
            "days": draw(st.integers(1, 3)),
            "devices": draw(st.integers(1, 2)),
            "impressions": {"name": "poisson", "mean": draw(st.sampled_from([0.5, 2.0, 5.0]))},
            "click_rate": 0.3,
            "conversion_rate": draw(st.sampled_from([0.0, 0.4, 1.0])),
            "conversions": {"name": "geometric", "mean": draw(st.sampled_from([1.0, 3.0]))},
            "organic": {"name": "poisson", "mean": 0.3},
            "delay_days": {"name": "exponential", "mean": 0.4},
            "value": {"name": "uniform", "low": 0, "high": draw(st.sampled_from([1, 40, 900]))},
        },
        "keys": {"fields": fields},
        "client": client | {"kind": kind, "cap": draw(st.integers(1, 2))},
        "collection": {
            "lost": draw(st.sampled_from([0.0, 0.2, 1.0])),
            "late": draw(st.sampled_from([0.0, 0.5])),
            "late_days": {"name": "exponential", "mean": 0.8},
            "retried": 0.2,
            "batch_hours": draw(st.sampled_from([12, 24])),
            "late_reports": draw(st.sampled_from(["drop", "next"])),
        },
        "queries": [
            {"name": "all", "epsilon": "20", "rows": {"ad": ["a", "b"]} if draw(st.booleans()) else {}},
            {"name": "each", "over": "each", "epsilon": draw(st.sampled_from(["20", "30"]))},
            {"name": "again", "epsilon": "15"},
            {"name": "found", "discovery": True, "epsilon": "5", "delta": "0.000001"},
        ],
    }
    if kind == "attribution":
        fields.append({"name": "product", "from": "conversion", "values": ["x", "y"]})
        most = draw(st.sampled_from([30, 500]))
        counted = {"name": "n", "of": "count", "scale": min(500, l1)}
        found["measures"] = [counted, {"name": "v", "of": "value", "most": most}]
        if draw(st.booleans()):
            found["filters"] = {"field": "product", "accepts": ["x"]}
    return found


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bench]]:
    folder = tmp_path_factory.mktemp("waterfalls")
    with ExitStack() as stack:
        made = []
        for number, (form, l1, l0) in enumerate(CAPS):
            client: dict[str, Any] = {"form": form} | ({"l1": l1, "l0": l0} if l0 else {})
            plain = {
                "name": "caps",
                "population": {"size": 1, "days": 3},
                "keys": {"fields": [{"name": "ad", "values": ["a"]}]},
                "client": client,
                "measures": [{"of": "count"}],
                "queries": [{"name": "q"}],
            }
            made.append(stack.enter_context(bench(campaign_of(plain, folder=folder), folder / f"{number}")))
        yield made


def check(data: st.DataObject, services: list[Bench]) -> None:
    place = data.draw(st.integers(0, len(CAPS) - 1))
    campaign = campaign_of(document(data.draw, CAPS[place]), folder=Path())
    seed = data.draw(st.integers(0, 1 << 40))
    truth, answers, found = services[place].run(campaign, SeededBits(f"{seed} {services[place].count}"))
    reports, collected = truth.reports, truth.collected
    measures = len(campaign.measures)
    happened = len(truth.events.conversions) if campaign.client.kind == "attribution" else len(truth.items)
    for answer, one in zip(answers, found, strict=True):
        window = np.zeros(campaign.batches, dtype=bool)
        window[list(answer.job.batches)] = True
        inside = (collected.batch >= 0) & window[np.maximum(collected.batch, 0)]
        contributions = np.repeat(inside, np.diff(reports.offset))
        arrived = [0] * measures
        for high, low in zip(reports.key_high[contributions], reports.key_low[contributions], strict=True):
            names = campaign.keys.names(int(high), int(low))
            arrived[[m.name for m in campaign.measures].index(names["measure"]) if measures > 1 else 0] += 1
        for number, waterfall in enumerate(one.waterfalls):
            assert waterfall.adds_up
            assert waterfall.conversions[Fate.ON_THE_WAY] == 0
            assert waterfall.happened == waterfall.conversions[Fate.COUNTED] + sum(
                waterfall.conversions[fate] for fate in LOSSES
            )
            at_the_service = (Fate.COUNTED, Fate.OVER_BUDGET, Fate.NOT_ASKED, Fate.BELOW_THRESHOLD)
            assert sum(waterfall.conversions[fate] for fate in at_the_service) == arrived[number]
            assert bool(waterfall.conversions[Fate.OVER_BUDGET]) <= (not one.paid)
        if one.paid and answer.job.query.name == "again":
            assert sum(w.counted_amount for w in one.waterfalls) == int(reports.value[contributions].sum())
        if len(answer.job.batches) == campaign.batches:
            assert all(w.happened == happened for w in one.waterfalls)
            gone = np.repeat(collected.batch < 0, np.diff(reports.offset)).sum()
            lost = sum(w.conversions[Fate.LOST] + w.conversions[Fate.LATE] for w in one.waterfalls)
            assert lost == int(gone)
    each = [one for one in found if one.query == "each"]
    assert all(sum(one.waterfalls[m].happened for one in each) == happened for m in range(measures))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_waterfalls_of_random_campaigns_add_up(services: list[Bench], data: st.DataObject) -> None:
    check(data, services)


@pytest.mark.soak
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_waterfalls_of_1000_random_campaigns_add_up(services: list[Bench], data: st.DataObject) -> None:
    check(data, services)
