"""What a worker does with a batch: check each report's public part, open and decode it, and keep what the job needs.

Nothing here raises because of what a report contains: a bad report is counted (docs/design.md, semantics 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.opening.coverage import PrivacyUnit, debug_days, privacy_units
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.job.parameters import AttributionTask
from aggservice.wire import (
    UNIT_BYTES,
    Api,
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
)
from aggservice.wire.batch.ldp_payloads import LdpColumns, decode_ldp_batch
from aggservice.wire.batch.payloads import ContributionColumns
from aggservice.wire.batch.shared_infos import APIS, SharedInfoColumns
from aggservice.wire.origins import site_of
from aggservice.wire.report.registry import TokenCheck

_OK = int(ReportStatus.OK)
_W3C = APIS.index(Api.W3C_ATTRIBUTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpBatch:
    """The local reports of the job's randomizer in one batch, in order: ids, unit keys, APIs, bytes.

    ``statuses`` has one ``ReportStatus`` for every report of the batch. ``left_out`` has two numbers: how many are good
    reports of another randomizer, and how many are reports of this one without the device token that the job needs.
    """

    statuses: NDArray[np.uint8]
    ids: NDArray[np.uint64]
    units: NDArray[np.uint8]
    apis: NDArray[np.uint8]
    left_out: NDArray[np.int64]
    data: NDArray[np.uint8]

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Return the columns in the order in which ``from_arrays`` takes them."""
        return (self.statuses, self.ids, self.units, self.apis, self.left_out, self.data)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.generic]]) -> LdpBatch:
        """Return the batch of these arrays; flat arrays get their shape back."""
        statuses, ids, units, apis, left_out, data = arrays
        pairs = ids.view(np.uint64).reshape(-1, 2)
        return cls(
            statuses=statuses.view(np.uint8),
            ids=pairs,
            units=units.view(np.uint8).reshape(-1, UNIT_BYTES),
            apis=apis.view(np.uint8),
            left_out=left_out.view(np.int64),
            data=data.view(np.uint8).reshape(pairs.shape[0], -1) if len(pairs) else np.empty((0, 0), np.uint8),
        )


def ldp_batch(
    randomizer: Randomizer,
    infos: SharedInfoColumns,
    statuses: NDArray[np.uint8],
    rows: NDArray[np.int64],
    opened: OpenedBatch,
    evidence: TokenCheck | None = None,
) -> LdpBatch:
    """Return the columns of a batch whose ``rows`` were opened. Local reports always pay with report units.

    With ``evidence``, only reports with a valid device token are kept. Repeated ids are dropped afterwards, so that a
    report without a token cannot replace one that has it.
    """
    found = decode_ldp_batch(opened, randomizer)
    statuses[rows] = found.status
    kept, data = rows[found.mine], found.data
    others = np.count_nonzero((found.status == _OK) & ~found.mine)
    without_token = 0
    if evidence is not None:
        valid = _valid_tokens(evidence, infos, kept, found)
        without_token = valid.size - int(np.count_nonzero(valid))
        kept, data = kept[valid], data[valid]
    units = report_units(replace(infos, status=statuses), (0,))
    return LdpBatch(
        statuses=statuses,
        ids=infos.report_id[kept].view(">u8").astype(np.uint64).reshape(-1, 2),
        units=units[kept].reshape(-1, UNIT_BYTES),
        apis=infos.api[kept].view(np.uint8),
        left_out=np.array([others, without_token], dtype=np.int64),
        data=data,
    )


