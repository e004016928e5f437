"""From a campaign file to a ``Campaign``: every field has its place here, and docs/campaign.md lists them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from aggservice.wire.shared_info import is_reporting_origin
from campaign.distributions import PARAMETERS, Distribution
from campaign.errors import CampaignError, CampaignFileError
from campaign.keys import Field, KeyLayout, Origin
from campaign.lines import Lines
from campaign.log_events import Extent, extent_of
from campaign.logs import load_tables, read_column
from campaign.reading import Section
from campaign.settings import (
    Campaign,
    Client,
    Collection,
    Drawing,
    EventLevel,
    Filters,
    Form,
    Kind,
    Log,
    Measure,
    Population,
    Query,
    ServiceSettings,
)
from paa_client import Config as PaaConfig

DEFAULT_START_MS = 1_794_960_000_000
"""2026-11-18, the day on which the paper's Figure 1 begins."""

PLOTS = ("slices", "waterfall", "error", "time", "budget")
_DOMAIN_BYTES_A_KEY = 96
_MAX_SIZE = 20_000_000
_MAX_WINDOW = 50
_RESERVED = ("measure",)


def load_campaign(path: Path | str) -> Campaign:
    """Read a campaign file; refuse a bad one with its line and what to write instead."""
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except OSError as problem:
        raise CampaignFileError(
            f"cannot be read: {problem.strerror}", remedy="Name a TOML file; examples/ has some", file=str(path)
        ) from None
    except UnicodeDecodeError:
        raise CampaignFileError("is not UTF-8", remedy="Save it as UTF-8", file=str(path)) from None
    return parse_campaign(text, folder=place.resolve().parent, file=str(path))


def parse_campaign(text: str, *, folder: Path, file: str = "campaign") -> Campaign:
    """Read a campaign from its text. Relative paths in it are relative to ``folder``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        line = int(str(problem).rpartition("line ")[2].split(",")[0]) if "line " in str(problem) else 0
        raise CampaignFileError(
            f"is not TOML: {problem}", remedy="See https://toml.io for the format", line=line, file=file
        ) from None
    return campaign_of(document, folder=folder, file=file, lines=Lines.read(text))


def campaign_of(
    document: Mapping[str, Any], *, folder: Path, file: str = "campaign", lines: Lines | None = None
) -> Campaign:
    """Return the campaign that a document is. A sweep calls this with a changed ``Campaign.document``."""
    top = Section(dict(document), file=file, lines=lines or Lines({}))
    origin = top.text("reporting_origin", "https://ad-tech.example")
    if not is_reporting_origin(origin):
        top.refuse("reporting_origin", f"is {origin!r}", "Write an https origin, such as https://ad-tech.example")
    seed = top.take("seed")
    if seed is not None and not isinstance(seed, (str, int)):
        top.refuse("seed", f"is {seed!r}", "Write a string or a whole number")
    client = _client(top.section("client"))
    population = _population(top.section("population"), folder)
    measures = _measures(top, client)
    keys = _keys(top.section("keys"), population, measures, client)
    campaign = Campaign(
        name=top.text("name", example="My campaign"),
        description=top.text("description", ""),
        reporting_origin=origin,
        seed=None if seed is None else str(seed),
        population=population,
        keys=keys,
        filters=_filters(top, keys),
        measures=measures,
        client=client,
        collection=_collection(top.section("collection"), population),
        service=_service(top.section("service")),
        queries=_queries(top, keys, client),
        drawing=_drawing(top.section("draw")),
        document=dict(document),
        folder=folder,
    )
    _check_together(top, campaign)
    top.done()
    return campaign


def _distribution(section: Section, key: str, default: Distribution, folder: Path) -> Distribution:
    """Read a number, which is a constant, or a table ``{ name = "poisson", mean = 2 }``, or a log's column."""
    value = section.take(key)
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Distribution(name="constant", parameters={"value": float(value)})
    if not isinstance(value, dict):
        section.refuse(key, f"is {value!r}", 'Write a number, or a table such as { name = "poisson", mean = 2 }')
    inner = section.section(key)
    name = inner.choice("name", (*PARAMETERS, "column"), "constant")
    if name == "column":
        path = inner.file_path("file", folder)
        column = inner.text("column", example="price")
        if path is None:
            inner.refuse("file", "is missing", 'Write file = "log.csv"')
        inner.done()
        try:
            return Distribution(name="column", rows=tuple(read_column(path, column)))
        except CampaignError as problem:
            inner.refuse("column", f"cannot be drawn from: {problem}", "Name a column of numbers that the file has")
    given = {
        parameter: inner.number(parameter, None, least=-1e15, most=1e15) for parameter in PARAMETERS[name]
    }
    inner.done()
    try:
        return Distribution(name=name, parameters=given)
    except CampaignError as problem:
        example = ", ".join(f"{one} = {value:g}" for one, value in PARAMETERS[name].items())
        inner.refuse("", f"is not possible: {problem}", f'Write for example {{ name = "{name}", {example} }}')


