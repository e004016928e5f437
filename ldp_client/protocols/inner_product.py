"""Report Noisy Inner Product: values of d bits, and L permanent random vectors with their noisy inner products.

Naor and Vexler, section 7. Each report is one of the L kept pairs, drawn at random: as long as no pair is sent twice,
one user's reports look like those of many users.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp, uniform_below_batch
from aggservice.mechanisms.composition import advanced_epsilon
from ldp_client.checks import (
    as_list,
    check_columns,
    check_stream,
    check_value,
    check_values,
    check_words,
    is_chance,
    is_count,
    short_text,
    whole_numbers,
)
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.estimation import MICRO, Floats, check_size, epsilon, normal_intervals, symmetric
from ldp_client.protocols.base import DeviceColumns, LocalProtocol, MemoizingDevice, Privacy, ProtocolRequest, memo_int
from ldp_client.sampling import ExactDraws, Words
from ldp_client.tracking import Bound, StreamLaw

Whole = NDArray[np.int64]

#: The most bits of a value, because a vector is one word.
MOST_BITS = 62
#: The most bits for which the estimator lists every value.
MOST_LISTED_BITS = 26
#: The bits of a value that tracking uses: with these, 100 stored vectors of a user all differ.
_VALUE_BITS = 32


def parity(words: Words) -> NDArray[np.bool_]:
    """Return whether each word has an odd number of bits set."""
    return (np.bitwise_count(words) & 1).astype(np.bool_)


@njit(cache=True)
def transform(values: Whole) -> None:  # pragma: no cover - compiled
    """Replace an array of n integers, n a power of two, by its Walsh-Hadamard transform, in n log n steps.

    It cannot overflow if the absolute values add up to less than 2^63.
    """
    half = 1
    while half < values.size:
        for start in range(0, values.size, 2 * half):
            for index in range(start, start + half):
                low, high = values[index], values[index + half]
                values[index] = low + high
                values[index + half] = low - high
        half *= 2


@njit(cache=True)
def signs_for(vectors: Words, odd: NDArray[np.bool_], candidates: Words) -> Whole:  # pragma: no cover - compiled
    """Return Σᵢ (−1)^(⟨vᵢ,u⟩ ⊕ oddᵢ) for each candidate u."""
    totals = np.zeros(candidates.size, dtype=np.int64)
    for which in range(candidates.size):
        candidate = candidates[which]
        total = 0
        for index in range(vectors.size):
            word = vectors[index] & candidate
            word ^= word >> np.uint64(32)
            word ^= word >> np.uint64(16)
            word ^= word >> np.uint64(8)
            word ^= word >> np.uint64(4)
            word ^= word >> np.uint64(2)
            word ^= word >> np.uint64(1)
            if ((word & np.uint64(1)) != 0) == odd[index]:
                total += 1
            else:
                total -= 1
        totals[which] = total
    return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class PairColumns:
    """One collection in columns: each user's vector, and the noisy inner product with it."""

    vectors: NDArray[np.uint64]
    products: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEstimate:
    """Unbiased frequencies of the candidates, with one standard deviation for all of them.

    Each report adds ±1 to a value's sum, with variance at most 1 for every value: ``deviation`` is that bound.
    """

    values: NDArray[np.uint64]
    frequencies: NDArray[np.float64]
    reports: int
    deviation: float

    def interval(self, confidence: float = 0.95, *, simultaneous: bool = False) -> tuple[Floats, Floats]:
        """Return normal intervals of each frequency, or of all of them at once (Bonferroni)."""
        return normal_intervals(self.frequencies, self.deviation, confidence, simultaneous)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerProduct(LocalProtocol):
    """The mechanism for values of ``bits`` bits, ``stored`` pairs per value, and ε' of one pair in millionths."""

    kind: ClassVar[str] = "RNIP"
    bits: int
    stored: int
    epsilon_pair_micro: int
    keep: Real = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.bits, "the number of bits of a value", least=1, most=MOST_BITS)
        check_size(self.stored, "the number of stored pairs", least=1, most=(1 << 31) - 1)
        object.__setattr__(self, "keep", symmetric(exp(epsilon(self.epsilon_pair_micro))).p)

    @classmethod
    def for_tracking(cls, name: str, request: ProtocolRequest) -> InnerProduct:
        """Return the mechanism with the options ``size`` (32 bits) and ``stored``, and ε∞ for one stored pair."""
        bits = _VALUE_BITS if request.options["size"] is None else request.options["size"]
        return cls(bits=bits, stored=request.options["stored"], epsilon_pair_micro=request.epsilon_permanent_micro)

    @classmethod
    def examples(cls) -> Sequence[InnerProduct]:
        """Return mechanisms with one and two stored pairs for two bits."""
        return [cls(bits=2, stored=stored, epsilon_pair_micro=1_000_000) for stored in (2, 1)]

    @property
    def k(self) -> int:
        return 1 << self.bits

    @property
    def privacy(self) -> Privacy:
        """ε' of one report, L·ε' of all reports of a value, and that for each of the 2^d values."""
        one = self.epsilon_pair
        total = self.stored * one
        return Privacy(asked=one, first=one, permanent=total, worst_case=self.k * total)

    @property
    def shares(self) -> str:
        return "stored pairs"

    @property
    def epsilon_pair(self) -> float:
        """ε' of one stored pair."""
        return float(epsilon(self.epsilon_pair_micro))

    def everlasting(self, delta: float) -> Bound:
        """Return the (ε, δ) of any number of reports: for all L pairs, advanced composition or the sum if smaller."""
        if not 0 <= delta < 1:
            raise LdpParameterError(f"δ must lie in [0, 1), not {delta!r}")
        total = self.stored * self.epsilon_pair
        if delta == 0:
            return Bound(gamma=total)
        advanced = advanced_epsilon(self.epsilon_pair, self.stored, delta)
        return Bound(gamma=total) if total <= advanced else Bound(gamma=advanced, delta=delta)

    def untrackable(self, reports: int) -> Bound:
        """Return (0, δ) for k reports: δ = k²/L + L²/2^d bounds the chance of a repeated pair (section 7.1)."""
        check_stream(reports)
        return Bound(gamma=0, delta=min(1.0, reports**2 / self.stored + self.stored**2 / 2.0**self.bits))

    def error_bound(self, users: int, beta: float) -> float:
        """Return a bound on max |p̃ − p| over all 2^d values that holds with probability 1 − β.

        (ε'+2)/ε'·√(2 ln(2^(d+1)/β)/n): Hoeffding's inequality for ±1, as section 7.2 uses it. Section 7.1 prints
        8 for the 2 under the root.
        """
        return (self.epsilon_pair + 2) / self.epsilon_pair * _spread(self.bits, users, beta)

    def client(self, bits: Bits | ExactDraws) -> PairClient:
        return PairClient(self, bits, {})

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> PairClient:
        memo: dict[int, list[tuple[int, int]]] = {}
        for value, pairs in self.load(saved).items():
            if not isinstance(pairs, list) or len(pairs) != self.stored:
                raise StateError(f"a saved client must have {self.stored} pairs per value")
            kept = memo[memo_int(value, 1 << self.bits, "a value")] = []
            for pair in pairs:
                if not isinstance(pair, list) or len(pair) != 2:
                    raise StateError("a saved pair must be a vector and a bit")
                vector = memo_int(pair[0], 1 << self.bits, "a vector")
                if vector == 0:
                    raise StateError("a saved vector must not be zero")
                kept.append((vector, memo_int(pair[1], 2, "a product")))
        return PairClient(self, bits, memo)

    def fleet(self, users: int, bits: Bits) -> PairFleet:
        return PairFleet(self, users, bits)

    report_bytes: ClassVar[int] = 9

    def pack_report(self, report: Any) -> bytes | None:
        return struct.pack(">QB", int(report[0]), int(report[1])) if self._is_pair(report) else None

    def unpack_report(self, data: bytes) -> tuple[int, int]:
        vector, product = struct.unpack(">QB", data)
        if not self._is_pair((vector, product)):
            raise ReportError(f"a report must be a pair of a nonzero vector of {self.bits} bits and a bit")
        return vector, product

    def _is_pair(self, report: Any) -> bool:
        return (
            isinstance(report, tuple | list)
            and len(report) == 2
            and is_count(report[0], 1, (1 << self.bits) - 1)
            and (isinstance(report[1], bool | np.bool_) or is_count(report[1], 0, 1))
        )

    def columns(self, reports: Sequence[tuple[int, int]]) -> PairColumns:
        sent = as_list(reports, "reports")
        if not all(self._is_pair(report) for report in sent):
            raise ReportError(f"a report must be a pair of a nonzero vector of {self.bits} bits and a bit")
        return PairColumns(
            vectors=np.array([vector for vector, _ in sent], dtype=np.uint64),
            products=np.array([product for _, product in sent], dtype=np.bool_),
        )

    def supports(self, columns: PairColumns, cell: int) -> NDArray[np.bool_]:
        """Return which reports have the bit that a value would give without noise."""
        return np.asarray(parity(columns.vectors & np.uint64(cell)) == columns.products)

    def stream_law(self, value: int, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        return StoredPairsLaw(check_value(value, self.k), self)

    def proved(self, reports: int) -> dict[str, float]:
        return {"untrackable_delta": self.untrackable(reports).delta}

    def estimate(self, columns: PairColumns, candidates: ArrayLike | None = None) -> PairEstimate:
        """Return the frequencies of ``candidates``, or of all 2^d values if d allows a list.

        p̃ᵤ = (2^d − 1)/(2^d·n)·(e^ε' + 1)/(e^ε' − 1)·Σ(−1)^(⟨V,u⟩⊕B) + 2^−d (the paper prints 2^dη for 2^d·n).
        """
        columns = check_columns(columns, PairColumns)
        products = columns.products
        if not isinstance(products, np.ndarray) or products.dtype != np.bool_ or products.ndim != 1:
            raise ReportError("products must be an array of Booleans, one per report")
        users = products.size
        vectors = check_words(columns.vectors, (users,), "vectors, one per product,")
        if not users:
            raise ReportError("there are no reports to estimate from")
        if int(vectors.max()) >> self.bits or not vectors.all():
            raise ReportError(f"vectors must have {self.bits} bits and must not be zero")
        if candidates is None:
            if self.bits > MOST_LISTED_BITS:
                raise ReportError(f"2^{self.bits} values are too many to list: give the candidates")
            sums = np.zeros(1 << self.bits, dtype=np.int64)
            signs = np.where(products, -1, 1)
            np.add.at(sums, vectors.astype(np.int64), signs)
            transform(sums)
            values = np.arange(1 << self.bits, dtype=np.uint64)
        else:
            values = whole_numbers(candidates, 1 << self.bits, "candidates").astype(np.uint64)
            sums = signs_for(vectors, np.asarray(products), values)
        scale = self._scale() / users
        return PairEstimate(
            values=values,
            frequencies=np.asarray(scale * sums + 2.0**-self.bits, dtype=np.float64),
            reports=users,
            deviation=scale * math.sqrt(users),
        )

    def _scale(self) -> float:
        return (1 - 2.0**-self.bits) / math.tanh(self.epsilon_pair / 2)


class PairClient(MemoizingDevice[InnerProduct, int, list[tuple[int, int]]]):
    """One device: a report is one of the pairs kept for its value; each new value costs the everlasting (ε, δ)."""

    def report(self, value: int) -> tuple[int, int]:
        """Return one of the pairs stored for ``value``; they are drawn at its first use."""
        value = check_value(value, 1 << self.protocol.bits)
        kept = self._kept(value, lambda: [self._pair(value) for _ in range(self.protocol.stored)])
        return kept[self._draws.below(self.protocol.stored)]

    def _pair(self, value: int) -> tuple[int, int]:
        vector = 1 + self._draws.below((1 << self.protocol.bits) - 1)
        flipped = not self._draws.coin(self.protocol.keep)
        return vector, ((vector & value).bit_count() & 1) ^ flipped


class PairFleet(DeviceColumns[InnerProduct]):
    """Many devices in columns, each with one value that does not change: L pairs per user."""

    def __init__(self, protocol: InnerProduct, users: int, bits: Bits) -> None:
        super().__init__(protocol, users, bits)
        self._values: NDArray[np.uint64] | None = None
        self._vectors: NDArray[np.uint64]
        self._products: NDArray[np.bool_]

    def report(self, values: ArrayLike) -> PairColumns:
        """Return one collection's reports; every collection of a fleet must have the same values."""
        held = check_values(values, 1 << self.protocol.bits, self.users).astype(np.uint64)
        if self._values is None:
            self._store(held)
        elif not np.array_equal(self._values, held):
            raise ReportError("the values of a fleet must not change between collections: use single clients for that")
        chosen = uniform_below_batch(self._bits, self.protocol.stored, self.users)
        rows = np.arange(self.users)
        return PairColumns(vectors=self._vectors[rows, chosen], products=self._products[rows, chosen])

    def memoized(self) -> NDArray[np.int64]:
        return np.full(self.users, 0 if self._values is None else 1, dtype=np.int64)

    def _store(self, held: NDArray[np.uint64]) -> None:
        shape = (self.users, self.protocol.stored)
        size = self.users * self.protocol.stored
        below = (1 << self.protocol.bits) - 1
        self._vectors = (1 + uniform_below_batch(self._bits, below, size)).astype(np.uint64).reshape(shape)
        flipped = ~bernoulli_batch(self._bits, self.protocol.keep, size).reshape(shape)
        self._products = parity(self._vectors & held[:, None]) ^ flipped
        self._values = held


class StoredPairsLaw(StreamLaw):
    """Report Noisy Inner Product: reports are drawn from L stored pairs. A part is one row of pairs per user.

    The probability of a stream is a sum over the ways in which reports share stored pairs: L(L−1)… ways to choose the
    stored pairs, times the probability of each. It is a polynomial in the number of stored pairs used. The valid bound
    is ``InnerProduct.untrackable``, because a report is a part of the state.
    """

    def __init__(self, value: int, protocol: InnerProduct) -> None:
        self._value, self._protocol = value, protocol
        vectors = (1 << protocol.bits) - 1
        self._log_right = math.log(float(protocol.keep) / vectors)
        self._log_wrong = math.log(float(1 - protocol.keep) / vectors)
        self._known: dict[tuple[int, int, tuple[tuple[int, bool], ...]], float] = {}

    def part(self, reports: Sequence[tuple[int, int]]) -> list[list[tuple[int, bool]]]:
        return [[(vector, bool(product)) for vector, product in reports]]

    def log_probability(self, *parts: Any) -> Floats:
        return np.array([self._stream([pair for part in user for pair in part]) for user in zip(*parts, strict=True)])

    def _state(self, bits: Bits, users: int) -> PairFleet:
        return self._protocol.fleet(users, bits)

    def _send(self, bits: Bits, state: PairFleet, reports: int) -> list[list[tuple[int, bool]]]:
        sent = [state.report(np.full(state.users, self._value)) for _ in range(reports)]
        return [[(int(each.vectors[user]), bool(each.products[user])) for each in sent] for user in range(state.users)]

    def _stream(self, pairs: list[tuple[int, bool]]) -> float:
        once = [0, 0]
        repeated = []
        for (vector, product), times in Counter(pairs).items():
            right = ((vector & self._value).bit_count() & 1 == 1) == product
            if times == 1:
                once[right] += 1
            else:
                repeated.append((times, right))
        key = (once[0], once[1], tuple(sorted(repeated)))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._log_stream(*key)
        return found

    def _log_stream(self, wrong: int, right: int, repeated: tuple[tuple[int, bool], ...]) -> float:
        """Return the log-probability of a stream with these numbers of pairs sent once, and these sent repeatedly.

        All in logarithms: a probability is at most 2⁻⁶², raised to the number of stored pairs used.
        """
        logs = [wrong * self._log_wrong + right * self._log_right]  # of the coefficients, lowest power first
        least = wrong + right + len(repeated)
        reports = wrong + right
        for times, fits in repeated:
            chance = self._log_right if fits else self._log_wrong
            logs = _log_product(logs, [math.log(_stirling(times, n)) + n * chance for n in range(1, times + 1)])
            reports += times
        stored = self._protocol.stored
        if least > stored:
            return -math.inf
        ways = [math.fsum(math.log(stored - used) for used in range(least))]
        for used in range(least, min(least + len(logs) - 1, stored)):
            ways.append(ways[-1] + math.log(stored - used))
        return _log_sum([a + b for a, b in zip(logs, ways, strict=False)]) - reports * math.log(stored)


def _log_product(first: list[float], second: list[float]) -> list[float]:
    """Return the logs of the coefficients of a product of two polynomials, from those of its factors."""
    return [
        _log_sum([first[n - m] + second[m] for m in range(len(second)) if 0 <= n - m < len(first)])
        for n in range(len(first) + len(second) - 1)
    ]


def _log_sum(logs: list[float]) -> float:
    """Return the log of a sum of numbers, of which at least one is not 0, given their logs."""
    most = max(logs)
    return most + math.log(math.fsum(math.exp(each - most) for each in logs))


@lru_cache(maxsize=4096)
def _stirling(items: int, blocks: int) -> int:
    """Return the number of ways to divide ``items`` into ``blocks`` non-empty groups."""
    return sum((-1) ** out * math.comb(blocks, out) * (blocks - out) ** items for out in range(blocks + 1)) // (
        math.factorial(blocks)
    )


