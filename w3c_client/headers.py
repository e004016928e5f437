"""The response headers ``Save-Impression``, ``Measure-Conversion`` and ``Clear-Site-Data``, by ``http-sf`` (RFC 9651).

Unknown keys and all parameters are ignored. A header with an error is refused as a whole. The URL that receives a
report may be relative to the URL of the response (URL Standard, https base).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import http_sf

from aggservice.wire.device import CallError
from aggservice.wire.origins import Url, is_other_url, parse_url
from w3c_client.config import UINT32_MAX
from w3c_client.errors import HeaderError
from w3c_client.options import ConversionOptions, ImpressionOptions

SAVE_HEADER: Final = "Save-Impression"
MEASURE_HEADER: Final = "Measure-Conversion"
CLEAR_HEADER: Final = "Clear-Site-Data"

Take = Callable[[str, Any], Any]
"""From a key and its bare value to the option; raises ``HeaderError``."""


def parse_save_impression(text: str) -> ImpressionOptions:
    """Return the options of a ``Save-Impression`` header, or raise ``HeaderError``."""
    return _make(ImpressionOptions, read_save_impression(text))


def parse_measure_conversion(text: str, response_url: str) -> tuple[ConversionOptions, str]:
    """Return the options of a ``Measure-Conversion`` header and where the report goes, or raise ``HeaderError``."""
    given, url = read_measure_conversion(text, response_url)
    return _make(ConversionOptions, given), url


def read_save_impression(text: str) -> dict[str, Any]:
    """Return the fields of ``ImpressionOptions`` that a header gives."""
    return _read(_dictionary(text), _SAVE, required=("histogram-index",))


def read_measure_conversion(text: str, response_url: str) -> tuple[dict[str, Any], str]:
    """Return the fields of ``ConversionOptions`` that a header gives, and the URL of the report."""
    given = _read(_dictionary(text), _MEASURE, required=("aggregation-service", "histogram-size", "report-url"))
    url = resolve(given.pop("report_url"), response_url)
    if url is None or url.origin.scheme != "https":
        raise HeaderError("report-url must be an https URL, absolute or relative to the response's")
    return given, str(url)


def clears_impressions(text: str) -> bool:
    """Return whether ``Clear-Site-Data`` names the type ``"impressions"``, or all types by ``"*"``.

    The header is a list of quoted strings; anything else in it is skipped, as Clear Site Data says.
    """
    return any(part.strip(" \t") in ('"impressions"', '"*"') for part in text.split(","))


def _dictionary(text: str) -> dict[str, Any]:
    try:
        parsed = http_sf.parse(text.encode("ascii"), tltype="dictionary")
    except (ValueError, UnicodeError, RecursionError) as error:
        raise HeaderError(f"the header is not a structured dictionary: {error}") from error
    return {key: member[0] if isinstance(member, tuple) else member for key, member in parsed.items()}


def _read(given: dict[str, Any], keys: dict[str, Take], required: tuple[str, ...]) -> dict[str, Any]:
    for key in required:
        if key not in given:
            raise HeaderError(f"{key} is required")
    return {key.replace("-", "_"): take(key, given[key]) for key, take in keys.items() if key in given}


def _make(kind: type[Any], options: dict[str, Any]) -> Any:
    try:
        return kind(**options)
    except CallError as error:
        raise HeaderError(str(error)) from error


def _integer(least: int, most: int | None) -> Take:
    def take(key: str, value: Any) -> int:
        if type(value) is not int or value < least or (most is not None and value > most):
            raise HeaderError(
                f"{key} must be an integer of at least {least}" + (f" and at most {most}" if most else "")
            )
        return value

    return take


def _number(key: str, value: Any) -> float | int:
    if type(value) is int:
        return value
    if isinstance(value, Decimal):
        return float(value)
    raise HeaderError(f"{key} must be an integer or a decimal")


def _string(key: str, value: Any) -> str:
    # Tokens and display strings have types of their own.
    if type(value) is not str:
        raise HeaderError(f"{key} must be a string")
    return value


def _list(item: Take) -> Take:
    def take(key: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise HeaderError(f"{key} must be an inner list")
        return tuple(item(f"{key}[{index}]", entry[0]) for index, entry in enumerate(value))

    return take


_U32, _POSITIVE_U32 = _integer(0, UINT32_MAX), _integer(1, UINT32_MAX)
_POSITIVE = _integer(1, None)
_SAVE: Final[dict[str, Take]] = {
    "histogram-index": _U32,
    "conversion-sites": _list(_string),
    "conversion-callers": _list(_string),
    "match-value": _U32,
    "lifetime-days": _POSITIVE,
    "priority": _integer(-(1 << 31), (1 << 31) - 1),
}
_MEASURE: Final[dict[str, Take]] = {
    "aggregation-service": _string,
    "histogram-size": _POSITIVE_U32,
    "report-url": _string,
    "epsilon": _number,
    "lookback-days": _POSITIVE,
    "match-values": _list(_U32),
    "impression-sites": _list(_string),
    "impression-callers": _list(_string),
    "credit": _list(_number),
    "value": _POSITIVE_U32,
    "max-value": _POSITIVE_U32,
}


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_SINGLE_DOT: Final = frozenset({".", "%2e"})
_DOUBLE_DOT: Final = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


def resolve(text: str, base: str) -> Url | None:
    """Return the http or https URL of ``text``, resolved against ``base``; None if there is none.

    >>> str(resolve("../x?y", "https://base.example/a/b/c"))
    'https://base.example/a/x?y'
    """
    beside = parse_url(base)
    text = text.strip(_TRIMMED).replace("\t", "").replace("\n", "").replace("\r", "")
    scheme = _SCHEME.match(text)
    if scheme is not None:
        rest = text[scheme.end() :]
        same = beside is not None and scheme[1].lower() == beside.origin.scheme
        if is_other_url(text):
            return None
        if not same or rest[:2].replace("\\", "/") == "//":
            return _tidy(parse_url(text))
        text = rest  # a special scheme without slashes is relative to a base of the same scheme
    if beside is None:
        return None
    start = text.replace("\\", "/")
    if start.startswith("//"):
        return _tidy(parse_url(f"{beside.origin.scheme}:{text}"))
    path, query, _ = _split(beside.rest)
    if start.startswith("/"):
        joined = text
    elif text.startswith("?"):
        joined = path + text
    elif text.startswith("#") or not text:
        joined = path + query + text
    else:
        joined = path[: path.rfind("/") + 1] + text
    return _tidy(parse_url(f"{beside.origin}{joined}"))


def _tidy(url: Url | None) -> Url | None:
    """Return a URL without dot segments in its path."""
    if url is None:
        return None
    path, query, fragment = _split(url.rest)
    segments: list[str] = []
    parts = path.split("/")[1:]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part.lower() in _DOUBLE_DOT:
            del segments[-1:]
        elif part.lower() not in _SINGLE_DOT:
            segments.append(part)
            continue
        if last:
            segments.append("")
    return Url(url.origin, "/" + "/".join(segments) + query + fragment)


def _split(rest: str) -> tuple[str, str, str]:
    before, mark, after = rest.partition("#")
    path, question, query = before.partition("?")
    return path, question + query, mark + after