def _constant(value: float) -> Distribution:
    return Distribution(name="constant", parameters={"value": value})


def _population(section: Section, folder: Path) -> Population:
    log = _log(section, folder)
    found = _extent(section, log) if log else None
    size = section.whole("size", found.people if found else None, least=0 if log else 1, most=_MAX_SIZE)
    days = section.whole("days", found.days if found else None, least=1, most=366)
    rate = section.number("conversion_rate", 0.0, least=0, most=1)
    population = Population(
        size=size,
        devices=_distribution(section, "devices", _constant(1), folder),
        start_ms=section.time_ms("start", found.start_ms if found else DEFAULT_START_MS),
        days=days,
        sites=section.texts("sites", ("https://some-blog.example",)),
        destinations=section.texts("destinations", found.destinations if found else ("https://shop.example",)),
        impressions=_distribution(section, "impressions", _constant(1), folder),
        impression_day=_distribution(
            section, "impression_day", Distribution(name="uniform", parameters={"low": 0, "high": float(days)}), folder
        ),
        click_rate=section.number("click_rate", 0.0, least=0, most=1),
        conversion_rate=rate,
        click_conversion_rate=section.number("click_conversion_rate", rate, least=0, most=1),
        conversions=_distribution(section, "conversions", _constant(1), folder),
        organic=_distribution(section, "organic", _constant(0), folder),
        delay_days=_distribution(
            section, "delay_days", Distribution(name="exponential", parameters={"mean": 1.0}), folder
        ),
        value=_distribution(section, "value", _constant(1), folder),
        log=log,
    )
    if population.start_ms < 0:
        section.refuse("start", "lies before 1970", "Write a later date")
    section.done()
    return population


def _log(section: Section, folder: Path) -> Log | None:
    if "log" not in section:
        section.take("log")
        return None
    inner = section.section("log")
    sources, triggers = inner.file_path("sources", folder), inner.file_path("triggers", folder)
    if sources is None:
        inner.refuse("sources", "is missing", 'Write sources = "sources.csv" (or .parquet, or .json)')
    if triggers is None:
        inner.refuse("triggers", "is missing", 'Write triggers = "triggers.csv" (or .parquet, or .json)')
    columns = inner.section("columns")
    named = {key: columns.text(key) for key in columns.values}
    inner.done()
    try:
        tables = load_tables(sources, triggers, named)
    except CampaignError as problem:
        inner.refuse(
            "", f"cannot be used: {problem}", 'Say which column is which: [population.log.columns] time = "when"'
        )
    return Log(tables=tables, columns=named)


def _extent(section: Section, log: Log) -> Extent:
    try:
        return extent_of(log.tables)
    except CampaignError as problem:
        section.refuse("log", f"cannot be used: {problem}", "Correct the log, or name another column")


