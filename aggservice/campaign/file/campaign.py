"""Reads a campaign file into a ``Campaign``; docs/campaign.md lists every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, cast

from aggservice.campaign.errors import CampaignError, CampaignFileError
from aggservice.campaign.settings.campaign import Campaign, Measure, Population
from aggservice.campaign.settings.device import DeviceApi, read_device
from aggservice.campaign.settings.key_layout import KeyField, KeyLayout, Origin, merged_values
from aggservice.campaign.settings.population import POPULATIONS, PopulationModel
from aggservice.campaign.world.logs import read_column
from aggservice.files.below import Below
from aggservice.files.settings import (
    REQUIRED,
    Known,
    choice,
    entry_of,
    flag,
    number,
    read_settings,
    setting,
    text,
    texts,
    whole,
)
from aggservice.files.toml import Section, read_text, read_toml

#: The deployed service refuses older reports.
MAX_REPORT_AGE_DAYS = 90

_MAX_WEIGHT = 1e100
_KEY_BITS = 128
_MAX_MEASURES = 20


def load_campaign(path: Path | str) -> Campaign:
    """Read a campaign file; refuse a bad one with its line and what to write instead."""
    path = Path(path)
    text = read_text(path, remedy="Name a TOML file; examples/ has some", error=CampaignFileError)
    return parse_campaign(text, folder=path.resolve().parent, file=str(path))


def thanksgiving() -> Campaign:
    """Return the campaign that ``aggservice demo`` runs: examples/thanksgiving, the paper's Figure 1."""
    text = (resources.files("aggservice.campaign.file") / "thanksgiving.toml").read_text(encoding="utf-8")
    return parse_campaign(text, folder=Path.cwd(), file="thanksgiving.toml")


def parse_campaign(text: str, *, folder: Path, file: str = "campaign", files: Below | None = None) -> Campaign:
    """Read a campaign from its text. Relative paths in it are relative to ``folder``.

    If somebody else gave the text, ``files`` are those that it may name; other paths are refused.
    """
    return _campaign(read_toml(text, file=file, error=CampaignFileError, folder=folder, files=files))


def campaign_of(
    document: Mapping[str, Any], *, folder: Path, file: str = "campaign", files: Below | None = None
) -> Campaign:
    """Return the campaign that a document describes. A sweep calls this with a changed ``Campaign.document``."""
    return _campaign(Section(dict(document), file=file, error=CampaignFileError, folder=folder, files=files))


def _campaign(top: Section) -> Campaign:
    known = Known(read_column=read_column, client=(client := read_device(top.section("client"))))
    known.population = _population(top.section("population"), known)
    known.measures = _measures(top, client, known)
    keys = _keys(top.section("keys"), client, known)
    campaign = read_settings(
        top,
        Campaign,
        known,
        done=False,
        population=known.population,
        keys=keys,
        measures=known.measures,
        client=client,
        document=top.values,
        folder=top.folder,
        files=top.files,
        file=top.file,
    )
    _check_together(top, campaign)
    top.done()
    return campaign


def _population(section: Section, known: Known) -> Population:
    """Read the population and its model: the one named, or the one whose table exists."""
    named = section.text("model", next((name for name in POPULATIONS if name in section), POPULATIONS.names[0]))
    chosen: type[PopulationModel] = entry_of(section, "model", named, POPULATIONS)
    model = chosen.read(section.section(chosen.name))
    return read_settings(section, Population, known, model=model, extent=model.extent)


def _measures(top: Section, client: DeviceApi, known: Known) -> tuple[Measure, ...]:
    """Read what each conversion contributes; by default, conversions are counted."""
    if (own := client.own_measures(top)) is not None:
        return own
    measures = tuple(read_settings(one, Measure, known) for one in top.sections("measures"))
    if len({measure.name for measure in measures}) != len(measures):
        top.refuse("measures", "has two of the same name", "Give each measure its own name")
    if len(measures) > _MAX_MEASURES:
        top.refuse("measures", f"has {len(measures)}", f"A report has room for {_MAX_MEASURES}: write fewer")
    return measures or (Measure(name="count", of="count", scale=Fraction(min(client.l1, 4096)), most=1),)


def _is_drawn(known: Known) -> bool:
    return known.origin in ("impression", "conversion")


