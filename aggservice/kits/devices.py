"""The kit of device APIs: ``check_device`` runs one on random small campaigns, in real browsers and in its fleet.

Both must give the same columns. Every item has one fate, contributions stay within the bounds that a ledger would
state, reports open again to what was sealed, and the ground truth is what was attributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from aggservice.campaign.columns import Events, Fate, Ints, MeasuredConversions, ReportColumns
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.service.sealing import SealingSettings, sealed_batches, sealing_settings
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.device import DEVICES, DeviceApi
from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire import AggregatableReport, KeySet, SharedInfo, decode_payload, open_report
from aggservice.wire.report.body import SealedPayload

_SEALED_WORLDS = 3
"""Sealing takes most of the time, and does not depend on the world."""


def check_device(
    device: str | type[DeviceApi], *, settings: Sequence[Mapping[str, Any]] = ({},), worlds: int = 30, seed: int = 1
) -> int:
    """Raise ``KitFailure`` if a device breaks what a campaign needs of it; return how many reports were compared.

    ``device`` is a name of the table, ``"module:Name"``, or a class that can be imported. ``settings`` are tables
    ``[client]`` to try in turn, and ``worlds`` is how many random campaigns are tried.
    """
    name = device if isinstance(device, str) else f"{device.__module__}:{device.__qualname__}"
    compared = 0
    for world in range(worlds):
        draw = Random(f"{name} {seed} {world}")
        campaign = random_campaign(name, settings[world % len(settings)], draw)
        events = random_events(campaign, draw, f"{seed} {world}")
        where = f"{name}, world {world} of seed {seed}"
        reports, items = _compared(campaign, events, where)
        _check_fates(campaign, events, reports, items, where)
        _check_bounds(campaign, reports, where)
        _check_truth(campaign, reports, items, where)
        if world < _SEALED_WORLDS:
            _check_sealing(campaign, reports, where)
        compared += len(reports)
    return compared


def random_campaign(name: str, settings: Mapping[str, Any], draw: Random) -> Campaign:
    """Return a small campaign on a device, with random people, keys and measures."""
    kind = DEVICES.find(name).kind
    client = {"kind": kind, **({} if kind == name else {"api": name}), **settings}
    views = kind != "attribution"
    keys = [
        {"name": "ad", "values": ["a", "b", "c"][: draw.randint(1, 3)]},
        {"name": "seen", "from": "interaction"},
        *([] if views else [{"name": "product", "from": "conversion", "values": ["p", "q"]}]),
    ]
    document: dict[str, Any] = {
        "name": "kit",
        "population": {
            "size": draw.randint(1, 8),
            "days": draw.choice((1, 3, 29)),
            "destinations": ["https://shop.example", "https://store.example"][: draw.randint(1, 2)],
            "impressions": {"name": "geometric", "mean": draw.choice((1, 4, 12))},
            "conversion_rate": draw.choice((0.2, 0.8)),
            "conversions": {"name": "geometric", "mean": draw.choice((1, 3))},
            "organic": {"name": "poisson", "mean": 1},
            "click_rate": 0.5,
            "value": {"name": "geometric", "mean": 20},
            "delay_days": {"name": "exponential", "mean": draw.choice((0.001, 1))},
            "devices": draw.choice((1, 2)),
        },
        "keys": {"fields": keys},
        "client": client,
        "queries": [{"name": "all"}],
    }
    if not views and draw.random() < 0.7:
        most = draw.choice((3, 40))
        limit = int(settings.get("l1", 65_536))
        document["measures"] = [
            {"name": "count", "scale": max(1, limit // draw.choice((2, 16)))},
            {"name": "value", "of": "value", "most": most, "scale": max(1, limit // (most * draw.choice((2, 8))))},
        ][: draw.randint(1, 2)]
    if not views and draw.random() < 0.3:
        document["filters"] = {"field": "product", "accepts": ["p"]}
    return campaign_of(document, folder=Path.cwd())


def random_events(campaign: Campaign, draw: Random, seed: str) -> Events:
    """Return the events of a campaign's population; some conversions share an order number."""
    events = campaign.population.model.events(campaign, SeededBits(f"kit population {seed}"))
    orders = [draw.choice((-1, -1, -1, 1, 2)) for _ in range(len(events.conversions))]
    return replace(events, conversions=replace(events.conversions, dedup_key=np.array(orders, dtype=np.int64)))


def _compared(campaign: Campaign, events: Events, where: str) -> tuple[ReportColumns, MeasuredConversions]:
    """Return what a device makes of the events, the same in browsers and in its fleet."""
    found = []
    for engine in ("browser", "fleet"):
        device: Any = replace(campaign.client, engine=engine)
        found.append(device.reports(replace(campaign, client=device), events, SeededBits("kit")))
    for of_browsers, of_fleet in zip(*found, strict=True):
        for one in fields(of_browsers):
            slow, fast = getattr(of_browsers, one.name), getattr(of_fleet, one.name)
            if (slow is None) != (fast is None) or (slow is not None and not np.array_equal(slow, fast)):
                kind = type(of_browsers).__name__
                raise KitFailure(
                    f"browser and fleet differ ({where}): column {one.name} of {kind} is {_shown(slow)} with browsers "
                    f"and {_shown(fast)} with the fleet"
                )
    reports: ReportColumns
    items: MeasuredConversions
    reports, items = found[0]
    return reports, items


def _shown(column: Any) -> str:
    return "missing" if column is None else np.array2string(column, threshold=12, edgeitems=6).replace("\n", "")


