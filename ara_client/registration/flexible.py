"""``trigger_specs``: the full-flexible form of event-level reports, which no browser ships.

WICG's ``flexible_event_config.md``, section "Summary Buckets and Multiple Trigger Specs". Read only if the
vendor value ``full_flexible_events`` is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from ara_client.constants import MAX_TRIGGER_DATA_PER_SOURCE, UINT32_MAX
from ara_client.registration.nodes import Node
from ara_client.registration.windows import ReportWindows, parse_window_list


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSpec:
    """Trigger data with their windows, what is summed (values, or 1 per trigger) and the lower ends of buckets."""

    trigger_data: tuple[int, ...]
    windows: ReportWindows
    sums_values: bool
    buckets: tuple[int, ...]

    def bucket_range(self, index: int) -> tuple[int, int]:
        """Return the least and the greatest sum of a bucket."""
        after = self.buckets[index + 1] - 1 if index + 1 < len(self.buckets) else UINT32_MAX
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
    if len(seen) > MAX_TRIGGER_DATA_PER_SOURCE:
        node.problem(f"must not list more than {MAX_TRIGGER_DATA_PER_SOURCE} trigger data in all")
    return tuple(specs)


def _spec(entry: Node, windows: ReportWindows, expiry_ms: int, max_reports: int, seen: set[int]) -> TriggerSpec:
    listed, own = entry.field("trigger_data"), entry.field("event_report_windows")
    data = []
    if listed is None:
        entry.problem("must have trigger_data")
    elif listed.is_list():
        for item in listed.entries():
            number = item.integer(0, UINT32_MAX)
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
        start = entry.integer(1, UINT32_MAX)
        if start is not None and out and start <= out[-1]:
            entry.problem("must be greater than the bucket before")
        elif start is not None:
            out.append(start)
    return tuple(out)
