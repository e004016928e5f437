"""The law of a permanent-state client's reports: it draws parts of streams and computes their probability.

Tracking compares the probability that two parts of a stream came from one user with the probability that they came from
two users with the same value. A law therefore draws two parts, from one state or from two, and computes the
log-probability that all given parts came from one user.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, uniform_below_batch
from ldp_client.checks import short_text
from ldp_client.errors import ProtocolError
from ldp_client.estimation.steps import Chain, Step
from ldp_client.protocols.bitflip import BitFlip
from ldp_client.protocols.direct import DirectEncoding
from ldp_client.protocols.everlasting import BitwiseEverlasting
from ldp_client.protocols.hashed import LocalHashing
from ldp_client.protocols.inner_product import InnerProduct, PairFleet
from ldp_client.protocols.interface import check_value
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.unary import UnaryEncoding
from ldp_client.sampling.draws import randomized_values
from ldp_client.sampling.hashing import draw_hashes, hash_values
from ldp_client.sampling.lanes import LaneCoins
from ldp_client.sampling.packed import bits_of, pack, rows_from_bytes

Floats = NDArray[np.float64]


class StreamLaw(Protocol):
    """The interface between ``trackability`` and a client."""

    def parts(self, bits: Bits, first: int, second: int, users: int, *, same: bool) -> tuple[Any, Any]:
        """Return two parts of ``first`` and ``second`` reports for each of ``users``: from one state, or from two."""

    def log_probability(self, *parts: Any) -> Floats:
        """Return, per user, the log-probability that all these parts came from one user."""

    def report_epsilon(self) -> float:
        """Return the ε of a report with respect to the state, for Theorem 13."""


class _DrawnLaw(ABC):
    """A law that first draws the users' states (one or two per user) and then their reports.

    ``report_epsilon`` is infinite for a client whose reports contain part of its state.
    """

    def parts(self, bits: Bits, first: int, second: int, users: int, *, same: bool) -> tuple[Any, Any]:
        """Return two parts of ``first`` and ``second`` reports for each of ``users``: from one state, or from two."""
        state = self._state(bits, users)
        other = state if same else self._state(bits, users)
        return self._send(bits, state, first), self._send(bits, other, second)

    def report_epsilon(self) -> float:
        """Return the ε of a report with respect to the state."""
        return math.inf

    @abstractmethod
    def _state(self, bits: Bits, users: int) -> Any:
        """Draw a state per user."""

    @abstractmethod
    def _send(self, bits: Bits, state: Any, reports: int) -> Any:
        """Draw the part that users in these states send in ``reports`` reports."""


class BitsLaw(_DrawnLaw):
    """Reports that are rows of independently randomized bits: RAPPOR, L-SUE, L-OSUE, Bitwise Everlasting Privacy.

    A part is how often each bit was set, and the number of reports.
    """

    def __init__(self, pattern: NDArray[np.bool_], chain: Chain) -> None:
        if chain.instant is None:
            raise ProtocolError("a client without a second step sends its state itself, so every report identifies it")
        self._pattern = pattern
        self._permanent = LaneCoins(chain.permanent)
        self._instant = LaneCoins(chain.instant)
        self._row = rows_from_bytes([pack(pattern)], pattern.size)
        self._start = _log_pair(chain.permanent)
        self._emit = _log_pair(chain.instant)

    def log_probability(self, *parts: Any) -> Floats:
        """Return the sum over bits of the log-probability of a bit's count, over both states."""
        counts = sum(part[0].astype(np.int64) for part in parts)
        total = sum(part[1] for part in parts)
        table = self._table(total)
        return np.asarray(table[self._pattern.astype(np.int64), counts].sum(axis=1))

    def report_epsilon(self) -> float:
        """Return the sum over bits of the larger log-ratio."""
        (one_clear, zero_clear), (one_set, zero_set) = self._emit
        return self._pattern.size * max(abs(one_set - one_clear), abs(zero_set - zero_clear))

    def _state(self, bits: Bits, users: int) -> NDArray[np.uint64]:
        return self._permanent.flip(bits, np.repeat(self._row, users, axis=0), self._pattern.size)

    def _send(self, bits: Bits, state: NDArray[np.uint64], reports: int) -> tuple[NDArray[np.uint8], int]:
        counts = np.zeros((state.shape[0], self._pattern.size), dtype=np.uint8 if reports < 256 else np.int64)
        for _ in range(reports):
            counts += bits_of(self._instant.flip(bits, state, self._pattern.size), self._pattern.size)
        return counts, reports

    def _table(self, total: int) -> Floats:
        """Return the log-probability of c ones in ``total`` reports, for a clear and for a set bit of the pattern."""
        ones = np.arange(total + 1)
        by_state = [ones * self._emit[state][0] + (total - ones) * self._emit[state][1] for state in (0, 1)]
        return np.array(
            [np.logaddexp(start[1] + by_state[0], start[0] + by_state[1]) for start in (self._start[0], self._start[1])]
        )


