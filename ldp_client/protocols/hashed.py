"""Local hashing: BLH and OLH, and the longitudinal LOLOHA (LOLOHA paper, §2.3.2, §3).

Each user draws one hash function from values to [0, g) and reports randomized hash values. LOLOHA memoizes one
answer per hash value, so that no user ever leaks more than g·ε∞ on their values (Theorem 3.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, exp
from ldp_client.checks import as_list, check_columns, whole_numbers
from ldp_client.errors import ReportError, StateError
from ldp_client.estimation.hash_range import best_range, printed_range
from ldp_client.estimation.steps import Calibration, Chain, asked_epsilon, check_size, epsilon, epsilon_pair, grr_chain
from ldp_client.estimation.support import Estimate, Support
from ldp_client.protocols.device import MEMOIZED_ANSWERS, CountsValues, as_draws, load_state, memo_int
from ldp_client.protocols.direct import ResponseColumns, ResponseDevice
from ldp_client.protocols.interface import Privacy, check_users, check_value, check_values
from ldp_client.sampling.draws import Draws
from ldp_client.sampling.hashing import UniversalHash, Words, count_matches, draw_hash, draw_hashes, hash_values


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
class LocalHashing(CountsValues):
    """Local hashing of 0, …, k − 1 to g values; LOLOHA if ``epsilon_first_micro`` is given (Algorithms 1, 2)."""

    k: int
    g: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int | None = None
    calibration: Calibration = "paper"
    chain: Chain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        check_size(self.g, "the number of hash values g")
        chain = grr_chain(self.g, self.epsilon_permanent_micro, self.epsilon_first_micro, self.calibration)
        object.__setattr__(self, "chain", chain)

    @property
    def kind(self) -> str:
        """LH or LOLOHA."""
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
        """What a device's reports have in common: its hash function, and the memoized answers of LOLOHA."""
        return "the hash function" if self.chain.instant is None else f"the hash function and {MEMOIZED_ANSWERS}"

    def client(self, bits: Bits | Draws, function: UniversalHash | None = None) -> HashedClient:
        """Return a new device; its hash function is drawn unless one is given."""
        draws = as_draws(bits)
        chosen = draw_hash(draws, self.g) if function is None else function
        if not isinstance(chosen, UniversalHash) or chosen.g != self.g:
            raise ReportError(f"function must hash to the protocol's {self.g} values")
        return HashedClient(self, draws, chosen, {})

    def restore(self, saved: bytes, bits: Bits | Draws) -> HashedClient:
        """Return a device from a saved state."""
        stored = load_state(saved, self.describe())
        try:
            words, answers = stored["function"], stored["answers"]
            function = UniversalHash(multiplier=int(words[0], 16), addend=int(words[1], 16), g=self.g)
            pairs = list(answers.items())
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise StateError(f"this is not a saved client of {self.kind}: {error}") from error
        memo = {memo_int(x, self.g, "a hash value"): memo_int(kept, self.g, "an answer") for x, kept in pairs}
        return HashedClient(self, as_draws(bits), function, memo)

    def fleet(self, users: int, bits: Bits) -> HashedFleet:
        """Return ``users`` new devices in columns."""
        return HashedFleet(self, check_users(users), bits)

    def columns(self, reports: Sequence[HashedReport]) -> HashedColumns:
        """Return clients' reports as columns."""
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

    def estimate(self, columns: HashedColumns) -> Estimate:
        """Return the frequencies behind one collection (Algorithm 2): n·k hash tests."""
        columns = check_columns(columns, HashedColumns)
        counts = count_matches(columns.multipliers, columns.addends, columns.values, self.g, self.k)
        return self.support.estimate(counts, columns.values.size)


class HashedClient(ResponseDevice[LocalHashing]):
    """One device (Algorithm 1): it has its own hash function, and one permanent answer per hash value."""

    def __init__(self, protocol: LocalHashing, draws: Draws, function: UniversalHash, memo: dict[int, int]) -> None:
        super().__init__(protocol, draws, memo)
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
