"""Many byte strings in one buffer: how batches hold payloads, key ids and ``shared_info`` without objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.wire.errors import EncodingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Row i is ``buffer[starts[i]:stops[i]]``. Rows may overlap, repeat or leave bytes unused."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.starts.shape != self.stops.shape or self.starts.ndim != 1:
            raise EncodingError("the numbers of starts and stops differ")
        inside = (self.starts >= 0) & (self.starts <= self.stops) & (self.stops <= self.buffer.size)
        if not inside.all():
            raise EncodingError("a span lies outside its buffer")

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> Spans:
        """Return spans over a copy of ``rows``, one after the other."""
        stops = np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), dtype=np.int64)
        starts = np.zeros_like(stops)
        starts[1:] = stops[:-1]
        return cls(buffer=np.frombuffer(b"".join(rows), dtype=np.uint8), starts=starts, stops=stops)

    def __len__(self) -> int:
        return self.starts.size

    def __getitem__(self, row: int) -> bytes:
        return self.buffer[self.starts[row] : self.stops[row]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self.views())

    def views(self) -> list[memoryview]:
        """Return a view of each row, without copying any."""
        whole = self.buffer.data
        return [whole[start:stop] for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True)]

    def slice(self, start: int, stop: int) -> Spans:
        """Return rows ``start`` to ``stop`` over the same buffer."""
        return Spans(buffer=self.buffer, starts=self.starts[start:stop], stops=self.stops[start:stop])
