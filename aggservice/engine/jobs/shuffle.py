"""A shuffle job: it takes sealed local reports and releases them in random order, charged once.

There is nothing to sum and no noise to add, because every device has randomized its own report.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.jobs.batches import BatchSession
from aggservice.engine.jobs.session import EngineParts, Scope
from aggservice.engine.opening.coverage import APIS
from aggservice.engine.opening.judging import LdpBatch
from aggservice.engine.opening.pool import Columns
from aggservice.engine.release.output import AvroShards, Destination, ResultBound
from aggservice.engine.release.statement import shuffle_statement_of
from aggservice.engine.shuffle import ShufflePlan, random_order
from aggservice.job.errors import DomainError, EngineError, InvalidJobError, ResultWriteError
from aggservice.job.request import ShuffleRequest
from aggservice.job.result import Outcome, ResultHeader, ShuffledRows
from aggservice.wire.avro.schemas import LONG_BYTES

MOST_BYTES_IN_LEDGER = 240 << 20
"""The largest shuffle that the ledger keeps beside an entry. Larger ones are written to files."""
MOST_BYTES_IN_MEMORY = 4 << 30
"""The most bytes of reports per job. All are held until the last has arrived, and twice while they are put in order."""


class ShuffleSession(BatchSession):
    """One shuffle in progress."""

    def __init__(
        self,
        parts: EngineParts,
        scope: Scope,
        request: ShuffleRequest,
        *,
        destination: Destination,
    ) -> None:
        self._shuffle = request
        self._evidence = parts.settings.shuffle.evidence(request)
        super().__init__(
            parts,
            scope,
            request,
            destination=destination,
            randomizer=request.randomizer,
            evidence=self._evidence,
        )
        self._kept: list[NDArray[np.uint8]] = []
        self._apis: set[int] = set()
        self._held_bytes = 0

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Raise DomainError: a shuffle releases reports, not keys."""
        raise DomainError("a shuffle has no output domain, because it releases reports and not keys: send no domain")

    def _take(self, judged: Columns) -> None:
        """Count a batch; keep reports of the job's randomizer that are not repeated and have the token if needed."""
        if not isinstance(judged, LdpBatch):
            raise EngineError("a worker returned columns of another kind of job")
        fresh = self._take_public(judged, 1)
        self._counts.other_randomizer += int(judged.left_out[0])
        self._counts.no_device_token += int(judged.left_out[1])
        if fresh.any():
            self._apis.update(np.unique(judged.apis[fresh]).tolist())
            data = judged.data if fresh.all() else judged.data[fresh]
            self._held_bytes += data.nbytes
            if self._held_bytes > MOST_BYTES_IN_MEMORY:
                raise ResultWriteError(
                    f"a shuffle of more than {MOST_BYTES_IN_MEMORY >> 20} MiB of reports does not fit into memory; "
                    "nothing was charged: shuffle fewer reports per job"
                )
            self._kept.append(data)

    def _check_releasable(self) -> None:
        if not self._kept:
            without = self._counts.no_device_token
            raise InvalidJobError(
                f"none of {without} reports of this randomizer has a valid device token for collection "
                f"{self._shuffle.collection!r}, so there is nothing to shuffle: check the name of the collection"
                if without
                else "no report is of this randomizer, so there is nothing to shuffle: check the randomizer's name"
            )
        if self._held_bytes > MOST_BYTES_IN_LEDGER and not isinstance(self._destination, AvroShards):
            raise ResultWriteError(
                f"{self._held_bytes >> 20} MiB of reports are too many for a stream (at most "
                f"{MOST_BYTES_IN_LEDGER >> 20} MiB); nothing was charged: ask for files with CreateJob"
            )

    def _release(self, content: bytes) -> Outcome:
        reports = np.concatenate(self._kept)
        self._kept = []
        plan = ShufflePlan.of(self._shuffle, len(reports), evidence=self._evidence)
        plan = replace(plan, covers={APIS[index]: 1 for index in sorted(self._apis)})
        header = self._header(shuffle_statement_of(plan, private=self._parts.bits.private), row_count=len(reports))

        def make() -> tuple[ResultHeader, ShuffledRows]:
            order = random_order(self._bits.child("order"), len(reports))
            return header, ShuffledRows(reports=reports[order])

        bound = ResultBound(rows=len(reports), row_bytes=reports.shape[1] + LONG_BYTES)
        charge, failed = self._charge(plan, content), replace(header, row_count=0)
        return self._keep(charge, make, units=self._take_units(), failed=failed, bound=bound)
