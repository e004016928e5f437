"""The same worklets in two browsers: a real Chromium and ``paa_client.Browser``.

A ``Call`` is one call of ``privateAggregation``; a script in JavaScript and a function in Python perform the same list
of them. ``RealWorklets`` runs them in Chromium, ``SimulatedWorklets`` in ``paa_client``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import KeySet
from aggservice.wire.device import CallError
from paa_client import Browser, Config, Signal
from paa_client.config import AWS_COORDINATOR, GCP_COORDINATOR
from paa_client.effects import WorkletError

from .comparison import Text, as_text
from .devtools import Chromium, Page
from .site import Answer, Site

DEVELOPER_MODE = "--private-aggregation-developer-mode"
SCRIPT_HEADERS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Shared-Storage-Cross-Origin-Worklet-Allowed", "?1"),
    ("Ad-Auction-Allowed", "?1"),
    ("X-Allow-FLEDGE", "true"),
)
HOUR_MS = 3_600_000
_LAST_S = 20.0
_LOGGED = "Log.entryAdded"

PERFORM = """
function read(x) {
  if (x === null || typeof x !== "object") return x;
  if ("bigint" in x) return BigInt(x.bigint);
  if ("number" in x) return Number(x.number);
  const signal = {};
  for (const name in x) signal[name] = read(x[name]);
  return signal;
}
function perform(calls) {
  for (const call of calls) {
    const fields = {};
    for (const name in call.fields) fields[name] = read(call.fields[name]);
    const go = () => {
      if (call.name === "throw") throw new Error("thrown by the worklet");
      if (call.name === "enableDebugMode")
        return "debugKey" in fields ? privateAggregation.enableDebugMode(fields) : privateAggregation.enableDebugMode();
      if (call.name === "contributeToHistogramOnEvent")
        return privateAggregation.contributeToHistogramOnEvent(call.event, fields);
      return privateAggregation.contributeToHistogram(fields);
    };
    if (call.caught) { try { go(); } catch (error) {} } else go();
  }
}
"""
OPERATION = (
    PERFORM
    + """
class Perform { async run(calls) { perform(calls); } }
register("perform", Perform);
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, with fields as the worklet gives them: whole numbers are ``bigint`` except for ``value``.

    ``caught`` says that the worklet goes on after an exception. A ``Signal`` stands for its object.
    """

    name: Literal["contributeToHistogram", "contributeToHistogramOnEvent", "enableDebugMode", "throw"]
    fields: dict[str, int | float | Signal] = field(default_factory=dict)
    event: str = ""
    caught: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as the script reads it."""
        fields = {name: _written(name, value) for name, value in self.fields.items()}
        return {"name": self.name, "fields": fields, "event": self.event, "caught": self.caught}

    def perform(self, aggregation: Any) -> None:
        """Make the call in Python."""
        fields = {_PYTHON_NAMES[name]: value for name, value in self.fields.items()}
        try:
            if self.name == "throw":
                raise RuntimeError("thrown by the worklet")
            if self.name == "enableDebugMode":
                aggregation.enable_debug_mode(**fields)
            elif self.name == "contributeToHistogramOnEvent":
                aggregation.contribute_to_histogram_on_event(self.event, **fields)
            else:
                aggregation.contribute_to_histogram(**fields)
        except (WorkletError, RuntimeError, TypeError):
            if not self.caught:
                raise


_PYTHON_NAMES = {"bucket": "bucket", "value": "value", "filteringId": "filtering_id", "debugKey": "debug_key"}


