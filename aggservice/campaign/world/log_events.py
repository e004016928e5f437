"""Turns an event log into the events of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from aggservice.campaign.settings.log_tables import LogTables
from aggservice.campaign.world.events import Conversions, Events, Impressions
from aggservice.campaign.world.logs import dedup_keys_of, names_of, numbers_of, times_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of a log: its people, its days, and the sites where conversions happen."""

    people: int
    start_ms: int
    days: int
    destinations: tuple[str, ...]


def extent_of(tables: LogTables) -> Extent:
    """Return the extent of a log; it must have at least one row."""
    times = times_of(tables.column("time", of_source=True), tables.source_file)
    times += times_of(tables.column("time", of_source=False), tables.trigger_file)
    if not times:
        raise CampaignError("the log has no rows")
    start = min(times) // DAY_MS * DAY_MS
    people = {one for of_source in (True, False) for one in _names(tables, "device", of_source=of_source)}
    return Extent(
        people=len(people),
        start_ms=start,
        days=max(1, -(-(max(times) + 1 - start) // DAY_MS)),
        destinations=_destinations(tables),
    )


def _destinations(tables: LogTables) -> tuple[str, ...]:
    found = {
        one
        for of_source in (True, False)
        if tables.has("destination", of_source=of_source)
        for one in _names(tables, "destination", of_source=of_source)
    }
    return tuple(sorted(found)) or ("https://shop.example",)


def events_of_log(campaign: Campaign) -> Events:
    """Return the rows of the log within the campaign's days as events, in order of time.

    Devices are compared as text, dedup keys exactly. Without a destination column every row is at the first
    destination; without a value column a conversion is worth 1.
    """
    log = campaign.population.log
    assert log is not None
    tables = log.tables
    devices: dict[str, int] = {}
    for of_source in (True, False):
        for one in _names(tables, "device", of_source=of_source):
            devices.setdefault(one, len(devices))
    columns = []
    for of_source in (True, False):
        path = tables.source_file if of_source else tables.trigger_file
        time = np.array(times_of(tables.column("time", of_source=of_source), path), dtype=np.int64) + log.shift_ms
        start, end = campaign.population.start_ms, campaign.population.start_ms + campaign.population.days * DAY_MS
        rows = np.flatnonzero((time >= start) & (time < end))
        rows = rows[np.argsort(time[rows], kind="stable")]
        owner = np.array([devices[one] for one in _names(tables, "device", of_source=of_source)], dtype=np.int64)
        columns.append((rows, time, owner))
    rows, time, owner = columns[0]
    click = _numbers(tables, "click", time.size, 0, of_source=True)[rows] != 0
    codes = _codes(campaign, tables, rows, of_source=True)
    for field in campaign.keys.fields:
        if field.origin == "interaction":
            codes[field.name] = click.astype(np.int64)
        elif field.origin == "site":
            codes[field.name] = np.zeros(rows.size, dtype=np.int64)
    impressions = Impressions(
        time_ms=time[rows],
        device=owner[rows],
        destination=_destination_indexes(campaign, tables, time.size, of_source=True)[rows],
        click=click,
        codes=codes,
    )
    rows, time, owner = columns[1]
    conversions = Conversions(
        time_ms=time[rows],
        device=owner[rows],
        destination=_destination_indexes(campaign, tables, time.size, of_source=False)[rows],
        value=np.maximum(_numbers(tables, "value", time.size, 1, of_source=False)[rows], 0),
        dedup_key=_dedup_keys(tables, time.size)[rows],
        codes=_codes(campaign, tables, rows, of_source=False),
    )
    return Events(impressions=impressions, conversions=conversions, devices=len(devices))


def _names(tables: LogTables, name: str, *, of_source: bool) -> list[str]:
    path = tables.source_file if of_source else tables.trigger_file
    return names_of(tables.column(name, of_source=of_source), name, path)


def _dedup_keys(tables: LogTables, size: int) -> Ints:
    if not tables.has("dedup_key", of_source=False):
        return np.full(size, -1, dtype=np.int64)
    return np.array(dedup_keys_of(tables.column("dedup_key", of_source=False)), dtype=np.int64)


def _numbers(tables: LogTables, name: str, size: int, default: int, *, of_source: bool) -> Ints:
    if not tables.has(name, of_source=of_source):
        return np.full(size, default, dtype=np.int64)
    path = tables.source_file if of_source else tables.trigger_file
    given = [default if one in ("", None) else one for one in tables.column(name, of_source=of_source)]
    return np.rint(numbers_of(given, name, path)).astype(np.int64)


def _destination_indexes(campaign: Campaign, tables: LogTables, size: int, *, of_source: bool) -> Ints:
    if not tables.has("destination", of_source=of_source):
        return np.zeros(size, dtype=np.int64)
    index_of = {name: number for number, name in enumerate(campaign.population.destinations)}
    return _indexes(tables.column("destination", of_source=of_source), index_of, "destination", tables, of_source)


def _codes(campaign: Campaign, tables: LogTables, rows: Ints, *, of_source: bool) -> dict[str, Ints]:
    found = {}
    for field in campaign.keys.fields:
        if field.origin == ("impression" if of_source else "conversion"):
            index_of = {name: number for number, name in enumerate(field.values)}
            column = tables.column(field.column or field.name, of_source=of_source)
            found[field.name] = _indexes(column, index_of, field.name, tables, of_source)[rows]
    return found


def _indexes(column: Sequence[Any], index_of: dict[str, int], name: str, tables: LogTables, of_source: bool) -> Ints:
    path = tables.source_file if of_source else tables.trigger_file
    for row, one in enumerate(column):
        if str(one) not in index_of:
            raise CampaignError(f"{path.name}, row {row + 1}: {one!r} is not among the values of {name}")
    return np.array([index_of[str(one)] for one in column], dtype=np.int64)
