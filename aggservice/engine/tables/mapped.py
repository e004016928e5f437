"""Arrays in memory pages of their own, which return to the system as soon as the array is freed.

``malloc`` often keeps freed memory in pieces that the next large array does not fit into. Tables that grow by copying
would then need their size twice, which would exceed the bound on memory per report.
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
