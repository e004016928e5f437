"""The settings of an attack on on-device budgets, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aggservice.campaign.settings.distributions import Distribution
from w3c_client import Config


class AdversaryKind(StrEnum):
    """What the adversary does at each visit that it attracts.

    ``RANDOM`` and ``OMNISCIENT`` redirect through Sybil sites that convert on one another's impressions; the omniscient
    one knows what every budget has left. ``CLEARING`` is one site that clears its data between conversions;
    ``INTERMEDIARIES`` is one site that calls through many others.
    """

    NONE = "none"
    RANDOM = "random"
    OMNISCIENT = "omniscient"
    CLEARING = "clearing"
    INTERMEDIARIES = "intermediaries"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitPopulation:
    """Devices, the ads they see, and what they buy. Sites are drawn by Zipf's law with ``exponent``."""

    devices: int
    start_ms: int
    days: int
    impression_sites: int
    conversion_sites: int
    exponent: float
    ads: Distribution
    conversion_rate: float
    delay_days: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """What every conversion site asks: a histogram per batch, with ε from the error that noise alone may have."""

    buckets: int
    lookback_days: int
    error: float
    tau: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversarySettings:
    """An adversary that acts at visits to the most visited sites of each kind, from ``first_rank`` on.

    ``share`` is the part of the Sybils that a random conversion names. ``genuine_first`` is how often the visited
    site itself comes first.
    """

    kind: AdversaryKind
    sybils: int
    share: float
    first_rank: int
    top_sites: int
    redirections: int
    genuine_first: float

    @property
    def domains(self) -> int:
        """How many sites with budgets of their own the adversary has."""
        if self.kind in (AdversaryKind.RANDOM, AdversaryKind.OMNISCIENT):
            return self.sybils
        return 0 if self.kind is AdversaryKind.NONE else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackScenario:
    """One population, one design of budgets and one adversary. ``document`` is the TOML it was read from."""

    name: str
    seed: str
    population: VisitPopulation
    queries: QuerySettings
    config: Config
    activation: bool
    adversary: AdversarySettings
    document: Mapping[str, Any]
