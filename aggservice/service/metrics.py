"""Prometheus metrics: how the service is doing, and nothing that depends on what reports hold.

Calls by method and status, jobs running and waiting, worker processes replaced. No counts of reports, keys, errors
or sums: those are the callers' data.
"""

from __future__ import annotations

import threading
from collections import Counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters and gauges of one service. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._gauges: Counter[str] = Counter()

    def count_call(self, method: str, status: str) -> None:
        """Count a finished call."""
        with self._lock:
            self._calls[(method, status)] += 1

    def move(self, gauge: str, by: int) -> None:
        """Move a gauge: ``calls_in_flight``, ``jobs_running``, ``jobs_waiting``."""
        with self._lock:
            self._gauges[gauge] += by

    def value(self, gauge: str) -> int:
        """Return a gauge."""
        with self._lock:
            return self._gauges[gauge]

    def text(self, *, workers_replaced: int = 0) -> str:
        """Return the exposition that Prometheus reads."""
        with self._lock:
            calls, gauges = sorted(self._calls.items()), dict(self._gauges)
        lines = [
            "# HELP aggservice_calls_total Finished gRPC calls.",
            "# TYPE aggservice_calls_total counter",
        ]
        for (method, status), count in calls:
            lines.append(f'aggservice_calls_total{{method="{method}",status="{status}"}} {count}')
        for name, words in (
            ("calls_in_flight", "gRPC calls under way."),
            ("jobs_running", "Jobs that hold a place."),
            ("jobs_waiting", "Jobs that wait for a place."),
        ):
            lines += [
                f"# HELP aggservice_{name} {words}",
                f"# TYPE aggservice_{name} gauge",
                f"aggservice_{name} {gauges.get(name, 0)}",
            ]
        lines += [
            "# HELP aggservice_workers_replaced_total Worker processes that ended and were replaced.",
            "# TYPE aggservice_workers_replaced_total counter",
            f"aggservice_workers_replaced_total {workers_replaced}",
        ]
        return "\n".join(lines) + "\n"
