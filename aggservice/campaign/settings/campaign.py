"""The settings of a campaign as frozen, checked values; names carry the units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from aggservice.campaign.settings.distributions import Distribution
from aggservice.campaign.settings.key_layout import KeyLayout
from aggservice.campaign.settings.log_tables import LogTables
from aggservice.campaign.settings.w3c import W3cSettings
from aggservice.files.below import Below

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

Kind = Literal["attribution", "reach", "frequency", "event-level"]
Form = Literal["deployed", "paper"]
BrowserApi = Literal["ara", "paa", "w3c"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """A log of sources and triggers that replaces the simulated population; ``shift_ms`` is added to all its times.

    ``half`` 0 or 1 leaves out the devices of the other half, so that one half can choose and the other judge.
    """

    tables: LogTables
    columns: Mapping[str, str] = field(default_factory=dict)
    shift_ms: int = 0
    half: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """People, their devices, what they see and what they buy. Counts are per person, delays in days."""

    size: int
    devices: Distribution
    start_ms: int
    days: int
    sites: tuple[str, ...]
    destinations: tuple[str, ...]
    impressions: Distribution
    impression_day: Distribution
    click_rate: float
    conversion_rate: float
    click_conversion_rate: float
    conversions: Distribution
    organic: Distribution
    delay_days: Distribution
    value: Distribution
    log: LogSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """The values of a conversion's field that an ad accepts; it is not credited with other purchases."""

    field: str
    accepts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What each conversion contributes: 1 or its value, clipped at ``most``, times ``scale``."""

    name: str
    of: Literal["count", "value"]
    scale: Fraction
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLevelSettings:
    """The trigger specification of event-level sources: kinds of conversion, windows in days and summary buckets."""

    field: str
    epsilon: Fraction
    max_reports: int
    windows_days: Mapping[str, tuple[float, ...]]
    buckets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Which browser runs: its API, its form, its caps Λ₁ and Λ₀, and (``deployed``) its reports per source.

    ``api`` chooses the API that measures conversions; reach and frequency have "paa", event-level reports "ara".
    ``event_level`` is there if sources send event-level reports, alone or beside aggregatable ones.
    """

    kind: Kind
    api: BrowserApi
    form: Form
    l1: int
    l0: int
    max_reports: int
    expiry_days: float
    click_priority: int
    null_rate: Fraction
    cap: int
    thresholds: tuple[int, ...]
    w3c: W3cSettings
    event_level: EventLevelSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSettings:
    """What happens to reports on their way, and how their scheduled time puts them into batches.

    ``through`` "json" posts each report, as a browser does, to a collector in this process; "columns" skips that.
    """

    lost: float
    retried: float
    late: float
    late_days: Distribution
    batch_hours: int
    close_after_hours: float
    late_reports: Literal["drop", "next"]
    through: Literal["columns", "json"] = "columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The embedded service's ledger: totals as decimal text, and the privacy unit."""

    epsilon: str
    delta: str
    unit: Literal["report", "shared-id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query, over each batch, all batches, or each rolling window of batches.

    ``job_per`` "window" submits one job per such window; "batch" submits one per batch and adds up their summaries, so
    that a report pays once however many windows it is in. ``rows`` restricts the domain to some values of some fields;
    ``by`` names the fields that a table shows, summed over the others. ``repeat`` runs the same query again, with fresh
    noise and a new charge.
    """

    name: str
    epsilon: str
    delta: str
    discovery: bool
    others_epsilon: str
    rows: Mapping[str, tuple[int, ...]]
    by: tuple[str, ...]
    over: Literal["each", "all", "rolling"]
    window: int
    repeat: int
    tau: float
    job_per: Literal["window", "batch"] = "window"

    @property
    def label(self) -> str:
        """The name as used in job ids and file names."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Queries from the coarsest to the finest, whose slices add up to those of the query before."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSettings:
    """What the report shows: the plots and the number of table rows."""

    plots: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign. ``document`` is the TOML of ``file`` that it was read from; a sweep changes it and reads it again.

    ``files`` are those that the document may name; None: any.
    """

    name: str
    description: str
    reporting_origin: str
    seed: str | None
    population: Population
    keys: KeyLayout
    filters: FilterSettings | None
    measures: tuple[Measure, ...]
    client: ClientSettings
    collection: CollectionSettings
    service: ServiceSettings
    queries: tuple[Query, ...]
    drawing: PlotSettings
    document: Mapping[str, Any]
    folder: Path
    file: str
    hierarchies: tuple[Hierarchy, ...] = ()
    files: Below | None = None

    @property
    def batch_ms(self) -> int:
        """The length of a batch."""
        return self.collection.batch_hours * HOUR_MS

    @property
    def batches(self) -> int:
        """The number of batches in the campaign's days; the last one waits for delayed reports."""
        span = self.population.days * DAY_MS
        return -(-span // self.batch_ms)