def _client(section: Section) -> Client:
    kind = section.choice("kind", ("attribution", "reach", "frequency", "event-level"), "attribution")
    form = section.choice("form", ("deployed", "paper"), "deployed")
    paper = form == "paper"
    l1 = section.whole("l1", 65_536, least=1, most=65_536)
    if not paper and kind == "attribution" and l1 != 65_536:
        section.refuse("l1", f"is {l1}", 'A deployed browser has 65536; write form = "paper" to choose it')
    l0 = section.whole("l0", 20 if paper else l1, least=1, most=l1)
    if not paper and l0 != l1:
        section.refuse("l0", f"is {l0}", 'A deployed browser caps values only; write form = "paper" to choose it')
    event_level = _event_level(section) if kind == "event-level" else None
    client = Client(
        kind=cast(Kind, kind),
        form=cast(Form, form),
        l1=l1,
        l0=l0,
        max_reports=section.whole("max_reports", 20, least=1, most=1000),
        expiry_days=section.number("expiry_days", 30.0, least=0, most=30, above=True),
        click_priority=section.whole("click_priority", 0, least=0, most=1 << 31),
        null_rate=section.exact("null_rate", Fraction(1, 20), above=Fraction(-1), most=Fraction(1)),
        cap=section.whole("cap", 1, least=1, most=65_536),
        thresholds=_thresholds(section),
        event_level=event_level,
    )
    if client.null_rate < 0:
        section.refuse("null_rate", "is negative", "Write a probability from 0 to 1")
    section.done()
    return client


def _thresholds(section: Section) -> tuple[int, ...]:
    value = section.take("thresholds")
    if value is None:
        return (1, 2, 3, 5, 10)
    good = isinstance(value, list) and value and all(isinstance(one, int) and 1 <= one <= 127 for one in value)
    if not good or sorted(set(value)) != value:
        section.refuse("thresholds", f"is {value!r}", "Write increasing numbers of views, such as [1, 2, 5]")
    return tuple(value)


def _event_level(section: Section) -> EventLevel:
    field = section.text("field", example="product")
    epsilon = section.exact("epsilon", Fraction(14), above=Fraction(0), most=Fraction(14))
    windows, buckets = section.section("windows_days"), section.section("buckets")
    days: dict[str, tuple[float, ...]] = {}
    levels: dict[str, tuple[int, ...]] = {}
    for name in windows.values:
        found = windows.take(name)
        good = isinstance(found, list) and 1 <= len(found) <= 5 and all(isinstance(x, (int, float)) for x in found)
        if not good or sorted(set(found)) != found or not found[0] > 0:
            windows.refuse(name, f"is {found!r}", "Write 1 to 5 increasing numbers of days, such as [2, 7]")
        days[name] = tuple(float(x) for x in found)
    for name in days:
        found = buckets.take(name)
        good = isinstance(found, list) and bool(found) and all(isinstance(x, int) and x > 0 for x in found)
        if not good or sorted(set(found)) != found:
            buckets.refuse(name, f"is {found!r}", "Write increasing amounts, such as [20, 70]")
        levels[name] = tuple(found)
    buckets.done()
    if not days:
        section.refuse("windows_days", "is missing", "Write a line sneakers = [2, 7] for each kind of conversion")
    return EventLevel(
        field=field,
        epsilon=epsilon,
        max_reports=section.whole("reports_a_source", 3, least=1, most=20),
        windows_days=days,
        buckets=levels,
    )


def _measures(top: Section, client: Client) -> tuple[Measure, ...]:
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


