"""Registrations and reports of a fleet, as columns: one row per source, trigger or report.

The caller numbers sites and origins freely. Filters are row and column numbers of the fleet's match table. Names of
aggregation keys are numbers in the order of the names. A 128-bit key is two columns of 64 bits. Keys and contributions,
of which a row can have several, have columns of their own: those of row i are ``offset[i]`` to ``offset[i + 1]``, in
increasing order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import ParameterError

Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Flags: TypeAlias = NDArray[np.bool_]
Built = TypeVar("Built", bound="Registrations")

_KINDS: Final[Mapping[Any, type[np.generic]]] = {"Ints": np.int64, "Words": np.uint64, "Flags": np.bool_}
#: The columns with one row per key or contribution.
_INNER: Final = ("name", "key_high", "key_low", "value", "filtering_id")

MAX_KEYS = 20
#: A contribution stays below this, so that twenty of them cannot overflow a 64-bit sum.
VALUE_LIMIT = 1 << 32
#: Times and delays stay within this, so that the time of a report, their sum, cannot overflow.
TIME_LIMIT_MS = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrations:
    """The columns that source and trigger registrations share; rows are in order of time.

    ``order`` is the position of a registration among all sources and triggers.
    """

    order: Ints
    time_ms: Ints
    device: Ints
    reporter: Ints
    destination: Ints
    filter: Ints
    offset: Ints
    name: Ints
    key_high: Words
    key_low: Words

    def __post_init__(self) -> None:
        _check_rows(self)

    def __len__(self) -> int:
        return int(self.order.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumns(Registrations):
    """Source registrations.

    Triggers before ``expiry_ms`` match a source; those before ``report_until_ms`` (its aggregatable report window) make
    reports.
    """

    priority: Ints
    expiry_ms: Ints
    report_until_ms: Ints

    @classmethod
    def of(cls, **columns: ArrayLike | None) -> SourceColumns:
        """Build columns from arrays, or from single numbers that apply to every row; most are 0 if not given.

        Give ``order``, ``time_ms``, ``device``, ``expiry_ms``, ``key_high`` and ``key_low``. Without ``offset`` every
        source has one key; ``report_until_ms`` defaults to ``expiry_ms``.
        """
        return _build(cls, {"report_until_ms": columns.get("expiry_ms", 0)} | columns, "expiry_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerColumns(Registrations):
    """Trigger registrations, each with the contributions it requests.

    ``key_high`` and ``key_low`` are the trigger's pieces of the key. ``has_context_id`` marks a trigger with a
    ``trigger_context_id``: its report is always sent, without delay, and does not count towards the report cap.
    """

    has_dedup_key: Flags
    dedup_key: Words
    has_context_id: Flags
    value: Ints
    filtering_id: Words

    def __post_init__(self) -> None:
        _check_rows(self)
        if self.value.size and not (self.value.min() >= 0 and self.value.max() < VALUE_LIMIT):
            raise ParameterError(f"column value must lie in [0, {VALUE_LIMIT})")

    @classmethod
    def of(cls, **columns: ArrayLike | None) -> TriggerColumns:
        """Build columns from arrays, or from single numbers that apply to every row; most are 0 if not given.

        Give ``order``, ``time_ms``, ``device``, ``key_high``, ``key_low`` and ``value``. Without ``offset`` every
        trigger requests one contribution; without ``has_dedup_key`` a given ``dedup_key`` is used in every row.
        """
        return _build(cls, {"has_dedup_key": "dedup_key" in columns} | columns, "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReports:
    """The reports of a batch of triggers, in the order of the triggers.

    ``trigger`` is the row of the trigger in its batch; ``source`` is the number of the source, counted over all
    batches, or −1 for a null report, which has no contributions. ``outcome`` has one ``TriggerOutcome`` per trigger of
    the batch. Report ids are rows of 16 bytes.
    """

    outcome: NDArray[np.int8]
    trigger: Ints
    source: Ints
    report_id: NDArray[np.uint8]
    scheduled_ms: Ints
    offset: Ints
    key_high: Words
    key_low: Words
    value: Ints
    filtering_id: Words

    def __len__(self) -> int:
        return int(self.trigger.size)

    def contributions(self, row: int) -> list[tuple[int, int, int]]:
        """Return the (key, value, filtering ID) of one report."""
        inside = range(int(self.offset[row]), int(self.offset[row + 1]))
        return [
            (int(self.key_high[i]) << 64 | int(self.key_low[i]), int(self.value[i]), int(self.filtering_id[i]))
            for i in inside
        ]


def _build(kind: type[Built], given: Mapping[str, ArrayLike | None], last: str) -> Built:
    """Build registrations from columns; the column ``last`` and those that every registration needs must be given."""
    unknown = given.keys() - {field.name for field in fields(kind)}
    missing = {"order", "time_ms", "device", "key_high", "key_low", last} - given.keys()
    if unknown or missing:
        raise ParameterError(f"unknown columns: {sorted(unknown)}; columns to add: {sorted(missing)}")
    rows = np.asarray(given["order"]).size
    offset = np.arange(rows + 1) if given.get("offset") is None else _column(given["offset"], np.int64, rows + 1)
    _check_offset(offset, rows)
    sizes = dict.fromkeys(_INNER, int(offset[-1]))
    made = {
        field.name: _column(given.get(field.name, 0), _KINDS[field.type], sizes.get(field.name, rows))
        for field in fields(kind)
        if field.name != "offset"
    }
    return kind(offset=offset, **made)


def _check_rows(columns: Registrations) -> None:
    rows, offset = len(columns), columns.offset
    _check_offset(offset, rows)
    for field in fields(columns):
        column = getattr(columns, field.name)
        wanted = rows + 1 if field.name == "offset" else int(offset[-1]) if field.name in _INNER else rows
        if column.shape != (wanted,):
            raise ParameterError(f"column {field.name} must have {wanted} rows, got shape {column.shape}")
        kind = _KINDS[field.type]
        if column.dtype != kind:
            raise ParameterError(f"column {field.name} must hold {kind.__name__}, got {column.dtype}; use .of()")
        if not (column.flags.c_contiguous and column.flags.writeable):
            raise ParameterError(f"column {field.name} must be a contiguous, writable array; build columns with .of()")
    if rows and not (np.diff(columns.order) > 0).all():
        raise ParameterError("column order must increase: sort the registrations by time")
    if rows and not (np.diff(columns.time_ms) >= 0).all():
        raise ParameterError("column time_ms must not decrease: sort the registrations by time")
    if rows and not -TIME_LIMIT_MS <= columns.time_ms[0] <= columns.time_ms[-1] <= TIME_LIMIT_MS:
        raise ParameterError(f"column time_ms must lie within {TIME_LIMIT_MS} ms of the epoch")
    if columns.name.size and not columns.name.min() >= 0:
        raise ParameterError("column name must not be negative")
    steps = np.diff(columns.name)
    inside = np.ones(steps.size, dtype=np.bool_)
    starts = offset[1:-1]
    inside[starts[(starts > 0) & (starts <= steps.size)] - 1] = False
    if not (steps[inside] > 0).all():
        raise ParameterError("column name must increase within a row: list each key once, in order")


def _check_offset(offset: Ints, rows: int) -> None:
    if offset.shape != (rows + 1,):
        raise ParameterError(f"column offset must have {rows + 1} rows, got shape {offset.shape}")
    sizes = np.diff(offset)
    if offset[0] != 0 or not ((sizes >= 0) & (sizes <= MAX_KEYS)).all():
        raise ParameterError(f"column offset must start at 0 and give each row 0 to {MAX_KEYS} entries")


def _column(values: ArrayLike | None, kind: type[np.generic], rows: int) -> NDArray[Any]:
    """Return the values as one writable, contiguous column, the only kind of array that the kernels accept.

    A number out of range is an error; numpy alone would reduce it modulo 2⁶⁴ silently.
    """
    given = np.asarray(values)
    if given.dtype.kind == "f" and given.size:
        raise ParameterError("a column holds floats, which lose digits: convert it to integers first")
    if given.dtype.kind not in "biuf" and not all(isinstance(value, (int, np.integer)) for value in given.flat):
        raise ParameterError(f"a column must hold integers, got {given.dtype}")
    if given.size and kind is not np.bool_:
        least, most = (0, (1 << 64) - 1) if kind is np.uint64 else (-(1 << 63), (1 << 63) - 1)
        if not (least <= int(given.min()) and int(given.max()) <= most):
            raise ParameterError(f"a value is outside the range of {kind.__name__}, {least} to {most}")
    whole = given.astype(kind, copy=False)
    return np.require(np.broadcast_to(whole, (rows,)) if whole.ndim == 0 else whole, requirements=["C", "W"])
