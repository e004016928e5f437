"""Opening many reports: a failure is recorded as the status of its row, never raised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from aggservice.wire.batch.spans import Spans
from aggservice.wire.errors import EncodingError, ReportStatus
from aggservice.wire.hpke.sealing import INFO_PREFIX, OVERHEAD_BYTES, SUITE
from aggservice.wire.limits import MAX_PAYLOAD_BYTES
from aggservice.wire.report.body import AggregatableReport

_OK = int(ReportStatus.OK)
_NO_KEY = int(ReportStatus.DECRYPTION_KEY_NOT_FOUND)
_UNOPENED = int(ReportStatus.DECRYPTION_ERROR)
_OVERSIZED = int(ReportStatus.REPORT_PARSING_ERROR)
_MAX_SEALED_BYTES = MAX_PAYLOAD_BYTES + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBatch:
    """Reports as the service receives them: the three fields of an ``AggregatableReport`` record, as columns."""

    payloads: Spans
    key_ids: Spans
    shared_infos: Spans

    def __post_init__(self) -> None:
        if not len(self.payloads) == len(self.key_ids) == len(self.shared_infos):
            raise EncodingError("the columns of the batch differ in length")

    @classmethod
    def of(cls, reports: Iterable[AggregatableReport], *, cleartext: bool = False) -> ReportBatch:
        """Return the batch of these reports' first payloads; with ``cleartext``, their debug cleartexts."""
        payloads, key_ids, shared_infos = [], [], []
        for report in reports:
            sealed = report.payloads[0]
            payload = sealed.debug_cleartext_payload if cleartext else sealed.payload
            if payload is None:
                raise EncodingError("a report has no cleartext payload, because it is not in debug mode: leave it out")
            payloads.append(payload)
            key_ids.append(sealed.key_id.encode())
            shared_infos.append(report.shared_info.encode())
        return cls(payloads=Spans.of(payloads), key_ids=Spans.of(key_ids), shared_infos=Spans.of(shared_infos))

    def __len__(self) -> int:
        return len(self.payloads)

    def slice(self, start: int, stop: int) -> ReportBatch:
        """Return rows ``start`` to ``stop`` over the same buffers."""
        return ReportBatch(
            payloads=self.payloads.slice(start, stop),
            key_ids=self.key_ids.slice(start, stop),
            shared_infos=self.shared_infos.slice(start, stop),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBatch:
    """The plaintexts of a batch, and one ``ReportStatus`` per row; rows that did not open are empty."""

    plaintexts: Spans
    status: NDArray[np.uint8]

    @classmethod
    def of_cleartext(cls, batch: ReportBatch) -> OpenedBatch:
        """Return the payloads as plaintexts: they are cleartext already, as in debug reports for a local test."""
        return cls(plaintexts=batch.payloads, status=np.zeros(len(batch), dtype=np.uint8))


def open_batch(batch: ReportBatch, keys: Mapping[str, X25519PrivateKey]) -> OpenedBatch:
    """Open every report of ``batch`` with the key it names (``KeySet.by_id``).

    Costs one HPKE open per report, and about one percent more. A row that fails has the status
    DECRYPTION_KEY_NOT_FOUND, DECRYPTION_ERROR or, if it is too long, REPORT_PARSING_ERROR.
    """
    by_raw_id = {key_id.encode(): key for key_id, key in keys.items()}
    decrypt = SUITE.decrypt
    status = bytearray(len(batch))
    # A plaintext is as long as its ciphertext without the overhead, so its position is known before it is opened;
    # copying it there at once keeps the cache free for the next.
    sizes = np.maximum(batch.payloads.stops - batch.payloads.starts - OVERHEAD_BYTES, 0)
    stops = np.cumsum(np.where(sizes > MAX_PAYLOAD_BYTES, 0, sizes))
    starts = np.zeros_like(stops)
    starts[1:] = stops[:-1]
    buffer = np.empty(int(stops[-1]) if stops.size else 0, dtype=np.uint8)
    out = buffer.data
    payloads, infos = batch.payloads.buffer.data, batch.shared_infos.buffer.data
    rows = zip(
        batch.payloads.starts.tolist(),
        batch.payloads.stops.tolist(),
        batch.key_ids,
        batch.shared_infos.starts.tolist(),
        batch.shared_infos.stops.tolist(),
        starts.tolist(),
        stops.tolist(),
        strict=True,
    )
    # Views are made row by row: the garbage collector would scan thousands held at once.
    for row, (payload_start, payload_stop, key_id, info_start, info_stop, start, stop) in enumerate(rows):
        key = by_raw_id.get(key_id)
        if key is None:
            status[row] = _NO_KEY
        elif payload_stop - payload_start > _MAX_SEALED_BYTES:
            status[row] = _OVERSIZED
        else:
            try:
                sealed = payloads[payload_start:payload_stop]
                out[start:stop] = decrypt(sealed, key, INFO_PREFIX + infos[info_start:info_stop])
            except (InvalidTag, ValueError):
                status[row] = _UNOPENED
    fates = np.frombuffer(status, dtype=np.uint8)
    plaintexts = Spans(buffer=buffer, starts=starts, stops=np.where(fates == _OK, stops, starts))
    return OpenedBatch(plaintexts=plaintexts, status=fates)
