"""Reading scenarios: e2e files with their ``CONFIG.json``, and lines of random scenarios with the expected stores.

The e2e format is that of ``impl/e2e-tests`` in w3c/attribution, with the members of its proposal for activation
(``updateActivationTimestamp``, ``topLevelTraversable``, ``activationSeconds``).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aggservice.files.below import Opener, open_any
from w3c_client.config import DAP_PROTOCOL, Arithmetic, Config
from w3c_client.errors import ScenarioError, W3cError

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
class Event:
    """One event; ``fields`` are its members as the file has them. ``expected`` is a histogram, an error, or None."""

    kind: str
    time_ms: int
    fields: Mapping[str, Any]
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Events of one browser. ``stores`` is the expected content at the end, or None if the scenario gives none."""

    name: str
    config: Config
    epoch_start: float
    draws: tuple[float, ...]
    events: tuple[Event, ...]
    stores: Mapping[str, Any] | None


def load_scenarios(path: Path, opened: Opener = open_any) -> Iterator[tuple[str, Scenario | ScenarioError]]:
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


def _lines(path: Path) -> Iterator[tuple[str, Scenario | ScenarioError]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                name = f"{path.name.split('.')[0]}:{number}"
                if line.strip():
                    yield name, _caught(name, lambda name=name, line=line: _differential(name, json.loads(line)))
    except (OSError, EOFError, UnicodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}") from error


def _caught(name: str, load: Any) -> Scenario | ScenarioError:
    try:
        return load()
    except ScenarioError as error:
        return error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, W3cError) as error:
        return ScenarioError(f"{name}: {type(error).__name__}: {error}")


def _e2e(path: Path, opened: Opener) -> Scenario:
    def read(file: Path) -> Any:
        with opened(file) as content:
            return json.load(content)

    fields = read(path)
    own = fields.get("config")
    given = read(path.with_name(CONFIG_FILE)) if own is None else own
    events = tuple(_event(entry, entry.get("expected", entry.get("expectedError"))) for entry in fields["events"])
    return _scenario(path.stem, given, (given.get("fairlyAllocateCreditFraction", 0.0),), events, None)


def _differential(name: str, fields: Mapping[str, Any]) -> Scenario:
    expected = fields["expected"]
    if len(expected["results"]) != len(fields["events"]):
        raise ScenarioError(f"{name}: expected.results must have one entry per event")
    events = tuple(map(_event, fields["events"], expected["results"]))
    return _scenario(name, fields["config"], tuple(map(float, fields["draws"])), events, expected)


def _scenario(
    name: str,
    given: Mapping[str, Any],
    draws: tuple[float, ...],
    events: tuple[Event, ...],
    stores: Mapping[str, Any] | None,
) -> Scenario:
    last_ms = 0
    for event in events:
        if event.time_ms <= last_ms:
            raise ScenarioError(f"{name}: seconds must increase from event to event, and be above 0")
        last_ms = event.time_ms
    return Scenario(
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


def _event(entry: Mapping[str, Any], expected: Any) -> Event:
    kind = entry["event"]
    if kind not in _EVENTS:
        raise ScenarioError(f"event {kind!r} is not known: use one of {', '.join(_EVENTS)}")
    for member in _EVENTS[kind]:
        if member not in entry:
            raise ScenarioError(f"event {kind} at {entry['seconds']} s has no {member}")
    return Event(kind=kind, time_ms=int(entry["seconds"]) * 1000, fields=entry, expected=expected)
