"""Exact neighbour games: for tiny parameters, the best adversary's advantage over all trees of moves, as a number.

The interactive game (Algorithm 5 of the Privacy Sandbox paper) runs in two worlds over the real clients, sealed
reports, engine and ledger, with every possible draw put through it. An adversary chooses events and queries from all
earlier answers: its tree is found by backward induction, so no adversary of that depth over these moves does better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.losses import ContributionBounds
from aggservice.campaign.requery.adversary import MechanismAnswer, Move, PlayedMechanism
from aggservice.campaign.requery.interactive import Sent, SummaryMechanism, Without, bounds_terms
from aggservice.campaign.service.config import memory_ledger
from aggservice.campaign.service.runner import EngineRunner
from aggservice.engine import InlineOpener, LocalEngine
from aggservice.engine.release.noise import NoiseSource
from aggservice.mechanisms import ManualClock, NoiseLaw, Real, SecureBits, exp
from aggservice.wire import Api, KeySet
from ara_client.model import InteractiveRandomizedResponse
from budget import EpsilonDeltaFilter
from ldp_client.enumeration import Branch, cut, distribution

Hidden = tuple[tuple[int, ...], ...]
"""What the clients drew in each move so far, in the order in which they drew it: no answer shows it."""
Weights = Mapping[Hidden, Fraction]
Path = tuple[int, ...]
Pick = Callable[[Sequence[Fraction]], int]
"""Returns the index of one of several outcomes, given their probabilities; every outcome is tried in turn."""
Make = Callable[[NoiseSource, Pick], PlayedMechanism]
"""Makes a world: a mechanism with this source of noise, whose clients draw what ``Pick`` returns."""


class BranchNoise:
    """Draws zeros until it is ``live``; then every possible value, each with its exact probability."""

    def __init__(self, branch: Branch, low: int, high: int) -> None:
        self.live = False
        self._branch = branch
        self._ends = low, high

    def draw(self, noise: NoiseLaw, size: int) -> NDArray[np.int64]:
        """Return ``size`` draws. Each tail is one value, which is exact because metrics are clamped there."""
        if not self.live:
            return np.zeros(size, dtype=np.int64)
        values, chances = support(noise, *self._ends)
        return np.array([values[self._branch.pick(chances)] for _ in range(size)], dtype=np.int64)


@lru_cache(maxsize=64)
def support(noise: NoiseLaw, low: int, high: int) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """Return the values of a law and their probabilities, cut at 128 bits.

    ``low`` stands for everything up to it and ``high`` for everything from it on, unless the noise is truncated.
    """
    if not noise.exact:
        raise TypeError("an exact game needs noise whose probabilities are known exactly, such as Laplace noise")
    if noise.largest is not None:
        low, high = -noise.largest, noise.largest
    law = [noise.cdf(low), *(noise.pmf(x) for x in range(low + 1, high))]
    chances = [cut(one if isinstance(one, Real) else Real.of(Fraction(one))) for one in law]
    return tuple(range(low, high + 1)), (*chances, 1 - sum(chances, Fraction(0)))


def responses(pick: Pick) -> type[InteractiveRandomizedResponse[Sent]]:
    """Return event-level responses that take every possible draw in turn."""

    class Enumerated(InteractiveRandomizedResponse[Sent]):
        def draw(self) -> Sequence[Sent] | None:
            e = exp(self.epsilon)
            other = cut(Real.of(1) / (e + (len(self.outputs) - 1)))
            truth = 1 - other * len(self.outputs)
            choice = pick((truth, *[other] * len(self.outputs)))
            return None if choice == 0 else self.outputs[choice - 1]

    return Enumerated


class Coins:
    """The draws of a W3C browser: every coin in turn. Its epochs begin when they are first asked for."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        """Return 0: the adversary may know when epochs begin."""
        return 0

    def coin(self, favourable: int, total: int) -> bool:
        """Return True with probability ``favourable`` / ``total``."""
        chance = Fraction(favourable, total)
        return self._pick((chance, 1 - chance)) == 0

    def fraction(self) -> float:
        """Refuse: doubles have too many values to try."""
        raise TypeError("an exact game cannot try every double: use a browser with exact arithmetic")


@dataclass(slots=True, kw_only=True)
class ExactGame:
    """Two worlds, the moves that an adversary may choose from (first: ``opening``), and the largest true sum.

    Metrics below 0 count as 0 and those above ``most`` as ``most``: beyond the true sums the ratio of Laplace
    probabilities is constant, so an adversary loses nothing, and noise has few values to try.
    """

    worlds: tuple[Make, Make]
    opening: Sequence[Move]
    moves: Sequence[Move]
    most: int
    _laws: dict[tuple[int, Path], dict[tuple[Hidden, Any], Fraction]] | None = None

    def law(self, world: int, path: Path) -> dict[tuple[Hidden, Any], Fraction]:
        """Return the joint law of what clients drew and of the last answer, after the moves of ``path``.

        Earlier noise is zero: an answer does not depend on it, because neither clients nor ledger see it.
        """
        if self._laws is None:
            self._laws = {}
        known = self._laws.get((world, path))
        if known is None:
            known = self._laws[world, path] = distribution(lambda branch: self._play(branch, world, path))
        return known

    def _play(self, branch: Branch, world: int, path: Path) -> tuple[Hidden, Any]:
        noise, drawn = BranchNoise(branch, -self.most, self.most), [list[int]()]

        def pick(chances: Sequence[Fraction]) -> int:
            drawn[-1].append(branch.pick(chances))
            return drawn[-1][-1]

        mechanism = self.worlds[world](noise, pick)
        answer = None
        for number, index in enumerate(path, 1):
            drawn += [[]] if number > 1 else []
            noise.live = number == len(path)
            answer = mechanism.respond((self.opening if number == 1 else self.moves)[index])
        assert answer is not None
        return tuple(map(tuple, drawn)), self._seen(answer)

    def _seen(self, answer: MechanismAnswer) -> Any:
        """Return what the adversary sees, with metrics of declared keys clamped."""
        rows = None if answer.rows is None else tuple(sorted(self._clamped(answer).items()))
        return answer.return_code, rows, answer.event_reports

    def _clamped(self, answer: MechanismAnswer) -> dict[int, int]:
        rows = answer.rows or {}
        if answer.move.query.delta is not None:
            return dict(rows)
        return {key: max(0, min(self.most, metric)) for key, metric in rows.items()}

    def advantage(self, epsilon: Fraction, depth: int) -> Fraction:
        """Return the largest Σ max(0, P[t] − e^ε·Q[t]) over transcripts t of any adaptive tree, in both directions."""
        factor = cut(exp(-epsilon))  # scaled by e^-ε, so that one number is rounded, downwards
        gains = (self._gain((), {(): Fraction(1)}, {(): Fraction(1)}, factor, depth, first) for first in (0, 1))
        return max(gains) / factor

    def _gain(self, path: Path, p: Weights, q: Weights, factor: Fraction, depth: int, first: int) -> Fraction:
        """Return e^-ε times the advantage from here on, given P and Q of the transcript so far by hidden draws."""
        mine, theirs = sum(p.values(), Fraction(0)), sum(q.values(), Fraction(0))
        best = max(Fraction(0), mine * factor - theirs)
        if not mine or not theirs or len(path) == depth:
            return best
        for index in range(len(self.moves if path else self.opening)):
            longer = (*path, index)
            classes = merged(self._after(first, path, longer, p), self._after(1 - first, path, longer, q))
            best = max(best, sum((self._gain(longer, a, b, factor, depth, first) for a, b in classes), Fraction(0)))
        return best

    def _after(self, world: int, path: Path, longer: Path, before: Weights) -> dict[Any, dict[Hidden, Fraction]]:
        """Return, by answer, the weights of the transcript and the hidden draws after one more move."""
        width = len(path)
        joint = self.law(world, longer)
        hidden: dict[Hidden, Fraction] = {}
        for (drawn, _), chance in joint.items():
            hidden[drawn[:width]] = hidden.get(drawn[:width], Fraction(0)) + chance
        found: dict[Any, dict[Hidden, Fraction]] = {}
        for (drawn, seen), chance in joint.items():
            weight = before.get(drawn[:width], Fraction(0))
            if weight and chance:
                found.setdefault(seen, {})[drawn] = weight * chance / hidden[drawn[:width]]
        return found


def merged(
    first: Mapping[Any, Weights], second: Mapping[Any, Weights]
) -> list[tuple[dict[Hidden, Fraction], dict[Hidden, Fraction]]]:
    """Return (P, Q) per answer. Answers with the same P/Q (to twelve digits) are merged: nothing is lost."""
    found: dict[Any, tuple[dict[Hidden, Fraction], dict[Hidden, Fraction]]] = {}
    for seen in first.keys() | second.keys():
        p, q = first.get(seen, {}), second.get(seen, {})
        total = sum(p.values(), Fraction(0)) + sum(q.values(), Fraction(0))
        shape = tuple(
            (which, one, round(float(chance / total), 12))
            for which, part in enumerate((p, q))
            for one, chance in sorted(part.items())
        )
        kept = found.get(shape)
        if kept is None:
            found[shape] = (dict(p), dict(q))
            continue
        for into, part in zip(kept, (p, q), strict=True):
            for one, chance in part.items():
                into[one] = into.get(one, Fraction(0)) + chance
    return list(found.values())


def summary_world(
    api: Api, bounds: ContributionBounds, *, epsilon: str, delta: str = "0", without: Without | None = None
) -> Make:
    """Return what makes a new world, of Attribution Reporting or Private Aggregation, with ε* and δ* per report.

    With ``without`` it is the neighbouring world. The clients, seals, engine and ledger are the real ones.
    """
    limits = EpsilonDeltaFilter.parse(epsilon=epsilon, delta=delta)
    clock = ManualClock(1_700_000_000_000)
    keys = KeySet.create(SecureBits(), clock)

    def make(noise: NoiseSource, pick: Pick) -> SummaryMechanism:
        bits = SecureBits()
        ledger = memory_ledger(limits, bounds_terms(api, bounds), clock=clock, bits=bits)
        engine = LocalEngine(ledger=ledger, opener=InlineOpener(keys), clock=clock, bits=bits, noise_of=lambda _: noise)
        return SummaryMechanism(
            api=api,
            bounds=bounds,
            ledger=ledger,
            keys=keys,
            clock=clock,
            bits=bits,
            runner=EngineRunner(engine=engine),
            without=without,
            respond=responses(pick),
        )

    return make