def for_everlasting(*, bits: int, stored: int, epsilon_total: float, delta: float) -> InnerProduct:
    """Return the mechanism that is (ε, δ)-everlasting with L stored pairs, for ε < 1.

    ε' = ε/(2√(2L ln(1/δ))) (section 7), rounded down to a millionth, which can only add privacy. Advanced composition
    gives (ε, δ) only if ε ≤ 4 ln(1/δ), which the paper does not state. It is an error if the pairs compose to more.
    """
    _check_guarantee(epsilon_total, delta)
    check_size(stored, "the number of stored pairs", least=1, most=(1 << 31) - 1)
    pair = epsilon_total / (2 * math.sqrt(-2 * stored * math.log(delta)))
    micro = math.floor(pair * MICRO)
    if micro < 1:
        raise LdpParameterError(f"{stored} stored pairs leave ε' = {pair:.3g} for each, below a millionth: store fewer")
    return _guaranteed(InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=micro), epsilon_total, delta)


def for_accuracy(
    *, bits: int, users: int, epsilon_total: float, delta: float, alpha: float, beta: float, simple: bool = False
) -> InnerProduct:
    """Return the mechanism with the most stored pairs that is (ε, δ)-everlasting and accurate to α (section 7.2).

    With probability 1 − β every frequency is within ``alpha``. ε' is the least that reaches it, rounded up to a
    millionth, or with ``simple`` the paper's (4/α)√(2 ln(2^(d+1)/β)/n) for α at least twice the square root;
    L = ⌊ε²/(8ε'² ln(1/δ))⌋.
    """
    _check_guarantee(epsilon_total, delta)
    if not alpha > 0:
        raise LdpParameterError(f"the accuracy α must be a positive number, not {alpha!r}")
    spread = _spread(bits, users, beta)
    if simple:
        if not alpha > 2 * spread:
            raise LdpParameterError(f"with simple, the accuracy α must be above {2 * spread:.3g}, not {alpha:.3g}")
        pair = 4 * spread / alpha
    else:
        if not alpha > spread:
            raise LdpParameterError(
                f"{users} users cannot give an accuracy of {alpha:.3g}, because random {bits}-bit vectors alone have "
                f"an error of {spread:.3g}: request less accuracy, or use more users"
            )
        pair = 2 * spread / (alpha - spread)
    micro = math.ceil(pair * MICRO)
    stored = math.floor((epsilon_total * MICRO / micro) ** 2 / (-8 * math.log(delta)))
    if stored < 1:
        raise LdpParameterError(
            f"an accuracy of {alpha:.3g} needs ε' = {micro / MICRO:.3g} per stored pair, but (ε, δ) = "
            f"({epsilon_total:.3g}, {delta:.3g}) allows no pair: request less accuracy, or use more users"
        )
    return _guaranteed(InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=micro), epsilon_total, delta)


