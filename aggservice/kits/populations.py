"""The kits of populations and log readers.

``check_population`` runs a model on a small campaign: the columns of its events must be what devices rely on.
``check_log_reader`` reads the reader's own example, and what is left of it when it is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from aggservice.campaign.columns import Conversions, Events, Impressions
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from aggservice.campaign.settings.population import POPULATIONS, PopulationModel
from aggservice.campaign.world.logs import LOG_READERS, LogReader
from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import SeededBits


def check_population(model: str | type[PopulationModel], settings: Mapping[str, Any] | None = None) -> int:
    """Raise ``KitFailure`` if a population breaks what a campaign needs of it; return how many events were checked.

    ``model`` is a name of the table, ``"module:Name"``, or a class that can be imported. ``settings`` is its table
    ``[population.NAME]``; without it, that of its ``example``.
    """
    with TemporaryDirectory() as folder:
        chosen = POPULATIONS.find(model) if isinstance(model, str) else model
        own = chosen.example(Path(folder)) if settings is None else settings
        small, large = (_campaign(chosen, own, size) for size in (40, 80))
        found = _events(small, "one")
        _check_columns(small, found, chosen.name)
        if not _same(found, _events(small, "one")):
            raise KitFailure(f"{chosen.name} gives other events for the same seed: draw only from the bits given")
        if _same(found, _events(small, "two")) == chosen.drawn:
            what = "the same events for another seed" if chosen.drawn else "other events for another seed"
            raise KitFailure(f"{chosen.name} gives {what}: drawn says {chosen.drawn}")
        more = _events(large, "one")
        _check_columns(large, more, chosen.name)
        if more.devices < found.devices:
            raise KitFailure(
                f"{chosen.name} has {found.devices} devices for 40 people and {more.devices} for 80: more people must "
                "never have fewer"
            )
        _check_shift(small, found, chosen.name)
        _check_halves(small, found, chosen.name)
    return len(found)


def _campaign(model: type[PopulationModel], settings: Mapping[str, Any], size: int) -> Campaign:
    population: dict[str, Any] = {
        "model": f"{model.__module__}:{model.__qualname__}",
        model.name: dict(settings),
        "size": size,
    }
    if model.drawn:
        population |= {
            "days": 5,
            "destinations": ["https://shop.example", "https://store.example"],
            "impressions": {"name": "geometric", "mean": 3},
            "organic": {"name": "poisson", "mean": 1},
            "conversion_rate": 0.5,
            "click_rate": 0.5,
            "devices": 2,
        }
    keys = [
        {"name": "ad", "values": ["a", "b", "c"]},
        {"name": "seen", "from": "interaction"},
        {"name": "where", "from": "site"},
        {"name": "product", "from": "conversion", "values": ["p", "q"]},
    ]
    document = {"name": "kit", "population": population, "keys": {"fields": keys}, "queries": [{"name": "all"}]}
    return campaign_of(document, folder=Path.cwd())


def _events(campaign: Campaign, seed: str) -> Events:
    return campaign.population.model.events(campaign, SeededBits(f"kit population {seed}"))


def _columns(part: Impressions | Conversions) -> dict[str, Any]:
    own = {"click": part.click} if isinstance(part, Impressions) else {"value": part.value, "dedup_key": part.dedup_key}
    codes = {f"codes of {name}": column for name, column in part.codes.items()}
    return {"time_ms": part.time_ms, "device": part.device, "destination": part.destination, **own, **codes}


def _same(one: Events, other: Events) -> bool:
    return one.devices == other.devices and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in (
            (_columns(one.impressions), _columns(other.impressions)),
            (_columns(one.conversions), _columns(other.conversions)),
        )
    )


def _check_columns(campaign: Campaign, events: Events, name: str) -> None:
    people = campaign.population
    for part, of_source in ((events.impressions, True), (events.conversions, False)):
        what, columns = type(part).__name__, _columns(part)
        fields = {one.name: one for one in campaign.keys.fields if one.of_source == of_source}
        if part.codes.keys() != fields.keys():
            raise KitFailure(f"{what} of {name} have codes of {sorted(part.codes)}, and the keys need {sorted(fields)}")
        least = {"time_ms": people.start_ms, "dedup_key": -1}
        ends = {
            "time_ms": people.start_ms + people.days * DAY_MS,
            "device": events.devices,
            "destination": len(people.destinations),
            **{f"codes of {one.name}": len(one.values) for one in fields.values()},
        }
        for column, values in columns.items():
            kind = np.bool_ if column == "click" else np.int64
            if values.dtype != kind or values.shape != part.time_ms.shape:
                raise KitFailure(
                    f"{column} in {what} of {name} is {values.dtype} of shape {values.shape}: give one {kind.__name__} "
                    "per row"
                )
            low, end = least.get(column, 0), ends.get(column, 1 << 62)
            if values.size and not (low <= int(values.min()) and int(values.max()) < end):
                raise KitFailure(
                    f"{column} in {what} of {name} goes from {int(values.min())} to {int(values.max())}: it must be "
                    f"from {low} to {end - 1}"
                )
        if (np.diff(part.time_ms) < 0).any():
            raise KitFailure(f"{what} of {name} are not in order of time: sort the rows by time_ms")


def _check_shift(campaign: Campaign, found: Events, name: str) -> None:
    """A campaign that is moved in time, as for a service with a real clock, has the same events at other times."""
    people = campaign.population
    later = replace(people, start_ms=people.start_ms + DAY_MS, model=people.model.shifted(DAY_MS))
    moved = _events(replace(campaign, population=later), "one")
    back = replace(
        moved,
        impressions=replace(moved.impressions, time_ms=moved.impressions.time_ms - DAY_MS),
        conversions=replace(moved.conversions, time_ms=moved.conversions.time_ms - DAY_MS),
    )
    if not _same(found, back):
        raise KitFailure(f"{name} shifted by a day has other events: shifted must move every given time, and no other")


def _check_halves(campaign: Campaign, found: Events, name: str) -> None:
    people = campaign.population
    if people.model.drawn:
        return
    one, other = (
        _events(replace(campaign, population=replace(people, model=people.model.half(which))), "one")
        for which in (0, 1)
    )
    owners = [{*part.impressions.device.tolist(), *part.conversions.device.tolist()} for part in (one, other)]
    if owners[0] & owners[1] or len(one) + len(other) != len(found):
        raise KitFailure(
            f"the halves of {name} have {len(one)} and {len(other)} of {len(found)} events and share "
            f"{len(owners[0] & owners[1])} devices: each device belongs to one half"
        )


def check_log_reader(reader: str | type[LogReader]) -> int:
    """Raise ``KitFailure`` if a log reader breaks what a campaign needs of it; return how many values were compared.

    It reads its own example through the opener alone, twice the same, and refuses a damaged file in its own words.
    """
    chosen = LOG_READERS.find(reader) if isinstance(reader, str) else reader
    one = chosen()
    with TemporaryDirectory() as folder, TemporaryDirectory() as hidden:
        path, columns = chosen.example(Path(folder))
        kept = Path(hidden) / path.name
        path.rename(kept)

        def opened(asked: Path) -> BinaryIO:
            return open(kept if asked == path else asked, "rb")

        try:
            found, again = (one.read(one.files(path, "source"), opened) for _ in range(2))
        except (OSError, CampaignError) as problem:
            raise KitFailure(
                f"{chosen.name} does not read its example ({problem}): a file is opened with opened, and no other way"
            ) from None
        if found != again:
            raise KitFailure(f"{chosen.name} reads other columns the second time")
        if {name: [*values] for name, values in columns.items()} != found:
            raise KitFailure(f"{chosen.name} reads {found} and its example holds {dict(columns)}")
        if len({len(values) for values in found.values()}) != 1 or not any(found.values()):
            raise KitFailure(f"{chosen.name} reads columns of different lengths, or none: give one value per row")
        kept.write_bytes(b"\xff\xfe\x00" + kept.read_bytes()[::-1])
        try:
            one.read(one.files(path, "source"), opened)
        except CampaignError as problem:
            if path.name not in str(problem):
                raise KitFailure(f"{chosen.name} refuses a damaged file without naming it: {problem}") from None
        except Exception as problem:
            raise KitFailure(f"{chosen.name} fails on a damaged file with {problem!r}: raise CampaignError") from None
        else:
            raise KitFailure(f"{chosen.name} reads a damaged file without a word: raise CampaignError")
    return sum(map(len, found.values()))
