"""PAA-SR-Client, Algorithm 3 of Ghazi et al. ("the paper"), with its names: fixed windows, Λ₁ and Λ₀.

``Browser`` is the deployed counterpart: its windows roll by whole minutes, it bounds only values, a run can make many
contributions, and null reports need a context ID. Property tests compare the two where they agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggservice.mechanisms import Bits
from aggservice.wire.device import DeviceConfigError

Key = int | str
Pi = Callable[[Any], tuple[Any, Key, int]]
"""π : 𝔛 → 𝔛 × K × {0, …, Λ₁}: from the state of a device's storage to its next state, a key and a value."""


@dataclass(frozen=True, slots=True)
class SummaryReport:
    """An aggregatable report (r, k, v); the null report (r, ⊥, ⊥) has None for both."""

    r: bytes
    k: Key | None = None
    v: int | None = None

    @property
    def is_null(self) -> bool:
        """Whether this is the null report (r, ⊥, ⊥), which adds nothing to a sum."""
        return self.k is None


@dataclass(slots=True)
class PaaSrClient:
    """Algorithm 3. ``storage`` is Ξ, ``sparsity`` L₀ and ``contributed`` L₁, by device and window.

    The paper prints L₀(a, t) and L₁(a, t) in the check; this code reads a as the device u.
    """

    lambda_1: int
    lambda_0: int
    bits: Bits
    empty: Callable[[], Any] = dict
    storage: dict[Any, Any] = field(default_factory=dict)
    sparsity: defaultdict[tuple[Any, Any], int] = field(default_factory=lambda: defaultdict(int))
    contributed: defaultdict[tuple[Any, Any], int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        if not (self.lambda_1 > 0 and self.lambda_0 > 0):
            raise DeviceConfigError("lambda_1 and lambda_0 must be positive")

    def event(self, u: Any, t: Any, pi: Pi) -> SummaryReport:
        """Register an event of device ``u`` in window ``t``; return the report that is sent."""
        state = self.storage[u] if u in self.storage else self.empty()
        self.storage[u], k, v = pi(state)
        if not 0 <= v <= self.lambda_1:
            raise DeviceConfigError(f"π returned the value {v}: it must lie from 0 to Λ₁ = {self.lambda_1}")
        r = self.bits.read(16)
        if v > 0 and self.sparsity[u, t] + 1 <= self.lambda_0 and self.contributed[u, t] + v <= self.lambda_1:
            self.sparsity[u, t] += 1
            self.contributed[u, t] += v
            return SummaryReport(r, k, v)
        return SummaryReport(r)
