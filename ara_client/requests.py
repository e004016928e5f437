"""Requests that may register sources and triggers, and how a browser processes their responses.

WICG, "process an attribution eligible response" and what it calls; a redirect is one more response to the same request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aggservice.wire import Origin
from aggservice.wire.origins import parse_url
from ara_client.attribution.debug import send_source_debug
from ara_client.attribution.outcomes import TriggerEvent
from ara_client.attribution.source import store_source
from ara_client.attribution.trigger import attribute
from ara_client.origins import RequestError, parse_suitable_origin
from ara_client.registration.headers import (
    INFO_HEADER,
    OS_SOURCE_HEADER,
    OS_TRIGGER_HEADER,
    SOURCE_HEADER,
    TRIGGER_HEADER,
    Eligibility,
    OsRegistration,
    RegistrationInfo,
    choose_platform,
    normalise_headers,
    parse_eligible,
    parse_info,
    parse_os_registrations,
    printable,
)
from ara_client.registration.nodes import Problem
from ara_client.registration.source import SourceRegistration, parse_source
from ara_client.registration.trigger import parse_trigger
from ara_client.reports import VerboseDebugData, VerboseDebugReport
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.sources import StoredSource

_MAX_BUFFERED_OS_REGISTRATIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that a page makes.

    ``context`` is the top-level origin; ``eligible`` is the value of the header ``Attribution-Reporting-Eligible``.

    ``navigation`` names the navigation to which the request belongs: the sources of one navigation must have the same
    scopes. Without a name, a navigation request is a navigation of its own.
    """

    context: str
    eligible: str | None = None
    fenced: bool = False
    navigation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response: its URL, its headers, and whether cookies allow debug reports to its origin.

    A header is text as the browser reads it, or bytes as they were sent.
    """

    url: str
    headers: Mapping[str, str | bytes]
    debug_allowed: bool = False


@dataclass(slots=True)
class _Navigation:
    """The scopes and registrations of a navigation's sources so far, and how many of its requests are open."""

    open_requests: int = 0
    scopes: dict[Origin, frozenset[str]] = field(default_factory=dict)
    os_buffer: list[OsRegistration] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenRequest:
    """An open request; ``name`` is that of its navigation, if it has one."""

    context: Origin
    eligibility: Eligibility
    fenced: bool
    navigation: _Navigation | None
    name: str | None


