"""Reads ``[population]`` of a campaign file: people and distributions, or an event log."""

from __future__ import annotations

from pathlib import Path

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import LogSettings, Population
from aggservice.campaign.settings.distributions import PARAMETERS, Distribution
from aggservice.campaign.world.log_events import Extent, extent_of
from aggservice.campaign.world.logs import load_tables, log_files, read_column
from aggservice.files.toml import Section

DEFAULT_START_MS = 1_794_960_000_000
"""2026-11-18, the day on which the paper's Figure 1 begins."""

_MAX_SIZE = 20_000_000
_MAX_DAYS = 366


def distribution(section: Section, key: str, default: Distribution) -> Distribution:
    """Read a distribution: a number (a constant), a table ``{ name = "poisson", mean = 2 }``, or a column of a log."""
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
        path = inner.existing_file("file", example="log.csv")
        column = inner.text("column", example="price")
        inner.done()
        try:
            return Distribution(name="column", rows=tuple(read_column(path, column, inner.opened)))
        except CampaignError as problem:
            inner.refuse("column", f"cannot be drawn from: {problem}", "Name a column of numbers that the file has")
    given = {parameter: inner.number(parameter, None, least=-1e15, most=1e15) for parameter in PARAMETERS[name]}
    inner.done()
    try:
        return Distribution(name=name, parameters=given)
    except CampaignError as problem:
        example = ", ".join(f"{one} = {value:g}" for one, value in PARAMETERS[name].items())
        inner.refuse("", f"is not possible: {problem}", f'Write for example {{ name = "{name}", {example} }}')


def _constant(value: float) -> Distribution:
    return Distribution(name="constant", parameters={"value": value})


def parse_population(section: Section) -> Population:
    """Read the population, or the log that replaces it."""
    log = _log(section)
    found = _extent(section, log) if log else None
    size = section.whole("size", found.people if found else None, least=0 if log else 1, most=_MAX_SIZE)
    days = section.whole("days", found.days if found else None, least=1, most=_MAX_DAYS)
    if days > _MAX_DAYS:
        section.refuse("log", f"spans {days:,} days", f"Write start, and days up to {_MAX_DAYS}, to take a part of it")
    rate = section.number("conversion_rate", 0.0, least=0, most=1)
    population = Population(
        size=size,
        devices=distribution(section, "devices", _constant(1)),
        start_ms=section.day_ms("start", found.start_ms if found else DEFAULT_START_MS),
        days=days,
        sites=section.texts("sites", ("https://some-blog.example",)),
        destinations=section.texts("destinations", found.destinations if found else ("https://shop.example",)),
        impressions=distribution(section, "impressions", _constant(1)),
        impression_day=distribution(
            section, "impression_day", Distribution(name="uniform", parameters={"low": 0, "high": float(days)})
        ),
        click_rate=section.number("click_rate", 0.0, least=0, most=1),
        conversion_rate=rate,
        click_conversion_rate=section.number("click_conversion_rate", rate, least=0, most=1),
        conversions=distribution(section, "conversions", _constant(1)),
        organic=distribution(section, "organic", _constant(0)),
        delay_days=distribution(section, "delay_days", Distribution(name="exponential", parameters={"mean": 1.0})),
        value=distribution(section, "value", _constant(1)),
        log=log,
    )
    if population.start_ms < 0:
        section.refuse("start", "lies before 1970", "Write a later date")
    section.done()
    return population


def _log(section: Section) -> LogSettings | None:
    if "log" not in section:
        section.take("log")
        return None
    inner = section.section("log")
    sources, triggers = (_log_path(inner, key) for key in ("sources", "triggers"))
    columns = inner.section("columns")
    named = {key: columns.text(key) for key in columns.values}
    inner.done()
    try:
        tables = load_tables(sources, triggers, named, inner.opened)
    except CampaignError as problem:
        inner.refuse(
            "", f"cannot be used: {problem}", 'Say which column is which: [population.log.columns] time = "when"'
        )
    return LogSettings(tables=tables, columns=named)


def _log_path(inner: Section, key: str) -> Path:
    """Return a file, or a folder of measurement-simulation's JSON that has some of this kind."""
    path = inner.path_to(key)
    if path is None or not path.is_dir():
        return inner.existing_file(key, example=f"{key}.csv")
    if not log_files(path, key.removesuffix("s")):
        inner.refuse(key, "is a folder without such files", f"Put files named *{key.removesuffix('s')}*.json below it")
    return path


def _extent(section: Section, log: LogSettings) -> Extent:
    try:
        return extent_of(log.tables)
    except CampaignError as problem:
        section.refuse("log", f"cannot be used: {problem}", "Correct the log, or name another column")