def _written(name: str, value: int | float | Signal) -> Any:
    if isinstance(value, Signal):
        offset = _written("value" if name == "value" else "bucket", value.offset)
        return {"baseValue": value.base_value, "scale": _written("value", value.scale), "offset": offset}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return {"number": repr(value)} if name == "value" or isinstance(value, float) else {"bigint": str(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One ``sharedStorage.run()`` for a host, with what the page decides about its report."""

    host: str
    calls: tuple[Call, ...]
    context_id: str | None = None
    filtering_id_max_bytes: int | float | None = None
    max_contributions: int | None = None
    coordinator: str | None = None

    def config(self) -> dict[str, Any]:
        """Return ``privateAggregationConfig``."""
        named = {
            "contextId": self.context_id,
            "filteringIdMaxBytes": self.filtering_id_max_bytes,
            "maxContributions": self.max_contributions,
            "aggregationCoordinatorOrigin": self.coordinator,
        }
        return {name: value for name, value in named.items() if value is not None}


class SimulatedWorklets:
    """A browser of ``paa_client`` at the real time of day; reports are kept until ``finish``."""

    def __init__(self, keys: KeySet, config: Config) -> None:
        self._clock = ManualClock(time.time_ns() // 1_000_000)
        self._keys = keys
        public = keys.public(self._clock)
        self.browser = Browser(
            clock=self._clock,
            bits=SecureBits(),
            config=config,
            keys={AWS_COORDINATOR: public, GCP_COORDINATOR: public},
        )
        self._hosts: set[str] = set()

    def run(self, run: Run) -> str | None:
        """Run it; return the name of the error that the page gets, or None."""
        self.tick()
        origin = f"https://{run.host}"
        if run.host not in self._hosts:
            self._hosts.add(run.host)
            self.browser.register(origin, "perform", _perform)
        named = {
            "context_id": run.context_id,
            "filtering_id_max_bytes": run.filtering_id_max_bytes,
            "max_contributions": run.max_contributions,
            "aggregation_coordinator_origin": run.coordinator,
        }
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        try:
            self.browser.run(
                origin,
                "perform",
                list(run.calls),
                **{name: value for name, value in given.items() if value is not None},
            )
        except CallError as error:
            return error.name
        return None

    def tick(self) -> None:
        """Set the clock to the time of day."""
        self._clock.advance_to(max(self._clock.now_ms(), time.time_ns() // 1_000_000))

    @property
    def predicted(self) -> int:
        """How many reports, debug copies included, wait to be sent."""
        return len(self.browser._queue)

    def finish(self, within_ms: int = HOUR_MS + 60_000) -> list[Text]:
        """Return the reports that are sent within some time from now."""
        self._clock.advance(within_ms)
        return [as_text(sent.url, sent.to_json(), self._keys) for sent in self.browser.send_due()]


def _perform(storage: object, aggregation: Any, calls: Sequence[Call]) -> None:
    for call in calls:
        call.perform(aggregation)


class RealWorklets:
    """A fresh context of a running Chromium that runs worklets of many origins from one page."""

    def __init__(self, browser: Chromium, site: Site) -> None:
        self._browser, self.site = browser, site
        self._context = browser.new_context()
        self._worklets: set[str] = set()
        self._first = len(site.posted)
        self.auctions: list[Page] = []
        self.page = self.open_page("page.example")
        self.page.evaluate("globalThis.worklets = {}; 0")

    def open_page(self, host: str) -> Page:
        """Open an empty page of a host."""
        self.site.answers[f"{host}/"] = Answer(body=b"<!doctype html><title>page</title><body></body>")
        return self._browser.open_page(f"https://{host}/", context=self._context)

    @property
    def timed_out(self) -> list[str]:
        """What the browser says of scripts of auctions that it ended because they took too long.

        A script has half a second at most, which a busy machine may not give it.
        """
        said = (params["entry"]["text"] for page in self.auctions for name, params in page.events if name == _LOGGED)
        return [text for text in said if text.endswith("timed out.")]

    def run(self, run: Run) -> str | None:
        """Run it; return the name of the error that the page gets, or None."""
        if run.host not in self._worklets:
            self._worklets.add(run.host)
            self.site.answers[f"{run.host}/perform.js"] = Answer(
                body=OPERATION.encode(), content_type="text/javascript", headers=SCRIPT_HEADERS
            )
            script = f"https://{run.host}/perform.js"
            self.page.evaluate(
                f"sharedStorage.createWorklet({json.dumps(script)}, {{dataOrigin: 'script-origin'}})"
                f".then(made => {{ worklets[{json.dumps(run.host)}] = made; return 0; }})"
            )
        options: dict[str, Any] = {"data": [call.to_json() for call in run.calls], "keepAlive": True}
        if run.config():
            options["privateAggregationConfig"] = run.config()
        done = self.page.evaluate(
            f"worklets[{json.dumps(run.host)}].run('perform', {json.dumps(options)})"
            ".then(() => null, error => error.name)"
        )
        return None if done is None else str(done)

    def wait(self, count: int, *, wait_s: float) -> None:
        """Wait until ``count`` reports have come, ``wait_s`` at most."""
        self.site.wait_for(lambda posted: len(posted) - self._first >= count, wait_s=wait_s)

    def finish(self, keys: KeySet, *, count: int, quiet_s: float = 1.0) -> list[Text]:
        """Wait for ``count`` reports and until no more come, close the context, and return them all."""
        self.wait(count, wait_s=_LAST_S)
        posted = self.site.wait_until_quiet(quiet_s)[self._first :]
        self._browser.close_context(self._context)
        return [as_text(one.url, one.body.decode(), keys) for one in posted]
