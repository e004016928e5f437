"""The local reports of one randomizer in a batch: ``aggservice.wire.report.ldp_payload`` for columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.wire.batch.opening import OpenedBatch
from aggservice.wire.errors import ReportStatus, WireError
from aggservice.wire.report.ldp_payload import (
    HEAD,
    HEAD_WITH_TOKEN,
    MIDDLE,
    TOKEN,
    Randomizer,
    bytes_head,
    decode_ldp_payload,
)
from aggservice.wire.report.registry import TOKEN_BYTES

_OK = int(ReportStatus.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpColumns:
    """The local reports of one randomizer in a batch, in order.

    ``status`` has one ``ReportStatus`` per row of the batch and ``mine`` says which rows are such reports; ``data``,
    ``tokens`` and ``has_token`` have a row for each of those only. A report without a token has 64 zero bytes.
    """

    status: NDArray[np.uint8]
    mine: NDArray[np.bool_]
    data: NDArray[np.uint8]
    tokens: NDArray[np.uint8]
    has_token: NDArray[np.bool_]


def decode_ldp_batch(opened: OpenedBatch, randomizer: Randomizer) -> LdpColumns:
    """Return the reports of one randomizer among the opened payloads.

    A local report of another randomizer has the status OK and is left out. Canonical payloads of the randomizer
    have one length with a token and one without, and the same bytes around report and token; every other payload goes
    to the single decoder.
    """
    spans = opened.plaintexts
    status = opened.status.copy()
    mine = np.zeros(len(spans), dtype=np.bool_)
    has_token = np.zeros(len(spans), dtype=np.bool_)
    data = np.zeros((len(spans), randomizer.report_bytes), dtype=np.uint8)
    tokens = np.zeros((len(spans), TOKEN_BYTES), dtype=np.uint8)
    length = bytes_head(randomizer.report_bytes)
    tail = MIDDLE + randomizer.to_bytes()
    rows, (found,) = _canonical(opened, (HEAD + length, tail), (randomizer.report_bytes,))
    mine[rows], data[rows] = True, found
    rows, (found, signed) = _canonical(
        opened, (HEAD_WITH_TOKEN + length, TOKEN, tail), (randomizer.report_bytes, TOKEN_BYTES)
    )
    mine[rows], data[rows], has_token[rows], tokens[rows] = True, found, True, signed
    for row in np.flatnonzero((status == _OK) & ~mine).tolist():
        try:
            payload = decode_ldp_payload(spans[row])
        except WireError as error:
            status[row] = error.status
            continue
        if payload.randomizer == randomizer:
            mine[row] = True
            data[row] = np.frombuffer(payload.data, dtype=np.uint8)
            if payload.token is not None:
                has_token[row] = True
                tokens[row] = np.frombuffer(payload.token, dtype=np.uint8)
    return LdpColumns(status=status, mine=mine, data=data[mine], tokens=tokens[mine], has_token=has_token[mine])


def _canonical(
    opened: OpenedBatch, fixed: tuple[bytes, ...], widths: tuple[int, ...]
) -> tuple[NDArray[np.int64], list[NDArray[np.uint8]]]:
    """Return the rows of the form ``fixed[0]``, field, ``fixed[1]``, …, and their fields, of these ``widths``."""
    spans = opened.plaintexts
    length = sum(map(len, fixed)) + sum(widths)
    sized = np.flatnonzero((opened.status == _OK) & (spans.stops - spans.starts == length))
    rows = spans.buffer[spans.starts[sized, None] + np.arange(length)]
    same = np.ones(sized.size, dtype=np.bool_)
    fields = []
    at = 0
    for part, width in zip(fixed, (*widths, 0), strict=True):
        same &= (rows[:, at : at + len(part)] == np.frombuffer(part, dtype=np.uint8)).all(axis=1)
        at += len(part)
        fields.append(rows[:, at : at + width])
        at += width
    return sized[same], [field[same] for field in fields[:-1]]
