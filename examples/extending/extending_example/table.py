"""A population: events from a table of counts, such as a dashboard exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from aggservice.campaign.columns import Conversions, Events, Flags, Impressions, Ints
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS, Campaign
from aggservice.campaign.settings.population import Extent, PopulationModel
from aggservice.campaign.world.logs import reader_of, time_ms_of
from aggservice.files.settings import number, read_settings, setting
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits

MAX_EVENTS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePopulation(PopulationModel):
    """A table with one row per day and slice: ``day``, ``impressions``, ``conversions``, and a column per key field.

    A row's impressions are on devices of their own, spread evenly over the day; ``clicks`` of them, if there is such a
    column, are clicks. As many of the devices as there are conversions convert, ``delay_hours`` later; if there are
    more conversions than impressions, the others had no ad. Nothing is drawn.
    """

    name = "table"
    has_columns = True

    file: Path = setting(
        "the table, in a format that a log reader reads",
        read=lambda section, key, known: section.existing_file(key, example="counts.csv"),
        allowed="path",
    )
    delay_hours: float = number("how long after the ad people convert", default=1.0, least=0, most=24 * 30)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    shift_ms: int = 0
    only_half: int | None = None

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read the settings and the table. Files are opened by the section, which knows where they may lie."""
        found = read_settings(section, cls)
        try:
            columns = reader_of(found.file).read([found.file], section.opened)
            found = replace(found, columns=columns)
            people, days = found._people(), found._days_ms()
            if not people.sum():
                raise CampaignError(f"{found.file.name} has no impressions and no conversions")
        except CampaignError as problem:
            section.refuse("file", f"cannot be used: {problem}", "Correct the table, or name another")
        end = int(days.max()) + DAY_MS + int(found.delay_hours * HOUR_MS)
        extent = Extent(
            people=int(people.sum()),
            start_ms=int(days.min()),
            days=-(-(end - int(days.min())) // DAY_MS),
            destinations=("https://shop.example",),
        )
        return replace(found, extent=extent)

    @classmethod
    def example(cls, folder: Path) -> Mapping[str, Any]:
        """Return a table of twelve rows."""
        rows = [f"2026-11-{18 + n // 6},{'abc'[n % 3]},{'pq'[n % 2]},{4 + n},{n},{n // 2}" for n in range(12)]
        header = "day,ad,product,impressions,conversions,clicks"
        (folder / "counts.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
        return {"file": str(folder / "counts.csv"), "delay_hours": 30}

    @property
    def files(self) -> tuple[Path, ...]:
        """The table."""
        return (self.file,)

    def column(self, origin: str, name: str) -> Sequence[Any]:
        """Return a column; impressions and conversions have the same."""
        if name not in self.columns:
            raise CampaignError(f"{self.file.name} has no column {name!r}; it has {', '.join(map(repr, self.columns))}")
        return self.columns[name]

    def shifted(self, by_ms: int) -> Self:
        """Return the same with later days."""
        return replace(self, shift_ms=self.shift_ms + by_ms)

    def half(self, which: int) -> Self:
        """Return the devices with even numbers, or those with odd ones."""
        return replace(self, only_half=which)

    def events(self, campaign: Campaign, bits: Bits) -> Events:
        """Return one event per impression and conversion."""
        people = self._people()
        rows = np.repeat(np.arange(people.size), people)
        place = np.arange(rows.size) - np.repeat(np.cumsum(people) - people, people)
        seen_ms = self._days_ms()[rows] + self.shift_ms + (2 * place + 1) * DAY_MS // (2 * people[rows])
        click = place < self._counts("clicks")[rows]
        start_ms, parts = campaign.population.start_ms, []
        for origin, delay_ms in (("impression", 0), ("conversion", int(self.delay_hours * HOUR_MS))):
            time_ms = seen_ms + delay_ms
            good = (time_ms >= start_ms) & (time_ms < start_ms + campaign.population.days * DAY_MS)
            good &= place < self._counts(f"{origin}s")[rows]
            if self.only_half is not None:
                good &= np.arange(rows.size) % 2 == self.only_half
            device = np.flatnonzero(good)  # one per person
            device = device[np.argsort(time_ms[device], kind="stable")]
            codes = self._codes(campaign, origin, rows[device], click[device])
            parts.append((time_ms[device], device, codes))
        (seen_ms, viewer, ads), (bought_ms, buyer, products) = parts
        return Events(
            impressions=Impressions(
                time_ms=seen_ms, device=viewer, destination=np.zeros_like(viewer), click=click[viewer], codes=ads
            ),
            conversions=Conversions(
                time_ms=bought_ms,
                device=buyer,
                destination=np.zeros_like(buyer),
                value=np.ones_like(buyer),
                dedup_key=np.full(buyer.size, -1),
                codes=products,
            ),
            devices=rows.size,
        )

    def _codes(self, campaign: Campaign, origin: str, rows: Ints, click: Flags) -> dict[str, Ints]:
        """Return the codes of every field of impressions or of conversions; all ads are on the first site."""
        codes = {}
        for one in campaign.keys.fields:
            if one.origin == origin:
                codes[one.name] = one.coded(self._indexes(one.column, one.occurring)[rows])
            elif one.of_source and origin == "impression":
                codes[one.name] = click.astype(np.int64) if one.origin == "interaction" else np.zeros_like(rows)
        return codes

    def _people(self) -> Ints:
        found = np.maximum(self._counts("impressions"), self._counts("conversions"))
        if found.sum(dtype=np.float64) > MAX_EVENTS:
            raise CampaignError(f"{self.file.name} counts more than {MAX_EVENTS:,} people")
        return found

    def _days_ms(self) -> Ints:
        try:
            return np.array([time_ms_of(one) // DAY_MS * DAY_MS for one in self.column("", "day")], dtype=np.int64)
        except ValueError as problem:
            raise CampaignError(f"a day in {self.file.name} is {problem}") from None

    def _counts(self, name: str) -> Ints:
        if name == "clicks" and name not in self.columns:
            return np.zeros(len(self.column("", "day")), dtype=np.int64)
        for row, one in enumerate(self.column("", name), 1):
            if not str(one).isdecimal() or int(one) > MAX_EVENTS:
                raise CampaignError(f"{self.file.name}, row {row}: {name} is {one!r}, not a count up to {MAX_EVENTS:,}")
        return np.array([int(one) for one in self.column("", name)], dtype=np.int64)

    def _indexes(self, name: str, values: Sequence[str]) -> Ints:
        known = {value: place for place, value in enumerate(values)}
        for row, one in enumerate(self.column("", name), 1):
            if str(one) not in known:
                raise CampaignError(f"{self.file.name}, row {row}: {one!r} is not among the values of {name}")
        return np.array([known[str(one)] for one in self.column("", name)], dtype=np.int64)
