"""Report Noisy Inner Product: values of d bits, and L permanent random vectors with their noisy inner products.

Naor and Vexler, section 7. Each report is one of the L kept pairs, drawn at random: as long as no pair is sent twice,
one user's reports look like those of many users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp, uniform_below_batch
from aggservice.mechanisms.composition import advanced_epsilon
from ldp_client.checks import (
    as_list,
    check_columns,
    check_stream,
    check_words,
    is_chance,
    is_count,
    short_text,
    whole_numbers,
)
from ldp_client.errors import ProtocolError, ReportError, StateError
from ldp_client.estimation.steps import MICRO, check_size, epsilon, symmetric
from ldp_client.estimation.support import Floats, normal_intervals
from ldp_client.privacy.tracking_bounds import Bound
from ldp_client.protocols.device import Described, Device, DeviceColumns, as_draws, load_state, memo_int
from ldp_client.protocols.interface import check_users, check_value, check_values
from ldp_client.sampling.draws import Draws
from ldp_client.sampling.hadamard import parity, signs_for, transform

#: The most bits of a value, because a vector is one word.
MOST_BITS = 62
#: The most bits for which the estimator lists every value.
MOST_LISTED_BITS = 26


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
class InnerProduct(Described):
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

    @property
    def epsilon_pair(self) -> float:
        """ε' of one stored pair."""
        return float(epsilon(self.epsilon_pair_micro))

    def everlasting(self, delta: float) -> Bound:
        """Return the (ε, δ) of all L pairs, and so of any number of reports.

        This is the smaller of advanced composition and the sum.
        """
        if not 0 <= delta < 1:
            raise ProtocolError(f"δ must lie in [0, 1), not {delta!r}")
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

    def client(self, bits: Bits | Draws) -> PairClient:
        """Return a new device."""
        return PairClient(self, as_draws(bits), {})

    def restore(self, saved: bytes, bits: Bits | Draws) -> PairClient:
        """Return a device from a saved state."""
        memo: dict[int, list[tuple[int, int]]] = {}
        for value, pairs in load_state(saved, self.describe()).items():
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
        return PairClient(self, as_draws(bits), memo)

    def fleet(self, users: int, bits: Bits) -> PairFleet:
        """Return ``users`` new devices in columns."""
        return PairFleet(self, check_users(users), bits)

    def columns(self, reports: Sequence[tuple[int, int]]) -> PairColumns:
        """Return clients' reports as columns."""
        sent = as_list(reports, "reports")
        for report in sent:
            if (
                not isinstance(report, tuple | list)
                or len(report) != 2
                or not is_count(report[0], 1, (1 << self.bits) - 1)
                or not (isinstance(report[1], bool | np.bool_) or is_count(report[1], 0, 1))
            ):
                raise ReportError(f"a report must be a pair of a nonzero vector of {self.bits} bits and a bit")
        return PairColumns(
            vectors=np.array([vector for vector, _ in sent], dtype=np.uint64),
            products=np.array([product for _, product in sent], dtype=np.bool_),
        )

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


class PairClient(Device[InnerProduct, int, list[tuple[int, int]]]):
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
        """Return for how many values each user has pairs."""
        return np.full(self.users, 0 if self._values is None else 1, dtype=np.int64)

    def _store(self, held: NDArray[np.uint64]) -> None:
        shape = (self.users, self.protocol.stored)
        size = self.users * self.protocol.stored
        below = (1 << self.protocol.bits) - 1
        self._vectors = (1 + uniform_below_batch(self._bits, below, size)).astype(np.uint64).reshape(shape)
        flipped = ~bernoulli_batch(self._bits, self.protocol.keep, size).reshape(shape)
        self._products = parity(self._vectors & held[:, None]) ^ flipped
        self._values = held


def for_everlasting(*, bits: int, stored: int, epsilon_total: float, delta: float) -> InnerProduct:
    """Return the mechanism that is (ε, δ)-everlasting with L stored pairs, for ε < 1.

    ε' = ε/(2√(2L ln(1/δ))) (section 7), rounded down to a millionth, which can only add privacy. Advanced composition
    gives (ε, δ) only if ε ≤ 4 ln(1/δ), which the paper does not state. ``ProtocolError`` if the pairs compose to more.
    """
    _check_guarantee(epsilon_total, delta)
    check_size(stored, "the number of stored pairs", least=1, most=(1 << 31) - 1)
    pair = epsilon_total / (2 * math.sqrt(-2 * stored * math.log(delta)))
    micro = math.floor(pair * MICRO)
    if micro < 1:
        raise ProtocolError(f"{stored} stored pairs leave ε' = {pair:.3g} for each, below a millionth: store fewer")
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
        raise ProtocolError(f"the accuracy α must be a positive number, not {alpha!r}")
    spread = _spread(bits, users, beta)
    if simple:
        if not alpha > 2 * spread:
            raise ProtocolError(f"with simple, the accuracy α must be above {2 * spread:.3g}, not {alpha:.3g}")
        pair = 4 * spread / alpha
    else:
        if not alpha > spread:
            raise ProtocolError(
                f"{users} users cannot give an accuracy of {alpha:.3g}, because random {bits}-bit vectors alone have "
                f"an error of {spread:.3g}: request less accuracy, or use more users"
            )
        pair = 2 * spread / (alpha - spread)
    micro = math.ceil(pair * MICRO)
    stored = math.floor((epsilon_total * MICRO / micro) ** 2 / (-8 * math.log(delta)))
    if stored < 1:
        raise ProtocolError(
            f"an accuracy of {alpha:.3g} needs ε' = {micro / MICRO:.3g} per stored pair, but (ε, δ) = "
            f"({epsilon_total:.3g}, {delta:.3g}) allows no pair: request less accuracy, or use more users"
        )
    return _guaranteed(InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=micro), epsilon_total, delta)


def _spread(bits: int, users: int, beta: float) -> float:
    if not is_count(bits, 1, MOST_BITS) or not is_count(users, 1) or not is_chance(beta):
        raise ProtocolError(
            f"an error bound needs 1 to {MOST_BITS} bits, at least one user and 0 < β < 1, got (bits, users, β) = "
            f"{short_text((bits, users, beta))}"
        )
    return math.sqrt(2 * ((bits + 1) * math.log(2) - math.log(beta)) / users)


def _check_guarantee(epsilon_total: float, delta: float) -> None:
    if not is_chance(epsilon_total):
        raise ProtocolError(f"everlasting privacy is proved for 0 < ε < 1, not {short_text(epsilon_total)}")
    if not is_chance(delta):
        raise ProtocolError(f"δ must lie strictly between 0 and 1, not {short_text(delta)}")
    if not epsilon_total <= -4 * math.log(delta):
        raise ProtocolError(
            f"section 7's ε' needs ε ≤ 4 ln(1/δ) = {-4 * math.log(delta):.3g} for δ = {short_text(delta)}, not "
            f"ε = {short_text(epsilon_total)}: give a smaller δ or ε"
        )


def _guaranteed(protocol: InnerProduct, epsilon_total: float, delta: float) -> InnerProduct:
    """Return the mechanism; ``ProtocolError`` if its pairs compose to more than the requested ε."""
    found = protocol.everlasting(delta).gamma
    if not found <= epsilon_total:
        raise ProtocolError(
            f"{protocol.stored} stored pairs of ε' = {protocol.epsilon_pair:.3g} compose to ε = {found:.3g} at "
            f"δ = {short_text(delta)}, above the requested {short_text(epsilon_total)}: give a smaller δ"
        )
    return protocol
