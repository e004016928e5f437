"""Plain twins of the kernels of ``budget``."""

from __future__ import annotations

from itertools import pairwise

from budget import Spend
from budget.units import Columns


def _tuples(keys: Columns) -> list[tuple[int, int, int]]:
    return list(zip(keys[0].tolist(), keys[1].tolist(), keys[2].tolist(), strict=True))


def ascending_plain(keys: Columns) -> bool:
    """The plain twin of ``ascending``."""
    return all(a < b for a, b in pairwise(_tuples(keys)))


def merge_indexes_plain(left: Columns, right: Columns) -> tuple[list[int], list[int], int]:
    """The plain twin of ``merge_indexes``."""
    order = {key: place for place, key in enumerate(sorted({*_tuples(left), *_tuples(right)}))}
    return [order[key] for key in _tuples(left)], [order[key] for key in _tuples(right)], len(order)


class TallyPlain:
    """The plain twin of ``ChargedTally``: a dictionary."""

    def __init__(self, limit: Spend) -> None:
        self._limit = (limit.loss_micro, limit.delta_atto, limit.uses)
        self.spent: dict[tuple[int, int, int], tuple[int, int, int]] = {}

    def charge(self, keys: Columns, cost: Spend, sign: int = 1) -> int:
        """As ``ChargedTally.charge``."""
        step = (sign * cost.loss_micro, sign * cost.delta_atto, sign * cost.uses)
        triples = zip(keys[0].tolist(), keys[1].tolist(), keys[2].tolist(), strict=True)
        for index, key in enumerate(triples):
            before = self.spent.setdefault(key, (0, 0, 0))
            after = (before[0] + step[0], before[1] + step[1], before[2] + step[2])
            if not all(0 <= have <= most for have, most in zip(after, self._limit, strict=True)):
                return index
            self.spent[key] = after
        return -1
