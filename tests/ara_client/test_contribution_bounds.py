"""Λ₁ of a source at its exact end: through named budgets, debug budgets and filtering IDs, in a browser."""

from __future__ import annotations

from typing import Any

import pytest

from ara_client.reports import AggregatableDebugReport

from .test_browser import buy, click, make

WHOLE = 65_536


def source(**more: Any) -> dict[str, Any]:
    return {"destination": "https://shop.test", "aggregation_keys": {"a": "0x1", "b": "0x2"}, **more}


def trigger(value: int, *, name: str | None = None, key: str = "a", filtering_id: str = "0") -> dict[str, Any]:
    fields: dict[str, Any] = {
        "aggregatable_trigger_data": [{"key_piece": "0x10", "source_keys": ["a", "b"]}],
        "aggregatable_values": {key: {"value": value, "filtering_id": filtering_id}},
    }
    return fields if name is None else {**fields, "named_budgets": [{"name": name}]}


def contributed(registration: dict[str, Any], triggers: list[dict[str, Any]]) -> list[int]:
    """Return what each trigger contributes for one source; 0 for a null report or none."""
    browser, clock, _ = make()
    click(browser, registration)
    found = []
    for fields in triggers:
        clock.advance(1_000)
        before = {report.report_id for report in browser.pending}
        buy(browser, fields)
        new = [report for report in browser.pending if report.report_id not in before]
        found.append(sum(one.value for report in new for one in getattr(report, "contributions", ())))
    return found


@pytest.mark.parametrize("names", [(None, "n"), ("n", None), ("n", "m"), ("n", "unknown"), (None, None)])
def test_named_budgets_share_the_sources_whole(names: tuple[str | None, str | None]) -> None:
    """Each name may have all of Λ₁, but they have it together."""
    registration = source(named_budgets={"n": WHOLE, "m": WHOLE})
    first, second = names
    asked = [trigger(WHOLE - 5, name=first), trigger(6, name=second), trigger(5, name=second), trigger(1, name=first)]
    assert contributed(registration, asked) == [WHOLE - 5, 0, 5, 0]


def test_a_name_ends_at_its_own_budget_and_leaves_the_rest_to_others() -> None:
    registration = source(named_budgets={"n": 100})
    asked = [trigger(101, name="n"), trigger(60, name="n"), trigger(41, name="n"), trigger(40, name="n")]
    asked += [trigger(1, name="n"), trigger(WHOLE - 100), trigger(1)]
    assert contributed(registration, asked) == [0, 60, 0, 40, 0, WHOLE - 100, 0]


@pytest.mark.parametrize("debug", [0, 1, 1_000, WHOLE])
def test_the_budget_for_debug_reports_is_taken_from_the_whole(debug: int) -> None:
    reporting = {"budget": debug, "key_piece": "0x1", "debug_data": []}
    registration = source(aggregatable_debug_reporting=reporting) if debug else source()
    left = WHOLE - debug
    asked = [trigger(left + 1) if left < WHOLE else trigger(WHOLE), *([trigger(left)] if 0 < left < WHOLE else [])]
    expected = [0 if left < WHOLE else WHOLE, *([left] if 0 < left < WHOLE else [])]
    assert contributed(registration, asked) == expected


def test_filtering_ids_and_keys_share_the_whole() -> None:
    asked = [trigger(WHOLE - 1, filtering_id="1"), trigger(2, key="b", filtering_id="2"), trigger(1, key="b")]
    assert contributed(source(), asked) == [WHOLE - 1, 0, 1]


def test_debug_reports_about_one_source_end_with_its_debug_budget() -> None:
    """Two debug reports of 60 out of 100: the second is a null report."""
    reporting = {
        "budget": 100,
        "key_piece": "0x1",
        "debug_data": [{"types": ["trigger-no-matching-filter-data"], "key_piece": "0x2", "value": 60}],
    }
    browser, clock, _ = make()
    click(browser, source(aggregatable_debug_reporting=reporting, filter_data={"product": ["1"]}))
    asked = {
        **trigger(5),
        "filters": {"product": ["2"]},
        "aggregatable_debug_reporting": {
            "key_piece": "0x4",
            "debug_data": [{"types": ["trigger-no-matching-filter-data"], "key_piece": "0x8", "value": 60}],
        },
    }
    totals = []
    for _ in range(2):
        clock.advance(1_000)
        sent = [one for one in buy(browser, asked) if isinstance(one, AggregatableDebugReport)]
        totals += [sum(one.value for one in report.contributions) for report in sent]
    assert totals == [60, 0]
