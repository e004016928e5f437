"""Durations and report windows of a source registration, in milliseconds after the source's time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ara_client.constants import MAX_EVENT_REPORT_WINDOWS, MIN_REPORT_WINDOW_MS, NAVIGATION_WINDOWS_MS, SECOND_MS
from ara_client.registration.nodes import Node

_FOREVER_S = 10**309


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWindows:
    """Consecutive windows: the first from ``start_ms`` to ``ends_ms[0]``, the next from there to ``ends_ms[1]``, …"""

    start_ms: int
    ends_ms: tuple[int, ...]

    def index_at(self, age_ms: int) -> int:
        """Return the window in which a trigger of this age falls: -1 before the first, ``len(ends_ms)`` after the last.

        O(log windows). A window contains its start and not its end (WICG, "check whether a moment falls within a
        window"); if a clock went back, a trigger that precedes its source has age 0.
        """
        age_ms = max(age_ms, 0)
        return -1 if age_ms < self.start_ms else bisect_right(self.ends_ms, age_ms)

    def start_of(self, index: int) -> int:
        """Return when a window begins."""
        return self.start_ms if index == 0 else self.ends_ms[index - 1]


def default_windows(source_type: str, last_ms: int) -> ReportWindows:
    """Return the windows of a source that lists none (WICG, "obtain default effective windows")."""
    early = NAVIGATION_WINDOWS_MS if source_type == "navigation" else ()
    return ReportWindows(start_ms=0, ends_ms=(*(end for end in early if end < last_ms), last_ms))


def parse_duration(node: Node, least_ms: int, most_ms: int) -> int:
    """Return a duration given in seconds, as a number or in a string, clamped (WICG, "parse a duration")."""
    seconds = node.unsigned64() if isinstance(node.value, str) else node.integer(0, _FOREVER_S)
    return most_ms if seconds is None else min(max(seconds * SECOND_MS, least_ms), most_ms)


def parse_windows(root: Node, source_type: str, expiry_ms: int) -> ReportWindows:
    """Return the event-level windows of a source (WICG, "parse top-level report windows")."""
    single, listed = root.field("event_report_window"), root.field("event_report_windows")
    if single is not None and listed is not None:
        listed.problem("must not be given together with event_report_window")
    if single is not None:
        return default_windows(source_type, parse_duration(single, MIN_REPORT_WINDOW_MS, expiry_ms))
    default = default_windows(source_type, expiry_ms)
    return default if listed is None else parse_window_list(listed, expiry_ms) or default


def parse_window_list(node: Node, expiry_ms: int) -> ReportWindows | None:
    """Return listed windows, or None after noting the problem with them (WICG, "parse report windows")."""
    if not node.is_map():
        return None
    start_ms = 0
    if (start := node.field("start_time")) is not None:
        seconds = start.integer(0, expiry_ms // SECOND_MS)
        start_ms = 0 if seconds is None else seconds * SECOND_MS
    ends = node.field("end_times")
    if ends is None:
        node.problem("must have end_times")
        return None
    if not ends.is_list():
        return None
    if not 1 <= len(ends.value) <= MAX_EVENT_REPORT_WINDOWS:
        ends.problem(f"must have 1 to {MAX_EVENT_REPORT_WINDOWS} entries")
        return None
    previous, out = start_ms, []
    for entry in ends.entries():
        seconds = entry.integer(1, _FOREVER_S)
        if seconds is None:
            return None
        end_ms = max(min(seconds * SECOND_MS, expiry_ms), MIN_REPORT_WINDOW_MS)
        if end_ms <= previous:
            entry.problem("must be after the previous window, once clamped to an hour and the source's expiry")
            return None
        out.append(end_ms)
        previous = end_ms
    return ReportWindows(start_ms=start_ms, ends_ms=tuple(out))
