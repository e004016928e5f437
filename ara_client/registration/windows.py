"""Report windows of event-level reports, and the trigger specifications of the full-flexible form.

Browsers read the full-flexible form if ``Config.full_flexible_events`` is set.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ara_client import constants
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
    early = constants.NAVIGATION_WINDOWS_MS if source_type == "navigation" else ()
    return ReportWindows(start_ms=0, ends_ms=(*(end for end in early if end < last_ms), last_ms))


def parse_duration(node: Node, least_ms: int, most_ms: int) -> int:
    """Return a duration given in seconds, as a number or in a string, clamped (WICG, "parse a duration")."""
    seconds = node.unsigned64() if isinstance(node.value, str) else node.integer(0, _FOREVER_S)
    return most_ms if seconds is None else min(max(seconds * constants.SECOND_MS, least_ms), most_ms)


def parse_windows(root: Node, source_type: str, expiry_ms: int) -> ReportWindows:
    """Return the event-level windows of a source (WICG, "parse top-level report windows")."""
    single, listed = root.field("event_report_window"), root.field("event_report_windows")
    if single is not None and listed is not None:
        listed.problem("must not be given together with event_report_window")
    if single is not None:
        return default_windows(source_type, parse_duration(single, constants.MIN_REPORT_WINDOW_MS, expiry_ms))
    default = default_windows(source_type, expiry_ms)
    return default if listed is None else parse_window_list(listed, expiry_ms) or default


def parse_window_list(node: Node, expiry_ms: int) -> ReportWindows | None:
    """Return listed windows, or None after noting the problem with them (WICG, "parse report windows")."""
    if not node.is_map():
        return None
    start_ms = 0
    if (start := node.field("start_time")) is not None:
        seconds = start.integer(0, expiry_ms // constants.SECOND_MS)
        start_ms = 0 if seconds is None else seconds * constants.SECOND_MS
    ends = node.field("end_times")
    if ends is None:
        node.problem("must have end_times")
        return None
    if not ends.is_list():
        return None
    if not 1 <= len(ends.value) <= constants.MAX_EVENT_REPORT_WINDOWS:
        ends.problem(f"must have 1 to {constants.MAX_EVENT_REPORT_WINDOWS} entries")
        return None
    previous, out = start_ms, []
    for entry in ends.entries():
        seconds = entry.integer(1, _FOREVER_S)
        if seconds is None:
            return None
        end_ms = max(min(seconds * constants.SECOND_MS, expiry_ms), constants.MIN_REPORT_WINDOW_MS)
        if end_ms <= previous:
            entry.problem("must be after the previous window, once clamped to an hour and the source's expiry")
            return None
        out.append(end_ms)
        previous = end_ms
    return ReportWindows(start_ms=start_ms, ends_ms=tuple(out))


# ``trigger_specs``: the full-flexible form of event-level reports, which no browser ships.
#
# WICG's ``flexible_event_config.md``, section "Summary Buckets and Multiple Trigger Specs". Read only if the
# vendor value ``full_flexible_events`` is set.


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSpec:
    """Trigger data with their windows, what is summed (values, or 1 per trigger) and the lower ends of buckets."""

    trigger_data: tuple[int, ...]
    windows: ReportWindows
    sums_values: bool
    buckets: tuple[int, ...]

    def bucket_range(self, index: int) -> tuple[int, int]:
        """Return the least and the greatest sum of a bucket."""
        after = self.buckets[index + 1] - 1 if index + 1 < len(self.buckets) else constants.UINT32_MAX
        return self.buckets[index], after


def parse_trigger_specs(
    root: Node, windows: ReportWindows, expiry_ms: int, max_reports: int
) -> tuple[TriggerSpec, ...] | None:
    """Return a source's ``trigger_specs``, or None if it has none.

    A spec without windows uses the source's; one without buckets uses [1, 2, …, max_reports].
    """
    node = root.field("trigger_specs")
    if node is None or not node.is_list():
        return None
    if (other := root.field("trigger_data")) is not None:
        other.problem("must not be given together with trigger_specs")
    specs, seen = [], set[int]()
    for entry in node.entries():
        if entry.is_map():
            specs.append(_spec(entry, windows, expiry_ms, max_reports, seen))
    if len(seen) > constants.MAX_TRIGGER_DATA_PER_SOURCE:
        node.problem(f"must not list more than {constants.MAX_TRIGGER_DATA_PER_SOURCE} trigger data in all")
    return tuple(specs)


def _spec(entry: Node, windows: ReportWindows, expiry_ms: int, max_reports: int, seen: set[int]) -> TriggerSpec:
    listed, own = entry.field("trigger_data"), entry.field("event_report_windows")
    data = []
    if listed is None:
        entry.problem("must have trigger_data")
    elif listed.is_list():
        for item in listed.entries():
            number = item.integer(0, constants.UINT32_MAX)
            if number is not None and number in seen:
                item.problem("must not be listed twice")
            elif number is not None:
                data.append(number)
                seen.add(number)
    operator = entry.field("summary_operator")
    if operator is not None and operator.value not in ("count", "value_sum"):
        operator.problem('must be "count" or "value_sum"')
    return TriggerSpec(
        trigger_data=tuple(data),
        windows=windows if own is None else parse_window_list(own, expiry_ms) or windows,
        sums_values=operator is not None and operator.value == "value_sum",
        buckets=_buckets(entry.field("summary_buckets"), max_reports),
    )


def _buckets(node: Node | None, max_reports: int) -> tuple[int, ...]:
    if node is None:
        return tuple(range(1, max_reports + 1))
    if not node.is_list():
        return ()
    if not 1 <= len(node.value) <= max_reports:
        node.problem(f"must have 1 to {max_reports} entries (max_event_level_reports)")
    out: list[int] = []
    for entry in node.entries():
        start = entry.integer(1, constants.UINT32_MAX)
        if start is not None and out and start <= out[-1]:
            entry.problem("must be greater than the bucket before")
        elif start is not None:
            out.append(start)
    return tuple(out)
