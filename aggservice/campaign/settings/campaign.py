"""The settings of a campaign as frozen, checked values, each declared with what a file may say; names carry the units.

``check`` of a class refuses what one setting alone does not show; the file reader calls it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.metrics import METRICS, STANDARD, Metric
from aggservice.campaign.settings.device import DeviceApi
from aggservice.campaign.settings.distributions import Distribution, constant, distribution
from aggservice.campaign.settings.key_layout import KeyLayout
from aggservice.campaign.settings.population import POPULATIONS, PopulationModel
from aggservice.files.below import Below
from aggservice.files.settings import (
    REQUIRED,
    Known,
    amount,
    choice,
    choices,
    day,
    exact,
    flag,
    kind,
    kinds,
    number,
    setting,
    table,
    tables,
    text,
    texts,
    whole,
)
from aggservice.files.toml import Section
from aggservice.wire import is_reporting_origin
from budget import (
    DISCOVERY_RULES,
    MECHANISMS,
    BudgetError,
    Delta,
    DiscoveryRule,
    LaplaceDiscovery,
    LaplaceNoise,
    Mechanism,
)

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
DEFAULT_START_MS = 1_794_960_000_000
"""2026-11-18, the day on which the paper's Figure 1 begins."""
PLOTS = ("slices", "waterfall", "error", "time", "budget", "hierarchy")

