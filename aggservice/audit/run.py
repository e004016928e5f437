"""Plays games and compares each lower bound on ε with what was charged.

False alarms: a bound is above the true ε with probability at most 10⁻⁴ divided by the number of bounds of the run. So
each bound has a confidence far above 99.9 %, and a run of a service that keeps its promises raises an alarm with
probability at most 10⁻⁴ (union bound).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from aggservice.audit.bounds import LowerBound, lower_bound
from aggservice.audit.games import budgets, devices, installed, local, sums, w3c
from aggservice.audit.games.game import Game
from aggservice.audit.target import RemoteTarget, Target
from aggservice.mechanisms import SecureBits, SystemClock

GAMES: tuple[Game, ...] = (
    *sums.GAMES, *budgets.GAMES, *devices.GAMES, *w3c.GAMES, *local.GAMES, *installed.GAMES
)  # fmt: skip
FALSE_ALARM = 1e-4
"""The largest probability that a run against a correct service raises an alarm, over all of its bounds."""
QUICK, THOROUGH = 1, 60
_SLACK = 1e-9
"""A charge is a number of millionths, so two that differ by less are the same up to rounding."""

CANNOT_SEE = (
    "time and memory that a job takes",
    "what the operator of a service, or whoever reads its disk, can see",
    "faults that no game provokes: a bound is a lower bound, and 0 proves nothing",
    "whether real browsers bound contributions as these ones do",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathResult:
    """One bound: the game, its part, what it exposes, the bound, and the ε at δ that was charged or promised."""

    game: str
    part: str
    exposes: str
    bound: LowerBound
    charged: float
    delta: float
    seconds: float

    @property
    def alarm(self) -> bool:
        """Whether the bound is above what was charged."""
        return self.bound.epsilon > self.charged + _SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesReport:
    """The bounds of a run, in the order of ``GAMES``, the games left out, and the confidence of each bound."""

    results: tuple[PathResult, ...]
    skipped: tuple[str, ...]
    confidence: float
    seconds: float

    @property
    def alarms(self) -> tuple[PathResult, ...]:
        """The paths whose bound is above what was charged."""
        return tuple(one for one in self.results if one.alarm)


def chosen_games(names: Sequence[str] = (), *, remote: bool = False) -> tuple[list[Game], list[str]]:
    """Return the games whose name contains one of ``names`` (all if there are none), and those left out."""
    wanted = [game for game in GAMES if not names or any(name.lower() in game.name.lower() for name in names)]
    skipped = [game.name for game in wanted if remote and (game.own or not game.service)]
    return [game for game in wanted if game.name not in skipped], skipped


def play_game(name: str, scale: int, alpha: float, remote: RemoteTarget | None) -> list[PathResult]:
    """Play one game and return its bounds; runs in a process of its own."""
    (game,) = [one for one in GAMES if one.name == name]
    start = time.monotonic()
    target = Target(bits=SecureBits(), clock=SystemClock(), remote=remote)
    played = game.play(target, scale)
    bounds = [lower_bound(one.first, one.second, delta=one.delta, alpha=alpha) for one in played]
    each = (time.monotonic() - start) / len(played)
    return [
        PathResult(
            game=name,
            part=one.name,
            exposes=game.exposes,
            bound=bound,
            charged=one.epsilon,
            delta=one.delta,
            seconds=each,
        )
        for one, bound in zip(played, bounds, strict=True)
    ]


def run_audit(
    names: Sequence[str] = (),
    *,
    scale: int = QUICK,
    remote: RemoteTarget | None = None,
    workers: int = 2,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> GamesReport:
    """Play the games, several at a time in processes of their own, and return every bound.

    ``progress`` is called with the games done, the number of games and the name of the last one.
    """
    start = time.monotonic()
    games, skipped = chosen_games(names, remote=remote is not None)
    alpha = FALSE_ALARM / max(1, sum(game.parts for game in games))
    found: dict[str, list[PathResult]] = {}
    for name, results in _played([game.name for game in games], scale, alpha, remote, workers):
        found[name] = results
        progress(len(found), len(games), name)
    return GamesReport(
        results=tuple(one for game in games for one in found[game.name]),
        skipped=tuple(skipped),
        confidence=1 - alpha,
        seconds=time.monotonic() - start,
    )


def _played(
    names: list[str], scale: int, alpha: float, remote: RemoteTarget | None, workers: int
) -> Iterator[tuple[str, list[PathResult]]]:
    if workers == 1:
        for name in names:
            yield name, play_game(name, scale, alpha, remote)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(play_game, name, scale, alpha, remote): name for name in names}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
