"""What a worker does to a batch: judge each report's public part, open it, decode it, and keep what the job asks for.

Nothing here raises because of what a report holds: a bad report is data, and is counted (docs/design.md, semantics 5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.opening.coverage import PrivacyUnit, debug_days
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.ldp_columns import LocalBatch, local_batch
from aggservice.engine.opening.sites import site_of
from aggservice.wire import (
    UNIT_BYTES,
    KeySet,
    OpenedBatch,
    Randomizer,
    ReportBatch,
    ReportStatus,
    Spans,
    decode_batch,
    open_batch,
    parse_shared_info_batch,
    report_units,
    shared_id_units,
)
from aggservice.wire.batch.payloads import ContributionColumns
from aggservice.wire.batch.shared_infos import SharedInfoColumns
from aggservice.wire.report.device_tokens import TokenCheck

_OK = int(ReportStatus.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningSpec:
    """What a worker must know of a job. ``origins`` and ``sites`` are the caller's (None: every one); reports are too
    old that were scheduled at or before ``oldest_s``; ``cleartext`` payloads are not sealed, as LocalTestingTool's are.
    ``keys_unreadable`` says that the newest keys could not be read, so that a key that is missing may yet exist.
    ``bounds`` has the largest Λ₁ and Λ₀ of a report per API, in the order of ``APIS``.
    With a ``randomizer`` the payloads are local reports of it, for a shuffle; with ``evidence`` each needs a token.
    """

    attribution_report_to: str | None
    reporting_site: str | None
    filtering_ids: tuple[int, ...]
    oldest_s: int
    bounds: tuple[tuple[int, int], ...]
    unit: PrivacyUnit = PrivacyUnit.REPORT
    debug_run: bool = False
    cleartext: bool = False
    any_origin: bool = False
    keys_unreadable: bool = False
    origins: frozenset[str] | None = None
    sites: frozenset[str] | None = None
    randomizer: Randomizer | None = None
    evidence: TokenCheck | None = None


class Opener:
    """Opens batches with one set of private keys."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys.by_id

    def open(self, spec: OpeningSpec, batch: ReportBatch) -> JudgedBatch | LocalBatch:
        """Return the columns of a batch. Public parts are judged first: what fails there is never opened."""
        infos = parse_shared_info_batch(batch.shared_infos)
        statuses = judge(spec, infos)
        rows = np.flatnonzero(statuses == _OK)
        chosen = batch if rows.size == len(batch) else _rows(batch, rows)
        opened = OpenedBatch.of_cleartext(chosen) if spec.cleartext else open_batch(chosen, self._keys)
        if spec.keys_unreadable:
            missing = opened.status == ReportStatus.DECRYPTION_KEY_NOT_FOUND
            faults = np.where(missing, np.uint8(ReportStatus.DECRYPTION_KEY_FETCH_ERROR), opened.status)
            opened = replace(opened, status=faults)
        if spec.randomizer is not None:
            return local_batch(spec.randomizer, infos, statuses, rows, opened, spec.evidence)
        columns, found = decode_batch(opened)
        found = _within_bounds(spec, columns, infos.api[rows], found)
        statuses[rows] = found
        good = found == _OK
        kept = rows[good]
        wanted = _wanted(columns.filtering_id, spec.filtering_ids) & good[columns.row]
        place = (np.cumsum(good) - 1).astype(np.int32)
        return JudgedBatch(
            statuses=statuses,
            ids=infos.report_id[kept].view(">u8").astype(np.uint64).reshape(-1, 2),
            units=_units(spec, replace(infos, status=statuses))[kept].reshape(-1, UNIT_BYTES),
            apis=infos.api[kept].view(np.uint8),
            debug_days=debug_days(infos, kept),
            high=columns.key_high[wanted],
            low=columns.key_low[wanted],
            values=columns.value[wanted],
            rows=place[columns.row[wanted]],
        )


def judge(spec: OpeningSpec, infos: SharedInfoColumns) -> NDArray[np.uint8]:
    """Return for each report whether its public part lets it into the job, or the counter of what is wrong first."""
    statuses = infos.status.copy()
    verdicts = np.array([judge_origin(spec, origin) for origin in infos.origins], dtype=np.uint8)
    good = statuses == _OK
    statuses[good] = verdicts[infos.origin[good]]
    old = (statuses == _OK) & ~(infos.scheduled_report_time_s > spec.oldest_s)
    statuses[old] = ReportStatus.ORIGINAL_REPORT_TIME_TOO_OLD
    if spec.debug_run:
        statuses[(statuses == _OK) & ~infos.debug_mode] = ReportStatus.DEBUG_NOT_ENABLED
    return statuses


@lru_cache(maxsize=4096)
def judge_origin(spec: OpeningSpec, origin: str) -> ReportStatus:
    """Return whether reports of this origin belong to the job and to its caller."""
    if spec.any_origin:
        return ReportStatus.OK
    site = site_of(origin)
    if spec.reporting_site is not None:
        if site is None:
            return ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED
        if site != spec.reporting_site:
            return ReportStatus.REPORTING_SITE_MISMATCH
    elif origin != spec.attribution_report_to:
        return ReportStatus.ATTRIBUTION_REPORT_TO_MISMATCH
    if spec.origins is None or spec.sites is None or origin in spec.origins or site in spec.sites:
        return ReportStatus.OK
    return ReportStatus.REPORTING_SITE_MISMATCH


def _rows(batch: ReportBatch, rows: NDArray[np.int64]) -> ReportBatch:
    def taken(spans: Spans) -> Spans:
        return Spans(buffer=spans.buffer, starts=spans.starts[rows], stops=spans.stops[rows])

    return ReportBatch(
        payloads=taken(batch.payloads), key_ids=taken(batch.key_ids), shared_infos=taken(batch.shared_infos)
    )


def _within_bounds(
    spec: OpeningSpec, columns: ContributionColumns, apis: NDArray[np.int8], found: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return the statuses with those reports refused that contribute more than their API's Λ₁, or in more than Λ₀.

    All filtering IDs count, whatever the job asks for. Sums over at most 2³¹ - 1 reports then fit 63 bits. Totals are
    exact in a float: a report has at most 1,000 contributions below 2³².
    """
    totals = np.bincount(columns.row, weights=columns.value, minlength=found.size)
    counts = np.bincount(columns.row, minlength=found.size)
    most = np.array(spec.bounds, dtype=np.int64)[apis]
    beyond = (found == _OK) & ((totals > most[:, 0]) | (counts > most[:, 1]))
    return np.where(beyond, np.uint8(ReportStatus.CONTRIBUTIONS_EXCEED_BOUNDS), found)


def _wanted(found: NDArray[np.uint64], asked: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which contributions bear a filtering ID that the job asks for."""
    if len(asked) == 1:
        return found == np.uint64(asked[0])
    return np.isin(found, np.array(asked, dtype=np.uint64))


def _units(spec: OpeningSpec, infos: SharedInfoColumns) -> NDArray[np.uint8]:
    """Return a unit for each report that is OK and filtering ID asked for, present in it or not."""
    units_of = report_units if spec.unit == PrivacyUnit.REPORT else shared_id_units
    return units_of(infos, spec.filtering_ids)
