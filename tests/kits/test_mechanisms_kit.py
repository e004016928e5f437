"""Every mechanism, key discovery rule and filter passes its kit; those that lie fail it with a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aggservice.kits.failures import KitFailure
from aggservice.kits.mechanisms import check_discovery, check_filter, check_mechanism, check_noise, check_rule_beside
from aggservice.mechanisms import Bits, DiscreteLaplace, NoiseLaw, Real, TruncatedDiscreteLaplace
from budget import (
    DISCOVERY_RULES,
    FILTERS,
    MECHANISMS,
    Delta,
    DiscoveryRule,
    EpsilonDeltaFilter,
    LaplaceDiscovery,
    LaplaceNoise,
    Mechanism,
    Release,
    Sensitivity,
    Spend,
)
from budget.errors import BudgetError


@pytest.mark.parametrize("name", MECHANISMS.names)
def test_every_mechanism_passes(name: str) -> None:
    check_mechanism(MECHANISMS[name].example())


@pytest.mark.parametrize("name", DISCOVERY_RULES.names)
def test_every_key_discovery_rule_passes(name: str) -> None:
    check_rule_beside(DISCOVERY_RULES[name])


@pytest.mark.parametrize("name", FILTERS.names)
def test_every_filter_passes(name: str) -> None:
    check_filter(FILTERS[name].of_texts("8", "0.001", None))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tables forget what a test adds."""
    for table in (MECHANISMS, DISCOVERY_RULES, FILTERS):
        monkeypatch.setattr(table, "_added", dict(table._added))


class OwnNoise(LaplaceNoise):
    """Noise of somebody else's."""

    __slots__ = ()
    name = "own_noise"


class OwnDiscovery(LaplaceDiscovery):
    """Discovers keys beside that noise only."""

    __slots__ = ()
    name = "own_discovery"

    @classmethod
    def beside(cls, declared: Mechanism, delta: Delta) -> OwnDiscovery:
        if not isinstance(declared, OwnNoise):
            raise BudgetError("name own_noise in the job")
        return cls(epsilon=declared.epsilon, delta=delta)


def test_a_rule_is_checked_beside_the_noise_that_it_takes(tables: None) -> None:
    DISCOVERY_RULES.add("own_discovery", OwnDiscovery)
    with pytest.raises(KitFailure, match="can be made beside no noise that a job can name: name own_noise in the job"):
        check_rule_beside(OwnDiscovery)
    MECHANISMS.add("own_noise", OwnNoise)
    check_rule_beside(OwnDiscovery)


def refused(kind: type[Mechanism], sentence: str) -> None:
    table: Any = DISCOVERY_RULES if issubclass(kind, DiscoveryRule) else MECHANISMS
    table.add(kind.name, kind)
    with pytest.raises(KitFailure, match=sentence):
        check_mechanism(kind.example())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheap(LaplaceNoise):
    """States nine tenths of its ε."""

    name = "cheap"

    @property
    def pure_micro(self) -> int:
        return self.epsilon.micro * 9 // 10


def test_a_cost_that_is_too_small_fails(tables: None) -> None:
    refused(Cheap, r"states ε = 0\.9, but a unit that moves the sums by 3 loses 1: its cost is too small")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapRho(LaplaceNoise):
    """States an honest ε and half of its ρ."""

    name = "cheap_rho"

    @property
    def zcdp_micro(self) -> int:
        return self.epsilon.micro // 8


