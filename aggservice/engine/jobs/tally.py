"""A tally: the counts and sums of a histogram job before its charge, without price and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.tables.sums import SumColumns
from aggservice.wire import Api


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """True sums of a job: for simulations that release the same reports many times, never for a caller.

    ``by_status`` counts reports per status, ``repeated`` those with an id seen before; ``units`` are the distinct units
    that pay, ascending; ``covers`` says how often the bounds of each API count.
    """

    by_status: NDArray[np.int64]
    repeated: int
    units: NDArray[np.uint8]
    covers: Mapping[Api, int]
    sums: SumColumns
