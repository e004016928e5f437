"""Scenarios and header cases of W3C's simulator: read them, run them against ``Browser``, and compare.

The e2e format is that of ``impl/e2e-tests`` in w3c/attribution, with the members of its proposal for activation
(``updateActivationTimestamp``, ``topLevelTraversable``, ``activationSeconds``). Lines of random scenarios also state
the stores at the end. A header case is a ``Save-Impression`` or ``Measure-Conversion`` value with the expected options.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exception_only
from typing import Any, Final

from aggservice.files.below import Opener, open_any
from aggservice.mechanisms import ForbiddenBits, ManualClock
from aggservice.wire.device import CallError, DeviceError
from w3c_client.browser import Browser, Conversion
from w3c_client.config import DAP_PROTOCOL, Arithmetic, Config
from w3c_client.errors import HeaderError, ScenarioError
from w3c_client.headers import read_measure_conversion, read_save_impression
from w3c_client.options import Page
from w3c_client.randomness import FixedW3cChoices
from w3c_client.rules import GlobalBudget, ImpressionQuota, SiteBudget

CONFIG_FILE: Final = "CONFIG.json"
_LIMITS: Final = {
    "globalPrivacyBudgetPerEpoch": "global_budget_micro",
    "impressionSiteQuotaPerEpoch": "impression_quota_micro",
    "maxConversionSitesPerImpression": "max_conversion_sites",
    "maxConversionCallersPerImpression": "max_conversion_callers",
    "maxImpressionSitesForConversion": "max_impression_sites",
    "maxImpressionCallersForConversion": "max_impression_callers",
    "maxCreditSize": "max_credits",
    "maxMatchValues": "max_match_values",
    "maxLookbackDays": "max_lookback_days",
    "maxHistogramSize": "max_histogram_size",
    "perSitePrivacyBudget": "site_budget_micro",
    "privacyBudgetEpochDays": "epoch_days",
}
_EVENTS: Final = {
    "saveImpression": ("site", "options"),
    "measureConversion": ("site", "options"),
    "clearImpressionsForSite": ("site",),
    "clearBrowsingHistoryForAttribution": ("sites", "forgetVisits"),
    "enableAPI": (),
    "disableAPI": (),
    "updateActivationTimestamp": ("topLevelTraversable",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEvent:
    """One event; ``fields`` are its members as the file has them. ``expected`` is a histogram, an error, or None."""

    kind: str
    time_ms: int
    fields: Mapping[str, Any]
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserScenario:
    """Events of one browser. ``stores`` is the expected content at the end, or None if the scenario gives none."""

    name: str
    config: Config
    epoch_start: float
    draws: tuple[float, ...]
    events: tuple[ScenarioEvent, ...]
    stores: Mapping[str, Any] | None


def load_scenarios(path: Path, opened: Opener = open_any) -> Iterator[tuple[str, BrowserScenario | ScenarioError]]:
    """Yield the scenarios of a folder, an e2e file, or a file of lines (``.jsonl``, ``.jsonl.gz``), with their names.

    For a scenario that does not follow the format, the error takes its place. Raises ``ScenarioError`` if there are no
    scenarios, or the file cannot be read.
    """
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.json")) if _is_case(file)]
        lines = sorted(file for pattern in ("*.jsonl", "*.jsonl.gz") for file in path.glob(pattern))
        if not files + lines:
            raise ScenarioError(f"{path} has no scenarios: name a folder of .json files, or a .jsonl.gz file")
        for file in files + lines:
            yield from load_scenarios(file, opened)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _lines(path)
    else:
        yield path.stem, _caught(path.stem, lambda: _e2e(path, opened))


def _is_case(path: Path) -> bool:
    return path.name != CONFIG_FILE and not path.name.endswith(".schema.json")


def _lines(path: Path) -> Iterator[tuple[str, BrowserScenario | ScenarioError]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                name = f"{path.name.split('.')[0]}:{number}"
                if line.strip():
                    yield name, _caught(name, lambda name=name, line=line: _differential(name, json.loads(line)))
    except (OSError, EOFError, UnicodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}") from error


def _caught(name: str, load: Any) -> BrowserScenario | ScenarioError:
    try:
        return load()
    except ScenarioError as error:
        return error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, DeviceError) as error:
        return ScenarioError(f"{name}: {type(error).__name__}: {error}")


def _e2e(path: Path, opened: Opener) -> BrowserScenario:
    def read(file: Path) -> Any:
        with opened(file) as content:
            return json.load(content)

    fields = read(path)
    own = fields.get("config")
    given = read(path.with_name(CONFIG_FILE)) if own is None else own
    events = tuple(_event(entry, entry.get("expected", entry.get("expectedError"))) for entry in fields["events"])
    return _scenario(path.stem, given, (given.get("fairlyAllocateCreditFraction", 0.0),), events, None)


def _differential(name: str, fields: Mapping[str, Any]) -> BrowserScenario:
    expected = fields["expected"]
    if len(expected["results"]) != len(fields["events"]):
        raise ScenarioError(f"{name}: expected.results must have one entry per event")
    events = tuple(map(_event, fields["events"], expected["results"]))
    return _scenario(name, fields["config"], tuple(map(float, fields["draws"])), events, expected)


def _scenario(
    name: str,
    given: Mapping[str, Any],
    draws: tuple[float, ...],
    events: tuple[ScenarioEvent, ...],
    stores: Mapping[str, Any] | None,
) -> BrowserScenario:
    last_ms = 0
    for event in events:
        if event.time_ms <= last_ms:
            raise ScenarioError(f"{name}: seconds must increase from event to event, and be above 0")
        last_ms = event.time_ms
    return BrowserScenario(
        name=name,
        config=read_config(given),
        epoch_start=given.get("epochStart", 0.0),
        draws=draws,
        events=events,
        stores=stores,
    )


def read_config(given: Mapping[str, Any]) -> Config:
    """Return a scenario's configuration, with costs and credits in doubles as its simulator computes them."""
    values: dict[str, Any] = {field: given[member] for member, field in _LIMITS.items() if member in given}
    if "activationSeconds" in given:
        values["activation_duration_ms"] = round(given["activationSeconds"] * 1000)
    services = given.get("aggregationServices", {})
    return Config(
        aggregation_services={url: protocol or DAP_PROTOCOL for url, protocol in services.items()},
        impressions_per_site=None,
        arithmetic=Arithmetic.SPEC,
        **values,
    )


