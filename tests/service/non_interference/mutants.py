"""Breaks of non-interference, put into the code for as long as a block runs, to see that histories find them.

Some were in the code once. Each is a context manager that replaces one function with a wrapper, so that a
change of the code asks for a change of a few lines here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from aggservice.engine import AvroShards, InLedger
from aggservice.engine.jobs.histogram import HistogramSession, check_discoverable
from aggservice.engine.opening.counts import ReportCounts
from aggservice.engine.release import charging
from aggservice.engine.release.charging import Charge
from aggservice.engine.release.output import ResultBound
from aggservice.engine.spark import session as spark_session
from aggservice.job.errors import CancelledError, DomainError, ResultWriteError, UnpaidError
from budget.files.staging import Attempt

from .worlds import changed


class UnpaidFailureError(CancelledError):
    """A failure after payloads were opened that charges nothing, as a cancelled job does not."""


def _replaced(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    return changed(owner, name, wrap(getattr(owner, name)))


@contextmanager
def domain_refused_by_sums() -> Iterator[None]:
    """Refuse a domain part after reports only when a contribution fell outside the keys declared so far."""

    def declare(self: HistogramSession, high: Any, low: Any) -> None:
        self._check_cancelled()
        held = self._sums
        if len(held) != held.declared or held.outside:
            raise DomainError("keys are declared before reports are summed")
        held.declare(high, low)
        if len(held) > self._parts.settings.max_domain_keys:
            raise DomainError("too many declared keys")

    with changed(HistogramSession, "declare", declare):
        yield


@contextmanager
def discovered_keys_refuse() -> Iterator[None]:
    """Count the keys found so far, and not only the declared ones, against how many a job may discover."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def check_batch(self: HistogramSession, batch: Any) -> None:
            inner(self, batch)
            if self._discovers:
                check_discoverable(len(self._sums), self._payload_bytes)

        return check_batch

    with _replaced(HistogramSession, "_check_batch", wrap):
        yield


def _before_finish(check: Callable[[Any], None]) -> Any:
    """Run ``check`` on the sums of all reports before noise meets them and before the charge."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def finish(self: HistogramSession, **kwargs: Any) -> Any:
            self._drain()
            check(self._sums)
            return inner(self, **kwargs)

        return finish

    return _replaced(HistogramSession, "finish", wrap)


def _around_commit(around: Callable[[Callable[[], Any], AvroShards | InLedger, Any], Any]) -> Any:
    """Make the noisy summary before the charge; call ``around`` with how to commit it, where it goes, and its rows."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def commit(self: Charge, make: Callable[[], Any], **kwargs: Any) -> Any:
            made = make()
            return around(lambda: inner(self, lambda: made, **kwargs), kwargs["destination"], made[1])

        return commit

    return _replaced(Charge, "commit", wrap)


@contextmanager
def rows_counted_before_charge() -> Iterator[None]:
    """Count the rows of a noisy summary against a limit before the charge, and say how many there are."""

    def around(commit: Callable[[], Any], destination: object, rows: Any) -> Any:
        if len(rows) > 2:
            raise UnpaidFailureError(f"{len(rows)} rows are too many for a stream")
        return commit()

    with _around_commit(around):
        yield


@contextmanager
def overflow_before_charge() -> Iterator[None]:
    """Refuse a job in which a sum passes a bound, before the charge."""

    def check(held: Any) -> None:
        if held.sums.size and int(held.sums.max()) > 70_000:
            raise UnpaidFailureError("the contributions of a key add up to too much")

    with _before_finish(check):
        yield


@contextmanager
def nothing_to_sum_fails() -> Iterator[None]:
    """Fail for free when no report contributed to any key."""

    def check(held: Any) -> None:
        if not held.sums.any():
            raise UnpaidFailureError("there is nothing to sum")

    with _before_finish(check):
        yield


@contextmanager
def refusal_tells_a_sum() -> Iterator[None]:
    """Put the total of a noisy summary into the text of a refusal for budget."""

    def around(commit: Callable[[], Any], destination: object, rows: Any) -> Any:
        try:
            return commit()
        except UnpaidError as problem:
            problem.args = (f"{problem.args[0]} of {int(rows.metrics.sum())} in all",)
            raise

    with _around_commit(around):
        yield


@contextmanager
def shards_before_charge() -> Iterator[None]:
    """Make an empty file per shard of the summary where the caller looks, before the charge."""

    def around(commit: Callable[[], Any], destination: object, rows: Any) -> Any:
        if isinstance(destination, AvroShards):
            for name in destination.names(len(rows)):
                (destination.folder / f".{name}.part").touch()
        return commit()

    with _around_commit(around):
        yield


