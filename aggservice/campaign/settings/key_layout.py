"""The layout of a 128-bit key as named bit fields, so that every output can show names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import Ints, Words
from aggservice.campaign.errors import CampaignError

Origin = Literal["impression", "conversion", "interaction", "site", "measure", "threshold"]

KEY_BITS = 128
_HALF = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyField:
    """One named field of the key. A code is the index of a value in ``values``; bit 0 is the lowest.

    ``origin`` says where the value comes from: the impression (a source), the conversion (a trigger), the interaction
    (view or click), the site that showed the ad, or the measure. ``weights`` are those of a simulated population;
    ``per_person`` draws one value per person; ``column`` is the log's name for the field.

    If groups merge values, ``originals`` are the values as they occur, ``codes`` the code of each, and ``weights``
    theirs: events have a code per group from the start, so that nothing after them knows which member it was.
    """

    name: str
    origin: Origin
    offset: int
    bits: int
    values: tuple[str, ...]
    weights: tuple[float, ...]
    per_person: bool = False
    column: str = ""
    originals: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (self.offset >= 0 and 1 <= self.bits <= 63 and self.offset + self.bits <= KEY_BITS):
            raise CampaignError(f"field {self.name!r} must lie within {KEY_BITS} bits and have 1 to 63 of them")
        if not 1 <= len(self.values) <= 1 << self.bits:
            raise CampaignError(f"field {self.name!r} has {len(self.values)} values: too many for {self.bits} bits")
        if len(self.weights) != len(self.occurring):
            raise CampaignError(f"field {self.name!r}: give one weight per value")

    @property
    def occurring(self) -> tuple[str, ...]:
        """The values as they occur, before groups merge them."""
        return self.originals or self.values

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The values that each group merges, by its name."""
        members: dict[str, list[str]] = {}
        for value, code in zip(self.originals, self.codes, strict=True):
            members.setdefault(self.values[code], []).append(value)
        return {name: tuple(values) for name, values in members.items() if values != [name]}

    def grouped(self, groups: Mapping[str, Sequence[str]]) -> KeyField:
        """Return the field with each group of values as one value; the other values come first, in their order.

        >>> ads = KeyField(name="ad", origin="impression", offset=0, bits=2, values=("a", "b", "c"), weights=(1, 1, 1))
        >>> ads.grouped({"rest": ["a", "c"]}).values, ads.grouped({"rest": ["a", "c"]}).codes
        (('b', 'rest'), (1, 0, 1))
        """
        if not groups:
            return self
        values, codes = merged_values(self.values, groups)
        if self.codes:
            codes = tuple(codes[code] for code in self.codes)
        return replace(self, values=values, originals=self.occurring, codes=codes)

    def coded(self, occurred: Ints) -> Ints:
        """Return the codes of values, given as places in ``occurring``."""
        return np.asarray(self.codes, dtype=np.int64)[occurred] if self.codes else occurred

    @property
    def of_source(self) -> bool:
        """Whether the field comes from the source and not from the trigger."""
        return self.origin in ("impression", "interaction", "site")

    def encode(self, codes: Ints) -> tuple[Words, Words]:
        """Return this field's bits of the keys with these codes, as two columns (high, low)."""
        words = codes.astype(np.uint64)
        if self.offset >= _HALF:
            return words << np.uint64(self.offset - _HALF), np.zeros_like(words)
        low = words << np.uint64(self.offset)
        over = self.offset + self.bits - _HALF
        high = words >> np.uint64(_HALF - self.offset) if over > 0 and self.offset else np.zeros_like(words)
        return high, low

    def decode(self, high: Words, low: Words) -> Ints:
        """Return this field's codes in the keys."""
        mask = np.uint64((1 << self.bits) - 1)
        if self.offset >= _HALF:
            return ((high >> np.uint64(self.offset - _HALF)) & mask).astype(np.int64)
        found = low >> np.uint64(self.offset)
        if self.offset + self.bits > _HALF and self.offset:
            found = found | (high << np.uint64(_HALF - self.offset))
        return (found & mask).astype(np.int64)

    def value_of(self, code: int) -> str:
        """Return the name of a code; a code without a name is shown as a number."""
        return self.values[code] if 0 <= code < len(self.values) else f"#{code}"


