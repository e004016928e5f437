"""Balances of units: sorted 40-byte records in blocks of a few hundred, one database row per block.

A charge reads the blocks its units fall into, merges, and writes those blocks back: a million units are a few thousand
rows, and the units of one hour, which share their first bytes, fall into neighbouring blocks. It processes a set in
pieces, so that apart from the keys its memory does not grow with the set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from budget.errors import StoreError
from budget.filters import Filter, Spend
from budget.store import Store, Transaction
from budget.units import UNIT_BYTES, Columns, Indexes, UnitSet, columns, merge_indexes

RECORD = np.dtype([("hi", ">u8"), ("mid", ">u8"), ("lo", ">u4"), ("loss", ">i8"), ("delta", ">i8"), ("uses", ">u4")])
"""One unit: its key, the loss spent (10⁻⁶ of ε or ρ), δ spent (10⁻¹⁸) and uses. 40 bytes."""
BLOCK_MAX: Final = 256
"""The largest number of records in a block; a larger block is split."""
BLOCK_FILL: Final = 192
"""About how many records each part of a split block gets, so that it has room to grow."""
PIECE_UNITS: Final = 1 << 16
"""How many units are read or charged at a time; each needs about 200 bytes."""


def record_keys(records: NDArray[np.void]) -> Columns:
    """Return the key columns of records as native numbers."""
    return records["hi"].astype(np.uint64), records["mid"].astype(np.uint64), records["lo"].astype(np.uint32)


def parse_block(raw: bytes) -> NDArray[np.void]:
    """Return the records of packed blocks; StoreError if the bytes are not whole records."""
    if len(raw) % RECORD.itemsize:
        raise StoreError("a block of balances has a wrong length: run 'aggservice ledger verify'")
    return np.frombuffer(raw, dtype=RECORD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpentColumns:
    """What each unit of a set has spent, in the order of the set: int64 columns."""

    units: UnitSet
    loss_micro: NDArray[np.int64]
    delta_atto: NDArray[np.int64]
    uses: NDArray[np.int64]

    def of(self, index: int) -> Spend:
        """Return what one unit has spent."""
        return Spend(
            loss_micro=int(self.loss_micro[index]),
            delta_atto=int(self.delta_atto[index]),
            uses=int(self.uses[index]),
        )

    def cannot_pay(self, cost: Spend, limit: Spend) -> NDArray[np.bool_]:
        """Return which units cannot pay ``cost`` (spent + cost > limit), compared without overflow."""
        return (
            (self.loss_micro > limit.loss_micro - cost.loss_micro)
            | (self.delta_atto > limit.delta_atto - cost.delta_atto)
            | (self.uses > limit.uses - cost.uses)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Region:
    """The blocks a set of units falls into, merged with the units: what a charge reads and writes back."""

    first_keys: list[bytes]
    records: NDArray[np.void]
    unit_index: Indexes
    cuts: list[int]
    spent: SpentColumns

    def charged(self, cost: Spend, sign: int = 1) -> Iterator[tuple[bytes, bytes]]:
        """Yield the new blocks (first key, block) after each unit paid ``cost`` (sign 1) or got it back (sign −1)."""
        records = self.records
        records["loss"][self.unit_index] = self.spent.loss_micro + sign * cost.loss_micro
        records["delta"][self.unit_index] = self.spent.delta_atto + sign * cost.delta_atto
        records["uses"][self.unit_index] = self.spent.uses + sign * cost.uses
        raw = records.tobytes()
        width = RECORD.itemsize
        for start, stop in pairwise(self.cuts):
            yield raw[start * width : start * width + UNIT_BYTES], raw[start * width : stop * width]


def _cuts(segments: list[int]) -> list[int]:
    """Return block boundaries: each segment whole, or in even parts if it is above ``BLOCK_MAX``."""
    cuts = [0]
    for start, stop in pairwise(segments):
        size = stop - start
        parts = 1 if size <= BLOCK_MAX else -(-size // BLOCK_FILL)
        cuts.extend(start + size * part // parts for part in range(1, parts + 1))
    return cuts


def _sound(records: NDArray[np.void], limit: Spend) -> None:
    """Refuse balances that no charge can have written, before arithmetic on them can overflow."""
    loss, delta = records["loss"], records["delta"]
    if bool(((loss < 0) | (loss > limit.loss_micro) | (delta < 0) | (delta > limit.delta_atto)).any()):
        raise StoreError("a balance is out of range: the database was changed by hand; run 'aggservice ledger verify'")


def _read_region(transaction: Transaction, units: UnitSet, limit: Spend) -> _Region:
    """Read the blocks that ``units`` fall into, and no others; find each unit's index in the merged records."""
    keys = columns(units.keys)
    first_keys: list[bytes] = []
    if len(units):
        index = transaction.block_index(units[0], units[len(units) - 1])
        if index:
            starts = columns(np.frombuffer(b"".join(index), dtype=np.uint8).reshape(-1, UNIT_BYTES))
            block_rank, unit_rank = np.empty(len(index), np.int64), np.empty(len(units), np.int64)
            merge_indexes(starts, keys, block_rank, unit_rank)
            home = np.maximum(np.searchsorted(block_rank, unit_rank, side="right") - 1, 0)
            first_keys = [index[i] for i in np.unique(home).tolist()]
    blocks = transaction.read_blocks(first_keys) if first_keys else []
    old = parse_block(b"".join(blocks))
    _sound(old, limit)
    old_index, unit_index = np.empty(old.size, np.int64), np.empty(len(units), np.int64)
    size = int(merge_indexes(record_keys(old), keys, old_index, unit_index))
    records = np.zeros(size, dtype=RECORD)
    records["hi"][unit_index], records["mid"][unit_index], records["lo"][unit_index] = keys
    records[old_index] = old
    ends = np.cumsum([len(block) // RECORD.itemsize for block in blocks[:-1]], dtype=np.int64)
    segments = [0, *old_index[ends].tolist(), size] if size else [0]
    spent = SpentColumns(
        units=units,
        loss_micro=records["loss"][unit_index].astype(np.int64),
        delta_atto=records["delta"][unit_index].astype(np.int64),
        uses=records["uses"][unit_index].astype(np.int64),
    )
    return _Region(first_keys=first_keys, records=records, unit_index=unit_index, cuts=_cuts(segments), spent=spent)


def _pieces(units: UnitSet) -> Iterator[UnitSet]:
    for start in range(0, len(units), PIECE_UNITS):
        yield UnitSet(units.keys[start : start + PIECE_UNITS])


def _joined(pieces: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate(pieces) if pieces else np.zeros((0, UNIT_BYTES), dtype=np.uint8)


def read_spent(transaction: Transaction, units: UnitSet, limit: Spend) -> SpentColumns:
    """Return what each unit has spent."""
    found = [_read_region(transaction, piece, limit).spent for piece in _pieces(units)]
    nothing = np.zeros(0, dtype=np.int64)
    return SpentColumns(
        units=units,
        loss_micro=np.concatenate([nothing, *(piece.loss_micro for piece in found)]),
        delta_atto=np.concatenate([nothing, *(piece.delta_atto for piece in found)]),
        uses=np.concatenate([nothing, *(piece.uses for piece in found)]),
    )


def units_that_cannot_pay(transaction: Transaction, units: UnitSet, cost: Spend, limit: Spend) -> NDArray[np.uint8]:
    """Return the keys of the units that cannot pay ``cost``, ascending."""
    found = []
    for piece in _pieces(units):
        lacking = _read_region(transaction, piece, limit).spent.cannot_pay(cost, limit)
        found.append(piece.keys[lacking])
    return _joined(found)


def charge(transaction: Transaction, units: UnitSet, cost: Spend, limit: Spend) -> NDArray[np.uint8]:
    """Charge every unit and return no keys, or return the keys of all units that cannot pay.

    In the second case the caller must abort the transaction, because it already charged some units.
    """
    for start in range(0, len(units), PIECE_UNITS):
        piece = UnitSet(units.keys[start : start + PIECE_UNITS])
        region = _read_region(transaction, piece, limit)
        if bool(region.spent.cannot_pay(cost, limit).any()):
            return units_that_cannot_pay(transaction, UnitSet(units.keys[start:]), cost, limit)
        transaction.replace_blocks(region.first_keys, region.charged(cost))
    return _joined([])


def refund(transaction: Transaction, units: UnitSet, cost: Spend, limit: Spend) -> None:
    """Subtract ``cost`` from what every unit has spent; each must have spent at least that."""
    for piece in _pieces(units):
        region = _read_region(transaction, piece, limit)
        transaction.replace_blocks(region.first_keys, region.charged(cost, sign=-1))


def extremes(transaction: Transaction, sets: Iterable[UnitSet], limit: Spend) -> tuple[Spend, Spend]:
    """Return the least and the most that any unit has spent, for loss, δ and uses separately; zero for no units."""
    low, high = [0, 0, 0], [0, 0, 0]
    for number, piece in enumerate(piece for units in sets for piece in _pieces(units)):
        spent = _read_region(transaction, piece, limit).spent
        for index, column in enumerate((spent.loss_micro, spent.delta_atto, spent.uses)):
            low[index] = int(column.min()) if number == 0 else min(low[index], int(column.min()))
            high[index] = max(high[index], int(column.max()))
    return (
        Spend(loss_micro=low[0], delta_atto=low[1], uses=low[2]),
        Spend(loss_micro=high[0], delta_atto=high[1], uses=high[2]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceTotals:
    """Totals: units known, units with no loss or no use left, the most that any unit spent, and units by loss."""

    units: int
    spent_out: int
    most: Spend
    by_loss_micro: Mapping[int, int]


def balance_totals(store: Store, chosen: Filter, progress: Callable[[int], None]) -> BalanceTotals:
    """Read every balance once. ``progress`` is called with each number of units read."""
    limit = chosen.limit

    def work(transaction: Transaction) -> BalanceTotals:
        units = spent_out = delta = uses = 0
        by_loss: Counter[int] = Counter()
        for _, block in transaction.blocks():
            records = parse_block(block)
            _sound(records, limit)
            units += records.size
            spent_out += int(((records["loss"] == limit.loss_micro) | (records["uses"] == limit.uses)).sum())
            by_loss.update(dict(zip(*(column.tolist() for column in np.unique_counts(records["loss"])), strict=True)))
            delta = max(delta, int(records["delta"].max(initial=0)))
            uses = max(uses, int(records["uses"].max(initial=0)))
            progress(records.size)
        most = Spend(loss_micro=max(by_loss, default=0), delta_atto=delta, uses=uses)
        return BalanceTotals(units=units, spent_out=spent_out, most=most, by_loss_micro=dict(sorted(by_loss.items())))

    return store.read("totals", work)
