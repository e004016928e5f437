"""The calls of pages: where they come from, and their options with the checks of the specification in its order.

Types are checked when options are made, so a ``TypeError`` comes before every other error, as with WebIDL. WebIDL wraps
an unsigned long modulo 2³². Here a number outside the range of its type is a ``TypeError``, because wrapping would hide
mistakes in a simulation. A missing required member and a non-finite double are one too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Self

from aggservice.wire import parse_origin
from aggservice.wire.device import CallError
from aggservice.wire.limits import MAX_W3C_VALUE
from w3c_client.config import DAY_MS, MAX_EPSILON, TEE_PROTOCOL, UINT32_MAX, Config
from w3c_client.errors import ErrorName

#: The largest integer of a structured field (RFC 9651): a header may ask for that many days, which are then clamped.
_MAX_DAYS: Final = 999_999_999_999_999

Convert = Callable[[str, Any], Any]
"""A function of a member's name and value that returns the converted value or raises the platform's ``TypeError``."""


def refuse(name: str, value: object, wanted: str) -> CallError:
    """Return the error of a member with the wrong type."""
    shown = repr(value) if isinstance(value, (int, float, bool, type(None))) else type(value).__name__
    return CallError(ErrorName.TYPE, f"{name} must be {wanted}, not {shown}")


def integer(least: int, most: int) -> Convert:
    """Return a conversion that accepts integers from ``least`` to ``most``."""

    def convert(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise refuse(name, value, f"an integer from {least} to {most}")
        return int(value)

    return convert


def double(name: str, value: Any) -> float | int:
    """Return a finite number; an integer stays an integer."""
    if isinstance(value, Decimal):
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise refuse(name, value, "a number")
    try:
        finite = isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise CallError(ErrorName.TYPE, f"{name} must be a finite number that fits in a double")
    return value


def string(name: str, value: Any) -> str:
    """Return ``value`` if it is a string; otherwise raise the platform's ``TypeError``."""
    if not isinstance(value, str):
        raise refuse(name, value, "a string")
    return value