def _natural_values(known: Known) -> Any:
    """Return the values of a field that does not list them; ``REQUIRED`` if it must."""
    section, model = known.section, known.population.model
    if known.origin == "measure":
        return tuple(measure.name for measure in known.measures)
    if known.origin == "interaction":
        return ("view", "click")
    if known.origin == "site":
        return known.population.sites
    if known.count is not None:
        return tuple(f"{known.name} {number}" for number in range(known.count))
    if not model.has_columns:
        return REQUIRED
    try:
        rows = model.column(known.origin, known.column)
    except CampaignError as problem:
        section.refuse("column" if "column" in section else "name", f"is unknown: {problem}", "Name one of these")
    if not rows:
        section.refuse("", "has a column without rows", "Give the log at least one row")
    return tuple(sorted({str(row) for row in rows}))


def _weights(section: Section, key: str, known: Known) -> tuple[float, ...]:
    given, size = section.take(key), len(known.values)
    good = isinstance(given, list) and len(given) == size and all(isinstance(one, (int, float)) for one in given)
    if not good or not all(0 <= one <= _MAX_WEIGHT for one in given) or not sum(given) > 0:
        section.refuse(key, f"is {given!r}", f"Write {size} finite numbers, none negative and not all 0")
    return tuple(float(one) for one in given)


def _groups(section: Section, key: str, known: Known) -> dict[str, tuple[str, ...]]:
    """Read which values share a code, by the name of their group."""
    inner, values = section.section(key), known.values
    if inner.values and known.origin in ("interaction", "measure"):
        section.refuse(key, f"cannot merge values from the {known.origin}", "Leave it out")
    groups = {name: inner.choices(name, values) for name in inner.values}
    taken: dict[str, str] = {}
    for name, members in groups.items():
        for value in members:
            if value in taken:
                inner.refuse(name, f"has {value!r}, which is in group {taken[value]!r} too", "Write it in one group")
            taken[value] = name
    for name in groups:
        if not name:
            inner.refuse(name, "has no name", "Give the group a name")
        if name in values and name not in taken:
            inner.refuse(name, "has the name of a value that is in no group", "Give the group another name")
    return groups