class Registrar:
    """Parses registrations in responses and passes them to attribution."""

    def __init__(self, state: BrowserState) -> None:
        self._state = state
        self._navigations: dict[str, _Navigation] = {}

    def start(self, request: Request) -> OpenRequest:
        """Start a request; raise ``RequestError`` if no browser would send it."""
        context = parse_suitable_origin(request.context)
        eligibility = parse_eligible(request.eligible)
        if eligibility is None:
            raise RequestError(
                f"no browser sends Attribution-Reporting-Eligible: {request.eligible}; "
                "use navigation-source, event-source, trigger, or the last two together"
            )
        return OpenRequest(
            context=context,
            eligibility=eligibility,
            fenced=request.fenced,
            navigation=self._enter(request, eligibility),
            name=request.navigation,
        )

    def _enter(self, request: Request, eligibility: Eligibility) -> _Navigation | None:
        """Return the navigation of a request, or None if its sources are not navigation sources."""
        if eligibility.source_type != "navigation":
            return None
        if request.navigation is None:
            return _Navigation(open_requests=1)
        navigation = self._navigations.setdefault(request.navigation, _Navigation())
        navigation.open_requests += 1
        return navigation

    def finish(self, exchange: OpenRequest) -> None:
        """End a request; the last one of a navigation passes the buffered registrations to the operating system."""
        navigation = exchange.navigation
        if navigation is None:
            return
        navigation.open_requests -= 1
        if navigation.open_requests == 0:
            self._delegate(exchange, navigation.os_buffer, "os-source-delegated")
            navigation.os_buffer = []
            if exchange.name is not None:
                del self._navigations[exchange.name]

    def process(self, exchange: OpenRequest, response: Response, now_ms: int) -> None:
        """Process one response (WICG, "process an attribution eligible response")."""
        url = parse_url(response.url)
        if url is None or not url.origin.suitable:
            return
        eligibility = exchange.eligibility
        headers = normalise_headers(response.headers, navigation=eligibility.source_type == "navigation")
        source, trigger = (headers.get(SOURCE_HEADER.lower()), headers.get(TRIGGER_HEADER.lower()))
        os_source, os_trigger = (headers.get(OS_SOURCE_HEADER.lower()), headers.get(OS_TRIGGER_HEADER.lower()))
        has_source = eligibility.source_type is not None and (source is not None or os_source is not None)
        has_trigger = eligibility.trigger and (trigger is not None or os_trigger is not None)
        if has_source == has_trigger:
            return
        info = parse_info(headers.get(INFO_HEADER.lower()))
        if info is None:
            return
        web, system = (source, os_source) if has_source else (trigger, os_trigger)
        platform = choose_platform(
            web, system, info.preferred_platform, os_supported=self._state.config.os_registration_supported
        )
        if platform == "os":
            assert system is not None
            self._process_os(exchange, system, info, url.origin, is_source=has_source)
        elif platform == "web":
            assert web is not None
            handle = self._process_source if has_source else self._process_trigger
            handle(exchange, web, info, url.origin, response.debug_allowed, now_ms)

    def _process_source(
        self, exchange: OpenRequest, header: str, info: RegistrationInfo, origin: Origin, debug: bool, now_ms: int
    ) -> None:
        source_type = exchange.eligibility.source_type
        assert source_type is not None
        parsed = parse_source(header, source_type, self._state.config)
        if parsed.value is None:
            self._report_error(exchange, SOURCE_HEADER, header, info, origin, parsed.problems)
            return
        if exchange.navigation is not None and not _agree_on_scopes(exchange.navigation, origin, parsed.value):
            return
        source = StoredSource(
            id=self._state.next_id(),
            registration=parsed.value,
            origin=exchange.context,
            reporting_origin=origin,
            source_type=source_type,
            time_ms=now_ms,
            cookie_debug_allowed=debug,
            fenced=exchange.fenced,
        )
        send_source_debug(self._state, source, store_source(self._state, source))

    def _process_trigger(
        self, exchange: OpenRequest, header: str, info: RegistrationInfo, origin: Origin, debug: bool, now_ms: int
    ) -> None:
        parsed = parse_trigger(header, self._state.config)
        if parsed.value is None:
            self._report_error(exchange, TRIGGER_HEADER, header, info, origin, parsed.problems)
            return
        trigger = TriggerEvent(
            registration=parsed.value,
            context_origin=exchange.context,
            reporting_origin=origin,
            time_ms=now_ms,
            cookie_debug_allowed=debug,
            fenced=exchange.fenced,
        )
        attribute(self._state, trigger)

    def _process_os(
        self, exchange: OpenRequest, header: str, info: RegistrationInfo, origin: Origin, *, is_source: bool
    ) -> None:
        registrations = parse_os_registrations(header)
        if registrations is None:
            name = OS_SOURCE_HEADER if is_source else OS_TRIGGER_HEADER
            self._report_error(exchange, name, header, info, origin, (Problem((), "must be a list of URLs"),))
            return
        navigation = exchange.navigation
        if navigation is None:
            kind = "os-source-delegated" if is_source else "os-trigger-delegated"
            self._delegate(exchange, registrations, kind)
            return
        navigation.os_buffer += registrations
        while len(navigation.os_buffer) >= _MAX_BUFFERED_OS_REGISTRATIONS:
            full = navigation.os_buffer[:_MAX_BUFFERED_OS_REGISTRATIONS]
            del navigation.os_buffer[:_MAX_BUFFERED_OS_REGISTRATIONS]
            self._delegate(exchange, full, "os-source-delegated")

    def _delegate(self, exchange: OpenRequest, registrations: Sequence[OsRegistration], kind: str) -> None:
        """Send the debug reports of registrations that are passed to the operating system."""
        for registration in registrations:
            url = registration.url
            if registration.debug_reporting and not exchange.fenced and url is not None and url.origin.suitable:
                body = {"context_site": exchange.context.site, "registration_url": str(url)}
                self._send_debug(url.origin, kind, body)

    def _report_error(
        self,
        exchange: OpenRequest,
        name: str,
        header: str,
        info: RegistrationInfo,
        origin: Origin,
        problems: Sequence[Problem],
    ) -> None:
        """Report a malformed header if the response asked for that; otherwise drop it silently."""
        if info.report_header_errors and not exchange.fenced:
            body = {"context_site": exchange.context.site, "header": name, "value": printable(header)}
            self._send_debug(origin, "header-parsing-error", body, problems)

    def _send_debug(self, origin: Origin, kind: str, body: Mapping[str, str], problems: Sequence[Problem] = ()) -> None:
        data = (VerboseDebugData(type=kind, body=body, problems=tuple(map(str, problems))),)
        self._state.outbox.append(VerboseDebugReport(reporting_origin=origin, data=data))


def _agree_on_scopes(navigation: _Navigation, origin: Origin, registration: SourceRegistration) -> bool:
    """Return whether a source has the same scopes as its reporting origin's first source in the navigation."""
    scopes = registration.scopes.values if registration.scopes is not None else frozenset()
    return navigation.scopes.setdefault(origin, scopes) == scopes
