"""The settings of an attack on on-device budgets, and the reader of attack files; docs/w3c_designs.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignFileError
from aggservice.campaign.settings.campaign import DEFAULT_START_MS
from aggservice.campaign.settings.distributions import Distribution, distribution
from aggservice.campaign.settings.w3c import DesignSettings
from aggservice.campaign.sweep.grid import changed_document
from aggservice.campaign.world.logs import read_column
from aggservice.files.settings import Known, choice, day, number, read_settings, table, text, whole
from aggservice.files.toml import Section, read_text, read_toml
from w3c_client import Config

_UNCAPPED_REDIRECTIONS = 20


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

    devices: int = whole("devices", default=300, least=1, most=1_000_000)
    start_ms: int = day("the first day, in UTC", key="start", default=DEFAULT_START_MS, shown="2026-11-18")
    days: int = whole("the number of days", default=28, least=1, most=366)
    impression_sites: int = whole("sites that show ads", default=30, least=1, most=10_000)
    conversion_sites: int = whole("sites that sell", default=8, least=1, most=10_000)
    exponent: float = number("of Zipf's law, by which sites are visited", default=0.6, least=0, most=10)
    ads: Distribution = distribution(
        "ads a device sees", default=Distribution(name="geometric", parameters={"mean": 40.0})
    )
    conversion_rate: float = number("the share of ads that lead to a conversion", default=0.2, least=0, most=1)
    delay_days: Distribution = distribution(
        "how long after the ad", default=Distribution(name="exponential", parameters={"mean": 1.0})
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """What every conversion site asks: a histogram per batch, with ε from the error that noise alone may have."""

    buckets: int = whole("buckets of a histogram", default=5, least=1, most=4096)
    lookback_days: int = whole("how far a conversion looks back", default=7, least=1, most=30)
    error: float = number(
        "the RMSRE_τ that noise alone may have, which decides ε", default=0.05, least=0, most=10, above=True
    )
    tau: float = number("τ of RMSRE_τ, as a share of the batch", default=0.05, least=0, most=1, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversarySettings:
    """An adversary that acts at visits to the most visited sites of each kind, from ``first_rank`` on.

    ``share`` is the part of the Sybils that a random conversion names. ``genuine_first`` is how often the visited
    site itself comes first.
    """

    kind: AdversaryKind = choice(
        "what the adversary does at each visit", tuple(AdversaryKind), default=AdversaryKind.NONE, convert=AdversaryKind
    )
    sybils: int = whole("how many Sybil sites it has", default=25, least=1, most=10_000)
    share: float = number("the part of them that a random conversion names", default=0.35, least=0, most=1, above=True)
    first_rank: int = whole("the most visited site that it acts at", default=1, least=1, most=10_000)
    top_sites: int = whole("how many sites it acts at", default=10, least=1, most=10_000)
    # Two more than the cap lets through; without a cap, as many as the evaluation of Big Bird tries.
    redirections: int = whole(
        "redirections per visit",
        default=lambda known: min(
            (rule.capacity(known.config) + 2 for rule in known.config.rules if rule.counts_sites),
            default=_UNCAPPED_REDIRECTIONS,
        ),
        shown=f"the cap + 2, or {_UNCAPPED_REDIRECTIONS}",
        least=1,
        most=1_000,
    )
    genuine_first: float = number("how often the visited site itself comes first", default=0.5, least=0, most=1)

    @property
    def domains(self) -> int:
        """How many sites with budgets of their own the adversary has."""
        if self.kind in (AdversaryKind.RANDOM, AdversaryKind.OMNISCIENT):
            return self.sybils
        return 0 if self.kind is AdversaryKind.NONE else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackScenario:
    """One population, one design of budgets and one adversary. ``document`` is the TOML it was read from."""

    name: str = text("as it prints", example="Sybils at random")
    seed: str = text("the seed of visits and draws", default="attack")
    population: VisitPopulation = table("", VisitPopulation)
    queries: QuerySettings = table("", QuerySettings)
    adversary: AdversarySettings = table("", AdversarySettings, key="attack")
    config: Config
    activation: bool
    document: Mapping[str, Any]


def load_attack(path: Path | str) -> AttackScenario:
    """Read an attack file; refuse a bad one with its line and what to write instead."""
    path = Path(path)
    text = read_text(path, remedy="Name a TOML file; examples/w3c/attacks has some", error=CampaignFileError)
    return _scenario(read_toml(text, file=str(path), error=CampaignFileError, folder=path.resolve().parent))


def with_fields(scenario: AttackScenario, fields: Mapping[str, Any]) -> AttackScenario:
    """Return the scenario with other values, each named as ``table.field``, read and checked like a file."""
    document = changed_document(scenario.document, fields)
    return _scenario(Section(document, file=scenario.name, error=CampaignFileError))


def _scenario(top: Section) -> AttackScenario:
    client = top.section("client")
    activation = client.choice("activation", ("none", "kept", "consumed"), "none")
    config = DesignSettings.read(client).config(consume_activation=activation == "consumed")
    client.done()
    around = Known(read_column=read_column)
    return read_settings(
        top, AttackScenario, around, config=config, activation=activation != "none", document=top.values
    )
