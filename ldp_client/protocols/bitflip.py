"""dBitFlipPM: d sampled bits of b buckets, memoized, without a second step.

Ding, Kulkarni and Yekhanin 2017; LOLOHA paper, §2.4.4.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, exp
from ldp_client.checks import as_list, check_columns, check_value, check_values, check_words, is_count, short_text
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.estimation import Floats, FrequencyEstimate, ResponseChain, Support, check_size, epsilon, symmetric
from ldp_client.protocols.base import (
    MEMOIZED_ANSWERS,
    LocalProtocol,
    MemoizingColumns,
    MemoizingDevice,
    Privacy,
    ProtocolRequest,
    as_draws,
    memo_int,
    memo_row,
)
from ldp_client.sampling import (
    ExactDraws,
    LaneCoins,
    Words,
    bits_of,
    count_bits,
    one_hot,
    rows_from_bytes,
    sample,
    sample_batch,
    unpack,
    words_of,
)
from ldp_client.tracking import StreamLaw, log_chance

#: The memo key of a bucket outside the sample.
OUTSIDE = -1

#: What an answer is memoized for: ``pattern``, the d true bits (all buckets outside the sample share one answer), as
#: Table 1's min(d + 1, b) needs; or ``bucket``, each bucket its own answer, as in the runs behind the printed Table 2.
Memo = Literal["pattern", "bucket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlipReport:
    """The buckets that a user sampled (public; sent once in practice) and their memoized bits, packed."""

    sampled: tuple[int, ...]
    bits: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlipColumns:
    """One collection's reports: per user a row of d sampled buckets and a row of d bits in words."""

    sampled: NDArray[np.int32]
    rows: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlip(LocalProtocol):
    """dBitFlipPM over 0, …, k − 1 in b buckets of equal width, d of them sampled by each user."""

    methods: ClassVar = {
        "1BitFlipPM": "dBitFlipPM with one sampled bit",
        "bBitFlipPM": "dBitFlipPM with every bit",
        "1BitFlipPM-bucket": "1BitFlipPM with an answer per bucket, as in the runs behind the paper's Table 2",
    }
    kind: ClassVar[str] = "dBitFlipPM"
    k: int
    buckets: int
    sampled: int
    epsilon_permanent_micro: int
    memo: Memo = "pattern"
    chain: ResponseChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        check_size(self.buckets, "the number of buckets b")
        check_size(self.sampled, "the number of sampled bits d", least=1)
        if not self.sampled <= self.buckets <= self.k:
            raise LdpParameterError(f"d ≤ b ≤ k must hold, not d = {self.sampled}, b = {self.buckets}, k = {self.k}")
        if self.memo not in get_args(Memo):
            raise LdpParameterError(
                f"memo must be {' or '.join(map(repr, get_args(Memo)))}, not {short_text(self.memo)}"
            )
        step = symmetric(exp(epsilon(self.epsilon_permanent_micro) / 2))
        object.__setattr__(self, "chain", ResponseChain(permanent=step))

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> BitFlip:
        """Return dBitFlipPM with one sampled bit, with all, or with the option ``sampled``."""
        buckets = request.k if request.buckets is None else request.buckets
        sampled = {"bBitFlipPM": buckets, "dBitFlipPM": request.options.get("sampled", 1)}.get(name, 1)
        return bit_flip(
            k=request.k,
            buckets=buckets,
            sampled=sampled,
            epsilon_permanent_micro=request.epsilon_permanent_micro,
            memo="bucket" if name == "1BitFlipPM-bucket" else "pattern",
        )

    @classmethod
    def examples(cls) -> Sequence[BitFlip]:
        """Return protocols with all, one or two of three bits, and with two values per bucket."""
        shapes: tuple[tuple[int, int, Memo], ...] = (
            (3, 3, "pattern"),
            (3, 1, "bucket"),
            (3, 2, "pattern"),
            (6, 3, "pattern"),
        )
        return [
            bit_flip(k=k, buckets=3, sampled=d, epsilon_permanent_micro=1_000_000, memo=memo) for k, d, memo in shapes
        ]

    def describe(self) -> dict[str, Any]:
        """Return the kind and the parameters; ``memo`` only if it is not "pattern", which saved states omit."""
        named = LocalProtocol.describe(self)
        return named if self.memo == "bucket" else {name: named[name] for name in named if name != "memo"}

    @property
    def answers(self) -> int:
        """The most answers that a device memoizes: min(d + 1, b) by pattern, b by bucket."""
        return self.buckets if self.memo == "bucket" else min(self.sampled + 1, self.buckets)

    @property
    def cells(self) -> int:
        return self.buckets

    @property
    def support(self) -> Support:
        """The estimator's probabilities; V* is b/(2dn(cosh(ε∞/2) − 1)); the paper prints sinh(ε∞/2)."""
        chain = Support.of(self.chain)
        return Support(p=chain.p, q=chain.q, sampled=self.sampled / self.buckets)

    @property
    def privacy(self) -> Privacy:
        """Every report of a bucket is the same, so ε₁ = ε∞; over all values the ε is min(d + 1, b)·ε∞ (Table 1).

        With memo "bucket" it is b·ε∞, because every bucket outside the sample has its own answer. With one sampled
        bit, only that bit differs between two values, so the true ε is ε∞/2.
        """
        unary = self.chain.first_unary()
        one = unary / 2 if self.sampled == 1 else unary
        asked = float(epsilon(self.epsilon_permanent_micro))
        return Privacy(asked=asked, first=one, permanent=one, worst_case=self.answers * asked)

    @property
    def shares(self) -> str:
        return f"the sampled buckets and {MEMOIZED_ANSWERS}"

    def cell(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return values * self.buckets // self.k

    def client(self, bits: Bits | ExactDraws, sampled: Sequence[int] | None = None) -> BitFlipClient:
        """Return a new device; its buckets are sampled unless they are given."""
        draws = as_draws(bits)
        if sampled is None:
            return BitFlipClient(self, draws, sample(draws, self.buckets, self.sampled), {})
        chosen = as_list(sampled, "sampled buckets")
        if not all(is_count(bucket, 0, self.buckets - 1) for bucket in chosen) or len(set(chosen)) != self.sampled:
            raise ReportError(f"sampled must be {self.sampled} different buckets below {self.buckets}")
        return BitFlipClient(self, draws, tuple(sorted(int(bucket) for bucket in chosen)), {})

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> BitFlipClient:
        stored = self.load(saved)
        try:
            client = self.client(bits, [memo_int(b, self.buckets, "a bucket") for b in stored["sampled"]])
            memo = {}
            for key, row in stored["answers"].items():
                memo[self._saved_key(key)] = memo_row(row, self.sampled)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StateError(f"this is not a saved client of dBitFlipPM: {error}") from error
        return BitFlipClient(self, bits, client.sampled, memo)

    def _saved_key(self, key: str) -> int:
        if self.memo == "bucket":
            return memo_int(key, self.buckets, "a bucket")
        return OUTSIDE if key == str(OUTSIDE) else memo_int(key, self.sampled, "an index in the sample")

    def fleet(self, users: int, bits: Bits) -> BitFlipFleet:
        return BitFlipFleet(self, users, bits)

    @property
    def report_bytes(self) -> int:
        """The length of every report: four bytes per sampled bucket, and their bits."""
        return 4 * self.sampled + -(-self.sampled // 8)

    def pack_report(self, report: Any) -> bytes | None:
        if not isinstance(report, BitFlipReport):
            return None
        unpack(report.bits, self.sampled)
        checked = self.check_sampled(report.sampled)
        return struct.pack(f">{len(checked)}I", *checked) + report.bits

    def unpack_report(self, data: bytes) -> BitFlipReport:
        split = 4 * self.sampled
        sampled = self.check_sampled(struct.unpack(f">{self.sampled}I", data[:split]))
        unpack(data[split:], self.sampled)
        return BitFlipReport(sampled=sampled, bits=data[split:])

    def traffic(self) -> tuple[int, int, int]:
        """Return d bits per report, the sampled buckets once unless all are sampled, and b steps of the server."""
        once = 0 if self.sampled == self.buckets else self.sampled * (self.buckets - 1).bit_length()
        return self.sampled, once, self.buckets

    def columns(self, reports: Sequence[BitFlipReport]) -> BitFlipColumns:
        sent = as_list(reports, "reports")
        if not all(isinstance(report, BitFlipReport) for report in sent):
            raise ReportError("a report of dBitFlipPM must be a BitFlipReport")
        sampled = [self.check_sampled(report.sampled) for report in sent]
        return BitFlipColumns(
            sampled=np.array(sampled, dtype=np.int32).reshape(len(sent), self.sampled),
            rows=rows_from_bytes([report.bits for report in sent], self.sampled),
        )

    def check_sampled(self, sampled: tuple[int, ...]) -> tuple[int, ...]:
        """Return the buckets that a report names; ReportError unless they are d buckets in ascending order."""
        if (
            not isinstance(sampled, tuple | list)
            or not all(is_count(bucket, 0, self.buckets - 1) for bucket in sampled)
            or len(sampled) != self.sampled
            or any(before >= after for before, after in itertools.pairwise(sampled))
        ):
            raise ReportError(self._sampled_rule())
        return tuple(int(bucket) for bucket in sampled)

    def _sampled_rule(self) -> str:
        return (
            f"a report of dBitFlipPM names its {self.sampled} sampled buckets, all in [0, {self.buckets}), "
            "once each, in order"
        )

    def repeated(self, columns: BitFlipColumns) -> Words:
        """Return the memoized rows, which every report of a bucket repeats."""
        return columns.rows

    def supports(self, columns: BitFlipColumns, cell: int) -> NDArray[np.bool_]:
        return np.asarray(((columns.sampled == cell) & bits_of(columns.rows, self.sampled)).any(axis=1))

    def stream_law(self, value: int, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        return RepeatedLaw(check_value(value, self.k), self)

    def estimate(self, columns: BitFlipColumns) -> FrequencyEstimate:
        columns = check_columns(columns, BitFlipColumns)
        sampled = self._check_sampled_rows(columns.sampled)
        users = sampled.shape[0]
        rows = check_words(columns.rows, (users, words_of(self.sampled)), f"rows of {self.sampled} bits")
        ones_by_index = count_bits(rows, self.sampled)
        if self.sampled == self.buckets:
            return self.support.estimate(ones_by_index, users)
        flat = sampled.reshape(-1)
        speaking = np.bincount(flat, minlength=self.buckets)
        ones = np.bincount(flat[bits_of(rows, self.sampled).reshape(-1)], minlength=self.buckets)
        return self.support.estimate(ones, users, speaking)

    def _check_sampled_rows(self, sampled: object) -> NDArray[np.integer[Any]]:
        """Return the column of sampled buckets; ReportError under the rule of ``check_sampled``."""
        if not isinstance(sampled, np.ndarray) or sampled.ndim != 2 or sampled.dtype.kind not in "iu":
            raise ReportError("the column of sampled buckets must be an array of integers, one row per report")
        # A fleet that samples every bucket has one row, which numpy repeats without a copy.
        rows = sampled[:1] if sampled.strides[0] == 0 else sampled
        if (
            rows.shape[1] != self.sampled
            or (rows.size and not (rows.min() >= 0 and rows.max() < self.buckets))
            or not (rows[:, 1:] > rows[:, :-1]).all()
        ):
            raise ReportError(self._sampled_rule())
        return sampled


class BitFlipClient(MemoizingDevice[BitFlip, int, bytes]):
    """One device: it memoizes a row of d bits per pattern (sampled bucket, or none of them), or per bucket."""

    def __init__(
        self, protocol: BitFlip, bits: Bits | ExactDraws, sampled: tuple[int, ...], memo: dict[int, bytes]
    ) -> None:
        super().__init__(protocol, bits, memo)
        self.sampled = sampled

    def report(self, value: int) -> BitFlipReport:
        """Return the memoized row of the bucket of ``value``, drawing it at its first use."""
        bucket = check_value(value, self.protocol.k) * self.protocol.buckets // self.protocol.k
        index = self.sampled.index(bucket) if bucket in self.sampled else OUTSIDE
        key = bucket if self.protocol.memo == "bucket" else index
        return BitFlipReport(sampled=self.sampled, bits=self._kept(key, lambda: self._permanent(index)))

    def _saved(self) -> dict[str, Any]:
        return {"sampled": list(self.sampled), "answers": super()._saved()}

    def _permanent(self, index: int) -> bytes:
        return self._flip(np.arange(self.protocol.sampled) == index, self.protocol.chain.permanent)


class BitFlipFleet(MemoizingColumns[BitFlip]):
    """Many devices in columns."""

    def __init__(self, protocol: BitFlip, users: int, bits: Bits) -> None:
        span = protocol.buckets if protocol.memo == "bucket" else protocol.sampled + 1
        super().__init__(protocol, users, bits, span=span, width=words_of(protocol.sampled))
        self._coins = LaneCoins(protocol.chain.permanent)
        self._sampled = sample_batch(bits, users, protocol.buckets, protocol.sampled)

    def report(self, values: ArrayLike) -> BitFlipColumns:
        """Return one collection's reports."""
        d = self.protocol.sampled
        checked = check_values(values, self.protocol.k, self.users)
        index = self.sampled_indexes(checked)
        keys = self.protocol.cell(checked) if self.protocol.memo == "bucket" else index + 1
        rows = self._memo.get(keys, lambda fresh: self._coins.flip(self._bits, one_hot(index[fresh], d), d))
        return BitFlipColumns(sampled=self._sampled, rows=rows)

    def sampled_indexes(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each user's bucket in their sample, or −1."""
        buckets = self.protocol.cell(values)
        if self.protocol.sampled == self.protocol.buckets:
            return buckets
        hits = self._sampled == buckets[:, None]
        return np.where(hits.any(axis=1), hits.argmax(axis=1), OUTSIDE)


class RepeatedLaw(StreamLaw):
    """dBitFlipPM: every report of a value is the same. A part is each user's sampled buckets and their bits."""

    def __init__(self, value: int, protocol: BitFlip) -> None:
        self._value, self._protocol = value, protocol
        self._bucket = value * protocol.buckets // protocol.k
        step = protocol.chain.permanent
        self._logs = np.array(
            [[log_chance(1 - step.q), log_chance(step.q)], [log_chance(1 - step.p), log_chance(step.p)]]
        )
        self._log_sample = -math.log(math.comb(protocol.buckets, protocol.sampled))

    def part(self, reports: Sequence[BitFlipReport]) -> Any:
        """Return the buckets that a device sampled, and their bits; all its reports are equal."""
        if any(report != reports[0] for report in reports):
            raise ReportError("all reports of a value are the same: these are not of one device")
        columns = self._protocol.columns(reports[:1])
        return columns.sampled, bits_of(columns.rows, self._protocol.sampled)

    def log_probability(self, *parts: Any) -> Floats:
        """Return the log-probability of one sample with its bits; minus infinity if two parts differ."""
        sampled, flips = parts[0]
        found = self._log_sample + self._logs[(sampled == self._bucket).astype(int), flips.astype(int)].sum(axis=1)
        one = np.ones(found.size, dtype=np.bool_)
        for other, bits in parts[1:]:
            one &= (sampled == other).all(axis=1) & (flips == bits).all(axis=1)
        return np.where(one, found, -math.inf)

    def _state(self, bits: Bits, users: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        columns = self._protocol.fleet(users, bits).report(np.full(users, self._value))
        return columns.sampled, bits_of(columns.rows, self._protocol.sampled)

    def _send(self, bits: Bits, state: Any, reports: int) -> Any:
        return state


#: dBitFlipPM with b = ``buckets`` and d = ``sampled``; ``memo`` says what an answer is memoized for.
bit_flip = BitFlip