@contextmanager
def lost_summaries_are_free() -> Iterator[None]:
    """Charge nothing when a summary cannot be made or stored, as before there were paid failures."""

    def fail(self: Charge, problem: Exception, *_: object) -> Any:
        raise problem

    with changed(Charge, "_fail", fail):
        yield


@contextmanager
def staged_files_left() -> Iterator[None]:
    """Leave staged files where they are when a job is refused."""

    with changed(Attempt, "discard", Attempt.release_lock):
        yield


@contextmanager
def room_seen_on_the_disk() -> Iterator[None]:
    """Stage noisy rows before the units are asked, and decide from the free disk whether a job has room."""

    def stage_for(ledger: Any, job: Any, destination: Any, bound: Any, **_: Any) -> Attempt | None:
        if not isinstance(destination, AvroShards):
            return None
        attempt: Attempt = ledger.stage(job)
        if shutil.disk_usage(attempt.folder).free < bound.declared * 4:
            attempt.discard()
            raise ResultWriteError("the staging folder is full; nothing was charged: tell the operator")
        return attempt

    with ExitStack() as stack:
        stack.enter_context(changed(Charge, "ask", lambda self, units: None))
        for module in (charging, spark_session):
            stack.enter_context(changed(module, "stage_for", stage_for))
        yield


@contextmanager
def room_seen_on_the_disk_of_a_cluster() -> Iterator[None]:
    """The same where executors write the rows, each under a name of its own."""
    with room_seen_on_the_disk():
        yield


@contextmanager
def room_of_what_was_released() -> Iterator[None]:
    """Take as much of the caller's quota as the noisy rows need, once they are known."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def commit(self: Charge, make: Callable[[], Any], **kwargs: Any) -> Any:
            made = make()
            bound = ResultBound(rows=1_000 * len(made[1]), declared=kwargs["bound"].declared)
            return inner(self, lambda: made, **{**kwargs, "bound": bound})

        return commit

    with _replaced(Charge, "commit", wrap):
        yield


@contextmanager
def nulls_counted() -> Iterator[None]:
    """Count batches without a contribution among repeated reports."""

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def take(self: HistogramSession, judged: Any) -> None:
            inner(self, judged)
            if not judged.values.any():
                self._counts.repeated += 1

        return take

    with _replaced(HistogramSession, "_take", wrap):
        yield


@contextmanager
def progress_counts_keys() -> Iterator[None]:
    """Count keys in place of reports in the progress of a job."""

    with changed(HistogramSession, "reports_read", property(lambda self: self._counts.read + len(self._sums))):
        yield


@contextmanager
def threshold_counts_nulls() -> Iterator[None]:
    """Take reports for bad, when the threshold is checked, by what they hold."""
    empty: set[int] = set()

    def wrap_take(inner: Callable[..., Any]) -> Callable[..., Any]:
        def take(self: HistogramSession, judged: Any) -> None:
            inner(self, judged)
            (empty.discard if judged.values.any() else empty.add)(id(self._counts))

        return take

    def wrap_check(inner: Callable[..., Any]) -> Callable[..., Any]:
        def check(self: ReportCounts) -> None:
            if id(self) in empty:
                self._refuse(self.read)
            inner(self)

        return check

    with ExitStack() as stack:
        stack.enter_context(_replaced(HistogramSession, "_take", wrap_take))
        stack.enter_context(_replaced(ReportCounts, "check", wrap_check))
        yield


@contextmanager
def fresh_noise_each_time() -> Iterator[None]:
    """Give another metric every time the ledger is asked for a summary."""
    asked = iter(range(1, 1 << 62))

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def decode_result(raw: bytes) -> Any:
            header, rows = inner(raw)
            rows.metrics[:] += next(asked)
            return header, rows

        return decode_result

    with _replaced(charging, "decode_result", wrap):
        yield


Mutant = Callable[[], AbstractContextManager[None]]
MUTANTS: dict[Mutant, dict[str, Any]] = {
    domain_refused_by_sums: {},
    discovered_keys_refuse: {"tight": "keys"},
    rows_counted_before_charge: {},
    overflow_before_charge: {},
    nothing_to_sum_fails: {},
    refusal_tells_a_sum: {},
    shards_before_charge: {"files": True},
    staged_files_left: {"files": True},
    room_seen_on_the_disk: {"spied": True, "tight": "disk"},
    room_seen_on_the_disk_of_a_cluster: {"spied": True, "tight": "disk", "spark": True},
    room_of_what_was_released: {"spied": True, "tight": "quota"},
    lost_summaries_are_free: {"tight": "rows"},
    nulls_counted: {},
    progress_counts_keys: {},
    threshold_counts_nulls: {},
    fresh_noise_each_time: {},
}
"""Each mutant, and the kind of histories that are to find it."""
