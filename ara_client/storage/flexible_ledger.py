"""The state of a source with ``trigger_specs``: sums by trigger data, crossed buckets, planned reports.

WICG's ``flexible_event_config.md`` says that a report goes out for every bucket a sum crosses, at the end of a window;
it does not say which crossings are reported when there may be fewer reports than crossings. As on Android, triggers of
higher priority come first, then earlier ones. Each unit of value counts for one sent report only.

For all priorities and limits, the sent reports form a state that noise could also produce, so that true reports cannot
be recognised: the first buckets of each trigger data, without gaps, in windows that never go back
(``ara_client.event_noise.state_space``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ara_client.registration.flexible import TriggerSpec


@dataclass(slots=True, kw_only=True, eq=False)
class AttributedTrigger:
    """A trigger that counts for a source. ``left`` is the part of its value that no sent report has used."""

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
        """The debug keys of its triggers; empty unless every trigger has one."""
        keys = [trigger.debug_key for trigger, _ in self.parts]
        return tuple(key for key in keys if key is not None) if None not in keys else ()


@dataclass(slots=True, kw_only=True)
class _Account:
    """One trigger data while ``plan`` runs: its buckets, how many are crossed, and its sum so far.

    ``due_ms`` is the time of the report of the previous bucket, ``last_ms`` the end of the last window of its triggers.
    ``parts`` lists the triggers that count for the next bucket, each with the part of its value that is used.
    """

    buckets: Sequence[int]
    crossed: int = 0
    sum: int = 0
    due_ms: int = 0
    last_ms: int = 0
    parts: list[tuple[AttributedTrigger, int]] = field(default_factory=list)


class FlexibleLedger:
    """Turns triggers into planned reports: call ``settle``, then ``add``, then ``plan``."""

    def __init__(self, specs: Sequence[TriggerSpec], max_reports: int) -> None:
        self._buckets = {data: spec.buckets for spec in specs for data in spec.trigger_data}
        self._settled = dict.fromkeys(self._buckets, 0)
        self._max_reports = max_reports
        self._triggers: list[AttributedTrigger] = []
        self._planned: dict[int, PlannedReport] = {}
        self.sent = 0

    def settle(self, now_ms: int, waiting: Collection[int]) -> None:
        """Mark due reports as sent: their part of the values is used up.

        Reports that are not in ``waiting`` count as sent too: they left before the clock was set back.
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
        """Add a trigger; the next ``plan`` includes it."""
        self._triggers.append(trigger)

    def plan(self, now_ms: int) -> list[PlannedReport]:
        """Return the reports for the triggers so far, most important first; drop the previous plan.

        O(n log n) in the triggers not used up. A report is due when the last window of its triggers ends, but not
        before the report of the bucket below. A report that a limit kept out of a past window is sent in the next one.
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
        """Keep a planned report, pending under the id ``identity`` until it is due or planned again."""
        self._planned[identity] = report
