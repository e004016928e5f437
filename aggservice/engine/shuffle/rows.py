"""Shuffled reports as rows of bytes, their random order, and their form in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits

SHUFFLED_MAGIC = b"aggs1\n"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShuffledRows:
    """Local reports of one randomizer in random order, one row of bytes per report."""

    reports: NDArray[np.uint8]

    def __len__(self) -> int:
        return self.reports.shape[0]

    @property
    def width(self) -> int:
        """The number of bytes of a report."""
        return self.reports.shape[1]

    def pages(self, size: int, first: int = 0) -> Iterator[ShuffledRows]:
        """Yield the rows from ``first`` on, ``size`` at a time."""
        for start in range(first, len(self), size):
            yield ShuffledRows(reports=self.reports[start : start + size])

    def to_list(self) -> list[bytes]:
        """Return the reports as byte strings."""
        raw, width = self.reports.tobytes(), self.width
        return [raw[at : at + width] for at in range(0, len(raw), width)]


def random_order(bits: Bits, count: int) -> NDArray[np.int64]:
    """Return a uniform permutation of 0 to ``count`` - 1, exactly.

    Indexes sorted by independent random words are in uniform order if no two words are equal. If two are equal, which
    is rare, all words are drawn again.
    """
    while True:
        words = bits.words(count)
        order = np.argsort(words, kind="stable")
        ranked = words[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order.astype(np.int64)
