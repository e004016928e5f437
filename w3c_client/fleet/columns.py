"""Events and results of a fleet, as columns: one row per impression, conversion, clear or budget.

The caller numbers sites from 0. A column of lists (of sites, match values or credits) holds indexes into the tables
``lists`` and ``credits`` of the fleet; index 0 of ``lists`` is the empty list, which allows any. -1 means no
intermediary or no action.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from w3c_client.config import UINT32_MAX, Filter
from w3c_client.errors import ConfigError
from w3c_client.fleet import layout

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

#: Times stay within this, so that the number of an epoch fits into 27 bits.
TIME_LIMIT_MS = 5 * 10**15
#: The filters that have a budget, in the order of checks.
BUDGETS = tuple(name for name in Filter if name is not Filter.ACTION_CAP)


class ClearKind(IntEnum):
    """The kind of a clear; every kind except ``FORGET_ALL`` concerns one site."""

    IMPRESSIONS_FOR_SITE = 0
    SITE_DATA = 1
    FORGET_SITE = 2
    FORGET_ALL = 3


class ConversionOutcome(IntEnum):
    """The outcome of a conversion. Every outcome except ``ATTRIBUTED`` reports zeros.

    An attributed conversion also reports zeros if its value lies outside the histogram. ``REFUSED``: no epoch with
    matches could pay. ``CLEARED``: the only matches were impressions that a clear removed or made unreachable.
    ``OFF``: the user has turned the API off.
    """

    ATTRIBUTED = 0
    NO_MATCH = 1
    REFUSED = 2
    CLEARED = 3
    OFF = 4


class _Columns:
    """Builds columns of one length from arrays, or from single numbers that apply to every row."""

    __slots__ = ()

    @classmethod
    def of(cls, **given: ArrayLike) -> Self:
        """Return the columns; an omitted column has its default in every row."""
        rows = max((np.asarray(column).size for column in given.values() if np.ndim(column)), default=1)
        if any(np.ndim(column) and np.asarray(column).size != rows for column in given.values()):
            raise ConfigError(f"columns have different lengths: give each {rows} rows, or one number for all rows")
        made: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            kind = np.bool_ if field.type == "Flags" else np.int64
            if field.name not in given and field.name not in _DEFAULTS:
                raise ConfigError(f"column {field.name} is missing")
            value = given.get(field.name, _DEFAULTS.get(field.name))
            array = np.asarray(value)
            if kind is np.int64 and array.size and array.dtype.kind not in "iu":
                raise ConfigError(f"column {field.name} must hold integers, not {array.dtype}")
            made[field.name] = np.ascontiguousarray(np.broadcast_to(array, rows).astype(kind, copy=False))
        unknown = sorted(set(given) - set(made))
        if unknown:
            raise ConfigError(f"there is no column {unknown[0]}: use {', '.join(made)}")
        return cls(**made)

    def __len__(self) -> int:
        return int(getattr(self, "device").size)  # noqa: B009

    def take(self, rows: Ints | slice) -> Self:
        """Return some of the rows."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})  # type: ignore[arg-type]

    def bounded(self, name: str, least: int, most: int) -> None:
        """Raise ``ConfigError`` if a column has a number outside a range."""
        column = getattr(self, name)
        if column.size and not (column.min() >= least and column.max() <= most):
            raise ConfigError(f"column {name} must hold numbers from {least} to {most}")


_DEFAULTS: dict[str, Any] = {
    "intermediary": -1,
    "priority": 0,
    "match_value": 0,
    "lifetime_days": 30,
    "conversion_sites": 0,
    "conversion_callers": 0,
    "action": -1,
    "enabled": True,
    "value": 1,
    "max_value": 1,
    "epsilon_micro": 1_000_000,
    "credit": 0,
    "lookback_days": UINT32_MAX,
    "match_values": 0,
    "impression_sites": 0,
    "impression_callers": 0,
    "site": -1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpressionColumns(_Columns):
    """Impressions: ``ImpressionOptions`` and where each was saved. Build them with ``of``."""

    device: Ints
    time_ms: Ints
    site: Ints
    histogram_index: Ints
    intermediary: Ints
    priority: Ints
    match_value: Ints
    lifetime_days: Ints
    conversion_sites: Ints
    conversion_callers: Ints
    action: Ints
    enabled: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionColumns(_Columns):
    """Conversions: ``ConversionOptions`` and where each was measured. Build them with ``of``."""

    device: Ints
    time_ms: Ints
    site: Ints
    histogram_size: Ints
    intermediary: Ints
    value: Ints
    max_value: Ints
    epsilon_micro: Ints
    credit: Ints
    lookback_days: Ints
    match_values: Ints
    impression_sites: Ints
    impression_callers: Ints
    action: Ints
    enabled: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearColumns(_Columns):
    """Clears, each of one site or of everything (``ClearKind``); ``site`` is -1 for a clear of everything."""

    device: Ints
    time_ms: Ints
    kind: Ints
    site: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetColumns:
    """The remaining amount of every budget that was charged or set, by device.

    ``key`` packs filter, epoch and site; the rows of device d end at ``ends[d]``. Other columns are computed on use.
    """

    key: Ints
    left_micro: Ints
    ends: Ints

    def __len__(self) -> int:
        return self.key.size

    @property
    def device(self) -> Ints:
        """The device of each budget."""
        return np.repeat(np.arange(self.ends.size), np.diff(self.ends, prepend=0))

    @property
    def filter(self) -> Ints:
        """The filter, as an index into ``BUDGETS``."""
        return self.key & ((1 << layout.KIND_BITS) - 1)

    @property
    def epoch(self) -> Ints:
        """The number of the epoch."""
        return (self.key >> (layout.SITE_BITS + layout.KIND_BITS)) - layout.EPOCH_ZERO

    @property
    def site(self) -> Ints:
        """The site; -1 for the global budget."""
        found = (self.key >> layout.KIND_BITS) & ((1 << layout.SITE_BITS) - 1)
        return np.where(self.filter == layout.GLOBAL, -1, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConversions:
    """The results of conversions, in the order in which they were given, and the devices' budgets at the end.

    The histogram of conversion i has ``amount[offset[i] : offset[i + 1]]`` at ``index`` of the same rows, and zeros
    elsewhere. ``outside`` is the value whose index lies beyond it. ``epochs_paid`` and ``epochs_refused`` count epochs
    with matches; bit b of ``refused`` is set if filter b, in the order of ``Filter``, refused one. Everything except
    the histogram is for the simulator only. ``epoch_start_ms`` is per device; ``has_epoch_start`` is False for devices
    that never needed it.
    """

    outcome: NDArray[np.int8]
    offset: Ints
    index: Ints
    amount: Ints
    outside: Ints
    epochs_paid: Ints
    epochs_refused: Ints
    refused: NDArray[np.int8]
    single_epoch: Flags
    budgets: BudgetColumns
    epoch_start_ms: Ints
    has_epoch_start: Flags

    def __len__(self) -> int:
        return self.outcome.size

    def histogram(self, row: int, size: int) -> tuple[int, ...]:
        """Return the histogram of one conversion."""
        found = np.zeros(size, dtype=np.int64)
        chosen = slice(int(self.offset[row]), int(self.offset[row + 1]))
        found[self.index[chosen]] = self.amount[chosen]
        return tuple(found.tolist())

    def refused_by(self, row: int) -> frozenset[Filter]:
        """Return the filters that refused an epoch of one conversion."""
        return frozenset(name for bit, name in enumerate(Filter) if self.refused[row] >> bit & 1)
