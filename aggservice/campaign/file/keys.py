"""Reads the keys, measures and filters of a campaign file."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import cast

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import ClientSettings, FilterSettings, Measure, Population
from aggservice.campaign.settings.key_layout import KeyField, KeyLayout, Origin, merged_values
from aggservice.files.toml import Section

_MAX_WEIGHT = 1e100


def parse_measures(top: Section, client: ClientSettings) -> tuple[Measure, ...]:
    """Read what each conversion contributes; by default, conversions are counted."""
    if client.kind in ("reach", "frequency"):
        if top.sections("measures"):
            top.refuse("measures", "is not for reach and frequency", "Leave it out: devices are counted")
        return (Measure(name="devices", of="count", scale=Fraction(client.l1 // client.cap), most=1),)
    measures = []
    for section in top.sections("measures"):
        of = section.choice("of", ("count", "value"), "count")
        scale = section.exact("scale", Fraction(1), above=Fraction(0), most=Fraction(client.l1))
        default = 1 if of == "count" else int(client.l1 / scale)
        measure = Measure(
            name=section.text("name", of),
            of=of,  # type: ignore[arg-type]
            scale=scale,
            most=section.whole("most", max(1, default), least=1, most=1 << 40),
        )
        if not measure.most * scale <= client.l1:
            section.refuse(
                "scale",
                f"is {scale}, and the largest value {measure.most} would contribute {float(measure.most * scale):g}",
                f"A source has {client.l1} in all: write scale = {client.l1 // measure.most} or less, or a lower most",
            )
        section.done()
        measures.append(measure)
    if len({measure.name for measure in measures}) != len(measures):
        top.refuse("measures", "has two of the same name", "Give each measure its own name")
    if not measures:
        measures.append(Measure(name="count", of="count", scale=Fraction(min(client.l1, 4096)), most=1))
    if len(measures) > 20:
        top.refuse("measures", f"has {len(measures)}", "A report has room for 20: write fewer")
    return tuple(measures)


def parse_keys(
    section: Section, population: Population, measures: Sequence[Measure], client: ClientSettings
) -> KeyLayout:
    """Read the named bit fields; refuse fields that overlap or have too few bits for their values."""
    fields: list[KeyField] = []
    at = 0
    for inner in section.sections("fields"):
        name = inner.text("name", example="campaign")
        origin = inner.choice("from", ("impression", "conversion", "interaction", "site", "measure"), "impression")
        occurring, weights = _values(inner, origin, population, measures)
        groups = _groups(inner, origin, occurring)
        values, codes = merged_values(occurring, groups)
        bits = inner.whole("bits", max(1, (len(values) - 1).bit_length()), least=1, most=63)
        if len(values) > 1 << bits:
            inner.refuse(
                "bits",
                f"is {bits}, enough for {1 << bits} values, but there are {len(values)}",
                f"Write bits = {(len(values) - 1).bit_length()} or more",
            )
        offset = inner.whole("offset", at, least=0, most=127)
        if offset + bits > 128:
            inner.refuse("offset", f"is {offset}: the field would end at bit {offset + bits}", "A key has 128 bits")
        for other in fields:
            if offset < other.offset + other.bits and other.offset < offset + bits:
                free = max(one.offset + one.bits for one in fields)
                inner.refuse(
                    "offset" if "offset" in inner else "",
                    f"overlaps field {other.name!r}, which has bits {other.offset} to {other.offset + other.bits - 1}",
                    f"Write offset = {free}, or leave offset out",
                )
            if other.name == name:
                inner.refuse("name", f"{name!r} is taken", "Give each field its own name")
        at = max(at, offset + bits)
        fields.append(
            KeyField(
                name=name,
                origin=cast(Origin, origin),
                offset=offset,
                bits=bits,
                values=values,
                weights=weights,
                per_person=inner.flag("per_person", False),
                column=inner.text("column", name) if population.log is not None else "",
                originals=occurring if groups else (),
                codes=codes if groups else (),
            )
        )
        inner.done()
    section.done()
    if len(measures) > 1 and not any(field.origin == "measure" for field in fields):
        names = tuple(measure.name for measure in measures)
        bits = (len(names) - 1).bit_length()
        if at + bits > 128:
            section.refuse("fields", "leave no bits for the measure", "Give the fields fewer bits")
        fields.append(
            KeyField(name="measure", origin="measure", offset=at, bits=bits, values=names, weights=(1.0,) * len(names))
        )
    if client.kind == "frequency":
        views = tuple(f"{threshold}+ views" for threshold in client.thresholds)
        bits = max(1, (len(views) - 1).bit_length())
        if at + bits > 128:
            section.refuse("fields", "leave no bits for the number of views", "Give the fields fewer bits")
        weights = (1.0,) * len(views)
        fields.append(KeyField(name="views", origin="threshold", offset=at, bits=bits, values=views, weights=weights))
    if not fields:
        section.refuse("", "has no fields", 'Write [[keys.fields]] with name = "campaign" and values = ["a", "b"]')
    if client.kind in ("reach", "frequency") and any(field.origin == "conversion" for field in fields):
        section.refuse(
            "fields", "name conversions", 'Reach and frequency use impressions only: write from = "impression"'
        )
    return KeyLayout(fields=tuple(fields))


def _groups(inner: Section, origin: str, values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Read which values share a code, by the name of their group."""
    section = inner.section("groups")
    if section.values and origin in ("interaction", "measure"):
        inner.refuse("groups", f"cannot merge values from the {origin}", "Leave it out")
    groups = {name: section.choices(name, values) for name in section.values}
    taken: dict[str, str] = {}
    for name, members in groups.items():
        for value in members:
            if value in taken:
                section.refuse(name, f"has {value!r}, which is in group {taken[value]!r} too", "Write it in one group")
            taken[value] = name
    for name in groups:
        if not name:
            section.refuse(name, "has no name", "Give the group a name")
        if name in values and name not in taken:
            section.refuse(name, "has the name of a value that is in no group", "Give the group another name")
    return groups


