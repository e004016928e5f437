"""Turns an event log into the events of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import Conversions, Events, Impressions
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign, LogTable, LogTables
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
    times = [one for table in tables.both for one in times_of(table)]
    if not times:
        raise CampaignError("the log has no rows: give it at least one")
    start = min(times) // DAY_MS * DAY_MS
    destinations = {one for table in tables.both if "destination" in table for one in names_of(table, "destination")}
    return Extent(
        people=len({one for table in tables.both for one in names_of(table, "device")}),
        start_ms=start,
        days=max(1, -(-(max(times) + 1 - start) // DAY_MS)),
        destinations=tuple(sorted(destinations)) or ("https://shop.example",),
    )


def events_of_log(campaign: Campaign) -> Events:
    """Return the rows of the log within the campaign's days as events, in order of time.

    Devices are compared as text, dedup keys exactly. Without a destination column every row is at the first
    destination; without a value column a conversion is worth 1.
    """
    log = campaign.population.log
    assert log is not None
    devices: dict[str, int] = {}
    for table in log.tables.both:
        for one in names_of(table, "device"):
            devices.setdefault(one, len(devices))
    start = campaign.population.start_ms
    end = start + campaign.population.days * DAY_MS
    columns = []
    for table in log.tables.both:
        time = np.array(times_of(table), dtype=np.int64) + log.shift_ms
        inside = (time >= start) & (time < end)
        if log.half is not None:
            inside &= np.array([_half(one) == log.half for one in names_of(table, "device")], dtype=np.bool_)
        rows = np.flatnonzero(inside)
        rows = rows[np.argsort(time[rows], kind="stable")]
        owner = np.array([devices[one] for one in names_of(table, "device")], dtype=np.int64)
        columns.append((rows, time, owner))
    table, (rows, time, owner) = log.tables.sources, columns[0]
    click = _numbers(table, "click", time.size, 0)[rows] != 0
    codes = _codes(campaign, table, rows, "impression")
    for field in campaign.keys.fields:
        if field.origin == "interaction":
            codes[field.name] = click.astype(np.int64)
        elif field.origin == "site":
            codes[field.name] = field.coded(np.zeros(rows.size, dtype=np.int64))
    impressions = Impressions(
        time_ms=time[rows],
        device=owner[rows],
        destination=_destination_indexes(campaign, table, time.size)[rows],
        click=click,
        codes=codes,
    )
    table, (rows, time, owner) = log.tables.triggers, columns[1]
    dedup_key = dedup_keys_of(table.column("dedup_key")) if "dedup_key" in table else [-1] * time.size
    conversions = Conversions(
        time_ms=time[rows],
        device=owner[rows],
        destination=_destination_indexes(campaign, table, time.size)[rows],
        value=np.maximum(_numbers(table, "value", time.size, 1)[rows], 0),
        dedup_key=np.array(dedup_key, dtype=np.int64)[rows],
        codes=_codes(campaign, table, rows, "conversion"),
    )
    return Events(impressions=impressions, conversions=conversions, devices=len(devices))


def _half(device: str) -> int:
    """Return the half of a device: a hash of its name, so that it is the same in every table and every run."""
    return sha256(device.encode()).digest()[0] & 1


def _numbers(table: LogTable, name: str, size: int, default: int) -> Ints:
    if name not in table:
        return np.full(size, default, dtype=np.int64)
    return np.rint(numbers_of(table, name, default)).astype(np.int64)


def _destination_indexes(campaign: Campaign, table: LogTable, size: int) -> Ints:
    if "destination" not in table:
        return np.zeros(size, dtype=np.int64)
    return _indexes(table, "destination", "destination", campaign.population.destinations)


def _codes(campaign: Campaign, table: LogTable, rows: Ints, origin: str) -> dict[str, Ints]:
    return {
        field.name: field.coded(_indexes(table, field.column or field.name, field.name, field.occurring)[rows])
        for field in campaign.keys.fields
        if field.origin == origin
    }


def _indexes(table: LogTable, column: str, name: str, values: Sequence[str]) -> Ints:
    index_of = {value: index for index, value in enumerate(values)}
    given = table.column(column)
    for row, one in enumerate(given):
        if str(one) not in index_of:
            raise CampaignError(f"{table.file.name}, row {row + 1}: {one!r} is not among the values of {name}")
    return np.array([index_of[str(one)] for one in given], dtype=np.int64)
