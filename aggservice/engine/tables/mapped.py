"""Arrays in memory of their own: given back to the system the moment they are no longer used.

What ``malloc`` frees it often keeps, in pieces that the next large array does not fit into. Tables that grow by being
copied would then cost their sizes twice over, and memory a report has a bound here.
"""

from __future__ import annotations

import math
import mmap

import numpy as np
from numpy.typing import DTypeLike, NDArray


def mapped_zeros(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """Return an array of zeros over pages that are taken when first written to and freed with the array."""
    sizes = (shape,) if isinstance(shape, int) else shape
    kind = np.dtype(dtype)
    count = math.prod(sizes)
    if count == 0:
        return np.zeros(sizes, dtype=kind)
    memory = mmap.mmap(-1, count * kind.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=kind, count=count).reshape(sizes)