def _keys(section: Section, population: Population, measures: Sequence[Measure], client: Client) -> KeyLayout:
    fields: list[Field] = []
    at = 0
    for inner in section.sections("fields"):
        name = inner.text("name", example="campaign")
        origin = inner.choice("from", ("impression", "conversion", "interaction", "site", "measure"), "impression")
        values, weights = _values(inner, origin, population, measures)
        bits = inner.whole("bits", max(1, (len(values) - 1).bit_length()), least=1, most=63)
        if len(values) > 1 << bits:
            inner.refuse("bits", f"is {bits}, which tells {1 << bits} values apart, not {len(values)}",
                         f"Write bits = {(len(values) - 1).bit_length()} or more")
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
            Field(
                name=name,
                origin=cast(Origin, origin),
                offset=offset,
                bits=bits,
                values=values,
                weights=weights,
                per_person=inner.flag("per_person", False),
                column=inner.text("column", name) if population.log is not None else "",
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
            Field(name="measure", origin="measure", offset=at, bits=bits, values=names, weights=(1.0,) * len(names))
        )
    if client.kind == "frequency":
        views = tuple(f"{threshold}+ views" for threshold in client.thresholds)
        bits = max(1, (len(views) - 1).bit_length())
        if at + bits > 128:
            section.refuse("fields", "leave no bits for the number of views", "Give the fields fewer bits")
        weights = (1.0,) * len(views)
        fields.append(Field(name="views", origin="threshold", offset=at, bits=bits, values=views, weights=weights))
    if not fields:
        section.refuse("", "has no fields", 'Write [[keys.fields]] with name = "campaign" and values = ["a", "b"]')
    if client.kind in ("reach", "frequency") and any(field.origin == "conversion" for field in fields):
        section.refuse("fields", "name conversions", 'Reach and frequency see impressions: write from = "impression"')
    return KeyLayout(fields=tuple(fields))


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
        try:
            rows = population.log.tables.column(column, of_source=origin == "impression")
        except CampaignError as problem:
            inner.refuse("column" if "column" in inner else "name", f"names no column: {problem}", "Name one of these")
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
    if not good or not all(one >= 0 for one in given) or not sum(given) > 0:
        inner.refuse("weights", f"is {given!r}", f"Write {len(values)} numbers, none negative and not all 0")
    return values, tuple(float(one) for one in given)


def _filters(top: Section, keys: KeyLayout) -> Filters | None:
    if "filters" not in top:
        top.take("filters")
        return None
    section = top.section("filters")
    name = section.text("field", example="product")
    found = [field for field in keys.fields if field.name == name and field.origin == "conversion"]
    if not found:
        options = [field.name for field in keys.fields if field.origin == "conversion"]
        section.refuse("field", f"is {name!r}", f"Write a field that comes from the conversion: {options}")
    accepts = section.texts("accepts")
    for value in accepts:
        if value not in found[0].values:
            section.refuse("accepts", f"has {value!r}", f"Values of {name}: {', '.join(found[0].values[:20])}")
    section.done()
    return Filters(field=name, accepts=accepts)


def _collection(section: Section, population: Population) -> Collection:
    folder = Path()
    collection = Collection(
        lost=section.number("lost", 0.0, least=0, most=1),
        retried=section.number("retried", 0.0, least=0, most=1),
        late=section.number("late", 0.0, least=0, most=1),
        late_days=_distribution(
            section, "late_days", Distribution(name="exponential", parameters={"mean": 2.0}), folder
        ),
        batch_hours=section.whole("batch_hours", population.days * 24, least=1, most=population.days * 24),
        close_after_hours=section.number("close_after_hours", 1.0, least=0, most=24 * 30),
        late_reports=section.choice("late_reports", ("drop", "next"), "drop"),  # type: ignore[arg-type]
    )
    section.done()
    return collection


def _service(section: Section) -> ServiceSettings:
    settings = ServiceSettings(
        epsilon=section.amount("epsilon", "64"),
        delta=section.amount("delta", "0.00001", zero=True),
        unit=section.choice("unit", ("report", "shared-id"), "report"),  # type: ignore[arg-type]
    )
    section.done()
    return settings