def listed(item: Convert) -> Convert:
    """Return a conversion of a list to a tuple that converts each entry by ``item``."""

    def convert(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise refuse(name, value, "a list")
        return tuple(item(f"{name}[{index}]", entry) for index, entry in enumerate(value))

    return convert


u32, i32, days = integer(0, UINT32_MAX), integer(-(1 << 31), (1 << 31) - 1), integer(0, _MAX_DAYS)


def read_members(given: object, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of a dictionary by field name; unknown members and None (undefined) are left out.

    A number of days must be an unsigned long here; only a header may give more.
    """
    if not isinstance(given, Mapping):
        raise refuse("options", given, "a dictionary")
    found = {field: given[member] for member, field in names.items() if given.get(member) is not None}
    for member, field in names.items():
        if field.endswith("_days") and field in found:
            u32(member, found[field])
    return found


_IMPRESSION: Final[Mapping[str, tuple[str, Convert]]] = {
    "histogram_index": ("histogramIndex", u32),
    "match_value": ("matchValue", u32),
    "conversion_sites": ("conversionSites", listed(string)),
    "conversion_callers": ("conversionCallers", listed(string)),
    "lifetime_days": ("lifetimeDays", days),
    "priority": ("priority", i32),
}
_CONVERSION: Final[Mapping[str, tuple[str, Convert]]] = {
    "aggregation_service": ("aggregationService", string),
    "histogram_size": ("histogramSize", u32),
    "epsilon": ("epsilon", double),
    "value": ("value", u32),
    "max_value": ("maxValue", u32),
    "credit": ("credit", listed(double)),
    "lookback_days": ("lookbackDays", days),
    "match_values": ("matchValues", listed(u32)),
    "impression_sites": ("impressionSites", listed(string)),
    "impression_callers": ("impressionCallers", listed(string)),
}


class _Options:
    """Converts every field to its type, and reads the platform's dictionaries."""

    __slots__ = ()

    def __post_init__(self) -> None:
        table = _members_of(type(self))
        for field, (member, convert) in table.items():
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, convert(member, value))

    @classmethod
    def from_members(cls, given: object) -> Self:
        """Return the options of a dictionary with the platform's member names (``histogramIndex``, …)."""
        table = _members_of(cls)
        found = read_members(given, {member: field for field, (member, _) in table.items()})
        for field in fields(cls):  # type: ignore[arg-type]
            if field.name in _REQUIRED and field.name not in found:
                raise CallError(ErrorName.TYPE, f"{table[field.name][0]} is missing: it is required")
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpressionOptions(_Options):
    """``AttributionImpressionOptions``: empty lists allow any conversion site and any caller."""

    histogram_index: int
    match_value: int = 0
    conversion_sites: Sequence[str] = ()
    conversion_callers: Sequence[str] = ()
    lifetime_days: int = 30
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions(_Options):
    """``AttributionConversionOptions``: empty lists accept any impression. ``lookback_days=None`` is the maximum."""

    aggregation_service: str
    histogram_size: int
    epsilon: float = 1.0
    value: int = 1
    max_value: int = 1
    credit: Sequence[float] = (1,)
    lookback_days: int | None = None
    match_values: Sequence[int] = ()
    impression_sites: Sequence[str] = ()
    impression_callers: Sequence[str] = ()


_REQUIRED: Final = frozenset({"histogram_index", "aggregation_service", "histogram_size"})


def _members_of(kind: type) -> Mapping[str, tuple[str, Convert]]:
    return _IMPRESSION if kind is ImpressionOptions else _CONVERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedImpression:
    """An impression's options after the checks: names parsed, lifetime clamped."""

    lifetime_ms: int
    conversion_sites: frozenset[str]
    conversion_callers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedConversion:
    """A conversion's options after the checks: lists as sets, lookback clamped."""

    options: ConversionOptions
    lookback_ms: int
    match_values: frozenset[int]
    impression_sites: frozenset[str]
    impression_callers: frozenset[str]


def check_impression(options: ImpressionOptions, config: Config) -> CheckedImpression:
    """Return what ``saveImpression`` may store, or raise the first error (specification, "save an impression")."""
    _at_most("histogramIndex", options.histogram_index, config.max_histogram_size - 1)
    if options.lifetime_days == 0:
        raise CallError(ErrorName.RANGE, "lifetimeDays must be at least 1")
    return CheckedImpression(
        lifetime_ms=min(options.lifetime_days, config.max_lookback_days) * DAY_MS,
        conversion_sites=_sites("conversionSites", options.conversion_sites, config.max_conversion_sites),
        conversion_callers=_sites("conversionCallers", options.conversion_callers, config.max_conversion_callers),
    )


def check_conversion(options: ConversionOptions, config: Config) -> CheckedConversion:
    """Return what ``measureConversion`` may use, or raise the first error (specification, "validate")."""
    service = options.aggregation_service
    if service not in config.aggregation_services:
        raise CallError(ErrorName.REFERENCE, "aggregationService is not in aggregationServices: use one of its URLs")
    if not 0 < options.epsilon <= MAX_EPSILON:
        raise CallError(ErrorName.RANGE, f"epsilon must be above 0 and at most {MAX_EPSILON}")
    if options.histogram_size < 1:
        raise CallError(ErrorName.RANGE, "histogramSize must be at least 1")
    _at_most("histogramSize", options.histogram_size, config.max_histogram_size)
    _at_most("histogramSize", options.histogram_size, config.max_service_histogram_size.get(service, 1 << 32))
    if options.value == 0:
        raise CallError(ErrorName.RANGE, "value must be at least 1")
    _at_most("value", options.value, options.max_value)
    if config.aggregation_services[service] == TEE_PROTOCOL:
        _at_most("maxValue", options.max_value, MAX_W3C_VALUE)
    if not options.credit:
        raise CallError(ErrorName.RANGE, "credit must not be empty: leave it out for one credit")
    if not all(item > 0 for item in options.credit):
        raise CallError(ErrorName.RANGE, "credit must hold positive numbers only")
    _at_most("the number of values in credit", len(options.credit), config.max_credits)
    wanted = config.max_lookback_days if options.lookback_days is None else options.lookback_days
    lookback_days = min(wanted, config.max_lookback_days)
    if lookback_days == 0:
        raise CallError(ErrorName.RANGE, "lookbackDays must be at least 1")
    _at_most("the number of values in matchValues", len(options.match_values), config.max_match_values)
    return CheckedConversion(
        options=options,
        lookback_ms=lookback_days * DAY_MS,
        match_values=frozenset(options.match_values),
        impression_sites=_sites("impressionSites", options.impression_sites, config.max_impression_sites),
        impression_callers=_sites("impressionCallers", options.impression_callers, config.max_impression_callers),
    )


def _at_most(what: str, number: int, most: int) -> None:
    if number > most:
        raise CallError(ErrorName.RANGE, f"{what} must be at most {most}, not {number}")


def _sites(name: str, given: Sequence[str], most: int) -> frozenset[str]:
    """Return the sites of a list; raise if it has more than ``most`` entries (duplicates count) or one is no site."""
    _at_most(f"the number of values in {name}", len(given), most)
    parsed = set()
    for index, text in enumerate(given):
        site = parse_site(text)
        if site is None:
            raise CallError(ErrorName.SYNTAX, f"{name}[{index}] is not a site: use a registrable domain")
        parsed.add(site)
    return frozenset(parsed)


# Sites of a call

_NOT_IN_A_HOST: Final = frozenset("/\\?#@: \x7f" + "".join(map(chr, range(0x20))))


@lru_cache(maxsize=65_536)
def parse_site(text: str) -> str | None:
    """Return the registrable domain of a host name, or None (specification, "parse a site").

    A port, a path or a URL fails in the host parser; an address, a public suffix and ``localhost`` have no site.

    >>> parse_site("extra.example.com"), parse_site("localhost"), parse_site("https://example.com")
    ('example.com', None, None)
    """
    if not _NOT_IN_A_HOST.isdisjoint(text):
        return None
    origin = parse_origin(f"https://{text}")
    site = None if origin is None else origin.registrable_site
    if site is None:
        return None
    domain = site.removeprefix("https://")
    return None if f".{domain.removesuffix('.')}".endswith(".localhost") else domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The origin of a call: the top level, the frame that calls, its tab, and what its permissions policy allows.

    ``top_level`` and ``frame`` are host names or https origins. A page without a ``tab`` counts as activated.
    ``action`` is the number of the user's action that led to this page, for designs that cap the sites per action;
    no cap applies to None.
    """

    top_level: str
    frame: str | None = None
    tab: str | None = None
    action: int | None = None
    may_save: bool = True
    may_measure: bool = True


@dataclass(frozen=True, slots=True)
class CallSites:
    """The sites of a call: the top level's, and the intermediary's if the calling frame is of another site."""

    top_level: str
    intermediary: str | None

    @property
    def caller(self) -> str:
        """The caller: the intermediary if there is one, else the top level."""
        return self.intermediary or self.top_level


@lru_cache(maxsize=65_536)
def call_sites(top_level: str, frame: str | None) -> CallSites:
    """Return the sites of a call (specification, "obtain the implicit API inputs").

    Raises the platform's ``SyntaxError`` if either has no site. HTML's own step would accept ``localhost``, but the
    specification's note and vectors refuse it.
    """
    top = _site_of(top_level)
    inner = None if frame is None else _site_of(frame)
    return CallSites(top, None if inner == top else inner)


def _site_of(text: str) -> str:
    if not isinstance(text, str):
        raise CallError(ErrorName.TYPE, f"a site must be text, not {type(text).__name__}")
    host = text
    if text.startswith("https://"):
        origin = parse_origin(text)
        host = text if origin is None else origin.host
    site = parse_site(host)
    if site is None:
        raise CallError(ErrorName.SYNTAX, f"{text!r} has no site: use an https origin with a registrable domain")
    return site