class SymbolLaw(_DrawnLaw):
    """Reports that are one of g symbols after two GRR steps: L-GRR, or LOLOHA with one hash function for all users.

    A part is how often each symbol was sent. If users hold different symbols, use ``log_of_counts``.
    """

    def __init__(self, symbol: int, size: int, chain: Chain) -> None:
        if chain.instant is None:
            raise ProtocolError("a client without a second step sends its state itself, so every report identifies it")
        self._symbol, self._size, self._chain, self._instant = symbol, size, chain, chain.instant

    def log_probability(self, *parts: Any) -> Floats:
        """Return the log of the sum over states."""
        counts = sum(parts)
        return self.log_of_counts(counts, np.full(counts.shape[0], self._symbol))

    def log_of_counts(self, counts: NDArray[np.int64], held: NDArray[np.int64]) -> Floats:
        """Return the log-probability of each user's counts, given the symbol they hold."""
        total = counts.sum(axis=1, keepdims=True)
        keep, other = (math.log(float(chance)) for chance in (self._instant.p, self._instant.q))
        terms = counts * keep + (total - counts) * other + math.log(float(self._chain.permanent.q))
        terms[np.arange(held.size), held] += math.log(float(self._chain.permanent.p / self._chain.permanent.q))
        return np.asarray(np.logaddexp.reduce(terms, axis=1))

    def report_epsilon(self) -> float:
        """Return ln(p₂/q₂)."""
        return math.log(float(self._instant.p / self._instant.q))

    def _state(self, bits: Bits, users: int) -> NDArray[np.int64]:
        return self.states(bits, np.full(users, self._symbol))

    def _send(self, bits: Bits, state: NDArray[np.int64], reports: int) -> NDArray[np.int64]:
        return self.count(bits, state, reports)

    def states(self, bits: Bits, held: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw each user's permanent answer to the symbol they hold."""
        return randomized_values(bits, held, self._size, self._chain.permanent.p)

    def count(self, bits: Bits, state: NDArray[np.int64], reports: int) -> NDArray[np.int64]:
        """Return how often each symbol is sent in ``reports`` reports of these answers."""
        counts = np.zeros((state.size, self._size), dtype=np.int64)
        for _ in range(reports):
            counts[np.arange(state.size), randomized_values(bits, state, self._size, self._instant.p)] += 1
        return counts


class HashedLaw(_DrawnLaw):
    """LOLOHA: every report states the client's hash function, one of 2^128, and one of g symbols.

    Reports with different functions cannot come from one user. A part is the function's words and how often each symbol
    was sent.
    """

    def __init__(self, value: int, protocol: LocalHashing) -> None:
        self._value, self._g = value, protocol.g
        self._symbols = SymbolLaw(0, protocol.g, protocol.chain)

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


class RepeatedLaw(_DrawnLaw):
    """dBitFlipPM: every report of a value is the same. A part is each user's sampled buckets and their bits."""

    def __init__(self, value: int, protocol: BitFlip) -> None:
        self._value, self._protocol = value, protocol
        self._bucket = value * protocol.buckets // protocol.k
        step = protocol.chain.permanent
        self._logs = np.array([[_log(1 - step.q), _log(step.q)], [_log(1 - step.p), _log(step.p)]])
        self._log_sample = -math.log(math.comb(protocol.buckets, protocol.sampled))

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


class CohortLaw(BitsLaw):
    """RAPPOR as it is sent: each user draws a cohort once and sends it in the clear. A part includes the cohorts.

    Reports of two cohorts cannot come from one user. Two users have different cohorts with probability ``told_apart``.
    """

    def __init__(self, value: str, protocol: Rappor) -> None:
        patterns = [protocol.bloom(value, cohort) for cohort in range(protocol.cohorts)]
        super().__init__(patterns[0], protocol.chain)
        self.told_apart = 1 - Fraction(1, protocol.cohorts)
        self._patterns = np.array(patterns).astype(np.int64)
        self._rows = rows_from_bytes([pack(pattern) for pattern in patterns], protocol.size)

    def log_probability(self, *parts: Any) -> Floats:
        """Return the log-probability of the cohort and of its bits, or −∞ if the parts have different cohorts."""
        cohorts = parts[0][0]
        counts = sum(part[1][0].astype(np.int64) for part in parts)
        table = self._table(sum(part[1][1] for part in parts))
        found = table[self._patterns[cohorts], counts].sum(axis=1) - math.log(len(self._patterns))
        one = np.all([part[0] == cohorts for part in parts], axis=0)
        return np.where(one, found, -math.inf)

    def report_epsilon(self) -> float:
        """Return infinity: the cohort is a part of the state."""
        return math.inf

    def _state(self, bits: Bits, users: int) -> Any:
        cohorts = uniform_below_batch(bits, len(self._patterns), users)
        return cohorts, self._permanent.flip(bits, self._rows[cohorts], self._pattern.size)

    def _send(self, bits: Bits, state: Any, reports: int) -> Any:
        return state[0], super()._send(bits, state[1], reports)


class StoredPairsLaw(_DrawnLaw):
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

    def log_probability(self, *parts: Any) -> Floats:
        """Return the log-probability of each user's pairs taken together."""
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
            logs = _log_product(logs, [_log_stirling(times, n) + n * chance for n in range(1, times + 1)])
            reports += times
        stored = self._protocol.stored
        if least > stored:
            return -math.inf
        ways = [math.fsum(math.log(stored - used) for used in range(least))]
        for used in range(least, min(least + len(logs) - 1, stored)):
            ways.append(ways[-1] + math.log(stored - used))
        return _log_sum([a + b for a, b in zip(logs, ways, strict=False)]) - reports * math.log(stored)


def stream_law(protocol: Any, value: Any, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
    """Return the law of a protocol's client for a user who holds ``value``.

    RAPPOR's users are all in one ``cohort``, as in the tracking paper; with "sent", each draws one and sends it.
    Clients that send an identifier with every report (the hash function of LOLOHA, the sampled positions of
    dBitFlipPM) have a law too: reports of two users cannot come from one user, so τ is infinite.
    """
    if isinstance(protocol, UnaryEncoding | DirectEncoding | LocalHashing | BitFlip | BitwiseEverlasting):
        value = check_value(value, protocol.k)
    match protocol:
        case UnaryEncoding():
            return BitsLaw(np.arange(protocol.k) == value, protocol.chain)
        case Rappor():
            if isinstance(cohort, str):
                if cohort != "sent":
                    raise ProtocolError(f'cohort must be an integer or "sent", not {short_text(cohort)}')
                return CohortLaw(value, protocol)
            return BitsLaw(protocol.bloom(value, cohort), protocol.chain)
        case BitwiseEverlasting():
            return BitsLaw(np.array([bool(value)]), protocol.chain)
        case DirectEncoding():
            return SymbolLaw(value, protocol.k, protocol.chain)
        case InnerProduct():
            return StoredPairsLaw(check_value(value, 1 << protocol.bits), protocol)
        case LocalHashing():
            return HashedLaw(value, protocol)
        case BitFlip():
            return RepeatedLaw(value, protocol)
    raise ProtocolError(f"{type(protocol).__name__} has no permanent state, so its reports cannot be tracked")


def _log_pair(step: Step) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (ln P[1], ln P[0]) from a clear bit and from a set one."""
    return tuple((_log(chance), _log(1 - chance)) for chance in (step.q, step.p))  # type: ignore[return-value]


def _log(chance: Real) -> float:
    value = float(chance)
    return math.log(value) if value > 0 else -math.inf


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


def _log_stirling(items: int, blocks: int) -> float:
    """Return the log of ``_stirling``."""
    return math.log(_stirling(items, blocks))


@lru_cache(maxsize=4096)
def _stirling(items: int, blocks: int) -> int:
    """Return the number of ways to divide ``items`` into ``blocks`` non-empty groups."""
    return sum((-1) ** out * math.comb(blocks, out) * (blocks - out) ** items for out in range(blocks + 1)) // (
        math.factorial(blocks)
    )