def _check_fates(
    campaign: Campaign, events: Events, reports: ReportColumns, items: MeasuredConversions, where: str
) -> None:
    sent = items.report >= 0
    if not np.isin(items.fate, [fate.value for fate in Fate]).all():
        raise KitFailure(f"a fate is not one of Fate ({where}): {_shown(items.fate)}")
    if (sent != (items.fate == Fate.ON_THE_WAY)).any() or (items.report >= len(reports)).any():
        raise KitFailure(
            f"fates do not add up ({where}): {int(sent.sum())} items have a report, and "
            f"{int((items.fate == Fate.ON_THE_WAY).sum())} are on the way; every other item needs its own fate"
        )
    if campaign.client.sums_conversions:
        wanted = len(events.conversions) * len(campaign.measures)
        pairs = items.conversion * len(campaign.measures) + items.measure
        if not np.array_equal(np.sort(pairs), np.arange(wanted)):
            raise KitFailure(
                f"not every conversion has exactly one fate per measure ({where}): there are {len(items)} items for "
                f"{wanted} conversions and measures"
            )


def _check_bounds(campaign: Campaign, reports: ReportColumns, where: str) -> None:
    client = campaign.client
    size, value = np.diff(reports.offset), np.add.reduceat(np.append(reports.value, 0), reports.offset[:-1])
    value = np.where(size > 0, value, 0)
    layout = client.tasks(campaign)
    if layout is not None and reports.task is not None:
        for row, task in enumerate(reports.task.tolist()):
            most = layout.max_values[layout.parts(task)[0]]
            if value[row] > most:
                raise KitFailure(
                    f"a report contributes more than its bound ({where}): {value[row]} of at most {most} in task {task}"
                )
        return
    if reports.unit is None:
        raise KitFailure(
            f"no report says its privacy unit ({where}): fill ReportColumns.unit, below 0 for null reports"
        )
    bound = client.bounds[client.wire_api]
    for unit in np.unique(reports.unit[size > 0]).tolist():
        mine = reports.unit == unit
        if value[mine].sum() > bound.l1 or size[mine].sum() > bound.l0:
            raise KitFailure(
                f"{client.unit_name(unit)} contributes more than its bound ({where}): {value[mine].sum()} in "
                f"{size[mine].sum()} contributions, and the device states Λ₁ = {bound.l1} and Λ₀ = {bound.l0}"
            )


def _check_truth(campaign: Campaign, reports: ReportColumns, items: MeasuredConversions, where: str) -> None:
    sent = np.flatnonzero(items.report >= 0)
    if not items.attributable[sent].all():
        raise KitFailure(f"the ground truth lacks what was sent ({where}): an item with a report is not attributable")
    if not campaign.client.caps_move:
        moved = (items.key_high != items.true_high) | (items.key_low != items.true_low)
        if moved[sent].any():
            raise KitFailure(
                f"the ground truth is not what was attributed ({where}): {int(moved[sent].sum())} items were sent "
                "under another key than browsers without caps give them"
            )
    owner = np.repeat(np.arange(len(reports)), np.diff(reports.offset))
    there = _sorted(owner, reports.key_high, reports.key_low, reports.value)
    here = _sorted(items.report[sent], items.key_high[sent], items.key_low[sent], items.amount[sent])
    if there != here:
        raise KitFailure(
            f"reports do not hold what their items contribute ({where}): {len(there)} of them for {len(here)} items"
        )


def _sorted(*columns: Any) -> list[tuple[int, ...]]:
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def _check_sealing(campaign: Campaign, reports: ReportColumns, where: str) -> None:
    """Seal every report and open it again."""
    clock, bits = ManualClock(campaign.population.start_ms), SeededBits("kit keys")
    keys = KeySet.create(bits, clock)
    for part, addressee in _addressed(campaign, reports, keys.public(clock).serialise()):
        row = 0
        for batch in sealed_batches(part, addressee, bits):
            for payload, key_id, info in zip(batch.payloads, batch.key_ids, batch.shared_infos, strict=True):
                sealed = SealedPayload(payload=payload, key_id=key_id.decode())
                report = AggregatableReport(shared_info=info.decode(), payloads=(sealed,))
                opened = decode_payload(open_report(report, keys))
                span = slice(*part.offset[row : row + 2].tolist())
                wanted = _sorted(part.key_high[span], part.key_low[span], part.value[span])
                found = sorted(
                    (one.bucket >> 64, one.bucket % (1 << 64), one.value) for one in opened.contributions if one.value
                )
                public = SharedInfo.parse(report.shared_info)
                if found != wanted or public.scheduled_report_time_s != int(part.scheduled_ms[row]) // 1000:
                    raise KitFailure(f"a sealed report opens to something else ({where}): {found}, not {wanted}")
                row += 1


def _addressed(
    campaign: Campaign, reports: ReportColumns, public_keys: str
) -> Iterator[tuple[ReportColumns, SealingSettings]]:
    """Yield reports with the settings that seal them; those of tasks hold indexes, and differ by measure."""
    base, layout = sealing_settings(campaign, public_keys), campaign.client.tasks(campaign)
    if layout is None or reports.task is None:
        yield reports, base
        return
    measure = np.array([layout.parts(task)[0] for task in reports.task.tolist()], dtype=np.int64)
    index: Ints = layout.indexes(reports.key_high, reports.key_low)
    none = np.zeros(index.size, dtype=np.uint64)
    by_index = replace(reports, key_high=none, key_low=index.astype(np.uint64))
    for place in range(layout.measures):
        addressee = replace(base, slots=layout.slots, numbers=layout.shared_info(place))
        yield by_index.taken(np.flatnonzero(measure == place)), addressee
