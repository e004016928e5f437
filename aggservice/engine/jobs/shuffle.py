"""A shuffle job: sealed local reports in, the multiset of them out in random order, charged once.

The same session as a histogram's up to the point where reports have been opened; then there is nothing to sum and no
noise to add, because every device has added its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import DomainError, EngineError, InvalidJobError, ResultWriteError
from aggservice.engine.local import LocalEngine, Outcome, Scope, Session
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.ldp_columns import LocalBatch
from aggservice.engine.release.charging import Charge
from aggservice.engine.release.output import AvroShards, Destination
from aggservice.engine.release.result import ResultHeader
from aggservice.engine.release.statement import state_shuffle
from aggservice.engine.request import JobRequest
from aggservice.engine.shuffle.plan import ShufflePlan, ShuffleRequest
from aggservice.engine.shuffle.rows import ShuffledRows, random_order
from aggservice.engine.tables.units import UnitList

MOST_BYTES_IN_LEDGER = 240 << 20
"""What the ledger keeps of a shuffle beside an entry. Larger ones are files."""
MOST_BYTES_IN_MEMORY = 4 << 30
"""Reports are held until all have come, and twice while they are put in order."""


class ShuffleSession(Session):
    """One shuffle under way: ``add``, ``finish``, or ``cancel`` from any thread. There are no keys to declare."""

    def __init__(
        self,
        engine: LocalEngine,
        scope: Scope,
        request: JobRequest,
        shuffle: ShuffleRequest,
        *,
        destination: Destination,
    ) -> None:
        super().__init__(
            engine, scope, request, destination=destination, expected_keys=0, cleartext=False, debug_only=False
        )
        self._shuffle = shuffle
        self._evidence = engine.settings.shuffle.evidence(
            shuffle, origin=request.attribution_report_to, site=request.reporting_site
        )
        self._spec = replace(self._spec, randomizer=shuffle.randomizer, evidence=self._evidence)
        self._units = UnitList(distinct=False)
        self._kept: list[NDArray[np.uint8]] = []
        self._held_bytes = 0

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Refuse: a shuffle releases reports, not keys."""
        raise DomainError("a shuffle has no output domain: it releases reports, not sums of keys")

    def _take(self, judged: JudgedBatch | LocalBatch) -> None:
        """Count; leave out other randomizers, reports without a token where one is needed, and repeated reports."""
        if not isinstance(judged, LocalBatch) or self._ids is None:
            raise EngineError("a worker answered for another kind of job")
        self._counts.add(judged.statuses)
        self._counts.other_randomizer += int(judged.left_out[0])
        self._counts.no_device_token += int(judged.left_out[1])
        fresh = self._ids.add(judged.ids)
        repeated = fresh.size - int(np.count_nonzero(fresh))
        self._counts.repeated += repeated
        self._units.add(judged.units, fresh if repeated else None, 1)
        if fresh.any():
            data = judged.data[fresh] if repeated else judged.data
            self._held_bytes += data.nbytes
            if self._held_bytes > MOST_BYTES_IN_MEMORY:
                raise ResultWriteError(
                    f"a shuffle of more than {MOST_BYTES_IN_MEMORY >> 20} MiB of reports does not fit into memory; "
                    "nothing was charged: shuffle fewer at a time"
                )
            self._kept.append(data)

    def _require_keys(self) -> None:
        """A shuffle has no keys."""

    def finish(self, *, content: bytes = b"") -> Outcome:
        """Decide the price, put the reports in random order, charge and release. Raises with nothing charged."""
        self._drain()
        self._counts.check()
        if not self._kept:
            without = self._counts.no_device_token
            raise InvalidJobError(
                f"none of {without} reports of this randomizer has a valid device token for collection "
                f"{self._shuffle.collection!r}: there is nothing to shuffle. Is the collection's name right?"
                if without
                else "no report of this randomizer is among them: there is nothing to shuffle. Is its name right?"
            )
        if self._held_bytes > MOST_BYTES_IN_LEDGER and not isinstance(self._destination, AvroShards):
            raise ResultWriteError(
                f"{self._held_bytes >> 20} MiB of reports are too many for a stream (at most "
                f"{MOST_BYTES_IN_LEDGER >> 20} MiB); nothing was charged: ask for files instead, with CreateJob"
            )
        self._ids = None
        engine, request = self._engine, self._request
        reports = np.concatenate(self._kept)
        self._kept = []
        plan = ShufflePlan.of(
            self._shuffle,
            len(reports),
            evidence=self._evidence,
            scope=request.attribution_report_to or request.reporting_site or "",
        )
        header = self._header(state_shuffle(plan, private=engine.bits.private), row_count=len(reports))
        charge = Charge(
            ledger=engine.ledger, caller=self._scope.caller, request=request, digest=request.digest(content), plan=plan
        )
        units = self._units.take()
        self._check_cancelled()

        def make() -> tuple[ResultHeader, ShuffledRows]:
            order = random_order(self._bits.child("order"), len(reports))
            return header, ShuffledRows(reports=reports[order])

        return Outcome.of(
            charge.commit(make, units=units, destination=self._destination, failed=replace(header, row_count=0))
        )