def test_a_rho_that_is_too_small_fails(tables: None) -> None:
    refused(CheapRho, r"states ρ = 0\.125, but its Rényi divergence of order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow(LaplaceNoise):
    """Has the noise of a unit that moves the sums by one less."""

    name = "narrow"

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        return LaplaceNoise.noise(self, Sensitivity(l1=bounds.l1 - 1, l0=1))


def test_noise_that_is_too_narrow_fails(tables: None) -> None:
    refused(Narrow, r"states ε = 1, but a unit that moves the sums by 3 loses 1\.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff(LaplaceNoise):
    """States δ = 0 for noise that is cut off, so that some results are possible in one world only."""

    name = "cut_off"

    def noise(self, bounds: Sensitivity) -> NoiseLaw:
        return TruncatedDiscreteLaplace(epsilon_micro=self.epsilon.micro, sensitivity=bounds.l1, tau=20)


def test_bounded_noise_without_a_delta_fails(tables: None) -> None:
    refused(CutOff, r"states δ = 0, but its noise is at most 20, and a unit that moves the sums by \(3,\) shows itself")


class OffLaw(DiscreteLaplace):
    """A law whose probabilities are off by a millionth."""

    __slots__ = ()

    def pmf(self, x: int) -> Real:
        return DiscreteLaplace.pmf(self, x) * Real.of(1_000_001) / 1_000_000


class HeavyLaw(DiscreteLaplace):
    """A law that adds up to a millionth more than 1."""

    __slots__ = ()

    def cdf(self, x: int) -> Real:
        return DiscreteLaplace.cdf(self, x) * Real.of(1_000_001) / 1_000_000


class ShiftedSamples(DiscreteLaplace):
    """Samples that leave their law."""

    __slots__ = ()

    def sample(self, bits: Bits, size: int) -> NDArray[np.int64]:
        drawn = DiscreteLaplace.sample(self, bits, size)
        return drawn + (np.arange(size) % 3 == 0)


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        (OffLaw, r"P\[X = .*\] is not P\[X ≤"),
        (HeavyLaw, "does not add up to 1|is not P"),
        (ShiftedSamples, "samples do not follow its law"),
    ],
)
def test_a_law_that_is_off_fails(law: type[DiscreteLaplace], sentence: str) -> None:
    check_noise(DiscreteLaplace(epsilon="1", sensitivity=3))
    with pytest.raises(KitFailure, match=sentence):
        check_noise(law(epsilon="1", sensitivity=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class LowThreshold(LaplaceDiscovery):
    """Has a threshold that is one lower than its noise needs."""

    name = "low_threshold"

    def threshold(self, bounds: Sensitivity) -> int:
        return LaplaceDiscovery.threshold(self, bounds) - 1

    def discovered_noise(self, bounds: Sensitivity) -> NoiseLaw:
        return LaplaceDiscovery(epsilon=self.epsilon, delta=self.delta).discovered_noise(bounds)


def test_a_threshold_that_is_one_lower_fails(tables: None) -> None:
    refused(LowThreshold, "carries a sum of 0 above it: a key that no report contributed to could be released")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDelta(LaplaceDiscovery):
    """States a δ for which its threshold is too low."""

    name = "small_delta"

    @property
    def delta_atto(self) -> int:
        return self.delta.atto // 1000


def test_a_delta_that_is_too_small_fails() -> None:
    with pytest.raises(KitFailure, match=r"states δ = 5e-05, but a unit that adds .* shows itself with δ = "):
        check_discovery(SmallDelta.parse(epsilon="1", delta="0.05"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(LaplaceNoise):
    """Writes another amount into the log than it runs with."""

    name = "forgetful"

    def to_plain(self) -> dict[str, str]:
        return {"name": self.name, "epsilon": "0.5"}


def test_a_form_that_reads_back_as_another_fails(tables: None) -> None:
    refused(Forgetful, "its form in a log reads back as another mechanism")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestFilter(EpsilonDeltaFilter):
    """Charges the largest mechanism of a release only."""

    name = "largest"

    def cost(self, release: Release) -> Spend:
        most = max(self.loss(one) for one in release.mechanisms)
        return Spend(loss_micro=most, delta_atto=0, uses=1)


def test_a_filter_that_does_not_add_up_fails(tables: None) -> None:
    FILTERS.add("largest", LargestFilter)
    with pytest.raises(KitFailure, match="two mechanisms in one release cost 1250000e-6, less than apart"):
        check_filter(LargestFilter())


def test_a_filter_that_reads_back_as_another_fails() -> None:
    class Renamed(EpsilonDeltaFilter):
        __slots__ = ()

    with pytest.raises(KitFailure, match="reads back as another filter"):
        check_filter(Renamed())
