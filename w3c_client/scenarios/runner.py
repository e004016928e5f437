"""Running scenarios against ``Browser`` and comparing every result, and the stores if the scenario gives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exception_only
from typing import Any

from aggservice.mechanisms import ForbiddenBits, ManualClock
from w3c_client.browser import Browser, Conversion
from w3c_client.config import Arithmetic, Filter
from w3c_client.errors import CallError, ScenarioError
from w3c_client.randomness import FixedDraws
from w3c_client.scenarios.cases import Event, Scenario, load_scenarios
from w3c_client.sites import Page

_STORES = {"site_budgets": Filter.SITE, "quotas": Filter.IMPRESSION_QUOTA}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """The result of a scenario or a header case: it passed if it has no differences."""

    name: str
    differences: tuple[str, ...]


def run_scenarios(
    path: Path, *, arithmetic: Arithmetic = Arithmetic.SPEC, progress: Callable[[int], None] | None = None
) -> Iterator[ScenarioResult]:
    """Run the scenarios of a folder or file in order of name; ``progress`` gets the number done."""
    for done, (name, scenario) in enumerate(load_scenarios(path), 1):
        if isinstance(scenario, ScenarioError):
            yield ScenarioResult(name=name, differences=(str(scenario),))
        else:
            chosen = replace(scenario, config=replace(scenario.config, arithmetic=arithmetic))
            yield ScenarioResult(name=name, differences=tuple(differences(chosen)))
        if progress is not None:
            progress(done)


def differences(scenario: Scenario) -> Iterator[str]:
    """Run one scenario; yield what differs from its expectation, one line each."""
    clock = ManualClock(0)
    draws = FixedDraws(epoch_start=scenario.epoch_start, fractions=scenario.draws)
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=scenario.config, draws=draws)
    for number, event in enumerate(scenario.events):
        clock.advance_to(event.time_ms)
        result: Any
        try:
            done = run_event(browser, event)
            result = None if done is None else list(done.histogram)
        except CallError as error:
            result = as_json(error)
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, AssertionError) as error:
            yield f"event {number} at {event.time_ms // 1000} s: {''.join(format_exception_only(error)).strip()}"
            return
        if result != event.expected:
            where = f"event {number} ({event.kind}) at {event.time_ms // 1000} s"
            yield f"{where}: expected {json.dumps(event.expected)}, got {json.dumps(result)}"
    if scenario.stores is not None:
        yield from _store_differences(browser, draws, scenario.stores)


def as_json(error: CallError) -> str | dict[str, str]:
    """Return an error as scenarios write it."""
    return {"error": "DOMException", "name": str(error.name)} if error.is_dom_exception else str(error.name)


def run_event(browser: Browser, event: Event) -> Conversion | None:
    """Perform one event; return the conversion if it measures one. Raises ``CallError`` if the browser does."""
    fields = event.fields
    if event.kind in ("saveImpression", "measureConversion"):
        page = Page(
            top_level=fields["site"], frame=fields.get("intermediarySite"), tab=fields.get("topLevelTraversable")
        )
        if event.kind == "measureConversion":
            return browser.measure_conversion(page, fields["options"])
        browser.save_impression(page, fields["options"])
    elif event.kind == "clearImpressionsForSite":
        browser.clear_impressions_for_site(fields["site"])
    elif event.kind == "clearBrowsingHistoryForAttribution":
        if fields["forgetVisits"]:
            browser.forget_visits(fields["sites"])
        else:
            browser.clear_site_data(fields["sites"])
    elif event.kind == "updateActivationTimestamp":
        browser.activate(fields["topLevelTraversable"])
    else:
        browser.enabled = event.kind == "enableAPI"
    return None


def _store_differences(browser: Browser, draws: FixedDraws, expected: Any) -> Iterator[str]:
    left = browser.budgets
    found: dict[str, Any] = {
        "draws_used": draws.used,
        "epoch_start_ms": browser.epoch_start_ms,
        "impressions": len(browser.impressions),
        "global_budgets": [[entry.epoch, entry.left_micro] for entry in left if entry.filter is Filter.GLOBAL],
    }
    for name, kind in _STORES.items():
        found[name] = [[entry.epoch, entry.site, entry.left_micro] for entry in left if entry.filter is kind]
    for name, actual in found.items():
        if name not in expected:
            continue
        wanted = sorted(expected[name]) if isinstance(expected[name], list) else expected[name]
        if wanted != actual:
            yield f"{name}: expected {json.dumps(wanted)}, got {json.dumps(actual)}"
