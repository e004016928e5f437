"""The options of both calls, with the checks of the specification in its order.

Types are checked when options are made, so a ``TypeError`` comes before every other error, as with WebIDL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

from aggservice.wire.limits import MAX_W3C_VALUE
from w3c_client.calls.members import Convert, days, double, i32, listed, read_members, string, u32
from w3c_client.config import DAY_MS, MAX_EPSILON, TEE_PROTOCOL, Config
from w3c_client.errors import CallError, ErrorName
from w3c_client.sites import parse_site

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