def _event(entry: Mapping[str, Any], expected: Any) -> ScenarioEvent:
    kind = entry["event"]
    if kind not in _EVENTS:
        raise ScenarioError(f"event {kind!r} is not known: use one of {', '.join(_EVENTS)}")
    for member in _EVENTS[kind]:
        if member not in entry:
            raise ScenarioError(f"event {kind} at {entry['seconds']} s has no {member}")
    return ScenarioEvent(kind=kind, time_ms=int(entry["seconds"]) * 1000, fields=entry, expected=expected)


#: The three stores that lines state, and whose budgets each holds.
_STORES = {"global_budgets": GlobalBudget, "site_budgets": SiteBudget, "quotas": ImpressionQuota}


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorResult:
    """The result of a scenario or a header case: it passed if it has no differences."""

    name: str
    differences: tuple[str, ...]


def run_scenarios(
    path: Path, *, arithmetic: Arithmetic = Arithmetic.SPEC, progress: Callable[[int], None] | None = None
) -> Iterator[VectorResult]:
    """Run the scenarios of a folder or file in order of name; ``progress`` gets the number done."""
    for done, (name, scenario) in enumerate(load_scenarios(path), 1):
        if isinstance(scenario, ScenarioError):
            yield VectorResult(name=name, differences=(str(scenario),))
        else:
            chosen = replace(scenario, config=replace(scenario.config, arithmetic=arithmetic))
            yield VectorResult(name=name, differences=tuple(differences(chosen)))
        if progress is not None:
            progress(done)


def differences(scenario: BrowserScenario) -> Iterator[str]:
    """Run one scenario; yield what differs from its expectation, one line each."""
    clock = ManualClock(0)
    draws = FixedW3cChoices(epoch_start=scenario.epoch_start, fractions=scenario.draws)
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


def run_event(browser: Browser, event: ScenarioEvent) -> Conversion | None:
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


def _store_differences(browser: Browser, draws: FixedW3cChoices, expected: Any) -> Iterator[str]:
    left = browser.budgets
    found: dict[str, Any] = {
        "draws_used": draws.used,
        "epoch_start_ms": browser.epoch_start_ms,
        "impressions": len(browser.impressions),
    }
    for name, rule in _STORES.items():
        found[name] = [[entry.epoch, *entry.scope, entry.left_micro] for entry in left if entry.rule == rule.name]
    for name, actual in found.items():
        if name not in expected:
            continue
        wanted = sorted(expected[name]) if isinstance(expected[name], list) else expected[name]
        if wanted != actual:
            yield f"{name}: expected {json.dumps(wanted)}, got {json.dumps(actual)}"


def run_header_cases(path: Path) -> Iterator[VectorResult]:
    """Run the cases of a file in its order."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        base = fields.get("base_url", "https://base.example/")
        cases = [(kind, case) for kind in ("save_impression", "measure_conversion") for case in fields.get(kind, ())]
        named = [(f"{kind}/{case['name']}", kind, case["input"], case["expected"]) for kind, case in cases]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ScenarioError(f"{path} is not a file of header cases: {error!r}") from error
    for name, kind, text, expected in named:
        parse = _save if kind == "save_impression" else lambda given: _measure(given, base)
        yield VectorResult(name=name, differences=tuple(_differences(parse, text, expected)))


def _differences(parse: Callable[[str], Any], text: str, expected: Any) -> Iterator[str]:
    try:
        found = parse(text)
    except HeaderError as error:
        if expected is not None:
            yield f"expected {json.dumps(expected)}, refused: {error}"
        return
    if found != expected:
        yield f"expected {json.dumps(expected)}, got {json.dumps(found)}"


def _save(text: str) -> dict[str, Any]:
    return _members(read_save_impression(text))


def _measure(text: str, base: str) -> list[Any]:
    given, url = read_measure_conversion(text, base)
    return [_members(given), url]


def _members(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a header by the platform's names."""
    return {
        re.sub("_([a-z])", lambda found: found[1].upper(), field): list(value) if isinstance(value, tuple) else value
        for field, value in given.items()
    }
