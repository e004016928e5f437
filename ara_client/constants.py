"""The constants of the specification, equal in every browser.

WICG Attribution Reporting, section "Constants", durations in milliseconds. The values that a browser may choose
are in ``ara_client.config``.
"""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

MIN_SOURCE_EXPIRY_MS: Final = DAY_MS
MAX_SOURCE_EXPIRY_MS: Final = 30 * DAY_MS
MIN_REPORT_WINDOW_MS: Final = HOUR_MS
NAVIGATION_WINDOWS_MS: Final = (2 * DAY_MS, 7 * DAY_MS)
"""The ends of a navigation source's windows before its expiry, unless it gives others."""

MAX_FILTERS_PER_SOURCE: Final = 50
MAX_VALUES_PER_FILTER: Final = 50
MAX_BYTES_PER_FILTER_STRING: Final = 25
MAX_DESTINATIONS_PER_SOURCE: Final = 3
MAX_EVENT_LEVEL_REPORTS: Final = 20
MAX_EVENT_REPORT_WINDOWS: Final = 5
MAX_TRIGGER_DATA_PER_SOURCE: Final = 32
MAX_AGGREGATION_KEYS: Final = 20
MAX_BYTES_PER_AGGREGATION_KEY_ID: Final = 25
MAX_BYTES_PER_TRIGGER_CONTEXT_ID: Final = 64
MAX_SCOPES_PER_SOURCE: Final = 20
MAX_BYTES_PER_SCOPE: Final = 50
MAX_NAMED_BUDGETS: Final = 25
MAX_BYTES_PER_BUDGET_NAME: Final = 25
DEFAULT_MAX_EVENT_STATES: Final = 3

DEFAULT_EVENT_LEVEL_REPORTS: Final = {"navigation": 3, "event": 1}
DEFAULT_TRIGGER_DATA_CARDINALITY: Final = {"navigation": 8, "event": 2}

AGGREGATABLE_BUDGET: Final = 65_536
"""Λ₁: the largest sum of all contributions of a source."""

DEFAULT_FILTERING_ID_MAX_BYTES: Final = 1
MAX_FILTERING_ID_MAX_BYTES: Final = 8
DEFAULT_FILTERING_ID: Final = 0

MAX_DEBUG_CONTRIBUTIONS: Final = 2
AGGREGATABLE_DEBUG_WINDOW_MS: Final = DAY_MS
AGGREGATABLE_DEBUG_BUDGET_PER_REPORTING_SITE: Final = 65_536
DESTINATIONS_PER_DAY_WINDOW_MS: Final = DAY_MS
NULL_REPORT_LOOKBACK_DAYS: Final = 30

UINT32_MAX: Final = (1 << 32) - 1
UINT64_MAX: Final = (1 << 64) - 1
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

WELL_KNOWN: Final = "/.well-known/attribution-reporting/"
REPORT_VERSION: Final = "1.0"
