"""The APIs that a job covers: whom each one protects, how neighbours differ, and how the bounds of several add up.

The rows of ``PROTECTED`` are the table in docs/guarantees.md; every statement quotes those of its job's APIs. All of it
is computed from the public parts of reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.opening.histogram_columns import DEBUG_DAY_BYTES, JudgedBatch
from aggservice.wire import Api, report_units, shared_id_units
from aggservice.wire.batch.shared_infos import SharedInfoColumns
from budget import Sensitivity, Terms

APIS = tuple(Api)
"""The column ``apis`` holds indexes into this tuple."""
BOUNDED_APIS = tuple(api for api in Api if api is not Api.W3C_ATTRIBUTION)
"""The APIs whose Λ₁ and Λ₀ the operator states."""
_DAY_S = 86_400


class PrivacyUnit(StrEnum):
    """The unit that pays: the report (Algorithm 1 of the paper), or the shared ID and its hour (as deployed)."""

    REPORT = "report"
    SHARED_ID = "shared_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protected:
    """Whom an API's reports protect: the privacy unit, how neighbours differ, who bounds it, which test shows it."""

    unit: str
    moves: str
    bounded_by: str
    shown_by: str

    def sentence(self, api: Api) -> str:
        """Return the row as a sentence."""
        return f"{api.value} protects {self.unit}: between neighbours {self.moves}; {self.bounded_by} bounds it."


PROTECTED: Mapping[Api, Protected] = {
    Api.ATTRIBUTION_REPORTING: Protected(
        unit="one source of one browser",
        moves="all conversions attributed to that source move to a dummy source that contributes nothing",
        bounded_by="ara_client (Λ₁ per source, its debug reports included)",
        shown_by="tests/sensitivity/test_sensitivity_search.py",
    ),
    Api.ATTRIBUTION_REPORTING_DEBUG: Protected(
        unit="one browser's debug reports for one context site, one reporting site and one day",
        moves="those debug reports are removed; Λ₁ counts once per context site and day of the job, and once more for "
        "sources, so that a source that moves with the debug reports about its triggers stays within the stated bound",
        bounded_by="ara_client (Λ₁ per context site, reporting site and day)",
        shown_by="tests/sensitivity/test_sensitivity_search.py",
    ),
    Api.PROTECTED_AUDIENCE: Protected(
        unit="one device, one reporting site and one window of ten minutes in Protected Audience",
        moves="that device's contributions in the window are left out of reports, and its budgets charged all the same",
        bounded_by="paa_client (Λ₁ per reporting site, API and window)",
        shown_by="tests/sensitivity/test_sensitivity_search.py",
    ),
    Api.SHARED_STORAGE: Protected(
        unit="one device, one reporting site and one window of ten minutes in Shared Storage",
        moves="that device's contributions in the window are left out of reports, and its budgets charged all the same",
        bounded_by="paa_client (Λ₁ per reporting site, API and window)",
        shown_by="tests/sensitivity/test_sensitivity_search.py",
    ),
    Api.W3C_ATTRIBUTION: Protected(
        unit="one device, one conversion site and one epoch of the device",
        moves="the device's impressions of that epoch are removed",
        bounded_by="w3c_client (budgets on the device per site and epoch; each report adds up to maxValue at most and "
        "is used once)",
        shown_by="tests/w3c_client/test_w3c_privacy.py",
    ),
}


def ledger_terms(
    unit: PrivacyUnit = PrivacyUnit.REPORT, sensitivities: Mapping[Api, Sensitivity] | None = None
) -> Terms:
    """Return the terms of a new ledger: the unit, and Λ₁ and Λ₀ per API (by default 2¹⁶ each).

    W3C Attribution has no such bound: each report states its own, and the service enforces it.
    """
    given = sensitivities or {}
    return Terms(unit=unit.value, bounds={api.value: given.get(api, Sensitivity()) for api in BOUNDED_APIS})


def privacy_units(
    unit: PrivacyUnit, infos: SharedInfoColumns, filtering_ids: Sequence[int] = (0,)
) -> NDArray[np.uint8]:
    """Return an array (report, filtering ID, 20): the unit keys that reports pay with. W3C reports use report units."""
    if unit == PrivacyUnit.REPORT:
        return report_units(infos, filtering_ids)
    units = shared_id_units(infos, filtering_ids)
    alone = infos.api == APIS.index(Api.W3C_ATTRIBUTION)
    if alone.any():
        units[alone] = report_units(infos, filtering_ids)[alone]
    return units


def debug_days(infos: SharedInfoColumns, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a hash of each distinct pair of context site and UTC day among the debug reports of ``rows``.

    ara_client bounds debug reports per such pair: a context site is the report's ``attribution_destination``, and debug
    reports are scheduled when they are made.
    """
    debug = rows[infos.api[rows] == APIS.index(Api.ATTRIBUTION_REPORTING_DEBUG)]
    if not debug.size:
        return np.empty((0, DEBUG_DAY_BYTES), dtype=np.uint8)
    sites = infos.destination[debug].tolist()
    days = (infos.scheduled_report_time_s[debug] // _DAY_S).tolist()
    found = sorted(
        {(infos.destinations[site] if site >= 0 else "", day) for site, day in zip(sites, days, strict=True)}
    )
    hashes = b"".join(sha256(f"{day} {site}".encode()).digest()[:DEBUG_DAY_BYTES] for site, day in found)
    return np.frombuffer(hashes, dtype=np.uint8).reshape(-1, DEBUG_DAY_BYTES)


class Coverage:
    """The APIs of a job's reports so far, and the pairs of context site and day of its debug reports."""

    def __init__(self) -> None:
        self._apis: set[int] = set()
        self._debug_days: set[bytes] = set()

    def add(self, judged: JudgedBatch) -> None:
        """Add the OK reports of a batch."""
        self.add_found(np.unique(judged.apis).tolist(), (row.tobytes() for row in judged.debug_days))

    def add_found(self, apis: Iterable[int], debug_days: Iterable[bytes]) -> None:
        """Add the APIs of some OK reports, and hashes that ``debug_days`` returned."""
        self._apis.update(apis)
        self._debug_days.update(debug_days)

    def covers(self) -> dict[Api, int]:
        """Return how many times the bounds of each API count in this job.

        Debug reports about a source name its destination instead of the site that they are counted under. So a job with
        debug reports also states the bound of a source, which covers them.
        """
        found = {APIS[index]: 1 for index in sorted(self._apis)}
        if Api.ATTRIBUTION_REPORTING_DEBUG in found:
            found |= {Api.ATTRIBUTION_REPORTING: 1, Api.ATTRIBUTION_REPORTING_DEBUG: len(self._debug_days)}
        return found
