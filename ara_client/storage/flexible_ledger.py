"""The accounts of a source with ``trigger_specs``: values by trigger data, buckets crossed, reports planned.

WICG's ``flexible_event_config.md`` says that a report goes out for every bucket a sum crosses, at the end of a window;
it leaves open who comes first when there may be fewer reports than crossings. As on Android: triggers of higher
priority, then earlier ones. What a report was sent for is used up and supports no other.

Whatever the priorities and limits, what is sent is a state that noise could send too, or it would give itself away: the
first buckets of each trigger data, none left out, in windows that never go back
(``ara_client.event_noise.state_space``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ara_client.registration.flexible import TriggerSpec


@dataclass(slots=True, kw_only=True, eq=False)
class AttributedTrigger:
    """A trigger that counts for a source. ``left`` is what of its value no sent report has used."""

    trigger_data: int
    left: int
    priority: int
    time_ms: int
    window_end_ms: int
    debug_key: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReport:
    """A report that will be sent unless a later trigger changes the plan."""

    trigger_data: int
    bucket_index: int
    due_ms: int
    parts: tuple[tuple[AttributedTrigger, int], ...]

    @property
    def debug_keys(self) -> tuple[int, ...]:
        """The debug keys of the triggers behind it, none unless each has one."""
        keys = [trigger.debug_key for trigger, _ in self.parts]
        return tuple(key for key in keys if key is not None) if None not in keys else ()


@dataclass(slots=True, kw_only=True)
class _Account:
    """One trigger data: its buckets, how many were crossed by reports that were sent, and the sum then.

    ``due_ms`` is when the bucket before is reported, ``last_ms`` the end of the last window of its triggers.
    """

    buckets: Sequence[int]
    crossed: int = 0
    sum: int = 0
    due_ms: int = 0
    last_ms: int = 0
    parts: list[tuple[AttributedTrigger, int]] = field(default_factory=list)


class FlexibleLedger:
    """Triggers in, planned reports out. ``settle`` first, ``add``, then ``plan``."""

    def __init__(self, specs: Sequence[TriggerSpec], max_reports: int) -> None:
        self._buckets = {data: spec.buckets for spec in specs for data in spec.trigger_data}
        self._settled = dict.fromkeys(self._buckets, 0)
        self._max_reports = max_reports
        self._triggers: list[AttributedTrigger] = []
        self._planned: dict[int, PlannedReport] = {}
        self.sent = 0

    def settle(self, now_ms: int, waiting: Collection[int]) -> None:
        """Close the accounts of reports whose time has come: their part of the values is used up.

        So it is for those that are not among ``waiting``: they were sent before the clock was put back.
        """
        for identity, report in list(self._planned.items()):
            if report.due_ms <= now_ms or identity not in waiting:
                self.sent += 1
                self._settled[report.trigger_data] += 1
                for trigger, used in report.parts:
                    trigger.left -= used
                del self._planned[identity]
        self._triggers = [trigger for trigger in self._triggers if trigger.left > 0]

    def add(self, trigger: AttributedTrigger) -> None:
        """Let a trigger count from the next plan on."""
        self._triggers.append(trigger)

    def plan(self, now_ms: int) -> list[PlannedReport]:
        """Return the reports that the triggers so far call for, those that come first first; forget the plan before.

        O(n log n) in the triggers not used up. A report is due when the last window of the triggers behind it ends, but
        not before that of the bucket below; and what a limit kept back from a window that has passed, with the next.
        """
        self._planned = {}
        accounts: dict[int, _Account] = {}
        for data, buckets in self._buckets.items():
            crossed = self._settled[data]
            accounts[data] = _Account(buckets=buckets, crossed=crossed, sum=buckets[crossed - 1] if crossed else 0)
        for trigger in self._triggers:
            account = accounts[trigger.trigger_data]
            account.last_ms = max(account.last_ms, trigger.window_end_ms)
        reports: list[PlannedReport] = []
        room = self._max_reports - self.sent
        for trigger in sorted(self._triggers, key=lambda trigger: (-trigger.priority, trigger.time_ms)):
            account, left = accounts[trigger.trigger_data], trigger.left
            while left and account.crossed < len(account.buckets):
                used = min(left, account.buckets[account.crossed] - account.sum)
                account.sum += used
                left -= used
                account.parts.append((trigger, used))
                if account.sum < account.buckets[account.crossed]:
                    break
                due_ms = max(account.due_ms, *(part.window_end_ms for part, _ in account.parts))
                account.due_ms = due_ms if due_ms > now_ms else account.last_ms
                report = PlannedReport(
                    trigger_data=trigger.trigger_data,
                    bucket_index=account.crossed,
                    due_ms=account.due_ms,
                    parts=tuple(account.parts),
                )
                account.crossed += 1
                account.parts = []
                if len(reports) < room and account.last_ms > now_ms:
                    reports.append(report)
        return reports

    def keep(self, report: PlannedReport, identity: int) -> None:
        """Make a planned report part of the plan: it waits as ``identity`` until its time, or the next ``plan``."""
        self._planned[identity] = report