def _queries(top: Section, keys: KeyLayout, client: Client) -> tuple[Query, ...]:
    queries = []
    for section in top.sections("queries"):
        discovery = section.flag("discovery", False)
        over = section.choice("over", ("each", "all", "rolling"), "all")
        by = section.texts("by", tuple(field.name for field in keys.fields))
        for name in by:
            if name not in {field.name for field in keys.fields}:
                section.refuse("by", f"has {name!r}", f"Fields: {', '.join(field.name for field in keys.fields)}")
        epsilon = section.amount("epsilon", "10")
        if not Fraction(epsilon) <= 64:
            section.refuse("epsilon", f"is {epsilon}", "Write at most 64")
        query = Query(
            name=section.text("name", "summary"),
            epsilon=epsilon,
            delta=section.amount("delta", "0.00000001") if discovery else section.amount("delta", "0", zero=True),
            discovery=discovery,
            others_epsilon=section.amount("others_epsilon", "0", zero=True),
            rows=_rows(section, keys),
            by=by,
            over=over,  # type: ignore[arg-type]
            window=section.whole("window", 7, least=1, most=_MAX_WINDOW),
            repeat=section.whole("repeat", 1, least=1, most=1000),
            tau=section.number("tau", 0.0, least=0, most=1e15),
        )
        if not discovery:
            if Fraction(query.delta):
                section.refuse("delta", f"is {query.delta}", "Declared keys cost no δ: leave it out, or discover keys")
            _check_memory(section, keys, query)
        if not query.name.replace("-", "").replace("_", "").replace(" ", "").isalnum() or not query.name.isascii():
            section.refuse("name", f"is {query.name!r}", "Write letters, digits, spaces, '-' and '_'")
        section.done()
        queries.append(query)
    if len({query.name for query in queries}) != len(queries):
        top.refuse("queries", "has two of the same name", "Give each query its own name")
    if not queries and client.kind != "event-level":
        top.refuse("queries", "is missing", 'Write [[queries]] with epsilon = "10"')
    return tuple(queries)


def _rows(section: Section, keys: KeyLayout) -> dict[str, tuple[int, ...]]:
    inner = section.section("rows")
    rows = {}
    for name in inner.values:
        found = [field for field in keys.fields if field.name == name]
        if not found:
            inner.refuse(name, "is not a field of the keys", f"Fields: {', '.join(one.name for one in keys.fields)}")
        names = inner.texts(name)
        for value in names:
            if value not in found[0].values:
                inner.refuse(name, f"has {value!r}", f"Values: {', '.join(found[0].values[:20])}")
        rows[name] = tuple(found[0].values.index(value) for value in names)
    return rows


def memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(section: Section, keys: KeyLayout, query: Query) -> None:
    size = keys.domain_size(query.rows)
    limit = min(200_000_000, memory_bytes() // 2 // _DOMAIN_BYTES_A_KEY)
    if size > limit:
        need = size * _DOMAIN_BYTES_A_KEY / (1 << 30)
        section.refuse(
            "",
            f"has a domain of {size:,} keys, which takes {need:,.0f} GiB, and this machine can hold {limit:,} keys",
            "Write discovery = true with a delta, or restrict some fields under [queries.rows]",
        )


def _drawing(section: Section) -> Drawing:
    plots = section.texts("plots", PLOTS)
    for plot in plots:
        if plot not in PLOTS:
            section.refuse("plots", f"has {plot!r}", f"Plots: {', '.join(PLOTS)}")
    drawing = Drawing(plots=plots, rows=section.whole("rows", 20, least=1, most=10_000))
    section.done()
    return drawing


def _check_together(top: Section, campaign: Campaign) -> None:
    """Refuse what no single table shows."""
    client, population = campaign.client, campaign.population
    if client.kind in ("reach", "frequency"):
        limit = PaaConfig().storage_lifetime_ms // 86_400_000
        if population.days > limit:
            top.section("population").refuse(
                "days", f"is {population.days}", f"Shared Storage forgets after {limit} days: write at most {limit}"
            )
        if client.form == "paper":
            top.section("client").refuse("form", "is 'paper'", f"For {client.kind} write form = 'deployed'")
    if client.kind == "event-level":
        assert client.event_level is not None
        names = [field.name for field in campaign.keys.fields if field.origin == "conversion"]
        if client.event_level.field not in names:
            top.section("client").refuse("field", f"is {client.event_level.field!r}", f"Conversion fields: {names}")
        known = campaign.keys.field(client.event_level.field).values
        for kind in client.event_level.windows_days:
            if kind not in known:
                windows = top.section("client").section("windows_days")
                windows.refuse(kind, "is not a value", f"Values: {', '.join(known)}")
    for index, query in enumerate(campaign.queries):
        if query.over == "rolling" and query.window > campaign.batches:
            top.sections("queries")[index].refuse(
                "window", f"is {query.window} batches and there are {campaign.batches}", "Write fewer, or more days"
            )
        if query.over == "all" and campaign.batches > 10_000:
            top.sections("queries")[index].refuse("over", "has too many batches", "Write a larger batch_hours")
