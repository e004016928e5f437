"""The values a browser vendor chooses: limits, delays, coordinators, and the rules for a report's contributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from aggservice.wire.device import DeviceConfigError

AWS_COORDINATOR = "https://publickeyservice.msmt.aws.privacysandboxservices.com"
GCP_COORDINATOR = "https://publickeyservice.msmt.gcp.privacysandboxservices.com"

MINUTE_MS = 60_000
DAY_MS = 86_400_000

SMALLER_WINDOW_MINUTES = 10
LARGER_WINDOW_MINUTES = 1_440


class ContextType(StrEnum):
    """Which API's worklet made the contributions (the specification's context type)."""

    SHARED_STORAGE = "shared-storage"
    PROTECTED_AUDIENCE = "protected-audience"


class Rules(StrEnum):
    """How contributions become the contents of a report.

    ``SPECIFICATION``: each contribution is approved or denied by itself, and only denied ones are dropped (Private
    Aggregation specification, "Scheduling reports"). ``CHROMIUM``: contributions are merged and sorted first, and the
    report is approved or denied as a whole, as Chromium does without error reporting.
    """

    SPECIFICATION = "specification"
    CHROMIUM = "chromium"


_DEFAULT_MAX_CONTRIBUTIONS: Mapping[ContextType, int] = MappingProxyType(
    {ContextType.SHARED_STORAGE: 20, ContextType.PROTECTED_AUDIENCE: 100}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The implementation-defined values of the specifications. The defaults are Chromium as shipped.

    With ``operation_deadline_ms`` each operation runs in a child process that is stopped after that much real time
    (by ``fork``, so it needs a POSIX system); without it operations run in this process. ``debug_mode_allowed`` says
    that reporting origins may use third-party cookies, which Chromium asks for before ``enableDebugMode()`` has an
    effect. ``pending_report_limit`` is the maximum of scheduled, unsent reports per origin and API, of deterministic
    and of other reports each. ``error_reporting`` is Chromium's feature of that name, which it ships disabled.
    ``merging=False`` and ``report_version="0.1"`` are how older browsers behave.
    """

    smaller_budget: int = 1 << 16
    larger_budget: int = 1 << 20
    default_max_contributions: Mapping[ContextType, int] = field(default_factory=lambda: _DEFAULT_MAX_CONTRIBUTIONS)
    maximum_max_contributions: int = 1_000
    minimum_delay_ms: int = 10 * MINUTE_MS
    randomized_delay_ms: int = 50 * MINUTE_MS
    local_processing_ms: int = 100
    deterministic_timeout_ms: int = 5_000
    local_testing_mode: bool = False
    debug_mode_allowed: bool = False
    private_aggregation_allowed: bool = True
    rules: Rules = Rules.CHROMIUM
    error_reporting: bool = False
    merging: bool = True
    report_version: str = "1.0"
    coordinators: tuple[str, ...] = (AWS_COORDINATOR, GCP_COORDINATOR)
    default_coordinator: str = AWS_COORDINATOR
    pending_report_limit: int | None = None
    storage_lifetime_ms: int = 30 * DAY_MS
    storage_bytes_per_origin: int = 5 * 1024 * 1024
    operation_deadline_ms: int | None = None
    keep_losses: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.smaller_budget <= self.larger_budget:
            raise DeviceConfigError(
                f"budgets must satisfy 0 < smaller <= larger, not {self.smaller_budget} and {self.larger_budget}"
            )
        for api in ContextType:
            limit = self.default_max_contributions.get(api, 0)
            if not 0 < limit <= self.maximum_max_contributions:
                raise DeviceConfigError(
                    f"default_max_contributions[{api}] is {limit}: it must be between 1 and "
                    f"maximum_max_contributions ({self.maximum_max_contributions})"
                )
        for name in ("minimum_delay_ms", "local_processing_ms"):
            if not getattr(self, name) >= 0:
                raise DeviceConfigError(f"{name} must not be negative: {getattr(self, name)}")
        storage = ("storage_lifetime_ms", "storage_bytes_per_origin")
        for name in ("randomized_delay_ms", "deterministic_timeout_ms", *storage):
            if not getattr(self, name) > 0:
                raise DeviceConfigError(f"{name} must be positive: {getattr(self, name)}")
        for name in ("pending_report_limit", "operation_deadline_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise DeviceConfigError(f"{name} must be positive or None: {value}")
        if self.report_version not in ("0.1", "1.0"):
            raise DeviceConfigError(f"report_version must be '0.1' or '1.0', not {self.report_version!r}")
        if self.default_coordinator not in self.coordinators:
            raise DeviceConfigError(
                f"default_coordinator {self.default_coordinator!r} is not among the allowed coordinators"
            )

    @property
    def all_or_nothing(self) -> bool:
        """Whether a report is approved or denied as a whole, and error events do not exist."""
        return self.rules is Rules.CHROMIUM and not self.error_reporting

    def max_contributions(self, api: ContextType, asked: int | None) -> int:
        """Return how many contributions a report may hold (specification: determine the max contributions)."""
        if asked is None:
            return self.default_max_contributions[api]
        return min(asked, self.maximum_max_contributions)


def chromium(**changes: object) -> Config:
    """Return the configuration of the shipped browser, which is the default.

    Reports are approved or denied as a whole. Report times have 0.1 s added to hide how long budgeting took."""
    return Config(**changes)  # type: ignore[arg-type]


def specification(**changes: object) -> Config:
    """Return the specification's configuration where Chromium differs: each contribution is approved by itself."""
    return Config(**{"rules": Rules.SPECIFICATION, "local_processing_ms": 0, **changes})  # type: ignore[arg-type]