def merged_values(
    values: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the values that are left when each group is one value, and the code of each value among them."""
    group_of = {value: name for name, members in groups.items() for value in members}
    left = (*(value for value in values if value not in group_of), *groups)
    code_of = {value: code for code, value in enumerate(left)}
    return left, tuple(code_of[group_of.get(value, value)] for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLayout:
    """The fields of a campaign's keys; they do not overlap."""

    fields: tuple[KeyField, ...]

    def __post_init__(self) -> None:
        for a, b in self.overlaps():
            raise CampaignError(f"fields {a.name!r} and {b.name!r} overlap: give one another offset")
        if len({field.name for field in self.fields}) != len(self.fields):
            raise CampaignError("two fields have the same name: give each its own")

    def overlaps(self) -> list[tuple[KeyField, KeyField]]:
        """Return the pairs of fields that share a bit."""
        ordered = sorted(self.fields, key=lambda field: field.offset)
        return [(a, b) for a, b in pairwise(ordered) if a.offset + a.bits > b.offset]

    def field(self, name: str) -> KeyField:
        """Return the field of this name."""
        for one in self.fields:
            if one.name == name:
                return one
        raise CampaignError(f"there is no field {name!r}; fields: {', '.join(field.name for field in self.fields)}")

    def shown(self, by: Iterable[str]) -> list[KeyField]:
        """Return the fields of a query's slices: those that it shows, and the measure."""
        return [field for field in self.fields if field.name in by or field.origin == "measure"]

    def slices(self, by: Iterable[str], high: Words, low: Words) -> tuple[Words, Words]:
        """Return the keys of the slices that keys belong to: only the bits of the fields that slices show."""
        codes = {field.name: field.decode(high, low) for field in self.shown(by)}
        return self.keys(codes, high.size)

    def keys(self, codes: Mapping[str, Ints], size: int, *, names: Iterable[str] | None = None) -> tuple[Words, Words]:
        """Return the keys (or the parts of ``names``) with these codes, as two columns of ``size``."""
        high, low = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
        for name in codes if names is None else names:
            above, below = self.field(name).encode(codes[name])
            high |= above
            low |= below
        return high, low

    def decode(self, high: Words, low: Words) -> dict[str, Ints]:
        """Return the codes of every field in keys."""
        return {field.name: field.decode(high, low) for field in self.fields}

    def names(self, high: int, low: int) -> dict[str, str]:
        """Return one key as names.

        >>> layout = KeyLayout(fields=(KeyField(name="ad", origin="impression", offset=0, bits=2, values=("a", "b"),
        ...                                     weights=(1.0, 1.0)),))
        >>> layout.names(0, 1)
        {'ad': 'b'}
        """
        one, other = np.array([high], dtype=np.uint64), np.array([low], dtype=np.uint64)
        return {field.name: field.value_of(int(field.decode(one, other)[0])) for field in self.fields}

    def domain_size(self, chosen: Mapping[str, Sequence[int]] | None = None) -> int:
        """Return the number of keys in a domain: the product of the numbers of values."""
        size = 1
        for field in self.fields:
            size *= len(chosen[field.name]) if chosen and field.name in chosen else len(field.values)
        return size

    def domain(self, chosen: Mapping[str, Sequence[int]] | None = None) -> tuple[Words, Words]:
        """Return every combination of values as keys in two columns; ``chosen`` restricts the codes of some fields."""
        size = self.domain_size(chosen)
        repeat, high, low = size, np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
        for field in self.fields:
            codes = list(chosen[field.name]) if chosen and field.name in chosen else range(len(field.values))
            column = np.asarray(codes, dtype=np.int64)
            repeat //= column.size
            spread = np.tile(np.repeat(column, repeat), size // (column.size * repeat))
            above, below = field.encode(spread)
            high |= above
            low |= below
        return high, low


def sortable_keys(high: Words, low: Words) -> NDArray[np.bytes_]:
    """Return 128-bit keys as one sortable column of 16 bytes."""
    both = np.empty((high.size, 2), dtype=">u8")
    both[:, 0], both[:, 1] = high, low
    return both.view("S16").reshape(-1)


class KeyTable:
    """Distinct keys in ascending order, with lookup of many keys at once."""

    def __init__(self, high: Words, low: Words) -> None:
        self.keys, first = np.unique(sortable_keys(high, low), return_index=True)
        self.high, self.low = high[first], low[first]

    def __len__(self) -> int:
        return self.keys.size

    def find(self, high: Words, low: Words) -> Ints:
        """Return the index of each key; −1 if it is not in the table."""
        wanted = sortable_keys(high, low)
        if not self.keys.size:
            return np.full(wanted.size, -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.keys, wanted), self.keys.size - 1)
        return np.where(self.keys[place] == wanted, place, -1).astype(np.int64)