_MAX_SIZE = 20_000_000
_MAX_DAYS = 366
_MAX_WINDOW = 50
_DOMAIN_BYTES_PER_KEY = 96


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogTable:
    """A table of a log as columns; ``names`` maps the campaign's names to those in the file, ``digest`` is of both."""

    columns: Mapping[str, Sequence[Any]]
    file: Path
    names: Mapping[str, str]
    digest: str = ""

    def column(self, name: str) -> Sequence[Any]:
        """Return a column by the campaign's name for it; if it is missing, the error lists those that exist."""
        own = self.names.get(name, name)
        if own not in self.columns:
            existing = ", ".join(map(repr, self.columns))
            raise CampaignError(f"{self.file.name} has no column {own!r}; it has {existing}")
        return self.columns[own]

    def __contains__(self, name: str) -> bool:
        return self.names.get(name, name) in self.columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogTables:
    """The sources and the triggers of a log."""

    sources: LogTable
    triggers: LogTable

    @property
    def both(self) -> tuple[LogTable, LogTable]:
        """Sources, then triggers."""
        return self.sources, self.triggers


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """People, their devices, what they see and what they buy. Counts are per person, delays in days.

    If the events of its ``model`` are given, their ``extent`` is known and gives the defaults.
    """

    size: int = whole(
        "people",
        default=lambda known: known.extent.people if known.extent else REQUIRED,
        least=lambda known: 0 if known.extent else 1,
        most=_MAX_SIZE,
    )
    devices: Distribution = distribution(
        "devices per person, at least 1; each event is on one of them", default=constant(1)
    )
    start_ms: int = day(
        "the first day, in UTC",
        key="start",
        default=lambda known: known.extent.start_ms if known.extent else DEFAULT_START_MS,
        shown="2026-11-18",
    )
    days: int = whole(
        "the number of days; later conversions are dropped",
        default=lambda known: known.extent.days if known.extent else REQUIRED,
        least=1,
        most=_MAX_DAYS,
    )
    sites: tuple[str, ...] = texts("where ads are shown", default=("https://some-blog.example",), shown="one")
    destinations: tuple[str, ...] = texts(
        "where conversions happen; an ad is for one of them",
        default=lambda known: known.extent.destinations if known.extent else ("https://shop.example",),
        shown="one",
    )
    impressions: Distribution = distribution("ads a person sees", default=constant(1))
    impression_day: Distribution = distribution(
        "when, in days after the start",
        default=lambda known: Distribution(name="uniform", parameters={"low": 0, "high": float(known.days)}),
        shown="uniform",
    )
    click_rate: float = number("the share of impressions that are clicked", default=0.0, least=0, most=1)
    conversion_rate: float = number("the share of views that lead to conversions", default=0.0, least=0, most=1)
    click_conversion_rate: float = number(
        "the share of clicks that do",
        default=lambda known: known.conversion_rate,
        shown="`conversion_rate`",
        least=0,
        most=1,
    )
    conversions: Distribution = distribution("how many conversions each leads to", default=constant(1))
    organic: Distribution = distribution("conversions per person without any ad", default=constant(0))
    delay_days: Distribution = distribution(
        "how long after the ad", default=Distribution(name="exponential", parameters={"mean": 1.0})
    )
    value: Distribution = distribution("what a conversion is worth, a whole number", default=constant(1))
    model: PopulationModel = kind(
        "where events come from: `simulated`, `log`, or a [population](extending.md#a-population) of yours by name or "
        "`module:Name`; its own settings are the table `[population.NAME]`",
        POPULATIONS,
        default="simulated",
        shown="the table that exists",
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse what no run can simulate."""
        if self.days > _MAX_DAYS:
            remedy = f"Write start, and days up to {_MAX_DAYS}, to take a part of it"
            section.refuse("log", f"spans {self.days:,} days", remedy)
        if self.start_ms < 0:
            section.refuse("start", "lies before 1970", "Write a later date")


def _conversion_field(section: Section, key: str, known: Known) -> str:
    name = section.text(key, example="product")
    names = [one.name for one in known.keys.fields if one.origin == "conversion"]
    if name not in names:
        section.refuse(key, f"is {name!r}", f"Write a field that comes from the conversion: {names}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """The values of a conversion's field that an ad accepts; it is not credited with other purchases."""

    field: str = setting("a field that comes from the conversion", read=_conversion_field, allowed="name of a field")
    accepts: tuple[str, ...] = choices(
        "the values of the conversions that belong to the ads",
        lambda known: known.keys.field(known.field).values,
        allowed="values of the field",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What each conversion contributes: 1 or its value, clipped at ``most``, times ``scale``."""

    of: Literal["count", "value"] = choice(
        "`count` is 1, `value` the value of the conversion", ("count", "value"), default="count"
    )
    name: str = text("as it prints", default=lambda known: known.of, shown="`of`")
    scale: Fraction = exact(
        "contribution units for 1; a larger scale means less noise, and the cap is reached sooner",
        default=Fraction(1),
        above=0,
        most=lambda known: known.client.l1,
    )
    most: int = whole(
        "values are clipped here",
        default=lambda known: 1 if known.of == "count" else max(1, int(known.client.l1 / known.scale)),
        shown="1, or Λ₁ / scale",
        least=1,
        most=1 << 40,
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse a measure whose largest contribution a source cannot make."""
        l1 = known.client.l1
        if not self.most * self.scale <= l1:
            section.refuse(
                "scale",
                f"is {self.scale}, and the largest value {self.most} would contribute "
                f"{float(self.most * self.scale):g}",
                f"A source has {l1} in all: write scale = {l1 // self.most} or less, or a lower most",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLevelSettings:
    """The trigger specification of event-level sources: kinds of conversion, windows in days and summary buckets."""

    field: str
    epsilon: Fraction
    max_reports: int
    windows_days: Mapping[str, tuple[float, ...]]
    buckets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSettings:
    """What happens to reports on their way, and how their scheduled time puts them into batches."""

    lost: float = number("the share of reports that never arrive", default=0.0, least=0, most=1)
    retried: float = number("the share of reports that arrive twice", default=0.0, least=0, most=1)
    late: float = number("the share of reports that come late", default=0.0, least=0, most=1)
    late_days: Distribution = distribution(
        "how late they are, in days", default=Distribution(name="exponential", parameters={"mean": 2.0})
    )
    batch_hours: int = whole(
        "how long a batch is",
        default=lambda known: known.population.days * 24,
        shown="the whole campaign",
        least=1,
        most=lambda known: known.population.days * 24,
    )
    close_after_hours: float = number("how long a batch waits after its end", default=1.0, least=0, most=24 * 30)
    late_reports: Literal["drop", "next"] = choice(
        "drop late reports, or put them into the next open batch", ("drop", "next"), default="drop"
    )
    through: Literal["columns", "json"] = choice(
        "`json` posts each report as a browser does to a collector in this process; the batches are the same",
        ("columns", "json"),
        default="columns",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The embedded service's ledger: totals as decimal text, and the privacy unit."""

    epsilon: str = amount("the ε that a privacy unit may spend", default="64")
    delta: str = amount("the δ that a privacy unit may spend", default="0.00001", zero=True)
    unit: Literal["report", "shared-id"] = choice("the privacy unit", ("report", "shared-id"), default="report")


def _names(known: Known) -> list[str]:
    return [one.name for one in known.keys.fields]


def _rows(section: Section, key: str, known: Known) -> dict[str, tuple[int, ...]]:
    inner, rows = section.section(key), {}
    for name in inner.values:
        if name not in _names(known):
            inner.refuse(name, "is not a field of the keys", f"Fields: {', '.join(_names(known))}")
        values = known.keys.field(name).values
        rows[name] = tuple(values.index(value) for value in inner.choices(name, values))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query, over each batch, all batches, or each rolling window of batches.

    ``job_per`` "window" submits one job per such window; "batch" submits one per batch and adds up their summaries, so
    that a report pays once however many windows it is in. ``rows`` restricts the domain to some values of some fields;
    ``by`` names the fields that a table shows, summed over the others. ``repeat`` runs the same query again, with fresh
    noise and a new charge.
    """

    name: str = text("letters, digits, spaces, `-`, `_`; a space counts as a `-`", default="summary")
    epsilon: str = amount("what each job costs, at most 64", default="10")
    mechanism: type[Mechanism] = kind(
        "the noise of sums, by its name (`aggservice kinds mechanism`) or `module:Name`",
        MECHANISMS,
        default=LaplaceNoise.name,
    )
    rule: type[DiscoveryRule] = kind(
        "how discovery hides keys: a key discovery rule that fits the mechanism",
        DISCOVERY_RULES,
        default=LaplaceDiscovery.name,
    )
    discovery: bool = flag("find keys above a threshold instead of asking for declared ones")
    delta: str = amount(
        "what a discovery costs beside ε",
        default=lambda known: "0.00000001" if known.discovery else "0",
        shown='"0.00000001"',
        zero=lambda known: not known.discovery,
    )
    others_epsilon: str = amount(
        "also ask for the total that is left out, at this ε", default="0", zero=True, shown="none"
    )
    rows: Mapping[str, tuple[int, ...]] = setting(
        "restrict the domain: some values of some fields",
        read=_rows,
        default=lambda known: {},
        shown="all",
        allowed="table of lists",
    )
    by: tuple[str, ...] = choices(
        "the fields a table shows; others are summed", _names, default=_names, shown="all", allowed="names of fields"
    )
    over: Literal["each", "all", "rolling"] = choice(
        "one job over `all` batches, `each` batch, or each `rolling` window of batches",
        ("each", "all", "rolling"),
        default="all",
    )
    window: int = whole("the batches of a rolling window", default=7, least=1, most=_MAX_WINDOW)
    repeat: int = whole(
        "how often the same is asked, each time with fresh noise and a new charge", default=1, least=1, most=1000
    )
    tau: float = number("τ of RMSRE_τ, in natural units", default=0.0, least=0, most=1e15, shown="noise")
    job_per: Literal["window", "batch"] = choice(
        "`batch` runs one job per batch and adds up the summaries of a window, so that a report pays once",
        ("window", "batch"),
        default="window",
    )

    @property
    def label(self) -> str:
        """The name as used in job ids and file names."""
        return self.name.replace(" ", "-")

    @property
    def noise(self) -> Mechanism:
        """The mechanism that makes the noise of its sums, with its ε."""
        return self.mechanism.parse(epsilon=self.epsilon)

    def check(self, section: Section, known: Known) -> None:
        """Refuse a query that a service would refuse, or whose domain does not fit into memory."""
        if not Fraction(self.epsilon) <= 64:
            section.refuse("epsilon", f"is {self.epsilon}", "Write at most 64")
        try:
            usable = self.noise.in_jobs and (self.mechanism is LaplaceNoise or not known.client.task_jobs)
            if self.discovery:
                self.rule.beside(self.noise, Delta.parse(self.delta))
        except BudgetError as problem:
            section.refuse("mechanism", f"cannot be used: {problem}", "Choose one whose only parameter is epsilon")
        if not usable:
            section.refuse("mechanism", f"is {self.mechanism.name}", "Leave it out: these jobs have Laplace noise")
        if self.job_per == "batch" and (self.discovery or known.client.task_jobs):
            kind = (
                "discovery in each batch leaves keys out"
                if self.discovery
                else f"each {known.client.short} task has its own job"
            )
            section.refuse("job_per", "is 'batch'", f'Write "window" here: {kind}')
        if not self.discovery:
            if Fraction(self.delta):
                section.refuse("delta", f"is {self.delta}", "Declared keys cost no δ: leave it out, or discover keys")
            self._check_memory(section, known.keys.domain_size(self.rows))
        if not self.name.replace("-", "").replace("_", "").replace(" ", "").isalnum() or not self.name.isascii():
            section.refuse("name", f"is {self.name!r}", "Write letters, digits, spaces, '-' and '_'")

    @staticmethod
    def _check_memory(section: Section, size: int) -> None:
        limit = min(200_000_000, memory_bytes() // 2 // _DOMAIN_BYTES_PER_KEY)
        if size > limit:
            need = size * _DOMAIN_BYTES_PER_KEY / (1 << 30)
            section.refuse(
                "",
                f"has a domain of {size:,} keys, which needs {need:,.0f} GiB; this machine can hold {limit:,} keys",
                "Write discovery = true with a delta, or restrict some fields under [queries.rows]",
            )


def memory_bytes() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Queries from the coarsest to the finest, whose slices add up to those of the query before."""

    name: str = text("as it prints", default="hierarchy")
    levels: tuple[str, ...] = choices(
        "queries whose slices add up to those of the one before, the coarsest first",
        lambda known: [query.name for query in known.queries],
        allowed="names of queries",
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse levels whose slices do not add up."""
        if known.client.task_jobs:
            section.refuse(
                "levels", f"has {known.client.short} reports, each of which pays for one job", "Leave the hierarchy out"
            )
        if len(self.levels) < 2:
            section.refuse("levels", f"is {list(self.levels)}", "Name two queries or more, the coarsest first")
        by_name = {query.name: query for query in known.queries}
        chosen: list[Query] = [by_name[level] for level in self.levels]
        for query in chosen:
            for bad, why in (
                (query.discovery, "discovers keys"),
                (query.repeat > 1, "repeats"),
                (query.over == "rolling", "has windows that overlap"),
            ):
                if bad:
                    section.refuse("levels", f"has {query.name!r}, which {why}", "Name queries whose slices add up")
        for above, below in pairwise(chosen):
            if above.over == "each" and below.over == "all":
                section.refuse("levels", f"has {below.name!r} below {above.name!r}", 'Put over = "all" first')
            if not set(above.by) <= set(below.by) or above.rows != below.rows:
                section.refuse(
                    "levels",
                    f"has {below.name!r} below {above.name!r}, whose slices it does not divide",
                    "Give both the same rows, and the lower one all fields of the upper one's by",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSettings:
    """What the report shows: the plots and the number of table rows."""

    plots: tuple[str, ...] = choices("which plots the report has", PLOTS, default=PLOTS, shown="all")
    rows: int = whole("rows of a table", default=20, least=1, most=10_000)
    metrics: tuple[Metric, ...] = kinds(
        'further [metrics](#metrics) of report, sweeps and `metrics.json`: names, or `"module:Name"`',
        METRICS,
        convert=lambda found: tuple(one() if isinstance(one, type) else one for one in found),
    )


def _origin(section: Section, key: str, known: Known) -> str:
    origin = section.text(key)
    if not is_reporting_origin(origin):
        section.refuse(key, f"is {origin!r}", "Write an https origin, such as https://ad-tech.example")
    return origin


def _seed(section: Section, key: str, known: Known) -> str:
    seed = section.take(key)
    if not isinstance(seed, (str, int)):
        section.refuse(key, f"is {seed!r}", "Write a string or a whole number")
    return str(seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign. ``document`` is the TOML of ``file`` that it was read from; a sweep changes it and reads it again.

    ``files`` are those that the document may name; None: any.
    """

    name: str = text("what the report is called", example="My campaign")
    description: str = text("what the report says first", default="")
    reporting_origin: str = setting(
        "whose reports these are", read=_origin, default="https://ad-tech.example", allowed="https origin"
    )
    seed: str | None = setting(
        "as `--seed`, which overrides it", read=_seed, default=None, allowed="text or whole number"
    )
    population: Population
    keys: KeyLayout
    measures: tuple[Measure, ...]
    client: DeviceApi
    queries: tuple[Query, ...] = tables("", Query)
    hierarchies: tuple[Hierarchy, ...] = tables("", Hierarchy)
    filters: FilterSettings | None = table("", FilterSettings, default=None)
    collection: CollectionSettings = table("", CollectionSettings)
    service: ServiceSettings = table("", ServiceSettings)
    drawing: PlotSettings = table("", PlotSettings, key="draw")
    document: Mapping[str, Any]
    folder: Path
    file: str
    files: Below | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of its outputs."""
        return tuple(dict.fromkeys((*STANDARD, *self.drawing.metrics)))

    @property
    def batch_ms(self) -> int:
        """The length of a batch."""
        return self.collection.batch_hours * HOUR_MS

    @property
    def batches(self) -> int:
        """The number of batches in the campaign's days; the last one waits for delayed reports."""
        span = self.population.days * DAY_MS
        return -(-span // self.batch_ms)
