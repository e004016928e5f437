"""Statistical assertions with a stated false-alarm rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

#: The chance that one assertion below fails although all is well.
FALSE_ALARM = 1e-8


def assert_frequencies(observed: NDArray[np.int64], expected: NDArray[np.float64]) -> None:
    """Pearson's chi-square test at FALSE_ALARM; cells that expect fewer than 20 are pooled with their neighbours."""
    cells: list[tuple[float, float]] = []
    seen = hoped = 0.0
    for o, e in zip(observed, expected, strict=True):
        seen, hoped = seen + o, hoped + e
        if hoped >= 20:
            cells.append((seen, hoped))
            seen = hoped = 0.0
    if hoped or seen:
        last = cells.pop()
        cells.append((last[0] + seen, last[1] + hoped))
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    assert abs(sum(o for o, _ in cells) - sum(e for _, e in cells)) < 1e-3 * sum(e for _, e in cells)
    limit = chi2.isf(FALSE_ALARM, len(cells) - 1)
    assert statistic < limit, f"chi-square {statistic:.1f} over {len(cells)} cells, limit {limit:.1f}"
