"""Summaries sealed to their caller's public key: HPKE in chunks, behind a label that anyone can read.

A document is ``aggsealed1`` and a newline, four bytes of the label's length, the label as canonical JSON, and the
chunks (docs/wire.md). Its size follows from the number of rows alone: rows have a fixed width before they are sealed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from aggservice.wire.errors import KeySetError, SealedSummaryError
from aggservice.wire.hpke.key_sets import KeySet
from aggservice.wire.hpke.sealing import KEY_BYTES, OVERHEAD_BYTES, SUITE, seal_bound

MAGIC: Final = b"aggsealed1\n"
SEALED_SUFFIX: Final = ".sealed"
"""The suffix of a sealed shard's name."""
STREAM_NAME: Final = ""
TOTALS_NAME: Final = "totals"
"""The names of the two documents that are not files."""
CHUNK_BYTES: Final = 1 << 20
ROW_BYTES: Final = 24
_INFO: Final = b"aggservice sealed summary\0"
_LENGTH_BYTES, _NUMBER_BYTES = 4, 8
_MOST_LABEL_BYTES: Final = 1 << 14


class SealedKind(StrEnum):
    """What a document contains: rows of a histogram, shuffled reports, or the ``undeclared`` and ``others`` totals."""

    HISTOGRAM = "histogram"
    SHUFFLE = "shuffle"
    TOTALS = "totals"


def check_output_key(raw: bytes) -> bytes:
    """Return ``raw`` if it is a safe X25519 public key; otherwise raise ``KeySetError``.

    It must have 32 bytes. A point of small order is refused, because anyone could open what is sealed to it: the shared
    secret is zero for every private key (RFC 7748, section 6.1).
    """
    if len(raw) != KEY_BYTES:
        raise KeySetError(f"the public key has {len(raw)} bytes: an X25519 public key has {KEY_BYTES}")
    try:
        X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES)).exchange(X25519PublicKey.from_public_bytes(raw))
    except ValueError:
        raise KeySetError("the public key is a point of small order (RFC 7748, section 6.1): use another key") from None
    return raw


