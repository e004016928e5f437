"""From sums to a summary: noise, the threshold of key discovery, and the total of what is left out.

This is phase 3 of Algorithm 1 of the paper (docs/engine.md), and the only module that adds noise to sums. Noise comes
from a ``NoiseSource``, so that a test can try every possible draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.tables.sums import SumColumns
from aggservice.job.errors import InvalidJobError
from aggservice.job.parameters import AttributionTask
from aggservice.job.request import SumRequest, TaskRequest, task_texts
from aggservice.job.result import Rows
from aggservice.mechanisms import Bits, NoiseLaw, ParameterError
from aggservice.wire import Api
from budget import DiscoveryRule, LaplaceNoise, Mechanism, Sensitivity, Terms
from budget.errors import TermsError

_LARGEST, _SMALLEST = (1 << 63) - 1, -(1 << 63)
_CHUNK = 1 << 20


class NoiseSource(Protocol):
    """Where noise comes from."""

    def draw(self, noise: NoiseLaw, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent draws of ``noise``."""


@runtime_checkable
class KeyedNoise(Protocol):
    """Noise that depends on the key, so that engines that divide keys differently draw the same noise. For tests."""

    def draw_for(self, noise: NoiseLaw, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return one draw of ``noise`` per key."""


class ExactNoise:
    """Noise drawn from random bits by ``mechanisms``."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits

    def draw(self, noise: NoiseLaw, size: int) -> NDArray[np.int64]:
        return noise.sample(self._bits, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlan:
    """How a job's sums become a summary, what that costs each unit, and the APIs it covers (``coverage``).

    ``mechanism`` makes the noise of all sums; ``others`` that of the total over keys that are left out, if the job asks
    for that total.
    """

    mechanism: Mechanism
    sensitivity: Sensitivity
    others: LaplaceNoise | None = None
    covers: Mapping[Api, int] = field(default_factory=dict)
    task: AttributionTask | None = None

    @classmethod
    def of(cls, request: SumRequest, terms: Terms, covers: Mapping[Api, int]) -> ReleasePlan:
        """Return the plan of a request over these APIs, with the bounds of the request's task or else of the ledger."""
        if isinstance(request, TaskRequest):
            bounds = Sensitivity(l1=request.sensitivity, l0=request.sensitivity)
            once = {Api.W3C_ATTRIBUTION: 1}
            return cls(mechanism=request.released, sensitivity=bounds, covers=once, task=request.task)
        try:
            sensitivity = terms.sensitivity({api.value: times for api, times in covers.items()})
        except TermsError as problem:
            raise InvalidJobError(str(problem)) from problem
        return cls(mechanism=request.released, sensitivity=sensitivity, others=request.others, covers=covers)

    @property
    def discovery(self) -> DiscoveryRule | None:
        """The mechanism, if it discovers keys."""
        return self.mechanism if isinstance(self.mechanism, DiscoveryRule) else None

    @property
    def threshold(self) -> int:
        """The threshold τ of key discovery; 0 if the job does not discover keys."""
        return 0 if self.discovery is None else self.discovery.threshold(self.sensitivity)

    @property
    def declared_noise(self) -> NoiseLaw:
        """The noise of declared keys. It is never truncated, even if the job also discovers keys."""
        try:
            return self.mechanism.noise(self.sensitivity)
        except ParameterError as problem:
            amount = " ".join(f"{name} {text}" for name, text in self.mechanism.to_plain().items() if name != "name")
            raise InvalidJobError(f"{amount} cannot be used with Λ₁ = {self.sensitivity.l1}: {problem}") from problem

    @property
    def discovered_noise(self) -> NoiseLaw:
        """The noise of discovered keys."""
        if self.discovery is None:
            raise InvalidJobError("the job does not ask for key discovery: set key_discovery")
        return self.discovery.discovered_noise(self.sensitivity)

    @property
    def others_noise(self) -> NoiseLaw | None:
        """The noise of the total over keys that are left out; None if the job does not ask for that total."""
        return None if self.others is None else self.others.noise(self.sensitivity)

    def parameters(self) -> dict[str, str]:
        """Return the parameters that are logged for auditors besides the mechanisms."""
        bounds = {"l1": str(self.sensitivity.l1), "l0": str(self.sensitivity.l0), "threshold": str(self.threshold)}
        return bounds if self.task is None else {**bounds, **task_texts(self.task)}

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Return the mechanisms that the ledger charges for."""
        return (self.mechanism,) if self.others is None else (self.mechanism, self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyRows(Rows):
    """Noisy rows: declared keys in the order in which they were declared, then discovered keys in ascending order.

    ``others`` is the noisy total of what the rows leave out; ``undeclared`` the noisy total of all keys that were
    not declared, from which it was computed. No true value is among them.
    """

    others: int | None = None
    undeclared: int | None = None


def release(sums: SumColumns, plan: ReleasePlan, noise: NoiseSource) -> NoisyRows:
    """Return the noisy summary of ``sums`` (Algorithm 1, phase 3). Noise is added to the sums in place.

    Every declared key gets noise, also with a sum of 0. Discovered keys get truncated noise and are kept if the noisy
    sum is strictly greater than τ. The total of what is left out is the noisy total of undeclared keys less the
    discovered rows, so that it reveals no more than these and its own noise do.
    """
    declared, found = sums.split()
    undeclared = noisy_total(sums.outside + int(found.sums.sum()), plan, noise)
    add_declared_noise(declared, plan, noise)
    if plan.discovery is None:
        high, low, metrics = declared.high, declared.low, declared.sums
        return NoisyRows(high=high, low=low, metrics=metrics, others=undeclared, undeclared=undeclared)
    kept = discovered(found, plan, noise)
    others = others_of(undeclared, sum(found.sums[kept].tolist()))
    rows = np.concatenate((np.arange(sums.declared), kept + sums.declared))
    return NoisyRows(
        high=sums.high[rows], low=sums.low[rows], metrics=sums.sums[rows], others=others, undeclared=undeclared
    )


def noisy_total(total: int, plan: ReleasePlan, noise: NoiseSource) -> int | None:
    """Return the noisy total of all undeclared keys; None if the job does not ask for it."""
    if plan.others_noise is None:
        return None
    return _clamped(total + int(noise.draw(plan.others_noise, 1)[0]))


def others_of(undeclared: int | None, released: int) -> int | None:
    """Return the noisy total of undeclared keys less the discovered rows."""
    return None if undeclared is None else _clamped(undeclared - released)


def add_declared_noise(declared: SumColumns, plan: ReleasePlan, noise: NoiseSource) -> None:
    """Add noise to the sums of declared keys, in place."""
    _add_noise(declared, plan.declared_noise, noise)


def discovered(found: SumColumns, plan: ReleasePlan, noise: NoiseSource) -> NDArray[np.int64]:
    """Add noise to undeclared keys, in place; return which ones are released, in ascending order of keys."""
    _add_noise(found, plan.discovered_noise, noise)
    kept = np.flatnonzero(found.sums > plan.threshold)
    return kept[np.lexsort((found.low[kept], found.high[kept]))]


def draws(source: NoiseSource, noise: NoiseLaw, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return one draw per key."""
    return source.draw_for(noise, high, low) if isinstance(source, KeyedNoise) else source.draw(noise, high.size)


def _clamped(value: int) -> int:
    """Return a noisy number limited to the range of 64-bit integers."""
    return min(max(value, _SMALLEST), _LARGEST)


def _add_noise(keys: SumColumns, noise: NoiseLaw, source: NoiseSource) -> None:
    """Add a draw to each sum, piece by piece; a noisy sum above 2⁶³ - 1 becomes 2⁶³ - 1, without an error."""
    for start in range(0, keys.sums.size, _CHUNK):
        chosen = slice(start, start + _CHUNK)
        piece = keys.sums[chosen]
        piece += np.minimum(draws(source, noise, keys.high[chosen], keys.low[chosen]), _LARGEST - piece)
