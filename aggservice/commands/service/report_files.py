"""Files of reports and the privacy units of the reports in them, which stay sealed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from aggservice.commands.console import option
from aggservice.wire import (
    UNIT_BYTES,
    ReportBatch,
    ReportStatus,
    Spans,
    parse_shared_info_batch,
    read_reports,
    report_units,
    shared_id_units,
)
from aggservice.wire.batch.shared_infos import SharedInfoColumns

Reports = Annotated[
    list[Path] | None,
    option("Use the units of the reports in this Avro file; may be repeated.", "--reports", exists=True),
]
FilteringIds = Annotated[str, option("With --reports: the job's filtering IDs, separated by commas.")]
PrivacyUnit = Annotated[str, option("With --reports: the privacy unit, report or shared_id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBatch:
    """Reports of a file, from row ``first`` on, and their units (report, filtering ID, 20)."""

    file: Path
    first: int
    batch: ReportBatch
    infos: SharedInfoColumns
    units: NDArray[np.uint8]

    def good(self) -> NDArray[np.bool_]:
        """Return which reports have a valid shared_info; only these have units."""
        return self.infos.status == ReportStatus.OK

    def having(self, wanted: NDArray[np.bytes_]) -> NDArray[np.bool_]:
        """Return a mask (report, filtering ID) of the units that are in ``wanted``."""
        keys = np.ascontiguousarray(self.units).view(f"S{UNIT_BYTES}")[..., 0]
        return np.isin(keys, wanted) & self.good()[:, None]


def unit_batches(files: Iterable[Path], filtering_ids: str, privacy_unit: str) -> Iterator[UnitBatch]:
    """Yield the reports of files in batches, with their units."""
    if privacy_unit not in ("report", "shared_id"):
        raise typer.BadParameter("choose report or shared_id", param_hint="--privacy-unit")
    derive = report_units if privacy_unit == "report" else shared_id_units
    try:
        ids = [int(one) for one in filtering_ids.split(",")]
    except ValueError:
        raise typer.BadParameter("give whole numbers separated by commas", param_hint="--filtering-ids") from None
    for path in files:
        first = 1
        for batch in read_reports(path):
            infos = parse_shared_info_batch(batch.shared_infos)
            yield UnitBatch(file=path, first=first, batch=batch, infos=infos, units=derive(infos, ids))
            first += len(batch)


def reports_of(found: Iterable[UnitBatch], units: Sequence[bytes]) -> dict[bytes, list[dict[str, str | int]]]:
    """Return the reports that ``units`` belong to: id, file and row, which counts from 1."""
    wanted = np.array(units, dtype=f"S{UNIT_BYTES}")
    reports: dict[bytes, list[dict[str, str | int]]] = {}
    for one in found:
        for row, column in np.argwhere(one.having(wanted)).tolist():
            place: dict[str, str | int] = {
                "report_id": one.infos.row(row).report_id,
                "file": str(one.file),
                "row": one.first + row,
            }
            reports.setdefault(one.units[row, column].tobytes(), []).append(place)
    return reports


def place_words(places: Iterable[dict[str, str | int]]) -> list[str]:
    """Return a line for each report."""
    return [f"report {one['report_id']}: {one['file']}, row {one['row']}" for one in places]


def places_of(files: Sequence[Path], filtering_ids: str, units: Sequence[bytes]) -> dict[bytes, list[str]]:
    """Return, by unit, a line per report that it belongs to. Tries both kinds of unit: a refusal names neither."""
    found: dict[bytes, list[str]] = {}
    for kind in ("report", "shared_id"):
        of_kind = reports_of(unit_batches(files, filtering_ids, kind), units)
        found |= {unit: place_words(places) for unit, places in of_kind.items()}
    return found


def without_units(found: Iterable[UnitBatch], units: Sequence[bytes]) -> Iterator[ReportBatch]:
    """Yield the reports that have no unit in ``units``."""
    wanted = np.array(units, dtype=f"S{UNIT_BYTES}")
    for one in found:
        kept = np.flatnonzero(~one.having(wanted).any(axis=1)).tolist()
        columns = (one.batch.payloads, one.batch.key_ids, one.batch.shared_infos)
        payloads, key_ids, infos = (Spans.of([column[row] for row in kept]) for column in columns)
        if kept:
            yield ReportBatch(payloads=payloads, key_ids=key_ids, shared_infos=infos)
