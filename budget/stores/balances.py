"""Balances of units, packed: sorted 40-byte records in blocks of a few hundred, one database row a block.

A charge reads the blocks its units fall into, merges, and writes those blocks back: a million units are a few thousand
rows, and the units of one hour, which share their first bytes, fall into neighbouring blocks. It works through a set in
pieces, so that beside the keys themselves its memory does not grow with the set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from budget.errors import StoreError
from budget.filters import Spend
from budget.units import UNIT_BYTES, Columns, Places, UnitSet, columns, merge_places

if TYPE_CHECKING:
    from budget.filters import Filter
    from budget.store import Store, Transaction

RECORD = np.dtype([("hi", ">u8"), ("mid", ">u8"), ("lo", ">u4"), ("loss", ">i8"), ("delta", ">i8"), ("uses", ">u4")])
"""One unit: its key, the loss spent (10⁻⁶ of ε or ρ), δ spent (10⁻¹⁸) and uses. 40 bytes."""
BLOCK_MAX: Final = 256
"""A block with more records than this is split."""
BLOCK_FILL: Final = 192
"""About how many records each part of a split block gets, so that it has room to grow."""
PIECE_UNITS: Final = 1 << 16
"""How many units are looked up or charged at a time; about 200 bytes each."""


def record_keys(records: NDArray[np.void]) -> Columns:
    """Return the key columns of records as native numbers."""
    return records["hi"].astype(np.uint64), records["mid"].astype(np.uint64), records["lo"].astype(np.uint32)


def parse_block(raw: bytes) -> NDArray[np.void]:
    """Return the records of packed blocks; StoreError when the bytes are not whole records."""
    if len(raw) % RECORD.itemsize:
        raise StoreError("a block of balances has a wrong length: run 'aggservice ledger verify'")
    return np.frombuffer(raw, dtype=RECORD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spent:
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

    def lacking(self, cost: Spend, limit: Spend) -> NDArray[np.bool_]:
        """Return which units cannot pay ``cost``: those with spent + cost > limit, compared without overflow."""
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
    place_units: Places
    cuts: list[int]
    spent: Spent

    def charged(self, cost: Spend, sign: int = 1) -> Iterator[tuple[bytes, bytes]]:
        """Yield the new blocks (first key, packed records) once every unit paid ``cost``, or, sign −1, got it back."""
        records = self.records
        records["loss"][self.place_units] = self.spent.loss_micro + sign * cost.loss_micro
        records["delta"][self.place_units] = self.spent.delta_atto + sign * cost.delta_atto
        records["uses"][self.place_units] = self.spent.uses + sign * cost.uses
        raw = records.tobytes()
        width = RECORD.itemsize
        for start, stop in pairwise(self.cuts):
            yield raw[start * width : start * width + UNIT_BYTES], raw[start * width : stop * width]


def _cuts(segments: list[int]) -> list[int]:
    """Return block boundaries: each segment whole, or in even parts when it is above ``BLOCK_MAX``."""
    cuts = [0]
    for start, stop in pairwise(segments):
        size = stop - start
        parts = 1 if size <= BLOCK_MAX else -(-size // BLOCK_FILL)
        cuts.extend(start + size * part // parts for part in range(1, parts + 1))
    return cuts


def _sound(records: NDArray[np.void], limit: Spend) -> None:
    """Refuse balances that no charge can have written, before arithmetic on them could wrap."""
    loss, delta = records["loss"], records["delta"]
    if bool(((loss < 0) | (loss > limit.loss_micro) | (delta < 0) | (delta > limit.delta_atto)).any()):
        raise StoreError("a balance is out of range: the ledger was changed by hand; run 'aggservice ledger verify'")


def _read_region(transaction: Transaction, units: UnitSet, limit: Spend) -> _Region:
    """Read the blocks that ``units`` fall into and find each unit's place among them. Reads only those blocks."""
    keys = columns(units.keys)
    first_keys: list[bytes] = []
    if len(units):
        index = transaction.block_index(units[0], units[len(units) - 1])
        if index:
            starts = columns(np.frombuffer(b"".join(index), dtype=np.uint8).reshape(-1, UNIT_BYTES))
            block_place, unit_place = np.empty(len(index), np.int64), np.empty(len(units), np.int64)
            merge_places(starts, keys, block_place, unit_place)
            home = np.maximum(np.searchsorted(block_place, unit_place, side="right") - 1, 0)
            first_keys = [index[i] for i in np.unique(home).tolist()]
    blocks = transaction.read_blocks(first_keys) if first_keys else []
    old = parse_block(b"".join(blocks))
    _sound(old, limit)
    place_old, place_units = np.empty(old.size, np.int64), np.empty(len(units), np.int64)
    size = int(merge_places(record_keys(old), keys, place_old, place_units))
    records = np.zeros(size, dtype=RECORD)
    records["hi"][place_units], records["mid"][place_units], records["lo"][place_units] = keys
    records[place_old] = old
    ends = np.cumsum([len(block) // RECORD.itemsize for block in blocks[:-1]], dtype=np.int64)
    segments = [0, *place_old[ends].tolist(), size] if size else [0]
    spent = Spent(
        units=units,
        loss_micro=records["loss"][place_units].astype(np.int64),
        delta_atto=records["delta"][place_units].astype(np.int64),
        uses=records["uses"][place_units].astype(np.int64),
    )
    return _Region(first_keys=first_keys, records=records, place_units=place_units, cuts=_cuts(segments), spent=spent)


def _pieces(units: UnitSet) -> Iterator[UnitSet]:
    for start in range(0, len(units), PIECE_UNITS):
        yield UnitSet(units.keys[start : start + PIECE_UNITS])


def _joined(pieces: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate(pieces) if pieces else np.zeros((0, UNIT_BYTES), dtype=np.uint8)


def read_spent(transaction: Transaction, units: UnitSet, limit: Spend) -> Spent:
    """Return what each unit has spent."""
    found = [_read_region(transaction, piece, limit).spent for piece in _pieces(units)]
    nothing = np.zeros(0, dtype=np.int64)
    return Spent(
        units=units,
        loss_micro=np.concatenate([nothing, *(piece.loss_micro for piece in found)]),
        delta_atto=np.concatenate([nothing, *(piece.delta_atto for piece in found)]),
        uses=np.concatenate([nothing, *(piece.uses for piece in found)]),
    )


def lacking_units(transaction: Transaction, units: UnitSet, cost: Spend, limit: Spend) -> NDArray[np.uint8]:
    """Return the keys of the units that cannot pay ``cost``, ascending."""
    found = []
    for piece in _pieces(units):
        lacking = _read_region(transaction, piece, limit).spent.lacking(cost, limit)
        found.append(piece.keys[lacking])
    return _joined(found)


def charge(transaction: Transaction, units: UnitSet, cost: Spend, limit: Spend) -> NDArray[np.uint8]:
    """Charge every unit, and return no keys; or return the keys of all that cannot pay.

    In the second case the caller must abort the transaction: units before the first of those were charged in it.
    """
    for start in range(0, len(units), PIECE_UNITS):
        piece = UnitSet(units.keys[start : start + PIECE_UNITS])
        region = _read_region(transaction, piece, limit)
        if bool(region.spent.lacking(cost, limit).any()):
            return lacking_units(transaction, UnitSet(units.keys[start:]), cost, limit)
        transaction.replace_blocks(region.first_keys, region.charged(cost))
    return _joined([])


def give_back(transaction: Transaction, units: UnitSet, cost: Spend, limit: Spend) -> None:
    """Take ``cost`` off what every unit has spent; each has spent at least that."""
    for piece in _pieces(units):
        region = _read_region(transaction, piece, limit)
        transaction.replace_blocks(region.first_keys, region.charged(cost, sign=-1))


def extremes(transaction: Transaction, units: UnitSet, limit: Spend) -> tuple[Spend, Spend]:
    """Return the least and the most that any of the units has spent, component by component; zero for no units."""
    low, high = [0, 0, 0], [0, 0, 0]
    for number, piece in enumerate(_pieces(units)):
        spent = _read_region(transaction, piece, limit).spent
        for place, column in enumerate((spent.loss_micro, spent.delta_atto, spent.uses)):
            low[place] = int(column.min()) if number == 0 else min(low[place], int(column.min()))
            high[place] = max(high[place], int(column.max()))
    return (
        Spend(loss_micro=low[0], delta_atto=low[1], uses=low[2]),
        Spend(loss_micro=high[0], delta_atto=high[1], uses=high[2]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceTotals:
    """The balances as a whole: units known, units with no loss or use left at all, and the most that any spent."""

    units: int
    spent_out: int
    most: Spend


def balance_totals(store: Store, chosen: Filter, progress: Callable[[int], None]) -> BalanceTotals:
    """Go through every balance once. ``progress`` hears how many units were read."""
    limit = chosen.limit

    def work(transaction: Transaction) -> BalanceTotals:
        units = spent_out = loss = delta = uses = 0
        for _, block in transaction.blocks():
            records = parse_block(block)
            _sound(records, limit)
            units += records.size
            spent_out += int(((records["loss"] == limit.loss_micro) | (records["uses"] == limit.uses)).sum())
            loss = max(loss, int(records["loss"].max(initial=0)))
            delta = max(delta, int(records["delta"].max(initial=0)))
            uses = max(uses, int(records["uses"].max(initial=0)))
            progress(records.size)
        most = Spend(loss_micro=loss, delta_atto=delta, uses=uses)
        return BalanceTotals(units=units, spent_out=spent_out, most=most)

    return store.read("totals", work)
