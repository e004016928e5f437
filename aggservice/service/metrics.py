"""Prometheus metrics: how the service is doing, and nothing that depends on what reports hold.

Calls by method and status, their duration, running and queued jobs, replaced worker processes, and the process itself.
There are no counts of reports, keys, errors or sums: those are the callers' data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.025, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600)


class Metrics(Collector):
    """The metrics of one service, in a registry of their own: one process can run several services."""

    def __init__(self, workers_replaced: Callable[[], int] = lambda: 0) -> None:
        self._workers_replaced = workers_replaced
        self._registry = registry = CollectorRegistry()
        self.calls = Counter("aggservice_calls", "Finished calls.", ["method", "status"], registry=registry)
        self.call_seconds = Histogram(
            "aggservice_call_seconds", "Duration of calls.", ["method"], registry=registry, buckets=_SECONDS
        )
        self.calls_in_flight = Gauge("aggservice_calls_in_flight", "Calls under way.", registry=registry)
        self.jobs_running = Gauge("aggservice_jobs_running", "Jobs that hold a slot.", registry=registry)
        self.jobs_waiting = Gauge("aggservice_jobs_waiting", "Streams that wait for a slot.", registry=registry)
        self.jobs_queued = Gauge("aggservice_jobs_queued", "Jobs in the queue, as last seen.", registry=registry)
        registry.register(self)
        ProcessCollector(registry=registry)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counter that the pool of workers keeps itself."""
        text = "Worker processes that ended and were replaced."
        yield CounterMetricFamily("aggservice_workers_replaced", text, value=self._workers_replaced())

    def text(self) -> bytes:
        """Return the exposition that Prometheus reads."""
        return generate_latest(self._registry)