def _bits_of(values: Any) -> int:
    return max(1, (len(values) - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSettings:
    """A field of the keys as a file describes it: where its values come from, and where it lies."""

    name: str = text("as it prints in every output", example="campaign")
    origin: Origin = choice(
        "where its value comes from; `interaction` is view or click",
        ("impression", "conversion", "interaction", "site", "measure"),
        key="from",
        default="impression",
    )
    count: int | None = whole(
        "how many values there are, instead of their names", default=None, least=1, most=2_000_000, when=_is_drawn
    )
    column: str = text(
        "the log's column",
        default=lambda known: known.name if known.population.model.has_columns else "",
        shown="the field's name",
        when=lambda known: known.population.model.has_columns,
    )
    values: tuple[str, ...] = texts(
        "the names of the codes 0, 1, …; from a log: the values of its column",
        default=_natural_values,
        when=lambda known: _is_drawn(known) and known.count is None,
    )
    zipf: float = number(
        "the exponent of Zipf's law by which values occur in a simulated population",
        default=0.0,
        least=0,
        most=10,
        when=_is_drawn,
    )
    weights: tuple[float, ...] = setting(
        "how often each value occurs, instead of `zipf`",
        read=_weights,
        default=lambda known: tuple((rank + 1) ** -known.zipf for rank in range(len(known.values))),
        shown="by `zipf`",
        allowed="list of numbers",
        when=_is_drawn,
    )
    groups: Mapping[str, tuple[str, ...]] = setting(
        '`NAME = ["value", …]`: these values share one code, which `rows`, `accepts` and every output call NAME',
        read=_groups,
        default=lambda known: {},
        shown="none",
        allowed="table of lists",
    )
    bits: int = whole(
        "how many bits the field has",
        default=lambda known: _bits_of(merged_values(known.values, known.groups)[0]),
        shown="as few as needed",
        least=1,
        most=63,
    )
    offset: int = whole(
        "where the field begins; bit 0 is the lowest",
        default=lambda known: known.free,
        shown="after the field before",
        least=0,
        most=_KEY_BITS - 1,
    )
    per_person: bool = flag("one value per person instead of one per event")

    def check(self, section: Section, known: Known) -> None:
        """Refuse a field with too few bits for its values, or that overlaps one before it."""
        size = len(merged_values(self.values, self.groups)[0])
        if size > 1 << self.bits:
            section.refuse(
                "bits",
                f"is {self.bits}, enough for {1 << self.bits} values, but there are {size}",
                f"Write bits = {(size - 1).bit_length()} or more",
            )
        end = self.offset + self.bits
        if end > _KEY_BITS:
            problem = f"is {self.offset}: the field would end at bit {end}"
            section.refuse("offset", problem, f"A key has {_KEY_BITS} bits")
        for other in known.fields:
            if self.offset < other.offset + other.bits and other.offset < end:
                section.refuse(
                    "offset" if "offset" in section else "",
                    f"overlaps field {other.name!r}, which has bits {other.offset} to {other.offset + other.bits - 1}",
                    f"Write offset = {known.free}, or leave offset out",
                )
            if other.name == self.name:
                section.refuse("name", f"{self.name!r} is taken", "Give each field its own name")

    def placed(self) -> KeyField:
        """Return the field of the layout."""
        values, codes = merged_values(self.values, self.groups)
        return KeyField(
            name=self.name,
            origin=self.origin,
            offset=self.offset,
            bits=self.bits,
            values=values,
            weights=self.weights,
            per_person=self.per_person,
            column=self.column,
            originals=self.values if self.groups else (),
            codes=codes if self.groups else (),
        )


def _keys(section: Section, client: DeviceApi, known: Known) -> KeyLayout:
    """Read the named bit fields; the measure and the number of views get fields of their own if they need them."""
    fields: list[KeyField] = []
    free = 0
    for inner in section.sections("fields"):
        fields.append(read_settings(inner, FieldSettings, known, fields=fields, free=free).placed())
        free = max(one.offset + one.bits for one in fields)
    section.done()
    if len(known.measures) > 1 and not any(field.origin == "measure" for field in fields):
        names = tuple(measure.name for measure in known.measures)
        fields.append(_own_field(section, "measure", "measure", names, free, "the measure"))
    for name, origin, values, what in client.own_fields():
        fields.append(_own_field(section, name, cast(Origin, origin), values, free, what))
    if not fields:
        section.refuse("", "has no fields", 'Write [[keys.fields]] with name = "campaign" and values = ["a", "b"]')
    client.check_keys(section, fields)
    return KeyLayout(fields=tuple(fields))


def _own_field(
    section: Section, name: str, origin: Origin, values: tuple[str, ...], offset: int, what: str
) -> KeyField:
    bits = _bits_of(values)
    if offset + bits > _KEY_BITS:
        section.refuse("fields", f"leave no bits for {what}", "Give the fields fewer bits")
    return KeyField(name=name, origin=origin, offset=offset, bits=bits, values=values, weights=(1.0,) * len(values))


def _check_together(top: Section, campaign: Campaign) -> None:
    """Check settings of different tables against each other."""
    client, population = campaign.client, campaign.population
    # A space becomes a dash in the names of jobs and files.
    if len({query.label for query in campaign.queries}) != len(campaign.queries):
        top.refuse("queries", "has two of the same name (a space counts as a dash)", "Give each query its own name")
    if not campaign.queries and client.aggregatable:
        top.refuse("queries", "is missing", 'Write [[queries]] with epsilon = "10"')
    if len({one.name for one in campaign.hierarchies}) != len(campaign.hierarchies):
        top.refuse("hierarchies", "has two of the same name", "Give each hierarchy its own name")
    population.model.check_campaign(top, campaign)
    client.check_campaign(top, campaign)
    age_hours = population.days * 24 + campaign.collection.close_after_hours
    oldest = any(query.over == "all" for query in campaign.queries)
    if client.aggregatable and oldest and age_hours > 24 * MAX_REPORT_AGE_DAYS:
        top.section("population").refuse(
            "days",
            f"is {population.days}: at the query over all of them, the first reports are {age_hours / 24:.0f} days old",
            f'The service refuses reports older than {MAX_REPORT_AGE_DAYS} days: write fewer days, or over = "rolling"',
        )
    for index, query in enumerate(campaign.queries):
        if query.over == "rolling" and query.window > campaign.batches:
            top.sections("queries")[index].refuse(
                "window", f"is {query.window} batches and there are {campaign.batches}", "Write fewer, or more days"
            )
        if query.over == "all" and campaign.batches > 10_000:
            top.sections("queries")[index].refuse("over", "has too many batches", "Write a larger batch_hours")