def _spread(bits: int, users: int, beta: float) -> float:
    if not is_count(bits, 1, MOST_BITS) or not is_count(users, 1) or not is_chance(beta):
        raise LdpParameterError(
            f"an error bound needs 1 to {MOST_BITS} bits, at least one user and 0 < β < 1, got (bits, users, β) = "
            f"{short_text((bits, users, beta))}"
        )
    return math.sqrt(2 * ((bits + 1) * math.log(2) - math.log(beta)) / users)


def _check_guarantee(epsilon_total: float, delta: float) -> None:
    if not is_chance(epsilon_total):
        raise LdpParameterError(f"everlasting privacy is proved for 0 < ε < 1, not {short_text(epsilon_total)}")
    if not is_chance(delta):
        raise LdpParameterError(f"δ must lie strictly between 0 and 1, not {short_text(delta)}")
    if not epsilon_total <= -4 * math.log(delta):
        raise LdpParameterError(
            f"section 7's ε' needs ε ≤ 4 ln(1/δ) = {-4 * math.log(delta):.3g} for δ = {short_text(delta)}, not "
            f"ε = {short_text(epsilon_total)}: give a smaller δ or ε"
        )


def _guaranteed(protocol: InnerProduct, epsilon_total: float, delta: float) -> InnerProduct:
    """Return the mechanism; ``LdpParameterError`` if its pairs compose to more than the requested ε."""
    found = protocol.everlasting(delta).gamma
    if not found <= epsilon_total:
        raise LdpParameterError(
            f"{protocol.stored} stored pairs of ε' = {protocol.epsilon_pair:.3g} compose to ε = {found:.3g} at "
            f"δ = {short_text(delta)}, above the requested {short_text(epsilon_total)}: give a smaller δ"
        )
    return protocol
