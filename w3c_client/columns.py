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

from aggservice.wire.device import DeviceConfigError
from w3c_client import kernels
from w3c_client.config import UINT32_MAX
from w3c_client.rules import OnDeviceRule

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

#: Times stay within this, so that the number of an epoch fits into 27 bits.
TIME_LIMIT_MS = 5 * 10**15


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
            raise DeviceConfigError(
                f"columns have different lengths: give each {rows} rows, or one number for all rows"
            )
        made: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            kind = np.bool_ if field.type == "Flags" else np.int64
            if field.name not in given and field.name not in _DEFAULTS:
                raise DeviceConfigError(f"column {field.name} is missing")
            value = given.get(field.name, _DEFAULTS.get(field.name))
            array = np.asarray(value)
            if kind is np.int64 and array.size and array.dtype.kind not in "iu":
                raise DeviceConfigError(f"column {field.name} must hold integers, not {array.dtype}")
            made[field.name] = np.ascontiguousarray(np.broadcast_to(array, rows).astype(kind, copy=False))
        unknown = sorted(set(given) - set(made))
        if unknown:
            raise DeviceConfigError(f"there is no column {unknown[0]}: use {', '.join(made)}")
        return cls(**made)

    def __len__(self) -> int:
        return int(getattr(self, "device").size)  # noqa: B009

    def take(self, rows: Ints | slice) -> Self:
        """Return some of the rows."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})  # type: ignore[arg-type]

    def bounded(self, name: str, least: int, most: int) -> None:
        """Raise ``DeviceConfigError`` if a column has a number outside a range."""
        column = getattr(self, name)
        if column.size and not (column.min() >= least and column.max() <= most):
            raise DeviceConfigError(f"column {name} must hold numbers from {least} to {most}")


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

    ``key`` packs epoch, first site and rule; ``rest`` has a row per further column of a scope. The rows of device d end
    at ``ends[d]``. ``rules`` are the configuration's. Other columns are computed on use.
    """

    key: Ints
    rest: Ints
    left_micro: Ints
    ends: Ints
    rules: tuple[OnDeviceRule, ...]

    def __len__(self) -> int:
        return self.key.size

    @property
    def device(self) -> Ints:
        """The device of each budget."""
        return np.repeat(np.arange(self.ends.size), np.diff(self.ends, prepend=0))

    @property
    def rule(self) -> Ints:
        """The rule, as a place in ``rules``."""
        return self.key & ((1 << kernels.RULE_BITS) - 1)

    @property
    def epoch(self) -> Ints:
        """The number of the epoch."""
        return (self.key >> (kernels.SITE_BITS + kernels.RULE_BITS)) - kernels.EPOCH_ZERO

    def scope(self, row: int) -> tuple[int, ...]:
        """Return the values of one budget's scope, in the order of its rule's columns."""
        columns = kernels.key_columns(self.rules[int(self.rule[row])].scope)
        first = (self.key[row] >> kernels.RULE_BITS) & ((1 << kernels.SITE_BITS) - 1)
        found = dict(zip(columns, (int(first), *self.rest[:, row].tolist()), strict=False))
        return tuple(found[column] for column in self.rules[int(self.rule[row])].scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConversions:
    """The results of conversions, in the order in which they were given, and the devices' budgets at the end.

    The histogram of conversion i has ``amount[offset[i] : offset[i + 1]]`` at ``index`` of the same rows, and zeros
    elsewhere. ``outside`` is the value that no index of it gets. ``epochs_paid`` and ``epochs_refused`` count epochs
    with matches; bit b of ``refused`` is set if rule b of the configuration's ``rules`` refused one. Everything except
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
    refused: Ints
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

    def refused_by(self, row: int) -> frozenset[str]:
        """Return the names of the rules that refused an epoch of one conversion."""
        return frozenset(rule.name for bit, rule in enumerate(self.budgets.rules) if self.refused[row] >> bit & 1)
