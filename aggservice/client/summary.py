"""A summary as the client sees it: rows as columns, and everything the service says about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from aggservice.rpc.v1 import common_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """What only a shuffle's statement says: ε₀, ε∞ (empty: unbounded), whether and for whom it was amplified, and by
    which evidence (empty: no device token was checked).
    """

    randomizer: str
    reports: int
    report_bytes: int
    local_epsilon: str
    permanent_epsilon: str
    amplified: bool
    bound: str
    assumption: str
    not_amplified: str
    collection: str
    registry_key_sha256: str

    @classmethod
    def of(cls, message: common_pb2.ShuffleStatement) -> Shuffled:
        """Return what a message says."""
        return cls(**{field.name: getattr(message, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a summary guarantees. Amounts are decimal text; ``interval_half_width`` is of a 95 % interval."""

    mechanism: str
    epsilon: str
    rho: str
    delta: str
    others_epsilon: str
    l1: int
    l0: int
    threshold: int
    privacy_unit: str
    noise_standard_deviation: float
    interval_half_width: int
    others_half_width: int
    private: bool
    text: str
    cost: Mapping[str, str]
    remaining: Mapping[str, str]
    shuffle: Shuffled | None = None

    @classmethod
    def of(cls, message: common_pb2.Statement) -> Statement:
        """Return the statement of a message."""
        return cls(
            mechanism=message.mechanism,
            epsilon=message.epsilon,
            rho=message.rho,
            delta=message.delta,
            others_epsilon=message.others_epsilon,
            l1=message.l1,
            l0=message.l0,
            threshold=message.threshold,
            privacy_unit=message.privacy_unit,
            noise_standard_deviation=float(message.noise_standard_deviation or 0),
            interval_half_width=message.interval_half_width,
            others_half_width=message.others_half_width,
            private=message.private,
            text=message.text,
            cost=amounts(message.cost),
            remaining=amounts(message.remaining),
            shuffle=Shuffled.of(message.shuffle) if message.HasField("shuffle") else None,
        )


def amounts(message: common_pb2.PrivacyAmount) -> dict[str, str]:
    """Return the amounts that are set, by name."""
    found = {"epsilon": message.epsilon, "rho": message.rho, "delta": message.delta}
    return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """The summary of a job. ``high``, ``low`` and ``metrics`` are columns, a row a bucket; a job over files has none
    here, and ``files`` names them. A shuffle has ``reports`` instead, in random order.
    """

    job_request_id: str
    return_code: str
    error_counts: Mapping[str, int]
    statement: Statement
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    metrics: NDArray[np.int64]
    unnoised: NDArray[np.int64] | None
    annotations: NDArray[np.uint8] | None
    others: int | None
    undeclared: int | None
    receipt: bytes
    ledger_entry: int
    files: tuple[str, ...]
    repeated: bool
    result_head: bytes
    reports: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return self.metrics.size

    def to_dict(self) -> dict[int, int]:
        """Return the metrics by bucket, as Python numbers."""
        keys = zip(self.high.tolist(), self.low.tolist(), strict=True)
        return {high << 64 | low: metric for (high, low), metric in zip(keys, self.metrics.tolist(), strict=True)}

    def result_digest(self) -> bytes:
        """Return SHA-256 over the result as the ledger keeps it: what the receipt's entry must name."""
        both = np.empty((len(self), 2), dtype=">u8")
        both[:, 0], both[:, 1] = self.high, self.low
        if self.statement.shuffle is not None:
            return hashlib.sha256(self.result_head + b"".join(self.reports)).digest()
        return hashlib.sha256(self.result_head + both.tobytes() + self.metrics.astype(">i8").tobytes()).digest()

    @classmethod
    def of(
        cls, header: common_pb2.SummaryHeader, pages: Iterable[common_pb2.SummaryRows], shuffled: bytes = b""
    ) -> Summary:
        """Put a summary together from its messages; ``shuffled`` is all reports of a shuffle, one after the other."""
        buckets, metrics, unnoised, annotations = [], [], [], []
        for page in pages:
            buckets.append(page.buckets)
            metrics.append(np.array(page.metrics, dtype=np.int64))
            unnoised.append(np.array(page.unnoised_metrics, dtype=np.int64))
            annotations.append(page.annotations)
        both = np.frombuffer(b"".join(buckets), dtype=">u8").reshape(-1, 2)
        debug = header.debug_run
        width = max(1, header.statement.shuffle.report_bytes)
        return cls(
            job_request_id=header.job_request_id,
            return_code=common_pb2.ReturnCode.Code.Name(header.return_code),
            error_counts={one.category: one.count for one in header.error_summary.error_counts},
            statement=Statement.of(header.statement),
            high=both[:, 0].astype(np.uint64),
            low=both[:, 1].astype(np.uint64),
            metrics=np.concatenate(metrics) if metrics else np.empty(0, dtype=np.int64),
            unnoised=np.concatenate(unnoised) if debug and unnoised else None,
            annotations=np.frombuffer(b"".join(annotations), dtype=np.uint8) if debug else None,
            others=header.others if header.HasField("others") else None,
            undeclared=header.undeclared if header.HasField("undeclared") else None,
            receipt=header.receipt,
            ledger_entry=header.ledger_entry,
            files=tuple(header.files),
            repeated=header.repeated,
            result_head=header.result_head,
            reports=tuple(shuffled[at : at + width] for at in range(0, len(shuffled), width)),
        )
