"""What a game is: a way to play it against a target, and what it promised to protect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from aggservice.audit.bounds import Samples
from aggservice.audit.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The samples of both worlds, and the ε at δ that one unit was charged or promised. ``name`` names the part."""

    first: Samples
    second: Samples
    epsilon: float
    delta: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Game:
    """A game. ``exposes`` says which faults would show; ``scale`` multiplies its trials.

    ``service`` is False for games against devices alone; ``own`` says that the game needs a service of its own, with
    settings that a service elsewhere may not have.
    """

    name: str
    exposes: str
    play: Callable[[Target, int], Sequence[Played]]
    _: KW_ONLY
    parts: int = 1
    service: bool = True
    own: bool = False