def _values(
    inner: Section, origin: str, population: Population, measures: Sequence[Measure]
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    if origin == "measure":
        values: tuple[str, ...] = tuple(measure.name for measure in measures)
    elif origin == "interaction":
        values = ("view", "click")
    elif origin == "site":
        values = population.sites
    elif "count" in inner:
        count = inner.whole("count", None, least=1, most=2_000_000)
        name = inner.values.get("name", "")
        values = tuple(f"{name} {number}" for number in range(count))
    elif population.log is not None and "values" not in inner:
        column = inner.text("column", str(inner.values.get("name", "")))
        tables = population.log.tables
        try:
            rows = (tables.sources if origin == "impression" else tables.triggers).column(column)
        except CampaignError as problem:
            inner.refuse("column" if "column" in inner else "name", f"is unknown: {problem}", "Name one of these")
        values = tuple(sorted({str(row) for row in rows}))
        if not values:
            inner.refuse("", "has a column without rows", "Give the log at least one row")
    else:
        values = inner.texts("values")
        if population.log is not None:
            inner.text("column", "")
    if origin in ("measure", "interaction", "site"):
        return values, (1.0,) * len(values)
    given, zipf = inner.take("weights"), inner.number("zipf", 0.0, least=0, most=10)
    if given is None:
        return values, tuple((rank + 1) ** -zipf for rank in range(len(values)))
    good = isinstance(given, list) and len(given) == len(values) and all(isinstance(one, (int, float)) for one in given)
    if not good or not all(0 <= one <= _MAX_WEIGHT for one in given) or not sum(given) > 0:
        inner.refuse("weights", f"is {given!r}", f"Write {len(values)} finite numbers, none negative and not all 0")
    return values, tuple(float(one) for one in given)


def parse_filters(top: Section, keys: KeyLayout) -> FilterSettings | None:
    """Read which conversions the ads accept; None if they accept all."""
    if "filters" not in top:
        top.take("filters")
        return None
    section = top.section("filters")
    options = {field.name: field for field in keys.fields if field.origin == "conversion"}
    name = section.text("field", example="product")
    if name not in options:
        section.refuse("field", f"is {name!r}", f"Write a field that comes from the conversion: {list(options)}")
    accepts = section.choices("accepts", options[name].values)
    section.done()
    return FilterSettings(field=name, accepts=accepts)
