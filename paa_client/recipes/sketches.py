"""Reach from sketches: counting Bloom filters that can be merged later, unlike direct reach.

Reach white paper, "Sketch-Based Methods", for its uniform filters. A cell of the sketch is a bucket; a user is hashed
to one cell; reach is estimated from the number of occupied cells. The service's noise makes some empty cells look
occupied and some occupied ones look empty: ``Readout`` gives the probabilities in closed form.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire.device import DeviceConfigError
from paa_client.recipes.estimates import CappedRecipe, Summary
from paa_client.storage import WorkletStorage
from paa_client.worklet import PrivateAggregation

_CONTENT_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachSketch(CappedRecipe):
    """A sketch of ``size`` cells per content (for example a campaign and day); a device contributes to it once.

    ``cap`` is how many contents a device may report in ten minutes. The user's id comes with ``data``, otherwise from
    Shared Storage; devices with the same id count once when sketches are read.
    """

    size: int
    salt: str = ""
    prefix: str = "sketch"

    def __post_init__(self) -> None:
        CappedRecipe.__post_init__(self)
        if not self.size > 2:
            raise DeviceConfigError(f"size must be at least 3 cells, got {self.size}")

    def cell(self, user: str | int) -> int:
        """Return the cell of a user: uniform over users, the same on every device."""
        digest = hashlib.sha256(f"{self.salt}\0{user}".encode()).digest()
        return int.from_bytes(digest[:16], "big") % self.size

    def bucket(self, content: int, cell: int) -> int:
        """Return the bucket of a cell."""
        if not (0 <= content < 1 << _CONTENT_BITS and 0 <= cell < self.size):
            raise DeviceConfigError(
                f"content must be an id of {_CONTENT_BITS} bits, got {content}; "
                f"cell must be from 0 to {self.size - 1}, got {cell}"
            )
        return content * self.size + cell

    def domain(self, content: int) -> list[int]:
        """Return the buckets to ask the service for."""
        return [self.bucket(content, cell) for cell in range(self.size)]

    def operation(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Mapping[str, Any]) -> None:
        """Run on each view with ``data`` = {"content": id, "user": id}; ``user`` defaults to the stored ``user-id``."""
        key = f"{self.prefix}-{data['content']}"
        user = data.get("user", storage.get("user-id"))
        if storage.get(key) is not None or user is None:
            return
        bucket = self.bucket(data["content"], self.cell(user))
        aggregation.contribute_to_histogram(bucket=bucket, value=self.value, filtering_id=self.filtering_id)
        storage.set(key, "1")

    def occupied(self, summary: Summary, content: int) -> NDArray[np.bool_]:
        """Return which cells look occupied: those whose noisy sum is at least half of one device's value."""
        return np.array([2 * summary[self.bucket(content, cell)] >= self.value for cell in range(self.size)])

    def readout(self, noise: DiscreteLaplace | None) -> Readout:
        """Return how cells of this sketch are read under ``noise`` (None: no noise, as in the white paper)."""
        return Readout.of(self.size, self.value, noise)


def merge_sketches(sketches: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return the union of sketches: a cell is occupied if it is occupied in any of them."""
    return np.logical_or.reduce(sketches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """The probability to read a cell as empty: ``decay``·``ratio``^c with c ≥ 1 users, ``empty`` with none.

    This is exact for discrete Laplace noise and a threshold of half a user's value: for c ≥ 1 a cell is read as empty
    only if the noise is below a negative number. So the moments for n users are sums of n-th powers. For one cell,
    with p = 1/size, ρ = ratio, A = decay and B = empty - decay: E[Y] = A(1-p+pρ)ⁿ + B(1-p)ⁿ; for two likewise.
    """

    size: int
    decay: float
    ratio: float
    empty: float

    @classmethod
    def of(cls, size: int, value: int, noise: DiscreteLaplace | None) -> Readout:
        """Return the probabilities for cells to which each user adds ``value``."""
        if noise is None:
            return cls(size=size, decay=0.0, ratio=0.0, empty=1.0)
        rate = float(noise.rate)
        threshold = -(-value // 2)
        below = 1.0 / (1.0 + math.exp(-rate))
        return cls(
            size=size,
            decay=below * math.exp(rate * (threshold - 1)),
            ratio=math.exp(-rate * value),
            empty=1.0 - below * math.exp(-rate * threshold),
        )

    def _moments(self, n: float) -> tuple[float, float, float]:
        """Return E[Y₁], dE[Y₁]/dn and E[Y₁Y₂] for n users; Yᵢ is 1 if cell i is read as empty, otherwise 0."""
        p, a, b = 1.0 / self.size, self.decay, self.empty - self.decay
        some, none = math.log1p(-p * (1.0 - self.ratio)), math.log1p(-p)
        one = a * math.exp(n * some) + b * math.exp(n * none)
        slope = a * some * math.exp(n * some) + b * none * math.exp(n * none)
        both = math.log1p(-2.0 * p * (1.0 - self.ratio))
        mixed = math.log1p(-p * (2.0 - self.ratio))
        neither = math.log1p(-2.0 * p)
        pair = a * a * math.exp(n * both) + 2.0 * a * b * math.exp(n * mixed) + b * b * math.exp(n * neither)
        return one, slope, pair

    def expected(self, n: float, sketches: int = 1) -> float:
        """Return the expected number of cells read as occupied, in the union of ``sketches`` sketches.

        Exact for one sketch. For more, it assumes that all users of a cell are in the same sketch.
        """
        return self.size * (1.0 - self._moments(n)[0] * self.empty ** (sketches - 1))

    def estimate(self, occupied: int, sketches: int = 1) -> float:
        """Return the number of users for which ``occupied`` cells are expected.

        0 if no more cells are occupied than expected without users; infinity if all cells are occupied.

        Without noise this is the white paper's estimator, ln(1 - occupied/size) / ln(1 - 1/size).
        """
        if not 0 <= occupied <= self.size:
            raise DeviceConfigError(f"occupied must be from 0 to {self.size} cells, got {occupied}")
        if occupied <= self.expected(0.0, sketches):
            return 0.0
        if occupied == self.size:
            return math.inf
        low, high = 0.0, 1.0
        while self.expected(high, sketches) < occupied:
            low, high = high, 2.0 * high
        for _ in range(200):
            middle = (low + high) / 2.0
            if self.expected(middle, sketches) < occupied:
                low = middle
            else:
                high = middle
        return (low + high) / 2.0

    def variance(self, n: float) -> float:
        """Return the variance of the estimate for n users in one sketch, to first order (delta method).

        The number of cells read as empty has variance m·E[Y](1-E[Y]) + m(m-1)·(E[Y₁Y₂]-E[Y]²).
        """
        one, slope, pair = self._moments(n)
        m = self.size
        cells = m * one * (1.0 - one) + m * (m - 1) * (pair - one * one)
        return cells / (m * slope) ** 2
