"""The same registrations in two browsers: a real Chromium and ``ara_client.Browser``.

A ``Step`` is one request of a page with its chain of responses. ``RealBrowser`` plays it, ``simulate`` predicts the
reports from the same steps at the times at which the real one received the responses.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import KeySet
from ara_client import Browser, Config, FixedChoices, Request, Response, parse_source
from ara_client.event_noise.response import response_rate
from ara_client.event_noise.state_space import StateReport, StateSpace
from ara_client.registration.headers import INFO_HEADER, SOURCE_HEADER, TRIGGER_HEADER, normalise_headers, parse_info
from ara_client.registration.source import SourceRegistration
from ara_client.registration.trigger import parse_trigger
from ara_client.reports import OutgoingReport

from .comparison import Text, as_text
from .devtools import Chromium, Page, Params
from .site import Answer, Header, Posted, Site

Kind = Literal["click", "view", "trigger", "plain", "either"]
ELIGIBLE: dict[Kind, str | None] = {
    "click": "navigation-source",
    "view": "event-source",
    "trigger": "trigger",
    "plain": None,
    "either": "event-source, trigger",
}
DEBUG_MODE = "--attribution-reporting-debug-mode"
MONTH_MS = 31 * 86_400_000
_SETTLE_S = 0.12
_LONGEST_S = 20.0
_LAST_S = 20.0
_DEBUG = "/attribution-reporting/debug/"

_CLICK = """(url => {
  const a = document.createElement("a");
  a.href = url; a.setAttribute("attributionsrc", ""); document.body.append(a); a.click(); a.remove();
})"""
_FETCH = """((url, options) =>
  fetch(url, {mode: "no-cors", credentials: "include", cache: "no-store", ...options}).then(answer => answer.type))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One response: the reporting host and its headers."""

    host: str
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of a page at ``context``; each hop but the last redirects to the next."""

    kind: Kind
    context: str
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A step that the real browser played, with the time of each response.

    For a source that is the browser's own time, for others the time at which the response left; all that the step
    registers was registered by ``registered_ms``.
    """

    step: Step
    times_ms: tuple[int, ...]
    registered_ms: int


class RealBrowser:
    """A fresh context of a running Chromium: it plays steps and keeps what DevTools says of registrations."""

    def __init__(self, browser: Chromium, site: Site) -> None:
        self._browser, self._site = browser, site
        self.context = browser.new_context()
        self.played: list[Played] = []
        self._pages: dict[str, Page] = {}
        self._first = len(site.posted)
        self._control = self._page("control.example")
        self._control.call("Storage.setAttributionReportingTracking", enable=True)

    @property
    def registered(self) -> list[Params]:
        """What DevTools says of each registration so far: ``registration`` and its result."""
        names = ("Storage.attributionReportingSourceRegistered", "Storage.attributionReportingTriggerRegistered")
        return [params for name, params in self._control.events if name in names]

    @property
    def noised(self) -> frozenset[int]:
        """The source event ids of the sources that the browser noised."""
        return frozenset(
            int(params["registration"]["eventId"])
            for params in self.registered
            if params.get("result") == "successNoised"
        )

    def play(self, step: Step) -> None:
        """Play one step and wait until the browser has registered what it should register."""
        paths = [f"/r/{len(self.played)}-{number}" for number in range(len(step.hops))]
        urls = [f"https://{hop.host}{path}" for hop, path in zip(step.hops, paths, strict=True)]
        for hop, path, after in zip(step.hops, paths, [*urls[1:], None], strict=True):
            last = 204 if step.kind == "click" else 200
            location = () if after is None else (("Location", after),)
            self._site.answers[hop.host + path] = Answer(
                status=last if after is None else 302, headers=(*hop.headers, *location)
            )
        before = len(self.registered)
        page = self._page(step.context)
        if step.kind == "click":
            page.evaluate(f"{_CLICK}({json.dumps(urls[0])})", user_gesture=True)
        else:
            page.evaluate(f"{_FETCH}({json.dumps(urls[0])}, {json.dumps(_options(step.kind))})")
        times = [self._seen(url) for url in urls]
        until = time.monotonic() + _LONGEST_S
        expected = before + sum(_registers(step.kind, hop) for hop in step.hops)
        if expected == before:
            time.sleep(_SETTLE_S)
        while len(self.registered) < expected and time.monotonic() < until:
            time.sleep(0.003)
        now_ms = time.time_ns() // 1_000_000
        sources = {_identity(params): _time_ms(params) for params in self.registered[before:] if _is_source(params)}
        for number, hop in enumerate(step.hops):
            source = _source(step.kind, hop)
            if source is not None:
                times[number] = sources.get((f"https://{hop.host}", source.source_event_id), times[number])
        for hop, path in zip(step.hops, paths, strict=True):
            del self._site.answers[hop.host + path]
        self.played.append(Played(step=step, times_ms=tuple(times), registered_ms=now_ms))

    def finish(self, keys: KeySet, *, quiet_s: float = 0.6) -> list[Text]:
        """Have waiting reports sent, close the context, and return every report that came since it was opened.

        Chance adds reports to those that ``ara_client`` predicts, but no debug reports: it waits for as many of both
        kinds as are predicted, and then until no more come.
        """
        texts = [one.text for one in simulate(self.played, keys, noised=self.noised)[0]]
        debug = sum(_DEBUG in text for text in texts)
        until = time.monotonic() + _LAST_S
        while self._control.call("Storage.sendPendingAttributionReports")["numSent"] and time.monotonic() < until:
            pass

        def arrived(posted: Sequence[Posted]) -> bool:
            found = sum(_DEBUG in one.url for one in posted[self._first :])
            return found >= debug and len(posted) - self._first - found >= len(texts) - debug

        self._site.wait_for(arrived, wait_s=_LAST_S)
        posted = self._site.wait_until_quiet(quiet_s)[self._first :]
        self._browser.close_context(self.context)
        return [as_text(one.url, one.body.decode(), keys) for one in posted]

    def _seen(self, url: str) -> int:
        until = time.monotonic() + _LONGEST_S
        while time.monotonic() < until:
            for seen in reversed(self._site.seen):
                if seen.url == url:
                    return seen.time_ms
            time.sleep(0.003)
        return time.time_ns() // 1_000_000

    def _page(self, host: str) -> Page:
        if host not in self._pages:
            self._site.answers[f"{host}/"] = Answer(body=b"<!doctype html><title>page</title><body></body>")
            self._pages[host] = self._browser.open_page(f"https://{host}/", context=self.context)
        return self._pages[host]


class ObservedDraws(FixedChoices):
    """The noise that the real browser drew, and no null reports.

    ``nulls`` and ``noised`` are how many null reports and noised sources it should have drawn on average.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._rates = {True: config.null_rate_including_source_time, False: config.null_rate_excluding_source_time}
        self.nulls = 0.0
        self.noised = 0.0

    def response(self, space: StateSpace, epsilon: float) -> Sequence[StateReport] | None:
        """Return what the real browser drew, and count the chance of noise."""
        self.noised += response_rate(space.count, epsilon)
        return super().response(space, epsilon)

    def null_report(self, lookback_day: int, *, includes_source_time: bool) -> bool:
        """Make none, and count the chance of one."""
        self.nulls += self._rates[includes_source_time]
        return False


