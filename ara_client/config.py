"""The values that the specification leaves to the browser, and Chromium's choice for each.

The defaults are WICG's ``params/chromium-params.md``, the browser as shipped; retry and offline behaviour, which
that page leaves out, follow Chromium's ``AttributionManagerImpl``. Each can be changed for a test or an experiment:
``replace(Config(), max_attributions=2)``. One default is not Chromium's: a report with a context ID whose source
is removed becomes a null report; ``removed_reports_become_null=False`` deletes it (docs/limits.md has the difference).
"""

from __future__ import annotations

from dataclasses import dataclass

from aggservice.wire import Origin
from aggservice.wire.device import DeviceConfigError
from ara_client.constants import DAY_MS, MINUTE_MS, UINT32_MAX
from ara_client.origins import parse_suitable_origin

DEFAULT_COORDINATORS = (
    "https://publickeyservice.msmt.aws.privacysandboxservices.com",
    "https://publickeyservice.msmt.gcp.privacysandboxservices.com",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every vendor-specific value of the specification; rates are probabilities, capacities are in bits."""

    max_sources_per_origin: int = 4096
    max_event_level_epsilon: float = 14.0
    max_trigger_state_cardinality: int = UINT32_MAX
    max_channel_capacity_navigation: float = 11.5
    max_channel_capacity_event: float = 6.5
    max_scopes_channel_capacity_navigation: float = 11.55
    max_scopes_channel_capacity_event: float = 6.5

    max_event_level_reports_per_destination: int = 1024
    max_aggregatable_reports_per_destination: int = 1024
    max_aggregatable_reports_per_source: int = 20
    max_aggregatable_debug_reports_per_source: int = 5
    max_aggregatable_debug_budget_per_context_site: int = 1 << 20

    max_destinations_per_source_site_and_reporting_site: int = 100
    max_destinations_per_window_reporting_site: int = 50
    max_destinations_per_window_total: int = 200
    destination_window_ms: int = MINUTE_MS
    max_destinations_per_day: int = 100

    rate_limit_window_ms: int = 30 * DAY_MS
    max_source_reporting_origins: int = 100
    max_attribution_reporting_origins: int = 10
    max_attributions: int = 100
    max_reporting_origins_per_source_reporting_site: int = 1
    origins_per_site_window_ms: int = DAY_MS

    aggregatable_min_delay_ms: int = 0
    aggregatable_delay_span_ms: int = 10 * MINUTE_MS
    null_rate_excluding_source_time: float = 0.05
    null_rate_including_source_time: float = 0.008

    retry_delays_ms: tuple[int, ...] = (5 * MINUTE_MS, 15 * MINUTE_MS)
    offline_delay_ms: tuple[int, int] = (0, MINUTE_MS)
    report_expiry_ms: int = 30 * DAY_MS
    navigation_retry_attempt: int | None = None
    removed_reports_become_null: bool = True
    os_registration_supported: bool = False
    full_flexible_events: bool = False
    aggregation_coordinators: tuple[Origin, ...] = tuple(parse_suitable_origin(url) for url in DEFAULT_COORDINATORS)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0 if isinstance(value, float) else 1
            if name.startswith(("max_", "destination_window", "rate_limit", "origins_per")) and not value >= least:
                raise DeviceConfigError(f"{name} must be {least} or more, got {value}")
            if name.startswith("null_rate") and not 0 <= value <= 1:
                raise DeviceConfigError(f"{name} must be a probability, got {value}")
            if name.startswith("aggregatable_") and not value >= 0:
                raise DeviceConfigError(f"{name} must not be negative, got {value}")
        if not 0 <= self.offline_delay_ms[0] <= self.offline_delay_ms[1]:
            raise DeviceConfigError(f"offline_delay_ms must be (least, most), got {self.offline_delay_ms}")
        if self.navigation_retry_attempt not in (None, 1, 2, 3):
            raise DeviceConfigError(
                f"navigation_retry_attempt must be 1, 2, 3 or None, not {self.navigation_retry_attempt}"
            )
        if not all(delay >= 0 for delay in (*self.retry_delays_ms, self.report_expiry_ms)):
            raise DeviceConfigError("retry_delays_ms and report_expiry_ms must not be negative")
        if self.navigation_retry_attempt in (2, 3) and not self.retry_delays_ms:
            raise DeviceConfigError("navigation_retry_attempt 2 or 3 needs retry_delays_ms for the attempts before it")
        if not self.aggregation_coordinators:
            raise DeviceConfigError("aggregation_coordinators is empty: give at least one; the first is the default")

    @property
    def default_coordinator(self) -> Origin:
        """The coordinator of a registration that names none."""
        return self.aggregation_coordinators[0]

    def max_channel_capacity(self, source_type: str) -> float:
        """Return the most bits that the event-level reports of a source of this type may carry."""
        return self.max_channel_capacity_navigation if source_type == "navigation" else self.max_channel_capacity_event

    def max_scopes_channel_capacity(self, source_type: str) -> float:
        """Return the most bits that a source of this type with attribution scopes may carry."""
        return (
            self.max_scopes_channel_capacity_navigation
            if source_type == "navigation"
            else self.max_scopes_channel_capacity_event
        )
