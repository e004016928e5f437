"""The structured headers: ``Attribution-Reporting-Eligible``, ``-Info`` and the two that go to the operating system.

Parsed by ``http-sf`` (RFC 9651). Also decides which registration header of a response is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import http_sf

from aggservice.wire.origins import Url, is_other_url, parse_url

SOURCE_HEADER = "Attribution-Reporting-Register-Source"
TRIGGER_HEADER = "Attribution-Reporting-Register-Trigger"
OS_SOURCE_HEADER = "Attribution-Reporting-Register-OS-Source"
OS_TRIGGER_HEADER = "Attribution-Reporting-Register-OS-Trigger"
INFO_HEADER = "Attribution-Reporting-Info"

Registrar = Literal["web", "os"]
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BLANK: Final = " \t\r\n"
"""What HTTP removes around a value; Python's own notion of white space is wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """What a response to a request may register."""

    source_type: Literal["navigation", "event"] | None
    trigger: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationInfo:
    """``Attribution-Reporting-Info``: the preferred platform, and whether to report errors in headers."""

    preferred_platform: Registrar | None = None
    report_header_errors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OsRegistration:
    """One registration for the operating system; ``url`` is None if no report can be sent to it."""

    url: Url | None
    debug_reporting: bool


@lru_cache(maxsize=1024)
def parse_eligible(text: str | None) -> Eligibility | None:
    """Return what ``Attribution-Reporting-Eligible`` allows, or None if no browser sends this header.

    A request without the header may register triggers (WICG, eligibility "unset"). Only keys matter: values and
    parameters are ignored.
    """
    if text is None:
        return Eligibility(source_type=None, trigger=True)
    keys = _dictionary(text)
    if keys is None:
        return None
    navigation, event, trigger = ("navigation-source" in keys, "event-source" in keys, "trigger" in keys)
    if navigation and (event or trigger):
        return None
    return Eligibility(source_type="navigation" if navigation else "event" if event else None, trigger=trigger)


def parse_info(text: str | None) -> RegistrationInfo | None:
    """Return the value of ``Attribution-Reporting-Info``, None if malformed (WICG, "get registration info")."""
    if text is None:
        return RegistrationInfo()
    keys = _dictionary(text)
    if keys is None:
        return None
    platform, errors = None, False
    if "preferred-platform" in keys:
        value = _bare(keys["preferred-platform"])
        if not isinstance(value, http_sf.Token) or str(value) not in ("web", "os"):
            return None
        platform = str(value)
    if "report-header-errors" in keys:
        errors = _bare(keys["report-header-errors"])
        if not isinstance(errors, bool):
            return None
    return RegistrationInfo(
        preferred_platform=platform,  # type: ignore[arg-type]
        report_header_errors=errors,
    )


def parse_os_registrations(text: str) -> tuple[OsRegistration, ...] | None:
    """Return the registrations of an OS header, or None if it has none (WICG, "get OS registrations")."""
    try:
        items = http_sf.parse(text.encode(), tltype="list")
    except (ValueError, UnicodeError):
        return None
    found = []
    for value, parameters in items:
        if isinstance(value, str) and not isinstance(value, http_sf.Token):
            url = parse_url(value)
            if url is not None or is_other_url(value):
                found.append(OsRegistration(url=url, debug_reporting=parameters.get("debug-reporting") is True))
    return tuple(found) or None


def choose_platform(
    web: str | None, os: str | None, preferred: Registrar | None, *, os_supported: bool
) -> Registrar | None:
    """Return who handles a registration, or None to ignore it (WICG, "get the registration platform")."""
    if preferred is None:
        if (web is None) == (os is None):
            return None
        return "web" if web is not None else "os" if os_supported else None
    if preferred == "web":
        return None if web is None else "web"
    if os is None:
        return None
    return "os" if os_supported else None if web is None else "web"


def normalise_headers(headers: Mapping[str, str | bytes], *, navigation: bool = True) -> dict[str, str]:
    """Return the headers under lower-case names, values without surrounding white space.

    Bytes are decoded as Chromium decodes them: as UTF-8 for a navigation, as Latin-1 for any other request (Blink's
    ``HTTPHeaderMap``). Bytes that are not UTF-8 become lone surrogates, which make a registration invalid; see
    ``printable``.
    """
    encoding, errors = ("utf-8", "surrogateescape") if navigation else ("latin-1", "strict")
    out: dict[str, str] = {}
    for name, value in headers.items():
        text = value.decode(encoding, errors) if isinstance(value, bytes) else value
        key = name.lower()
        out[key] = f"{out[key]}, {text.strip(_BLANK)}" if key in out else text.strip(_BLANK)
    return out


def printable(text: str) -> str:
    """Return a header's text with a replacement character for each byte that was not UTF-8."""
    return _SURROGATE.sub("\ufffd", text)


def _dictionary(text: str) -> dict[str, Any] | None:
    try:
        return http_sf.parse(text.encode(), tltype="dictionary")
    except (ValueError, UnicodeError):
        return None


def _bare(member: Any) -> Any:
    return member[0] if isinstance(member, tuple) else member
