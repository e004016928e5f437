"""Device budgets: one W3C Attribution browser per session, to save, convert, clear and see which filter refused.

A scenario in the e2e format of w3c/attribution runs step by step through the same browser.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits
from aggservice.studio.errors import StudioError, TooManyError, UnknownItemError
from aggservice.studio.given import Given
from aggservice.studio.shelf import Kind, Shelf
from w3c_client import DESIGNS, RULES, Browser, CallError, Config, Conversion, FixedW3cChoices, design_config
from w3c_client.config import DAY_MS
from w3c_client.errors import ScenarioError
from w3c_client.rules import rule_of
from w3c_client.scenarios import as_json, load_scenarios, run_event

MAX_DEVICES: Final = 100
_START_MS: Final = 1_790_000_000_000


@dataclass(slots=True, kw_only=True)
class OpenDevice:
    """A browser, its clock and what happened in it."""

    browser: Browser
    clock: ManualClock
    start_ms: int
    journal: list[dict[str, Any]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def state(self) -> dict[str, Any]:
        """Return everything that the page draws."""
        browser, config = self.browser, self.browser.config
        return {
            "time_days": (self.clock.now_ms() - self.start_ms) / DAY_MS,
            "enabled": browser.enabled,
            "epoch_days": config.epoch_days,
            "epoch_start_days": None
            if browser.epoch_start_ms is None
            else (browser.epoch_start_ms - self.start_ms) / DAY_MS,
            "limits": {rule.name: rule.capacity(config) for rule in config.rules if not rule.counts_sites},
            "titles": {rule.name: rule.title or rule.name for rule in config.rules},
            "budgets": [
                {"filter": one.rule, "epoch": one.epoch, "site": one.site, "left": one.left_micro}
                for one in browser.budgets
            ],
            "impressions": [
                {
                    "site": one.impression_site,
                    "index": one.histogram_index,
                    "days": (one.time_ms - self.start_ms) / DAY_MS,
                    "match": one.match_value,
                    "priority": one.priority,
                }
                for one in browser.impressions
            ],
            "journal": self.journal,
        }


class Devices:
    """The open devices of a studio, oldest forgotten first."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._devices: dict[str, OpenDevice] = {}

    def new(self, given: Given) -> dict[str, Any]:
        """Open a device of a design with the given budgets."""
        design = given.choice("design", list(DESIGNS), "w3c")
        fields = [rule.field for rule in map(rule_of, RULES) if rule.field.endswith("_micro")]
        budgets = {
            name: given.micro(name.removesuffix("_micro"), most=4294)
            for name in fields
            if given.has(name.removesuffix("_micro"))
        }
        return self._keep(_device(design_config(design, **budgets)))

    def do(self, given: Given) -> dict[str, Any]:
        """Do one thing in a device: save, convert, clear, forget, wait, enable or disable."""
        device = self._get(given)
        what = given.choice("what", ("save", "convert", "clear", "clear-data", "forget", "wait", "enable", "disable"))
        with device.lock:
            event: dict[str, Any] = {"what": what, "days": (device.clock.now_ms() - device.start_ms) / DAY_MS}
            try:
                event |= _act(device, what, given)
            except CallError as problem:
                event |= {"error": as_json(problem), "text": str(problem)}
            device.journal.append(event)
            return device.state()

    def scenarios(self, given: Given) -> list[dict[str, str]]:
        """List the scenario files on the shelf."""
        return [{"id": item.id, "name": item.name} for item in self._shelf.items() if item.kind is Kind.SCENARIO]

    def scenario(self, given: Given) -> dict[str, Any]:
        """Run the first ``steps`` events of a scenario; return the state, and each result beside the expected one."""
        path = self._shelf.path(given.text("scenario"), Kind.SCENARIO)
        ((_, scenario),) = load_scenarios(path, self._shelf.files(path).open)
        if isinstance(scenario, ScenarioError):
            raise scenario
        steps = given.whole("steps", 0, least=0, most=len(scenario.events))
        draws = FixedW3cChoices(epoch_start=scenario.epoch_start, fractions=scenario.draws)
        clock = ManualClock(0)
        browser = Browser(clock=clock, bits=ForbiddenBits(), config=scenario.config, draws=draws)
        device = OpenDevice(browser=browser, clock=clock, start_ms=0)
        for number, event in enumerate(scenario.events):
            line: dict[str, Any] = {"what": event.kind, "days": event.time_ms / DAY_MS, "fields": event.fields}
            if number < steps:
                clock.advance_to(event.time_ms)
                try:
                    done = run_event(browser, event)
                    line["result"] = list(done.histogram) if isinstance(done, Conversion) else None
                    line |= {} if done is None else _outcome(done)
                except CallError as problem:
                    line["result"] = as_json(problem)
                line["agrees"] = line["result"] == event.expected
            line["expected"] = event.expected
            device.journal.append(line)
        return device.state() | {"steps": steps, "total": len(scenario.events)}

    def _keep(self, device: OpenDevice) -> dict[str, Any]:
        if len(self._devices) >= MAX_DEVICES:
            raise TooManyError(f"{MAX_DEVICES} devices are open: restart the studio")
        name = secrets.token_hex(8)
        self._devices[name] = device
        return device.state() | {"device": name}

    def _get(self, given: Given) -> OpenDevice:
        try:
            return self._devices[given.text("device", most=100)]
        except KeyError:
            raise UnknownItemError("this device is not open: start a new one") from None


def _device(config: Config) -> OpenDevice:
    clock = ManualClock(_START_MS)
    return OpenDevice(browser=Browser(clock=clock, bits=SecureBits(), config=config), clock=clock, start_ms=_START_MS)


def _act(device: OpenDevice, what: str, given: Given) -> dict[str, Any]:
    browser = device.browser
    match what:
        case "save":
            browser.save_impression(given.text("site"), given.members("options"))
            return {"site": given.text("site"), "options": given.members("options")}
        case "convert":
            done = browser.measure_conversion(given.text("site"), given.members("options"))
            return {"site": given.text("site"), "result": list(done.histogram), **_outcome(done)}
        case "clear":
            browser.clear_impressions_for_site(given.text("site"))
        case "clear-data":
            browser.clear_site_data(given.texts("sites"))
        case "forget":
            browser.forget_visits(given.texts("sites") or None)
        case "wait":
            hours = given.whole("hours", least=1, most=24 * 365)
            device.clock.advance(hours * 3_600_000)
            return {"hours": hours}
        case "enable" | "disable":
            browser.enabled = what == "enable"
        case _:
            raise StudioError(f"a device cannot do {what!r}: use save, convert, clear, forget, wait, enable or disable")
    return {"sites": given.texts("sites") or [given.text("site", "")]}


def _outcome(done: Conversion) -> dict[str, Any]:
    return {
        "value": done.value,
        "outside": done.outside,
        "single_epoch": done.single_epoch,
        "epochs": [
            {
                "epoch": one.epoch,
                "matched": one.matched,
                "impression_sites": sorted(one.impression_sites),
                "costs": {rule.name: one.prices.of(rule) for rule in one.prices.config.rules if not rule.counts_sites},
                "refused_by": one.refused_by,
            }
            for one in done.epochs
        ],
        "refused_by": sorted(done.refused_by),
    }
