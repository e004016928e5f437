"""Many devices at once: reach and frequency over columns of events, with the same reports as ``Browser``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, uniform_below_batch
from aggservice.wire.device import DeviceConfigError
from paa_client.config import LARGER_WINDOW_MINUTES, MINUTE_MS, SMALLER_WINDOW_MINUTES, Config, ContextType
from paa_client.origins import serialize_origin
from paa_client.recipes.frequency import KPlusFrequency
from paa_client.recipes.reach import Reach
from paa_client.reporting.contributions import DEFAULT_FILTERING_ID_MAX_BYTES, Cause, HistogramContribution
from paa_client.reporting.reports import UnsealedReport

# The loop behind ``Fleet``: storage and budgets of many devices, event by event.
#
# The plain-Python twin is ``twins.paa_fleet`` of the tests.

#: The outcome of an event.
SENT, NOT_ASKED, CUT_TEN_MINUTES, CUT_DAY = range(4)

_EMPTY = -1
_HASH = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)
def group_by_device(
    device: NDArray[np.int64], time_ms: NDArray[np.int64], slices: NDArray[np.int64], devices: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:  # pragma: no cover - compiled
    """Return the rows of the events sorted by device (stable), the start of each device's rows, and the times and
    slices in that order; linear time.
    """
    starts = np.zeros(devices + 1, dtype=np.int64)
    for index in range(device.size):
        starts[device[index] + 1] += 1
    for index in range(devices):
        starts[index + 1] += starts[index]
    next_slot = starts[:-1].copy()
    order = np.empty(device.size, dtype=np.int64)
    times = np.empty(device.size, dtype=np.int64)
    names = np.empty(device.size, dtype=np.int64)
    for index in range(device.size):
        at = next_slot[device[index]]
        order[at] = index
        times[at] = time_ms[index]
        names[at] = slices[index]
        next_slot[device[index]] = at + 1
    return order, starts, times, names


@njit(cache=True)
def run_kernel(
    starts: NDArray[np.int64],
    time_ms: NDArray[np.int64],
    slices: NDArray[np.int64],
    threshold_index: NDArray[np.int64],
    refresh: bool,
    lifetime_ms: int,
    value: int,
    smaller_budget: int,
    larger_budget: int,
    outcome: NDArray[np.int8],
    reached: NDArray[np.int8],
) -> None:  # pragma: no cover - compiled
    """Write for each event, grouped by device, whether it contributes, and if so which threshold it reached.

    ``threshold_index[c]`` is the index of the threshold that a count of c reaches, or -1; counts beyond its end reach
    none. With ``refresh`` every view is a write and renews the entry. Times of a device must not decrease or be
    negative; sums stay below ``larger_budget`` + ``value`` < 2⁶².
    """
    devices = starts.size - 1
    most = 0
    for owner in range(devices):
        most = max(most, starts[owner + 1] - starts[owner])
    room = 2
    while room < 2 * most:
        room *= 2
    keys = np.empty(room, dtype=np.int64)
    counts = np.empty(room, dtype=np.int64)
    written = np.empty(room, dtype=np.int64)
    minutes = np.empty(max(most, 1), dtype=np.int64)
    used = np.empty(max(most, 1), dtype=np.int64)
    for owner in range(devices):
        first, last = starts[owner], starts[owner + 1]
        if first == last:
            continue
        size = 2
        while size < 2 * (last - first):
            size *= 2
        mask = np.uint64(size - 1)
        for blank in range(size):
            counts[blank] = _EMPTY
        head, tail, day = 0, 0, 0
        for event in range(first, last):
            now = time_ms[event]
            name = slices[event]
            hashed = np.uint64(name) * _HASH
            slot = np.int64((hashed ^ (hashed >> np.uint64(32))) & mask)
            while counts[slot] != _EMPTY and keys[slot] != name:
                slot = np.int64(np.uint64(slot + 1) & mask)
            if counts[slot] == _EMPTY or written[slot] + lifetime_ms <= now:
                keys[slot] = name
                counts[slot] = 1
                written[slot] = now
            else:
                counts[slot] += 1
                if refresh:
                    written[slot] = now
            count = counts[slot]
            index = threshold_index[count] if count < threshold_index.size else np.int64(-1)
            reached[event] = index
            if index < 0:
                outcome[event] = NOT_ASKED
                continue
            minute = now // MINUTE_MS
            while head < tail and minutes[head] <= minute - LARGER_WINDOW_MINUTES:
                day -= used[head]
                head += 1
            recent = 0
            back = tail - 1
            while back >= head and minutes[back] > minute - SMALLER_WINDOW_MINUTES:
                recent += used[back]
                back -= 1
            if recent + value > smaller_budget:
                outcome[event] = CUT_TEN_MINUTES
            elif day + value > larger_budget:
                outcome[event] = CUT_DAY
            else:
                outcome[event] = SENT
                day += value
                if tail > head and minutes[tail - 1] == minute:
                    used[tail - 1] += value
                else:
                    minutes[tail] = minute
                    used[tail] = value
                    tail += 1


_MAX_REACH_SLICE = (1 << 63) - 1
_MAX_K_PLUS_SLICE = (1 << 56) - 1
_MAX_TIME_MS = 1 << 53
_MAX_THRESHOLD = 127
_UUID_VERSION = np.uint8(0x40)
_UUID_VARIANT = np.uint8(0x80)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeReports:
    """The reports of a fleet in columns, in order of the events that made them; each has one contribution.

    ``event`` is the row of the event, ``time_ms`` its time; ``report_id`` has 16 bytes per row. ``cuts`` counts the
    contributions that the budgets denied.
    """

    event: NDArray[np.int64]
    device: NDArray[np.int64]
    time_ms: NDArray[np.int64]
    bucket: NDArray[np.int64]
    report_time_ms: NDArray[np.int64]
    report_id: NDArray[np.uint8]
    value: int
    filtering_id: int
    cuts: dict[Cause, int]
    not_asked: int

    def __len__(self) -> int:
        return self.event.size

    @property
    def asked(self) -> int:
        """The number of contributions that were requested, including those that the budgets denied."""
        return len(self) + sum(self.cuts.values())

    def totals(self) -> dict[int, int]:
        """Return the sum of each bucket without noise, to compare with a summary report."""
        buckets, counts = np.unique(self.bucket, return_counts=True)
        return {int(bucket): int(count) * self.value for bucket, count in zip(buckets, counts, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Devices that run one recipe's operation for one origin, each with its own storage and budgets.

    Equal to one ``Browser`` per device that calls ``run(origin, operation, slice)`` at each event, for one-level
    ``Reach`` and for ``KPlusFrequency``. The recipe gives the filtering ID; the configuration gives limits, delays and
    coordinator.
    """

    recipe: Reach | KPlusFrequency
    origin: str
    config: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        if isinstance(self.recipe, Reach) and self.recipe.levels != 1:
            raise DeviceConfigError("a fleet supports one level of reach: use Browser for several")
        if isinstance(self.recipe, KPlusFrequency) and self.recipe.thresholds[-1] > _MAX_THRESHOLD:
            raise DeviceConfigError(
                f"a fleet supports thresholds of up to {_MAX_THRESHOLD} views: use Browser for more"
            )
        if self.config.pending_report_limit is not None:
            raise DeviceConfigError("a fleet does not support pending_report_limit: use Browser, or set it to None")
        if not self.config.private_aggregation_allowed:
            raise DeviceConfigError("a fleet does not support private_aggregation_allowed=False: use Browser")
        if not 0 <= self.recipe.filtering_id < 256**DEFAULT_FILTERING_ID_MAX_BYTES:
            raise DeviceConfigError(
                "a fleet supports filtering IDs of one byte: use 0 to 255, or Browser for larger ones"
            )
        serialize_origin(self.origin)

    def run(
        self, device: ArrayLike, time_ms: ArrayLike, slice_id: ArrayLike, *, devices: int, bits: Bits
    ) -> RecipeReports:
        """Run the operation for each event (device, time, slice) and return the reports.

        Devices are numbered from 0; events may come in any order and count in order of time, then of row. Every call
        starts with new devices, whose storage and budgets are unused: pass all events of a device in one call.
        """
        owner, when, name = self._columns(device, time_ms, slice_id, devices)
        if when.size and np.any(np.diff(when) < 0):
            rows = np.argsort(when, kind="stable")
            owner, when, name = owner[rows], when[rows], name[rows]
        else:
            rows = None
        outcome, reached = self._decide(owner, when, name, devices)
        sent = np.flatnonzero(outcome == SENT)
        thresholds = len(self.recipe.thresholds) if isinstance(self.recipe, KPlusFrequency) else 1
        delay_ms = uniform_below_batch(bits, self.config.randomized_delay_ms, sent.size)
        delay_ms += self.config.minimum_delay_ms + self.config.local_processing_ms
        if self.config.local_testing_mode:
            delay_ms = np.zeros(sent.size, dtype=np.int64)
        return RecipeReports(
            event=sent if rows is None else rows[sent],
            device=owner[sent],
            time_ms=when[sent],
            bucket=name[sent] * thresholds + reached[sent],
            report_time_ms=when[sent] + delay_ms,
            report_id=_random_ids(bits, sent.size),
            value=self.recipe.value,
            filtering_id=self.recipe.filtering_id,
            cuts={
                Cause.TEN_MINUTES: int(np.count_nonzero(outcome == CUT_TEN_MINUTES)),
                Cause.DAY: int(np.count_nonzero(outcome == CUT_DAY)),
            },
            not_asked=int(np.count_nonzero(outcome == NOT_ASKED)),
        )

    def reports(self, columns: RecipeReports) -> Iterator[UnsealedReport]:
        """Yield the reports as ``Browser`` would queue them, before sealing."""
        origin = serialize_origin(self.origin)
        coordinator = self.config.default_coordinator
        maximum = self.config.max_contributions(ContextType.SHARED_STORAGE, None)
        ids = columns.report_id.tobytes()
        times = columns.report_time_ms.tolist()
        for row, bucket in enumerate(columns.bucket.tolist()):
            yield UnsealedReport(
                reporting_origin=origin,
                api=ContextType.SHARED_STORAGE,
                contributions=(HistogramContribution(bucket, columns.value, columns.filtering_id),),
                report_id=str(UUID(bytes=ids[16 * row : 16 * row + 16])),
                scheduled_report_time_ms=times[row],
                max_contributions=maximum,
                coordinator=coordinator,
                version=self.config.report_version,
            )

    def _decide(
        self, owner: NDArray[np.int64], when: NDArray[np.int64], name: NDArray[np.int64], devices: int
    ) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        recipe = self.recipe
        thresholds = recipe.thresholds if isinstance(recipe, KPlusFrequency) else (1,)
        index = np.full(thresholds[-1] + 1, -1, dtype=np.int64)
        for position, threshold in enumerate(thresholds):
            index[threshold] = position
        # Columns in the order of devices: reading them out of order would take most of the time.
        order, starts, times, names = group_by_device(owner, when, name, devices)
        decided = np.empty(owner.size, dtype=np.int8)
        thresholds_reached = np.empty(owner.size, dtype=np.int8)
        run_kernel(
            starts,
            times,
            names,
            index,
            isinstance(recipe, KPlusFrequency),
            self.config.storage_lifetime_ms,
            recipe.value,
            self.config.smaller_budget,
            self.config.larger_budget,
            decided,
            thresholds_reached,
        )
        outcome, reached = np.empty_like(decided), np.empty_like(decided)
        outcome[order], reached[order] = decided, thresholds_reached
        return outcome, reached

    def _columns(
        self, device: ArrayLike, time_ms: ArrayLike, slice_id: ArrayLike, devices: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        owner, when, name = (np.ascontiguousarray(column) for column in (device, time_ms, slice_id))
        for column, what in ((owner, "device"), (when, "time_ms"), (name, "slice_id")):
            if column.ndim != 1 or (column.dtype.kind not in "iu" and column.size) or column.size != owner.size:
                raise DeviceConfigError(f"column {what} must be a list of integers, as long as the other columns")
        last_slice = _MAX_K_PLUS_SLICE if isinstance(self.recipe, KPlusFrequency) else _MAX_REACH_SLICE
        limits = ((owner, devices - 1, "device"), (when, _MAX_TIME_MS, "time_ms"), (name, last_slice, "slice_id"))
        for column, largest, what in limits:
            if column.size and not (int(column.min()) >= 0 and int(column.max()) <= largest):
                raise DeviceConfigError(f"column {what} must hold numbers from 0 to {largest}")
        owner, when, name = (column.astype(np.int64, copy=False) for column in (owner, when, name))
        return owner, when, name


def _random_ids(bits: Bits, count: int) -> NDArray[np.uint8]:
    """Return the bytes of ``count`` random UUIDs (version 4)."""
    ids = bits.words(2 * count).view(np.uint8).reshape(count, 16).copy()
    ids[:, 6] = ids[:, 6] & np.uint8(0x0F) | _UUID_VERSION
    ids[:, 8] = ids[:, 8] & np.uint8(0x3F) | _UUID_VARIANT
    return ids