def parse_output_key(text: str) -> bytes:
    """Return the 32 bytes of a public key in base64, as a public-key document writes it."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise KeySetError("the public key is not base64: copy the key of a public-key document") from None
    return check_output_key(raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedLabel:
    """The part of a document that is not encrypted. Every chunk is bound to the whole label."""

    job_request_id: str
    name: str
    kind: SealedKind
    rows: int
    width: int
    output_public_key: bytes

    def to_bytes(self) -> bytes:
        """Return canonical JSON: sorted keys, no spaces."""
        plain = {
            "job_request_id": self.job_request_id,
            "kind": self.kind.value,
            "name": self.name,
            "output_public_key": base64.b64encode(self.output_public_key).decode(),
            "rows": self.rows,
            "width": self.width,
        }
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> SealedLabel:
        """Read what ``to_bytes`` wrote; SealedSummaryError for anything else."""
        try:
            plain = json.loads(raw)
            plain["kind"] = SealedKind(plain["kind"])
            plain["output_public_key"] = base64.b64decode(plain["output_public_key"], validate=True)
            label = cls(**plain)
            if not (type(label.rows) is type(label.width) is int and label.rows >= 0 and label.width > 0):
                raise ValueError("rows or width")
            if label.to_bytes() != raw:
                raise ValueError("not canonical")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise SealedSummaryError("the label of the sealed summary is malformed: fetch the summary again") from None
        return label

    @property
    def body_bytes(self) -> int:
        """How many bytes were sealed."""
        return self.rows * self.width

    def info(self, chunk: int) -> bytes:
        """Return HPKE's ``info`` for a chunk, counted from 0."""
        return _INFO + self.to_bytes() + chunk.to_bytes(_NUMBER_BYTES, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarySealer:
    """Seals the parts of one job's result to its caller's key; can be sent to another process."""

    output_public_key: bytes
    job_request_id: str
    bits: Bits

    def document(self, name: str, kind: SealedKind, *, rows: int, body: bytes) -> Iterator[bytes]:
        """Yield a document piece by piece. Each call seals again, so the bytes differ unless the bits are seeded."""
        label = SealedLabel(
            job_request_id=self.job_request_id,
            name=name,
            kind=kind,
            rows=rows,
            width=len(body) // rows if rows else ROW_BYTES,
            output_public_key=self.output_public_key,
        )
        text = label.to_bytes()
        yield MAGIC + len(text).to_bytes(_LENGTH_BYTES, "big") + text
        key, bits = X25519PublicKey.from_public_bytes(self.output_public_key), self.bits.child(f"sealed {name}")
        view = memoryview(body)
        for chunk in range(_chunks(len(body))):
            part = view[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
            yield seal_bound(part, info=label.info(chunk), key=key, bits=bits)

    def totals(self, undeclared: int, others: int) -> bytes:
        """Return the sealed document of the two totals that a job may release besides its rows."""
        body = b"".join(one.to_bytes(8, "big", signed=True) for one in (undeclared, others))
        return b"".join(self.document(TOTALS_NAME, SealedKind.TOTALS, rows=1, body=body))


def _chunks(size: int) -> int:
    return max(1, -(-size // CHUNK_BYTES))


def read_label(document: bytes) -> tuple[SealedLabel, int]:
    """Return a document's label and the position of its first chunk; SealedSummaryError if it is incomplete."""
    start = len(MAGIC) + _LENGTH_BYTES
    if not document.startswith(MAGIC) or len(document) < start:
        raise SealedSummaryError("this is not a sealed summary: it does not begin with `aggsealed1`")
    size = int.from_bytes(document[len(MAGIC) : start], "big")
    if size > _MOST_LABEL_BYTES:
        raise SealedSummaryError("the label of the sealed summary is malformed: fetch the summary again")
    label = SealedLabel.from_bytes(document[start : start + size])
    if len(document) != start + size + label.body_bytes + OVERHEAD_BYTES * _chunks(label.body_bytes):
        raise SealedSummaryError("the sealed summary is truncated or has bytes added: fetch it again")
    return label, start + size


def open_document(document: bytes, keys: KeySet, *, job_request_id: str = "", name: str | None = None) -> bytes:
    """Return the bytes that were sealed; SealedSummaryError if ``keys`` do not open them.

    If ``job_request_id`` or ``name`` is given, the document must have the same one.
    """
    label, at = read_label(document)
    if (job_request_id and label.job_request_id != job_request_id) or (name is not None and label.name != name):
        raise SealedSummaryError(
            f"this is {label.name or 'the stream'!r} of job {label.job_request_id!r}, not what was asked for: check "
            "whether files were renamed"
        )
    private = [
        pair.private for pair in keys.pairs if pair.private.public_key().public_bytes_raw() == label.output_public_key
    ]
    if not private:
        raise SealedSummaryError(
            f"the summary is sealed to the key {base64.b64encode(label.output_public_key).decode()}, which your key "
            "file does not have: give the file whose public key the job named"
        )
    body = bytearray()
    for chunk in range(_chunks(label.body_bytes)):
        size = min(CHUNK_BYTES, label.body_bytes - chunk * CHUNK_BYTES) + OVERHEAD_BYTES
        try:
            body += SUITE.decrypt(document[at : at + size], private[0], label.info(chunk))
        except (InvalidTag, ValueError):
            raise SealedSummaryError("the sealed summary was changed after sealing: fetch it again") from None
        at += size
    return bytes(body)


def open_totals(document: bytes, keys: KeySet, *, job_request_id: str) -> tuple[int, int]:
    """Return the totals ``undeclared`` and ``others`` of a sealed document of totals."""
    body = open_document(document, keys, job_request_id=job_request_id, name=TOTALS_NAME)
    return int.from_bytes(body[:8], "big", signed=True), int.from_bytes(body[8:], "big", signed=True)


def histogram_columns(body: bytes | memoryview) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the high and low halves of the buckets, and the metrics. ``body`` has all buckets, then all metrics."""
    count = len(body) // ROW_BYTES
    buckets = np.frombuffer(body, dtype=">u8", count=2 * count).reshape(-1, 2)
    metrics = np.frombuffer(body, dtype=">i8", count=count, offset=16 * count)
    return buckets[:, 0].astype(np.uint64), buckets[:, 1].astype(np.uint64), metrics.astype(np.int64)
