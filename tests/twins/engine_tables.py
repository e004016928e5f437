"""Plain-Python twins of the engine's tables, which tests compare the compiled ones with."""

from __future__ import annotations


def sums_twin(
    declared: list[int],
    contributions: list[tuple[int, int]],
    *,
    discover: bool = False,
    mask: int = (1 << 128) - 1,
) -> tuple[dict[int, int], int]:
    """Return (sums by key, outside) in plain Python: what ``KeySums`` must give for the same contributions."""
    sums = dict.fromkeys(declared, 0)
    outside = 0
    for key, value in contributions:
        if value == 0:
            continue
        if key in sums or (discover and key & ~mask == 0):
            sums[key] = sums.get(key, 0) + value
        else:
            outside += value
    return sums, outside


def units_twin(units: list[bytes]) -> list[bytes]:
    """Return the distinct units in ascending order, in plain Python."""
    return sorted(set(units))


def fresh_twin(ids: list[int]) -> list[bool]:
    """Return which ids had not been there before, in plain Python."""
    seen: set[int] = set()
    fresh = []
    for one in ids:
        fresh.append(one not in seen)
        seen.add(one)
    return fresh
