"""``Fleet``: many browsers of W3C Attribution at once, in columns, with the results and budgets of ``Browser``.

>>> from aggservice.mechanisms import SeededBits
>>> fleet = Fleet(bits=SeededBits("docs"))
>>> saved = ImpressionColumns.of(device=[0, 1], time_ms=[0, 0], site=[0, 0], histogram_index=[2, 1])
>>> bought = ConversionColumns.of(device=[0, 1], time_ms=3_600_000, site=1, histogram_size=4, value=3, max_value=10)
>>> done = fleet.run(saved, bought)
>>> [done.histogram(row, 4) for row in range(2)]
[(0, 0, 3, 0), (0, 3, 0, 0)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, uniform_below_batch
from aggservice.wire.device import DeviceConfigError
from aggservice.wire.limits import MAX_W3C_VALUE
from w3c_client import kernels
from w3c_client.columns import (
    TIME_LIMIT_MS,
    BudgetColumns,
    ClearColumns,
    ClearKind,
    ConversionColumns,
    FleetConversions,
    ImpressionColumns,
    Ints,
)
from w3c_client.config import DAY_MS, MAX_EPSILON, UINT32_MAX, Arithmetic, Config
from w3c_client.credit import credited
from w3c_client.rules import ScopeColumn

_MAX_LISTED = 60
_MAX_WEIGHT = 1 << 30
_MAX_RULES = 1 << kernels.RULE_BITS
_SITE_MAX = UINT32_MAX - 1
_ACTION_MAX = 1 << 62
_BLOCK_EVENTS = 1 << 15
"""Events that are run together: their rows stay in the processor's cache."""
Sorted = TypeVar("Sorted", ImpressionColumns, ConversionColumns, ClearColumns)