def simulate(
    played: Sequence[Played],
    keys: KeySet,
    *,
    noised: Iterable[int] = (),
    real: Sequence[Text] = (),
    deleted: Iterable[int] = (),
    trigger_delay_ms: int = 0,
    late: bool = False,
) -> tuple[list[Text], ObservedDraws]:
    """Return the reports that ``ara_client.Browser`` sends for the same steps, and its draws.

    Sources in ``noised`` send the fake reports that ``real`` shows for them. A headless shell allows debug reports
    without a cookie. Sources in ``deleted`` drew a fake report that was deleted before it was due.
    ``trigger_delay_ms`` is added to the times of triggers; with ``late``, they have the last times that they can have.
    """
    config = Config(removed_reports_become_null=False)
    draws = ObservedDraws(config)
    clock = ManualClock(played[0].times_ms[0] if played else 0)
    browser = Browser(clock=clock, bits=SecureBits(), config=config, keys=keys.public(clock), draws=draws)
    fakes, unseen = fake_reports(frozenset(noised), real), frozenset(deleted)
    sent: list[OutgoingReport] = []
    for one in played:
        trigger = one.step.kind not in ("click", "view")
        late_ms = trigger_delay_ms if trigger else 0
        exchange = browser.start(Request(context=f"https://{one.step.context}", eligible=ELIGIBLE[one.step.kind]))
        for hop, time_ms in zip(one.step.hops, one.times_ms, strict=True):
            time_ms = one.registered_ms if trigger and late else time_ms + late_ms
            clock.advance_to(max(time_ms, clock.now_ms()))
            source = _source(one.step.kind, hop)
            draws.fake_reports = None
            if source is not None and source.source_event_id in fakes:
                draws.fake_reports = [
                    (data, _window(source, due_s - time_ms // 1000)) for data, due_s in fakes[source.source_event_id]
                ]
                if source.source_event_id in unseen and source.trigger_data:
                    draws.fake_reports = [(source.trigger_data[0], len(source.windows.ends_ms) - 1)]
            response = Response(url=f"https://{hop.host}/r", headers=_joined(hop.headers), debug_allowed=True)
            sent += browser.respond(exchange, response)
        sent += browser.finish(exchange)
    sent += browser.advance(clock.now_ms() + MONTH_MS)
    return [as_text(report.url, report.to_json(), keys) for report in sent], draws


def _is_source(params: Params) -> bool:
    return "eventId" in params["registration"]


def _identity(params: Params) -> tuple[str, int]:
    return params["registration"]["reportingOrigin"], int(params["registration"]["eventId"])


def _time_ms(params: Params) -> int:
    return int(params["registration"]["time"] * 1000)


def _joined(headers: Iterable[Header]) -> dict[str, str | bytes]:
    """Return headers as a map; values of one name are joined with a comma, as HTTP does."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for name, value in headers:
        found[name].append(value if isinstance(value, bytes) else value.encode())
    return {name: b", ".join(values) for name, values in found.items()}


def _options(kind: Kind) -> dict[str, object]:
    if kind == "plain":
        return {}
    eligible = {"eventSourceEligible": kind in ("view", "either"), "triggerEligible": kind in ("trigger", "either")}
    return {"attributionReporting": eligible}


def _header(kind: Kind, hop: Hop, name: str) -> str | None:
    return normalise_headers(_joined(hop.headers), navigation=kind == "click").get(name.lower())


def _source(kind: Kind, hop: Hop) -> SourceRegistration | None:
    text = _header(kind, hop, SOURCE_HEADER)
    if text is None or kind in ("trigger", "plain"):
        return None
    return parse_source(text, "navigation" if kind == "click" else "event", Config()).value


def _registers(kind: Kind, hop: Hop) -> bool:
    """Return whether a hop should register something, as far as its headers alone say."""
    info = parse_info(_header(kind, hop, INFO_HEADER))
    if info is None or info.preferred_platform == "os":
        return False
    text = _header(kind, hop, TRIGGER_HEADER)
    trigger = kind in ("trigger", "plain", "either") and text is not None
    if trigger and _header(kind, hop, SOURCE_HEADER) is not None and kind == "either":
        return False
    parsed = _source(kind, hop) if not trigger or text is None else parse_trigger(text, Config()).value
    return parsed is not None


def fake_reports(noised: frozenset[int], real: Iterable[Text]) -> dict[int, list[tuple[int, int]]]:
    """Return the trigger data and the due time in seconds of each fake report, by source event id."""
    found: dict[int, list[tuple[int, int]]] = {identity: [] for identity in noised}
    for report in real:
        url, _, body = report.text.partition(" ")
        if url.endswith("attribution-reporting/report-event-attribution"):
            fields = json.loads(body)
            if int(fields["source_event_id"]) in found:
                found[int(fields["source_event_id"])].append((int(fields["trigger_data"]), report.times_s[0]))
    return found


def _window(source: SourceRegistration, after_s: int) -> int:
    """Return the report window that ends nearest to ``after_s`` seconds after the source."""
    ends = source.windows.ends_ms
    return min(range(len(ends)), key=lambda index: abs(ends[index] // 1000 - after_s))
