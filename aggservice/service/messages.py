"""What streams of messages hold: reports and keys as columns, a hash of both, and pages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from aggservice.job.errors import InvalidJobError
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service.errors import ProtocolError
from aggservice.wire import ReportBatch, Spans

_KEY_BYTES = 16
_PAGE, _MAX_PAGE = 100, 1000


def batch_of(message: aggregation_pb2.ReportBatch) -> ReportBatch:
    """Return the columns of a message of reports."""
    count = len(message.payloads)
    key_ids = list(message.key_ids)
    if len(key_ids) == 1 and count > 1:
        key_ids = key_ids * count
    if not len(key_ids) == len(message.shared_infos) == count:
        raise ProtocolError(
            f"a batch has {count} payloads, {len(key_ids)} key_ids and {len(message.shared_infos)} shared_infos: "
            "give one of each per report, or a single key id for all"
        )
    return ReportBatch(
        payloads=Spans.of(list(message.payloads)),
        key_ids=Spans.of([key_id.encode() for key_id in key_ids]),
        shared_infos=Spans.of([info.encode() for info in message.shared_infos]),
    )


def keys_of(raw: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the high and low halves of packed 16-byte keys."""
    if len(raw) % _KEY_BYTES:
        raise ProtocolError(f"a domain part has {len(raw)} bytes: give whole keys of 16 bytes each")
    both = np.frombuffer(raw, dtype=">u8").reshape(-1, 2)
    return both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)


class ContentDigest:
    """A hash over the keys and reports of a stream. It does not depend on their division into messages."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"aggservice stream v1\0")

    def add_domain(self, raw: bytes) -> None:
        """Hash keys, each by itself."""
        if len(raw) % _KEY_BYTES:
            raise ProtocolError(f"a domain part has {len(raw)} bytes: give whole keys of 16 bytes each")
        self._hash.update(b"".join(b"d" + raw[at : at + _KEY_BYTES] for at in range(0, len(raw), _KEY_BYTES)))

    def add_reports(self, batch: ReportBatch) -> None:
        """Hash reports: the length of each field, then the field."""
        for row in zip(batch.payloads.views(), batch.key_ids.views(), batch.shared_infos.views(), strict=True):
            for field in row:
                self._hash.update(len(field).to_bytes(4, "big"))
                self._hash.update(field)

    def digest(self) -> bytes:
        """Return the 32 bytes."""
        return self._hash.digest()


def shared_info_batch(texts: Iterable[str]) -> Spans:
    """Return shared_info texts as a column."""
    return Spans.of([text.encode() for text in texts])


def page_size(asked: int) -> int:
    """Return how many items a page has: what was asked for, or 100."""
    if not 0 <= asked <= _MAX_PAGE:
        raise InvalidJobError(f"page_size is {asked}: give 0 to {_MAX_PAGE}")
    return asked or _PAGE