class Fleet:
    """Many browsers with one configuration. Each ``run`` begins with new browsers.

    ``lists`` are lists of sites or match values, the first of them empty; ``credits`` are lists of credits. Time is
    O(impressions within reach) per conversion; memory is about 300 bytes per event. A fleet supports only exact
    arithmetic; use ``Browser`` otherwise.
    """

    def __init__(
        self,
        *,
        bits: Bits,
        config: Config | None = None,
        lists: Sequence[Sequence[int]] = ((),),
        credits: Sequence[Sequence[float]] = ((1,),),
    ) -> None:
        self.config = Config() if config is None else config
        self._bits = bits
        if self.config.arithmetic is not Arithmetic.EXACT:
            raise DeviceConfigError(
                "a fleet supports only exact arithmetic: use Browser for the specification's doubles"
            )
        if not lists or len(lists[0]):
            raise DeviceConfigError("lists must begin with the empty list, which allows any site or value")
        distinct = [sorted(set(one)) for one in lists]
        if any(len(one) > _MAX_LISTED or (one and not 0 <= one[0] <= one[-1] <= UINT32_MAX) for one in distinct):
            raise DeviceConfigError(f"a list holds at most {_MAX_LISTED} numbers, each from 0 to {UINT32_MAX}")
        for one in credits:
            if not 1 <= len(one) <= self.config.max_credits or not all(item > 0 for item in one):
                most = self.config.max_credits
                raise DeviceConfigError(f"a list of credits must have 1 to {most} positive numbers, got {list(one)}")
        self._lists, self._credits = [len(one) for one in lists], tuple(map(tuple, credits))
        self._tables = _ragged(distinct)
        self._values = np.array(
            [
                self.config.epoch_ms,
                self.config.max_lookback_ms,
                any(rule.counts_sites for rule in self.config.rules),
                self.config.impressions_per_site or 0,
            ],
            dtype=np.int64,
        )
        self._limits, self._prices = _compiled(self.config, [len(one) for one in distinct])
        self._shares = _ShareTable.of(self.config, self._credits, self.config.max_credits)

    def run(
        self,
        impressions: ImpressionColumns,
        conversions: ConversionColumns,
        clears: ClearColumns | None = None,
        *,
        devices: int | None = None,
        epoch_offset_ms: Ints | None = None,
        words: NDArray[np.uint64] | None = None,
    ) -> FleetConversions:
        """Return the results of all conversions, and the remaining budgets.

        Events of a device happen in order of time; at the same moment impressions come first, then conversions, then
        clears. Columns in order of device and time are not copied. ``epoch_offset_ms`` (one per device) and ``words``
        (per conversion, as many as ``coins`` says) replace the random choices that come from ``bits``.
        """
        clears = ClearColumns.of(device=[], time_ms=[], kind=[]) if clears is None else clears
        last = [int(columns.device.max()) for columns in (impressions, conversions, clears) if len(columns)]
        total = max(last, default=-1) + 1 if devices is None else devices
        self._check(impressions, conversions, clears, total)
        impressions, _ = _in_order(impressions)
        conversions, order = _in_order(conversions)
        clears, _ = _in_order(clears)
        if epoch_offset_ms is None:
            epoch_offset_ms = uniform_below_batch(self._bits, self.config.epoch_ms, total).astype(np.int64)
        shares = self._share_table(int(np.bincount(impressions.device, minlength=1).max()))
        coins = shares.coins[conversions.credit]
        if order is not None and words is not None:
            words = _regrouped(words, np.cumsum(coins[np.argsort(order)]), order)
        if words is None:
            words = np.frombuffer(self._bits.read(8 * int(coins.sum())), dtype=np.uint64)
        found = self._run(impressions, conversions, clears, shares, np.cumsum(coins) - coins, words, epoch_offset_ms)
        return found if order is None else _as_given(found, order)

    def coins(self, touches: int) -> list[int]:
        """Return the random words of a conversion by its list of credits, if no device has more than ``touches``."""
        return [int(words) for words in self._share_table(touches).coins]

    def _share_table(self, touches: int) -> _ShareTable:
        if touches <= self.config.max_credits:
            return self._shares
        return _ShareTable.of(self.config, self._credits, touches)

    def _run(
        self,
        impressions: ImpressionColumns,
        conversions: ConversionColumns,
        clears: ClearColumns,
        shares: _ShareTable,
        word: Ints,
        words: NDArray[np.uint64],
        offset_ms: Ints,
    ) -> FleetConversions:
        firsts = np.stack([_first_rows(one, offset_ms.size) for one in (impressions, conversions, clears)])
        before = firsts.sum(axis=0)  # events of earlier devices
        marks = np.searchsorted(before, np.arange(_BLOCK_EVENTS, int(before[-1]), _BLOCK_EVENTS))
        edges = [0, *np.unique(marks).tolist(), offset_ms.size]
        done = []
        for first, stop in pairwise(edges):
            own, mine = firsts[:, first : stop + 1], [slice(*row) for row in firsts[:, [first, stop]].tolist()]
            events = (
                self._impression_rows(impressions.take(mine[0])),
                self._conversion_rows(conversions.take(mine[1]), word[mine[1]]),
                _clear_rows(clears.take(mine[2])),
            )
            done.append(self._run_block(own - own[:, :1], events, shares, words, offset_ms[first:stop]))
        return self._joined(done)

    def _run_block(
        self,
        firsts: Ints,
        events: tuple[Ints, ...],
        shares: _ShareTable,
        words: NDArray[np.uint64],
        offset_ms: Ints,
    ) -> tuple[Ints, ...]:
        """Run some devices; return the rows of results, budgets, contributions and devices."""
        saved, made, cleared = np.diff(firsts)
        reach = self.config.max_lookback_ms // self.config.epoch_ms + 2
        charged = made * np.minimum(reach, saved)
        limits = self._limits.copy()  # the kernel writes costs into it
        counted = int(limits[:, kernels.L_COUNTS].sum())
        by_site = limits[:, kernels.L_BY_SITE] > 0
        alone = np.isin(limits[:, kernels.L_FIRST :], (kernels.NONE, kernels.W_OTHER)).all(axis=1)
        budgets = int(cleared.sum()) * reach * int(limits[:, kernels.L_EMPTIED].sum())
        # A rule has a budget per impression, per charge, or per charge and impression site.
        budgets += int(saved.sum()) * int((by_site & alone).sum()) + int(charged.sum()) * int((~by_site).sum())
        budgets += int((made * saved).sum()) * int((by_site & ~alone).sum())
        width, deep = int(limits[:, kernels.L_SECOND :].any(axis=0).sum()), int(saved.max(initial=0))
        # The arrays have room for the maximum; the system allocates no memory for parts that are never written.
        res = np.zeros((len(events[1]), kernels.RES_WIDTH), dtype=np.int64)
        ends = np.empty((offset_ms.size, 2), dtype=np.int64)
        ent = np.empty((kernels.E_REST + width, budgets), dtype=np.int64)
        sent = np.empty((len(events[1]) * shares.most, 2), dtype=np.int64)
        room = np.empty((5, (len(limits) + 1) * max(deep, 1)), dtype=np.int64)
        top = np.empty((3, max(shares.most, deep)), dtype=np.int64)
        seen = np.empty((counted * int((saved + charged).max(initial=0)), kernels.A_REST + width), dtype=np.int64)
        entries, written = kernels.run(
            firsts, *events, *self._tables, *shares.rows, words, self._values, limits, self._prices, offset_ms,
            res, ent, sent, ends, room, top, seen,
        )  # fmt: skip
        return res, ent[:, :entries].copy(), sent[:written].copy(), ends

    def _joined(self, blocks: list[tuple[Ints, ...]]) -> FleetConversions:
        """Return the results of blocks of devices, one after the other."""
        entries = written = 0
        for own_res, own_ent, own_sent, own_ends in blocks:
            own_ends[:, kernels.D_ENTRIES] += entries
            own_res[:, kernels.R_END] += written
            entries, written = entries + own_ent.shape[1], written + len(own_sent)
        parts = list(zip(*blocks, strict=True))
        res, sent, ends = (np.concatenate(parts[number]) for number in (0, 2, 3))
        ent = np.concatenate(parts[1], axis=1)
        starts = ends[:, kernels.D_START]
        return FleetConversions(
            outcome=res[:, kernels.R_OUTCOME].astype(np.int8),
            offset=np.concatenate((np.zeros(1, dtype=np.int64), res[:, kernels.R_END])),
            index=sent[:, kernels.S_INDEX],
            amount=sent[:, kernels.S_AMOUNT],
            outside=res[:, kernels.R_OUTSIDE],
            epochs_paid=res[:, kernels.R_PAID],
            epochs_refused=res[:, kernels.R_UNPAID],
            refused=res[:, kernels.R_REFUSED],
            single_epoch=res[:, kernels.R_SINGLE].astype(np.bool_),
            budgets=BudgetColumns(
                key=ent[kernels.E_KEY],
                rest=ent[kernels.E_REST :],
                left_micro=ent[kernels.E_LEFT],
                ends=ends[:, kernels.D_ENTRIES],
                rules=self.config.rules,
            ),
            epoch_start_ms=starts,
            has_epoch_start=starts != kernels.NEVER,
        )

    def _impression_rows(self, given: ImpressionColumns) -> Ints:
        lifetimes_ms = np.minimum(given.lifetime_days, self.config.max_lookback_days) * DAY_MS
        rows = np.zeros((len(given), kernels.IMP_WIDTH), dtype=np.int64)
        for column, values in (
            (kernels.I_TIME, given.time_ms),
            (kernels.I_UNTIL, given.time_ms + lifetimes_ms),
            (kernels.I_SITE, given.site),
            (kernels.I_CALLER, _callers(given)),
            (kernels.I_INDEX, given.histogram_index),
            (kernels.I_PRIORITY, given.priority),
            (kernels.I_MATCH_VALUE, given.match_value),
            (kernels.I_SITES, given.conversion_sites),
            (kernels.I_CALLERS, given.conversion_callers),
            (kernels.I_ACTION, given.action),
            (kernels.I_ENABLED, given.enabled),
        ):
            rows[:, column] = values
        return rows

    def _conversion_rows(self, given: ConversionColumns, word: Ints) -> Ints:
        asked = given.epsilon_micro.astype(np.uint64) * given.value.astype(np.uint64)
        divisor = given.max_value.astype(np.uint64)
        rows = np.empty((len(given), kernels.CON_WIDTH), dtype=np.int64)
        for column, values in (
            (kernels.C_TIME, given.time_ms),
            (kernels.C_LOOKBACK, np.minimum(given.lookback_days, self.config.max_lookback_days) * DAY_MS),
            (kernels.C_SITE, given.site),
            (kernels.C_CALLER, _callers(given)),
            (kernels.C_SIZE, given.histogram_size),
            (kernels.C_VALUE, given.value),
            (kernels.C_MAX_VALUE, given.max_value),
            (kernels.C_EPSILON, given.epsilon_micro),
            (kernels.C_WHOLE, (asked + divisor - np.uint64(1)) // divisor),
            (kernels.C_CREDIT, given.credit),
            (kernels.C_MATCH_VALUES, given.match_values),
            (kernels.C_SITES, given.impression_sites),
            (kernels.C_CALLERS, given.impression_callers),
            (kernels.C_ACTION, given.action),
            (kernels.C_ENABLED, given.enabled),
            (kernels.C_WORD, word),
        ):
            rows[:, column] = values
        return rows

    def _check(
        self, impressions: ImpressionColumns, conversions: ConversionColumns, clears: ClearColumns, devices: int
    ) -> None:
        """Raise ``DeviceConfigError`` for events that ``Browser`` would reject, and numbers too large for kernels."""
        config, lists = self.config, len(self._lists) - 1
        for columns in (impressions, conversions, clears):
            columns.bounded("device", 0, devices - 1)
            columns.bounded("time_ms", -TIME_LIMIT_MS, TIME_LIMIT_MS)
        for columns in (impressions, conversions):
            columns.bounded("site", 0, _SITE_MAX)
            columns.bounded("intermediary", -1, _SITE_MAX)
            columns.bounded("action", -1, _ACTION_MAX)
        impressions.bounded("histogram_index", 0, config.max_histogram_size - 1)
        impressions.bounded("priority", -(1 << 31), (1 << 31) - 1)
        impressions.bounded("match_value", 0, UINT32_MAX)
        impressions.bounded("lifetime_days", 1, UINT32_MAX)
        conversions.bounded("histogram_size", 1, config.max_histogram_size)
        conversions.bounded("max_value", 1, MAX_W3C_VALUE)
        conversions.bounded("value", 1, MAX_W3C_VALUE)
        if not (conversions.value <= conversions.max_value).all():
            raise DeviceConfigError("column value must not exceed column max_value in any row")
        conversions.bounded("epsilon_micro", 1, MAX_EPSILON * 1_000_000)
        conversions.bounded("lookback_days", 1, UINT32_MAX)
        conversions.bounded("credit", 0, len(self._credits) - 1)
        for columns, name, most in (
            (impressions, "conversion_sites", config.max_conversion_sites),
            (impressions, "conversion_callers", config.max_conversion_callers),
            (conversions, "match_values", config.max_match_values),
            (conversions, "impression_sites", config.max_impression_sites),
            (conversions, "impression_callers", config.max_impression_callers),
        ):
            columns.bounded(name, 0, lists)
            longest = max(self._lists)
            if longest > most and np.array(self._lists)[getattr(columns, name)].max(initial=0) > most:
                raise DeviceConfigError(f"column {name} uses a list with more than {most} numbers: shorten the list")
        clears.bounded("kind", 0, len(ClearKind) - 1)
        clears.bounded("site", -1, _SITE_MAX)
        if ((clears.site < 0) != (clears.kind == ClearKind.FORGET_ALL)).any():
            raise DeviceConfigError("column site of clears must be -1 for FORGET_ALL, and a site for every other kind")


class _ShareTable(NamedTuple):
    """The attribution rule in rows: who gets which part of a value, by list of credits and number of touches.

    ``coins`` is the most random words of each list, ``most`` the most parts of a value.
    """

    rows: tuple[Ints, Ints, Ints]
    coins: Ints
    most: int

    @classmethod
    def of(cls, config: Config, credits: Sequence[tuple[float, ...]], touches: int) -> Self:
        """Return the table for up to ``touches`` touches."""
        offset = np.zeros((len(credits), touches + 2), dtype=np.int64)
        ranks: list[int] = []
        weights: list[int] = []
        for number, credit in enumerate(credits):
            for count in range(1, touches + 1):
                offset[number, count] = len(ranks)
                some, parts = credited(config.attribution, count, credit, config.max_credits)
                if sum(parts) >= _MAX_WEIGHT:
                    raise DeviceConfigError(
                        f"the credits {list(credit)} have too many digits: round them, or use Browser"
                    )
                ranks += some
                weights += parts
            offset[number, touches + 1] = len(ranks)
        most = np.diff(offset[:, 1:], axis=1).max(axis=1)
        rows = offset, np.array(ranks, dtype=np.int64), np.array(weights, dtype=np.int64)
        return cls(rows, most - 1, int(most.max()))


def _compiled(config: Config, named_sites: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the configuration's rules as rows of ``limits``, and what each pays within one epoch, by list of sites."""
    if len(config.rules) > _MAX_RULES:
        raise DeviceConfigError(f"a fleet has at most {_MAX_RULES} on-device rules: use Browser for more")
    limits = np.zeros((len(config.rules), kernels.LIMIT_WIDTH), dtype=np.int64)
    prices = np.zeros((len(config.rules), len(named_sites), 3), dtype=np.int64)
    for row, rule in enumerate(config.rules):
        columns = kernels.key_columns(rule.scope)
        limits[row, kernels.L_CAPACITY] = rule.capacity(config)
        limits[row, kernels.L_COUNTS] = rule.counts_sites
        limits[row, kernels.L_EMPTIED] = rule.emptied
        limits[row, kernels.L_ACTION] = ScopeColumn.ACTION in rule.scope
        limits[row, kernels.L_BY_SITE] = ScopeColumn.IMPRESSION_SITE in rule.scope
        limits[row, kernels.L_FIRST : kernels.L_FIRST + len(columns)] = columns
        for number, named in enumerate(named_sites if not rule.counts_sites else ()):
            near = rule.cost(config, one_epoch=True, named_sites=named)
            wide = rule.cost(config, one_epoch=False, named_sites=named)
            prices[row, number] = near.norm, near.value, wide.value
    return limits, prices


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    offset = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return offset, np.array([item for row in rows for item in row], dtype=np.int64)


def _callers(given: ImpressionColumns | ConversionColumns) -> Ints:
    return np.where(given.intermediary < 0, given.site, given.intermediary)


def _clear_rows(given: ClearColumns) -> Ints:
    return np.stack((given.time_ms, given.kind, given.site), axis=1)


def _first_rows(columns: ImpressionColumns | ConversionColumns | ClearColumns, devices: int) -> Ints:
    """Return the first row of each device, and the end of the last."""
    return np.searchsorted(columns.device, np.arange(devices + 1)).astype(np.int64)


def _in_order(columns: Sorted) -> tuple[Sorted, Ints | None]:
    """Return the columns sorted by device and time, and the given row of each sorted row (None if already sorted)."""
    device, time_ms = columns.device, columns.time_ms
    later = device[1:] > device[:-1]
    if (later | ((device[1:] == device[:-1]) & (time_ms[1:] >= time_ms[:-1]))).all():
        return columns, None
    order = np.lexsort((time_ms, device)).astype(np.int64)
    return columns.take(order), order


Words = TypeVar("Words", bound=np.generic)


def _regrouped(items: NDArray[Words], ends: Ints, order: Ints) -> NDArray[Words]:
    """Return the items of rows in another order; the items of given row i end at ``ends[i]``."""
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1])) if ends.size else ends
    sizes = (ends - starts)[order]
    before = np.cumsum(sizes) - sizes
    return items[np.repeat(starts[order] - before, sizes) + np.arange(int(sizes.sum()))]


def _as_given(found: FleetConversions, order: Ints) -> FleetConversions:
    """Return the results in the order of the rows as they were given."""
    back = np.argsort(order)
    sizes = np.diff(found.offset)[back]
    return replace(
        found,
        outcome=found.outcome[back],
        offset=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        index=_regrouped(found.index, found.offset[1:], back),
        amount=_regrouped(found.amount, found.offset[1:], back),
        outside=found.outside[back],
        epochs_paid=found.epochs_paid[back],
        epochs_refused=found.epochs_refused[back],
        refused=found.refused[back],
        single_epoch=found.single_epoch[back],
    )
