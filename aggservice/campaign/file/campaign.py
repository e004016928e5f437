"""Reads a campaign file into a ``Campaign``; docs/campaign.md lists every field."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignFileError
from aggservice.campaign.file.client import parse_client
from aggservice.campaign.file.keys import parse_filters, parse_keys, parse_measures
from aggservice.campaign.file.population import distribution, parse_population
from aggservice.campaign.file.queries import parse_hierarchies, parse_queries
from aggservice.campaign.settings.campaign import (
    Campaign,
    CollectionSettings,
    PlotSettings,
    Population,
    ServiceSettings,
)
from aggservice.campaign.settings.distributions import Distribution
from aggservice.campaign.world.logs import NAMES
from aggservice.files.below import Below
from aggservice.files.toml import Section, read_text, read_toml
from aggservice.wire import is_reporting_origin
from paa_client import Config as PaaConfig
from w3c_client.sites import parse_site

#: The deployed service refuses older reports.
MAX_REPORT_AGE_DAYS = 90

PLOTS = ("slices", "waterfall", "error", "time", "budget", "hierarchy")


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
    origin = top.text("reporting_origin", "https://ad-tech.example")
    if not is_reporting_origin(origin):
        top.refuse("reporting_origin", f"is {origin!r}", "Write an https origin, such as https://ad-tech.example")
    seed = top.take("seed")
    if seed is not None and not isinstance(seed, (str, int)):
        top.refuse("seed", f"is {seed!r}", "Write a string or a whole number")
    client = parse_client(top.section("client"))
    population = parse_population(top.section("population"))
    measures = parse_measures(top, client)
    keys = parse_keys(top.section("keys"), population, measures, client)
    campaign = Campaign(
        name=top.text("name", example="My campaign"),
        description=top.text("description", ""),
        reporting_origin=origin,
        seed=None if seed is None else str(seed),
        population=population,
        keys=keys,
        filters=parse_filters(top, keys),
        measures=measures,
        client=client,
        collection=_collection(top.section("collection"), population),
        service=_service(top.section("service")),
        queries=(queries := parse_queries(top, keys, client)),
        hierarchies=parse_hierarchies(top, queries, client),
        drawing=_drawing(top.section("draw")),
        document=top.values,
        folder=top.folder,
        files=top.files,
        file=top.file,
    )
    _check_together(top, campaign)
    top.done()
    return campaign


def _collection(section: Section, population: Population) -> CollectionSettings:
    collection = CollectionSettings(
        lost=section.number("lost", 0.0, least=0, most=1),
        retried=section.number("retried", 0.0, least=0, most=1),
        late=section.number("late", 0.0, least=0, most=1),
        late_days=distribution(section, "late_days", Distribution(name="exponential", parameters={"mean": 2.0})),
        batch_hours=section.whole("batch_hours", population.days * 24, least=1, most=population.days * 24),
        close_after_hours=section.number("close_after_hours", 1.0, least=0, most=24 * 30),
        late_reports=section.choice("late_reports", ("drop", "next"), "drop"),  # type: ignore[arg-type]
        through=section.choice("through", ("columns", "json"), "columns"),  # type: ignore[arg-type]
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


def _drawing(section: Section) -> PlotSettings:
    drawing = PlotSettings(
        plots=section.choices("plots", PLOTS, PLOTS), rows=section.whole("rows", 20, least=1, most=10_000)
    )
    section.done()
    return drawing


def _check_together(top: Section, campaign: Campaign) -> None:
    """Check settings of different tables against each other."""
    client, population = campaign.client, campaign.population
    known = (*NAMES, *(field.column or field.name for field in campaign.keys.fields))
    for name in population.log.columns if population.log else ():
        if name not in known:
            columns = top.section("population").section("log").section("columns")
            similar = get_close_matches(name, known, 1)
            hint = f"Did you mean {similar[0]!r}? " if similar else ""
            columns.refuse(name, "is not a column of a log", f"{hint}Columns: {', '.join(dict.fromkeys(known))}")
    if client.kind in ("reach", "frequency"):
        limit = PaaConfig().storage_lifetime_ms // 86_400_000
        if population.days > limit:
            top.section("population").refuse(
                "days", f"is {population.days}", f"Shared Storage forgets after {limit} days: write at most {limit}"
            )
    if client.api == "w3c":
        _check_w3c(top, campaign)
    age_hours = population.days * 24 + campaign.collection.close_after_hours
    oldest = any(query.over == "all" for query in campaign.queries)
    if client.kind != "event-level" and oldest and age_hours > 24 * MAX_REPORT_AGE_DAYS:
        top.section("population").refuse(
            "days",
            f"is {population.days}: at the query over all of them, the first reports are {age_hours / 24:.0f} days old",
            f'The service refuses reports older than {MAX_REPORT_AGE_DAYS} days: write fewer days, or over = "rolling"',
        )
    if client.event_level is not None:
        names = [field.name for field in campaign.keys.fields if field.origin == "conversion"]
        if client.event_level.field not in names:
            top.section("client").refuse("field", f"is {client.event_level.field!r}", f"Conversion fields: {names}")
        known = campaign.keys.field(client.event_level.field).values
        for kind in client.event_level.windows_days:
            if kind not in known:
                windows = top.section("client").section("windows_days")
                windows.refuse(kind, "is not a value", f"Values: {', '.join(known)}")
    for index, query in enumerate(campaign.queries):
        if query.name == "event-level" and client.event_level is not None:
            top.sections("queries")[index].refuse(
                "name", "is 'event-level', as the counts of event-level reports are called", "Write another name"
            )
        if query.over == "rolling" and query.window > campaign.batches:
            top.sections("queries")[index].refuse(
                "window", f"is {query.window} batches and there are {campaign.batches}", "Write fewer, or more days"
            )
        if query.over == "all" and campaign.batches > 10_000:
            top.sections("queries")[index].refuse("over", "has too many batches", "Write a larger batch_hours")


def _check_w3c(top: Section, campaign: Campaign) -> None:
    """Check what W3C browsers cannot do: origins that are not sites, discovery, and histograms without bounds."""
    for key, origin in (
        ("reporting_origin", campaign.reporting_origin),
        *(("destinations", one) for one in campaign.population.destinations),
    ):
        if origin != f"https://{parse_site(origin.removeprefix('https://'))}":
            section = top if key == "reporting_origin" else top.section("population")
            section.refuse(
                key, f"has {origin!r}", "W3C Attribution measures sites: write https:// and a registrable domain"
            )
    for index, query in enumerate(campaign.queries):
        for key in ("discovery", "others_epsilon"):
            if getattr(query, key) not in (False, "0"):
                remedy = "A W3C histogram releases exactly its own indexes: leave it out"
                top.sections("queries")[index].refuse(key, f"is {getattr(query, key)!r}", remedy)
