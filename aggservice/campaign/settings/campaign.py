"""What a campaign file says, as values: frozen, checked, in the units of the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from aggservice.campaign.settings.distributions import Distribution
from aggservice.campaign.settings.key_layout import KeyLayout
from aggservice.campaign.settings.log_tables import LogTables

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

Kind = Literal["attribution", "reach", "frequency", "event-level"]
Form = Literal["deployed", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Sources and triggers of one's own, in place of a made-up population; ``shift_ms`` is added to all their times."""

    tables: LogTables
    columns: Mapping[str, str] = field(default_factory=dict)
    shift_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """People, their devices, what they see and what they do. Counts are per person, delays in days."""

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
    log: Log | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which values of a conversion's field an ad accepts; other purchases are not its own."""

    field: str
    accepts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is counted: 1 or the value of each conversion, clipped at ``most``, times ``scale`` as contribution."""

    name: str
    of: Literal["count", "value"]
    scale: Fraction
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLevel:
    """The trigger specification of event-level sources: kinds of conversion, windows in days and summary buckets."""

    field: str
    epsilon: Fraction
    max_reports: int
    windows_days: Mapping[str, tuple[float, ...]]
    buckets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Which browser runs: its API, its form, and its caps Λ₁ and Λ₀ (``deployed``: reports a source)."""

    kind: Kind
    form: Form
    l1: int
    l0: int
    max_reports: int
    expiry_days: float
    click_priority: int
    null_rate: Fraction
    cap: int
    thresholds: tuple[int, ...]
    event_level: EventLevel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What happens to reports on their way, and how they are put into batches by their scheduled time.

    ``through`` "json" posts each report as a browser does, to a collector in this process; "columns" skips the text.
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
    """One question, asked once a batch, over all batches, or over each rolling window of batches.

    ``rows`` restricts the domain to some values of some fields; ``by`` names the fields a table shows (others are
    summed). ``repeat`` asks the same again, with fresh noise and a new charge.
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

    @property
    def label(self) -> str:
        """The name as it stands in jobs and files."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What the report shows: which plots, and how many rows of a table."""

    plots: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A whole campaign. ``document`` is the TOML it was read from; a sweep changes that and reads it again."""

    name: str
    description: str
    reporting_origin: str
    seed: str | None
    population: Population
    keys: KeyLayout
    filters: Filters | None
    measures: tuple[Measure, ...]
    client: Client
    collection: Collection
    service: ServiceSettings
    queries: tuple[Query, ...]
    drawing: Drawing
    document: Mapping[str, Any]
    folder: Path

    @property
    def batch_ms(self) -> int:
        """How long a batch is."""
        return self.collection.batch_hours * HOUR_MS

    @property
    def batches(self) -> int:
        """How many batches the campaign's days fill; the last one waits for reports that are delayed past it."""
        span = self.population.days * DAY_MS
        return -(-span // self.batch_ms)
