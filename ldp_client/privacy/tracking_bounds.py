"""Bounds on how well reports hide whether they come from one user or from several.

Naor and Vexler, "Can Two Walk Together" (FORC 2020), section 3. A mechanism is (γ, δ)-untrackable for k reports
when the law of one user's stream and the product of two users' streams, split anywhere, are within e^γ and δ of each
other, both ways. Here the pure form (δ = 0) is about single streams. The printed form, about arbitrary sets of
streams and their projections, fails even for a uniform bit without any state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aggservice.mechanisms.composition import advanced_epsilon
from ldp_client.checks import check_stream, is_count, short_text
from ldp_client.errors import ProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A pair (γ, δ), or (ε, δ): a ratio of probabilities below e^γ up to δ."""

    gamma: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not self.gamma >= 0 or not self.delta >= 0:
            raise ProtocolError(f"γ and δ must be numbers of at least 0, not {self.gamma!r} and {self.delta!r}")


def _check(reports: int, epsilon: float = 0.0, users: int = 2) -> None:
    check_stream(reports)
    if not epsilon >= 0:
        raise ProtocolError(f"ε must be a number of at least 0, not {epsilon!r}")
    if not is_count(users, 2):
        raise ProtocolError(f"users must be an integer of at least 2, not {short_text(users)}")


def permanent_untrackable(reports: int, epsilon: float) -> float:
    """Return γ for a permanent state whose reports are ε-DP with respect to it: ⌊k/2⌋ε (Theorem 13)."""
    _check(reports, epsilon)
    return reports // 2 * epsilon


def composed_untrackable(mechanisms: int, each: Bound, slack: float) -> Bound:
    """Return the bound for a user of several mechanisms, each (γ, δ)-untrackable (Theorem 14).

    γ' = √(2m ln(1/δ'))·γ + mγ(e^γ − 1) with mδ + δ', where ``slack`` is δ'; with no slack, the plain sum.
    """
    if not is_count(mechanisms, 1) or not 0 <= slack < 1:
        raise ProtocolError(
            f"mechanisms must be at least 1 and slack in [0, 1), got {short_text(mechanisms)} and {short_text(slack)}"
        )
    plain = mechanisms * each.gamma
    advanced = plain if slack == 0 else advanced_epsilon(each.gamma, mechanisms, slack)
    return Bound(gamma=advanced, delta=mechanisms * each.delta + (slack if advanced < plain else 0))


def undetectable(untrackable: Bound, everlasting: Bound) -> Bound:
    """Return the bound on the detection of a change of the user's value (Theorem 12).

    (γ, δ)-untrackable and (ε, δ')-everlasting give (γ + ε, max{e^ε·δ + δ', δ + e^γ·δ'})-undetectable.
    """
    one = _times(everlasting.gamma, untrackable.delta) + everlasting.delta
    two = untrackable.delta + _times(untrackable.gamma, everlasting.delta)
    return Bound(gamma=untrackable.gamma + everlasting.gamma, delta=max(one, two))


def _times(gamma: float, delta: float) -> float:
    """Return e^γ·δ, which is 0 for δ = 0 and any γ."""
    return delta and math.exp(min(gamma, 700.0)) * delta


def several_untrackable(users: int, gamma: float) -> float:
    """Return γ for one user against ``users``, given γ for two: (n − 1)γ (Theorem 16)."""
    _check(1, gamma, users)
    return (users - 1) * gamma


def several_permanent_untrackable(users: int, reports: int, epsilon: float) -> float:
    """Return γ for one user against ``users`` of a permanent-state mechanism.

    ⌈log₂ n⌉⌊k/2⌋ε (Theorem 17) or (n − 1)⌊k/2⌋ε (Theorems 13 and 16), which is never less for n ≥ 2.
    """
    _check(reports, epsilon, users)
    return int(users - 1).bit_length() * permanent_untrackable(reports, epsilon)
