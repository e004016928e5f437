"""Which reports of a job over files cannot pay, as the deployed service tells its callers: a JSON file in their output.

Its name and format are those of PrivacyBudgetExhaustedInfo in privacysandbox/aggregation-service (2.14). Beside the
fields that make up a shared ID, each entry has the ``report_id`` if reports pay for themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from aggservice.engine import JobRequest, UnpaidError
from aggservice.engine.opening.coverage import PrivacyUnit, privacy_units
from aggservice.service.jobs.places import PlacedFile
from aggservice.service.messages import timestamp
from aggservice.wire import UNIT_BYTES, ReportStatus, SharedInfo, parse_shared_info_batch, read_reports

MOST_LISTED: Final = 50_000
"""Entries in one file; ListUnpaidUnits lists all units."""


def unpaid_name(received_ms: int) -> str:
    """Return the name of the file for a job that was received at this time."""
    return f"privacy_budget_exhausted_debugging_information_{timestamp(received_ms).ToJsonString()}.json"


def unpaid_document(
    files: Iterable[PlacedFile], request: JobRequest, unit: PrivacyUnit, problem: UnpaidError, most: int = MOST_LISTED
) -> bytes:
    """Return the file: the first report of each unit that cannot pay, ``most`` of them at most, in order of files."""
    entries = [
        {"aggregateable_input_budget_id": {"filtering_id": filtering_id, "relevant_shared_info": _shown(info, unit)}}
        for info, filtering_id in _unpaid(files, request, unit, problem, most)
    ]
    document = {"privacy_budget_exhausted_info": {"aggregatable_input_budget_consumption_info": entries}}
    return json.dumps(document, indent=1).encode()


def _unpaid(
    files: Iterable[PlacedFile], request: JobRequest, unit: PrivacyUnit, problem: UnpaidError, most: int
) -> Iterator[tuple[SharedInfo, int]]:
    lacking = np.ascontiguousarray(problem.units).view(f"S{UNIT_BYTES}").ravel()
    listed: set[bytes] = set()
    for file in files:
        with file.open() as opened:
            for batch in read_reports(opened):
                infos = parse_shared_info_batch(batch.shared_infos)
                units = np.ascontiguousarray(privacy_units(unit, infos, request.filtering_ids))
                keys = units.view(f"S{UNIT_BYTES}")[..., 0]
                places = np.minimum(np.searchsorted(lacking, keys), len(lacking) - 1)
                found = (lacking[places] == keys) & (infos.status == ReportStatus.OK)[:, None]
                for row, column in np.argwhere(found).tolist():
                    key = units[row, column].tobytes()
                    if key in listed:
                        continue
                    listed.add(key)
                    yield infos.row(row), request.filtering_ids[column]
                    if len(listed) == most:
                        return


def _shown(info: SharedInfo, unit: PrivacyUnit) -> dict[str, Any]:
    fields = {
        "api": None if info.api is None else info.api.value,
        "attribution_destination": info.attribution_destination,
        "report_id": info.report_id if unit == PrivacyUnit.REPORT else None,
        "reporting_origin": info.reporting_origin,
        "scheduled_report_time": info.scheduled_report_time_s,
        "source_registration_time": info.source_registration_time_s,
        "version": info.version,
    }
    return {name: value for name, value in fields.items() if value is not None}