def _valid_tokens(
    evidence: TokenCheck, infos: SharedInfoColumns, rows: NDArray[np.int64], found: LdpColumns
) -> NDArray[np.bool_]:
    """Return which reports have a valid token for their own reporting origin and report id."""
    return np.array(
        [
            bool(found.has_token[index])
            and evidence.valid(
                found.tokens[index].tobytes(),
                origin=infos.origins[infos.origin[row]],
                report_id=infos.report_id[row].tobytes(),
            )
            for index, row in enumerate(rows.tolist())
        ],
        dtype=np.bool_,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningSpec:
    """What a worker must know about a job.

    ``origins`` and ``sites`` are the caller's (None: all). Reports scheduled at or before ``oldest_s`` are too old.
    ``cleartext`` payloads are not sealed, like those of LocalTestingTool. ``keys_unreadable`` means that the newest
    keys could not be read, so that a missing key may exist. ``bounds`` has the largest Λ₁ and Λ₀ of a report per API,
    in the order of ``APIS``. With a ``task``, reports are W3C's and made for at least ``least_micro``. With a
    ``randomizer``, payloads are local reports of it, for a shuffle; with ``evidence``, each needs a device token.
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
    task: AttributionTask | None = None
    least_micro: int = 0


class Opener:
    """Opens batches with one set of private keys."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys.by_id

    def open(self, spec: OpeningSpec, batch: ReportBatch) -> JudgedBatch | LdpBatch:
        """Return the columns of a batch. A report whose public part fails is never opened."""
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
            return ldp_batch(spec.randomizer, infos, statuses, rows, opened, spec.evidence)
        columns, found = decode_batch(opened)
        return _histogram_batch(spec, infos, statuses, rows, columns, found)


def judge_columns(spec: OpeningSpec, infos: SharedInfoColumns, columns: ContributionColumns) -> JudgedBatch:
    """Judge reports that were never sealed, by the checks that opened reports go through; nulls are left out.

    ``columns.row`` gives the report of each contribution. For simulations; a service opens every report.
    """
    statuses = judge(spec, infos)
    rows = np.flatnonzero(statuses == _OK)
    place = np.full(len(infos), -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    kept = np.flatnonzero((columns.value > 0) & (place[columns.row] >= 0))
    taken = columns.taken(kept)
    return _histogram_batch(
        spec, infos, statuses, rows, replace(taken, row=place[taken.row]), np.full(rows.size, _OK, dtype=np.uint8)
    )


def _histogram_batch(
    spec: OpeningSpec,
    infos: SharedInfoColumns,
    statuses: NDArray[np.uint8],
    rows: NDArray[np.int64],
    columns: ContributionColumns,
    found: NDArray[np.uint8],
) -> JudgedBatch:
    """Check the contributions of the reports ``rows``, whose statuses so far are ``found``; keep what the job needs."""
    found = _within_bounds(spec, columns, infos.api[rows], found)
    statuses[rows] = found
    good = found == _OK
    kept = rows[good]
    wanted = _wanted(columns.filtering_id, spec.filtering_ids) & good[columns.row]
    ok_index = (np.cumsum(good) - 1).astype(np.int32)
    return JudgedBatch(
        statuses=statuses,
        ids=infos.report_id[kept].view(">u8").astype(np.uint64).reshape(-1, 2),
        units=_units(spec, replace(infos, status=statuses))[kept].reshape(-1, UNIT_BYTES),
        apis=infos.api[kept].view(np.uint8),
        debug_days=debug_days(infos, kept),
        high=columns.key_high[wanted],
        low=columns.key_low[wanted],
        values=columns.value[wanted],
        rows=ok_index[columns.row[wanted]],
    )


def judge(spec: OpeningSpec, infos: SharedInfoColumns) -> NDArray[np.uint8]:
    """Return, per report, OK if its public part fits the job, or else the counter of the first problem."""
    statuses = infos.status.copy()
    verdicts = np.array([judge_origin(spec, origin) for origin in infos.origins], dtype=np.uint8)
    good = statuses == _OK
    statuses[good] = verdicts[infos.origin[good]]
    _judge_task(spec.task, spec.least_micro, infos, statuses)
    old = (statuses == _OK) & ~(infos.scheduled_report_time_s > spec.oldest_s)
    statuses[old] = ReportStatus.ORIGINAL_REPORT_TIME_TOO_OLD
    if spec.debug_run:
        statuses[(statuses == _OK) & ~infos.debug_mode] = ReportStatus.DEBUG_NOT_ENABLED
    return statuses


@lru_cache(maxsize=4096)
def judge_origin(spec: OpeningSpec, origin: str) -> ReportStatus:
    """Return OK if reports of this origin belong to the job and to its caller, or else the counter."""
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
    """Refuse each report whose total exceeds its API's Λ₁, or that has more than Λ₀ contributions; return the statuses.

    A W3C report must also stay within its histogram.

    All filtering IDs count, also those that the job does not ask for. Sums over at most 2³¹ - 1 reports then fit into
    63 bits. Totals are exact in a float: a report has at most 1,000 contributions below 2³².
    """
    totals = np.bincount(columns.row, weights=columns.value, minlength=found.size)
    counts = np.bincount(columns.row, minlength=found.size)
    most = np.array(spec.bounds, dtype=np.int64)[apis]
    beyond = (totals > most[:, 0]) | (counts > most[:, 1])
    if spec.task is not None:
        beyond |= _outside_histogram(spec.task, columns, found.size)
    beyond &= found == _OK
    return np.where(beyond, np.uint8(ReportStatus.CONTRIBUTIONS_EXCEED_BOUNDS), found)


def _wanted(found: NDArray[np.uint64], asked: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which contributions have a filtering ID that the job asks for."""
    if len(asked) == 1:
        return found == np.uint64(asked[0])
    return np.isin(found, np.array(asked, dtype=np.uint64))


def _units(spec: OpeningSpec, infos: SharedInfoColumns) -> NDArray[np.uint8]:
    """Return a unit per OK report and requested filtering ID, whether or not the report contains that ID."""
    return privacy_units(spec.unit, infos, spec.filtering_ids)


def _judge_task(
    task: AttributionTask | None, least_micro: int, infos: SharedInfoColumns, statuses: NDArray[np.uint8]
) -> None:
    """Write an error status for each report of another API or task, or made for a smaller ε than ``least_micro``.

    The ε of a report is what its page asked for. What the device paid is secret and may be less.
    """
    good = statuses == _OK
    mine = (infos.api == _W3C) == (task is not None)
    statuses[good & ~mine] = ReportStatus.UNSUPPORTED_REPORT_API_TYPE
    if task is None:
        return
    found = infos.destinations.index(task.conversion_site) if task.conversion_site in infos.destinations else None
    same = (infos.histogram_size == task.histogram_size) & (infos.max_value == task.max_value)
    if found is None:
        same[:] = False
    else:
        same &= infos.destination == found
    statuses[good & mine & ~same] = ReportStatus.ATTRIBUTION_TASK_MISMATCH
    statuses[good & mine & same & (infos.epsilon_micro < least_micro)] = ReportStatus.REPORT_EPSILON_TOO_LOW


def _outside_histogram(task: AttributionTask, columns: ContributionColumns, reports: int) -> NDArray[np.bool_]:
    """Return which reports contribute to an index beyond the histogram."""
    beyond = (columns.key_high != 0) | (columns.key_low >= np.uint64(task.histogram_size))
    return np.bincount(columns.row[beyond], minlength=reports) > 0
