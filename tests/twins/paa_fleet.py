"""The plain-Python twin of ``paa_client.fleet``."""

from __future__ import annotations

from paa_client.config import LARGER_WINDOW_MINUTES, MINUTE_MS, SMALLER_WINDOW_MINUTES
from paa_client.fleet import CUT_DAY, CUT_TEN_MINUTES, NOT_ASKED, SENT


def run_twin(
    device: list[int],
    time_ms: list[int],
    slices: list[int],
    thresholds: tuple[int, ...],
    *,
    refresh: bool,
    lifetime_ms: int,
    value: int,
    smaller_budget: int,
    larger_budget: int,
) -> tuple[list[int], list[int]]:
    """Return what ``run_kernel`` writes, event by event in plain Python."""
    stored: dict[tuple[int, int], tuple[int, int]] = {}
    sent: dict[int, list[int]] = {}
    outcomes, reached = [], []
    for owner, now, name in zip(device, time_ms, slices, strict=True):
        count, written = stored.get((owner, name), (0, 0))
        if count and written + lifetime_ms <= now:
            count = 0
        stored[owner, name] = (count + 1, now if refresh or count == 0 else written)
        index = thresholds.index(count + 1) if count + 1 in thresholds else -1
        reached.append(index)
        if index < 0:
            outcomes.append(NOT_ASKED)
            continue
        past = sent.setdefault(owner, [])
        minute = now // MINUTE_MS
        recent = sum(value for at in past if at > minute - SMALLER_WINDOW_MINUTES)
        day = sum(value for at in past if at > minute - LARGER_WINDOW_MINUTES)
        if recent + value > smaller_budget:
            outcomes.append(CUT_TEN_MINUTES)
        elif day + value > larger_budget:
            outcomes.append(CUT_DAY)
        else:
            outcomes.append(SENT)
            past.append(minute)
    return outcomes, reached
