"""Local hashing: BLH and OLH, and the longitudinal LOLOHA (LOLOHA paper, §2.3.2, §3).

Each user draws one hash function from values to [0, g) and reports randomized hash values. LOLOHA memoizes one
answer per hash value, so that no user ever leaks more than g·ε∞ on their values (Theorem 3.5).

The family is multiply-add-shift (Dietzfelbinger 1996): for multiplier a and addend b uniform on 64 bits and v below
2^32, h(v) = ⌊((a·v + b) mod 2^64) / 2^32⌋ is strongly universal: for v ≠ w the pair (h(v), h(w)) is uniform on all
pairs of 32-bit numbers, because 64 ≥ 32 + 32 − 1. The hash value is H(v) = ⌊h(v)·g / 2^32⌋.

For v ≠ w, Pr[H(v) = H(w)] = 1/g + r(g − r)/(g·2^64) with r = 2^32 mod g: exactly 1/g if g is a power of two,
and otherwise larger by at most g/2^66. The same independence makes Pr[H(w) = x | H(v)] equal to 1/g within 2^-32,
which the estimator (q₁' = 1/g) needs; with universality alone it could be biased.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, exp
from ldp_client.checks import (
    as_list,
    check_columns,
    check_numbers,
    check_value,
    check_values,
    check_words,
    is_count,
    short_text,
    whole_numbers,
)
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.estimation import (
    Calibration,
    Floats,
    FrequencyEstimate,
    ResponseChain,
    Support,
    asked_epsilon,
    check_pair,
    check_size,
    epsilon,
    epsilon_pair,
    grr_chain,
)
from ldp_client.protocols.base import (
    MEMOIZED_ANSWERS,
    SMALL,
    LocalProtocol,
    Privacy,
    ProtocolRequest,
    as_draws,
    memo_int,
)
from ldp_client.protocols.direct import ResponseColumns, ResponseDevice
from ldp_client.sampling import ExactDraws, Words
from ldp_client.tracking import StreamLaw, SymbolLaw

WORD_BITS = 64
HASH_BITS = 32
#: Bits after the point: e^(4·64) has 370 bits before it, and the least ε is a millionth.
_PRECISION = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class UniversalHash:
    """One function of the family, into [0, g)."""

    multiplier: int
    addend: int
    g: int

    def __post_init__(self) -> None:
        for word in (self.multiplier, self.addend):
            if isinstance(word, bool) or not isinstance(word, int) or not 0 <= word < 1 << WORD_BITS:
                raise ReportError(f"a hash function must have two words of 64 bits, not {short_text(word)}")
        if not isinstance(self.g, int) or not is_count(self.g, 2, (1 << HASH_BITS) - 1):
            raise ReportError(f"a hash function must have between 2 and 2^32 - 1 values, not {short_text(self.g)}")

    def __call__(self, value: int) -> int:
        """Return H(value)."""
        return hash_twin(self.multiplier, self.addend, value, self.g)


def draw_hash(draws: ExactDraws, g: int) -> UniversalHash:
    """Return a function drawn uniformly from the family."""
    return UniversalHash(multiplier=draws.word(), addend=draws.word(), g=g)


def draw_hashes(bits: Bits, count: int) -> tuple[Words, Words]:
    """Return the multipliers and addends of ``count`` functions drawn from the family."""
    words = bits.words(2 * count)
    return words[:count].copy(), words[count:].copy()


def hash_twin(
    multiplier: int, addend: int, value: int, g: int, *, word_bits: int = WORD_BITS, hash_bits: int = HASH_BITS
) -> int:
    """Return H(value); with smaller word sizes, tests can enumerate the whole family."""
    mixed = (multiplier * value + addend) % (1 << word_bits)
    return ((mixed >> (word_bits - hash_bits)) * g) >> hash_bits


def bucket_starts(hashed: NDArray[np.int64], g: int) -> Words:
    """Return, for each x in [0, g], the smallest a·v + b (mod 2^64) that hashes to x: ⌈x·2^32/g⌉·2^32, 0 for x = g.

    It cannot overflow before the last shift: x ≤ g < 2^32, so that x·2^32 + g − 1 is below 2^64.
    """
    raised = (hashed.astype(np.uint64) << np.uint64(HASH_BITS)) + np.uint64(g - 1)
    return (raised // np.uint64(g)) << np.uint64(HASH_BITS)


def hash_values(multipliers: Words, addends: Words, values: NDArray[np.int64], g: int) -> NDArray[np.int64]:
    """Return H_u(values[u]) for each user u."""
    mixed = (multipliers * values.astype(np.uint64) + addends) >> np.uint64(HASH_BITS)
    return ((mixed * np.uint64(g)) >> np.uint64(HASH_BITS)).astype(np.int64)


def count_matches(
    multipliers: Words, addends: Words, reported: NDArray[np.int64], g: int, size: int
) -> NDArray[np.int64]:
    """Return, for each v below ``size``, how many users u have H_u(v) = reported[u] (Algorithm 2, line 4)."""
    hashed = check_numbers(reported, g, "the reported hash values")
    steps = check_words(multipliers, hashed.shape, "the multipliers of the hash functions")
    offsets = check_words(addends, hashed.shape, "the addends of the hash functions")
    if hashed.size >= 1 << 32:
        raise ReportError("too many reports for one count: give at most 2^32 - 1 at a time")
    # With fewer hash values than reports, compute each interval once; otherwise only those of the reports.
    few = g < hashed.size
    values = np.arange(g) if few else hashed
    starts = bucket_starts(values, g)
    widths = bucket_starts(values + 1, g) - starts
    counts = np.zeros(size, dtype=np.uint32)
    if few:
        starts, widths = starts[hashed], widths[hashed]
    _count_kernel(steps, offsets - starts, widths, counts)
    return counts.astype(np.int64)


@njit(cache=True)
def _count_kernel(
    steps: Words, offsets: Words, widths: Words, counts: NDArray[np.uint32]
) -> None:  # pragma: no cover - compiled
    """Add one to counts[v] where offset + v·step (mod 2^64) lies below the width: H(v) is in the reported bucket.

    Each test is one addition, one comparison and one masked addition, so that the loop runs in vectors.
    """
    for user in range(steps.size):
        mixed = offsets[user]
        step = steps[user]
        width = widths[user]
        for value in range(counts.size):
            counts[value] += np.uint32(mixed < width)
            mixed += step


def printed_range(permanent: Fraction, first: Fraction) -> int:
    """Return g of Eq. 6: the optimum of V* over real numbers, rounded to the nearest integer; ε∞ is at most 64.

    >>> [printed_range(Fraction(half, 2), Fraction(6, 10) * Fraction(half, 2)) for half in range(1, 11)]
    [2, 2, 3, 3, 4, 5, 7, 9, 12, 17]
    """
    check_pair(permanent, first)
    a, b = (Fraction(exp(each).floor(_PRECISION), 1 << _PRECISION) for each in (permanent, first))
    # For ε near 0 the sum is 0 up to rounding, with either sign; for a large ε the root almost equals a².
    square = a**4 - 14 * a**2 + 12 * a * b * (1 - a * b) + 12 * a**3 * b + 1
    root = Fraction(math.isqrt(max(0, math.floor(square * 4**_PRECISION))), 1 << _PRECISION)
    return 1 + max(1, round((1 - a**2 + root) / (6 * (a - b))))


def variance_over_reports(g: int, permanent: Fraction, first: Fraction, calibration: Calibration) -> float:
    """Return n·V* of LOLOHA with g hash values (Eq. 5 with Algorithm 2's parameters).

    There γ = 1/g, p₁ − 1/g = (a − 1)(1 − 1/g)/(a + g − 1), p₂ − q₂ = (r − 1)/(r + g − 1) with r = e^{ε_IRR}.
    """
    a, over_one = math.exp(permanent), math.expm1(first)
    # r = odds/(a − b), and odds − (a − b) is b − 1 times this factor; no difference of rounded numbers is taken.
    if calibration == "paper":
        factor = a + 1
    elif calibration == "exact":
        factor = a + g - 1
    else:
        raise LdpParameterError(f"calibration must be 'paper' or 'exact', not {short_text(calibration)}")
    second = over_one * factor / (over_one * factor + g * math.exp(first) * math.expm1(permanent - first))
    return ((a + g - 1) / (math.expm1(permanent) * second)) ** 2 / (g - 1)


def best_range(permanent: Fraction, first: Fraction, calibration: Calibration) -> int:
    """Return the g ≥ 2 of least V*. V* decreases and then increases with g, so the search is O(log g)."""
    check_pair(permanent, first)

    def rises(g: int) -> bool:
        here = variance_over_reports(g, permanent, first, calibration)
        return variance_over_reports(g + 1, permanent, first, calibration) >= here

    high = 2
    while not rises(high):
        high *= 2
        if high >= 1 << 32:
            raise LdpParameterError("the best number of hash values for this ε is above 2^32: use a smaller ε")
    low = max(2, high // 2)
    return low + bisect_left(range(low, high), True, key=rises)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedReport:
    """A randomized hash value and its hash function (which is public; a LOLOHA client needs to send it only once)."""

    function: UniversalHash
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedColumns:
    """One collection's reports: each user's function and randomized hash value."""

    multipliers: Words
    addends: Words
    values: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHashing(LocalProtocol):
    """Local hashing of 0, …, k − 1 to g values; LOLOHA if ``epsilon_first_micro`` is given (Algorithms 1, 2)."""

    methods: ClassVar = {
        "BiLOLOHA": "LOLOHA with two hash values",
        "OLOLOHA": "LOLOHA with Eq. 6's number of hash values",
        "OLOLOHA-exact": "LOLOHA with exactly the requested ε₁ and the best number of hash values",
        "BLH": "local hashing to two values, one report",
        "OLH": "local hashing to round(e^ε + 1) values, one report",
    }
    k: int
    g: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int | None = None
    calibration: Calibration = "paper"
    chain: ResponseChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        check_size(self.g, "the number of hash values g")
        chain = grr_chain(self.g, self.epsilon_permanent_micro, self.epsilon_first_micro, self.calibration)
        object.__setattr__(self, "chain", chain)

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> LocalHashing:
        """Return BLH, OLH, or LOLOHA with two hash values or the best number of them."""
        if name in ("BLH", "OLH"):
            make = binary_hashing if name == "BLH" else optimal_hashing
            return make(k=request.k, epsilon_micro=request.epsilon_permanent_micro)
        calibration: Calibration = "exact" if name == "OLOLOHA-exact" else "paper"
        return loloha(k=request.k, **request.pair, g=2 if name == "BiLOLOHA" else None, calibration=calibration)

    @classmethod
    def examples(cls) -> Sequence[LocalHashing]:
        """Return protocols with two and four hash values: functions of words with few bits are universal for these."""
        exact = loloha(k=3, g=4, **SMALL.pair, calibration="exact")
        return [cls.for_values("OLH", SMALL), cls.for_values("BiLOLOHA", SMALL), exact]

    @property
    def kind(self) -> str:
        return "LH" if self.chain.instant is None else "LOLOHA"

    @property
    def support(self) -> Support:
        """The estimator's probabilities; a user without the value supports it with probability 1/g."""
        return Support.of(self.chain, self.g)

    @property
    def privacy(self) -> Privacy:
        """The ε of a report, of all reports of a hash value, and over all values (g·ε∞, Theorem 3.5)."""
        return Privacy.of_grr(self.chain, asked_epsilon(self.epsilon_first_micro), answers=self.g)

    @property
    def shares(self) -> str:
        return "the hash function" if self.chain.instant is None else f"the hash function and {MEMOIZED_ANSWERS}"

    def client(self, bits: Bits | ExactDraws, function: UniversalHash | None = None) -> HashedClient:
        """Return a new device; its hash function is drawn unless one is given."""
        draws = as_draws(bits)
        chosen = draw_hash(draws, self.g) if function is None else function
        if not isinstance(chosen, UniversalHash) or chosen.g != self.g:
            raise ReportError(f"function must hash to the protocol's {self.g} values")
        return HashedClient(self, draws, chosen, {})

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> HashedClient:
        stored = self.load(saved)
        try:
            words, answers = stored["function"], stored["answers"]
            function = UniversalHash(multiplier=int(words[0], 16), addend=int(words[1], 16), g=self.g)
            pairs = list(answers.items())
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise StateError(f"this is not a saved client of {self.kind}: {error}") from error
        memo = {memo_int(x, self.g, "a hash value"): memo_int(kept, self.g, "an answer") for x, kept in pairs}
        return HashedClient(self, bits, function, memo)

    def fleet(self, users: int, bits: Bits) -> HashedFleet:
        return HashedFleet(self, users, bits)

    report_bytes: ClassVar[int] = 20

    def pack_report(self, report: Any) -> bytes | None:
        match report:
            case HashedReport(function=UniversalHash() as function, value=value) if function.g == self.g:
                return struct.pack(">QQI", function.multiplier, function.addend, check_value(value, self.g))
        return None

    def unpack_report(self, data: bytes) -> HashedReport:
        multiplier, addend, value = struct.unpack(">QQI", data)
        function = UniversalHash(multiplier=multiplier, addend=addend, g=self.g)
        return HashedReport(function=function, value=check_value(value, self.g))

    def traffic(self) -> tuple[int, int, int]:
        """Return ⌈log₂ g⌉ bits per report, the function once, and k hash tests of the server."""
        return (self.g - 1).bit_length(), 2 * WORD_BITS, self.k

    def columns(self, reports: Sequence[HashedReport]) -> HashedColumns:
        sent = as_list(reports, "reports")
        if not all(isinstance(each, HashedReport) and isinstance(each.function, UniversalHash) for each in sent):
            raise ReportError(f"a report of {self.kind} must be a HashedReport with its hash function")
        if any(report.function.g != self.g for report in sent):
            raise ReportError(f"a report's hash function must have {self.g} values: it belongs to another protocol")
        return HashedColumns(
            multipliers=np.array([report.function.multiplier for report in sent], dtype=np.uint64),
            addends=np.array([report.function.addend for report in sent], dtype=np.uint64),
            values=whole_numbers([report.value for report in sent], self.g, "reported hash values"),
        )

    def supports(self, columns: HashedColumns, cell: int) -> NDArray[np.bool_]:
        held = np.full(columns.values.size, cell, dtype=np.int64)
        return np.asarray(hash_values(columns.multipliers, columns.addends, held, self.g) == columns.values)

    def stream_law(self, value: int, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        return HashedLaw(check_value(value, self.k), self)

    def estimate(self, columns: HashedColumns) -> FrequencyEstimate:
        """Return the frequencies behind one collection (Algorithm 2): n·k hash tests."""
        columns = check_columns(columns, HashedColumns)
        counts = count_matches(columns.multipliers, columns.addends, columns.values, self.g, self.k)
        return self.support.estimate(counts, columns.values.size)


class HashedClient(ResponseDevice[LocalHashing]):
    """One device (Algorithm 1): it has its own hash function, and one permanent answer per hash value."""

    def __init__(
        self, protocol: LocalHashing, bits: Bits | ExactDraws, function: UniversalHash, memo: dict[int, int]
    ) -> None:
        super().__init__(protocol, bits, memo)
        self.function = function

    def report(self, value: int) -> HashedReport:
        """Return a report of ``value``: its hash value, answered permanently and (LOLOHA) randomized again."""
        hashed = self.function(check_value(value, self.protocol.k))
        return HashedReport(function=self.function, value=self._respond(hashed, self.protocol.g, self.protocol.chain))

    def _saved(self) -> dict[str, Any]:
        words = [f"{self.function.multiplier:016x}", f"{self.function.addend:016x}"]
        return {"function": words, "answers": super()._saved()}


class HashedFleet(ResponseColumns[LocalHashing]):
    """Many devices in columns: each user's function, and one memoized answer per (user, hash value)."""

    def __init__(self, protocol: LocalHashing, users: int, bits: Bits) -> None:
        super().__init__(protocol, users, bits, span=protocol.g)
        self._multipliers, self._addends = draw_hashes(bits, users)

    def report(self, values: ArrayLike) -> HashedColumns:
        """Return one collection's reports."""
        held = check_values(values, self.protocol.k, self.users)
        hashed = hash_values(self._multipliers, self._addends, held, self.protocol.g)
        sent = self._respond(hashed, self.protocol.g, self.protocol.chain)
        return HashedColumns(multipliers=self._multipliers, addends=self._addends, values=sent)


class HashedLaw(StreamLaw):
    """LOLOHA: every report states the client's hash function, one of 2^128, and one of g symbols.

    Reports with different functions cannot come from one user. A part is the function's words and how often each symbol
    was sent.
    """

    def __init__(self, value: int, protocol: LocalHashing) -> None:
        self._value, self._g = value, protocol.g
        self._symbols = SymbolLaw(0, protocol.g, protocol.chain)

    def part(self, reports: Sequence[HashedReport]) -> Any:
        """Return a device's function, and how often it sent each symbol."""
        function = reports[0].function
        if any(report.function != function for report in reports):
            raise ReportError("all reports of a device have one hash function: these are not of one device")
        words = np.array([[function.multiplier], [function.addend]], dtype=np.uint64)
        return words, self._symbols.part([report.value for report in reports])

    def log_probability(self, *parts: Any) -> Floats:
        """Return the log-probability of function and symbols; minus infinity if two functions differ."""
        functions = parts[0][0]
        counts = sum(part[1] for part in parts)
        found = self._symbols.log_of_counts(counts, self._hashed(functions)) - 128 * math.log(2)
        one = np.all([(part[0] == functions).all(axis=0) for part in parts], axis=0)
        return np.where(one, found, -math.inf)

    def _state(self, bits: Bits, users: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        functions = np.stack(draw_hashes(bits, users))
        return functions, self._symbols.states(bits, self._hashed(functions))

    def _send(self, bits: Bits, state: tuple[NDArray[np.uint64], NDArray[np.int64]], reports: int) -> Any:
        return state[0], self._symbols.count(bits, state[1], reports)

    def _hashed(self, functions: NDArray[np.uint64]) -> NDArray[np.int64]:
        return hash_values(functions[0], functions[1], np.full(functions.shape[1], self._value), self._g)


def binary_hashing(*, k: int, epsilon_micro: int) -> LocalHashing:
    """Return BLH: local hashing to two values, one report (§2.3.2)."""
    return LocalHashing(k=k, g=2, epsilon_permanent_micro=epsilon_micro)


def optimal_hashing(*, k: int, epsilon_micro: int) -> LocalHashing:
    """Return OLH: local hashing to round(e^ε + 1) values, one report (§2.3.2)."""
    g = (exp(epsilon(epsilon_micro)) * 2 + 3).floor() // 2
    return LocalHashing(k=k, g=g, epsilon_permanent_micro=epsilon_micro)


def loloha(
    *,
    k: int,
    epsilon_permanent_micro: int,
    epsilon_first_micro: int,
    g: int | None = None,
    calibration: Calibration = "paper",
) -> LocalHashing:
    """Return LOLOHA: BiLOLOHA with g = 2; without g, OLOLOHA.

    OLOLOHA's g is that of Eq. 6 for the ``paper`` calibration, and that of least V* for ``exact``.
    """
    pair = epsilon_pair(epsilon_permanent_micro, epsilon_first_micro)
    if g is None:
        g = printed_range(*pair) if calibration == "paper" else best_range(*pair, calibration)
    return LocalHashing(
        k=k,
        g=g,
        epsilon_permanent_micro=epsilon_permanent_micro,
        epsilon_first_micro=epsilon_first_micro,
        calibration=calibration,
    )
