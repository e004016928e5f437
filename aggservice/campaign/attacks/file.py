"""Reads an attack file; docs/w3c_designs.md lists every field."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignFileError
from aggservice.campaign.file.population import DEFAULT_START_MS, distribution
from aggservice.campaign.file.w3c import parse_design
from aggservice.campaign.settings.attacks import (
    AdversaryKind,
    AdversarySettings,
    AttackScenario,
    QuerySettings,
    VisitPopulation,
)
from aggservice.campaign.settings.distributions import Distribution
from aggservice.files.toml import Section, read_text, read_toml
from w3c_client import Config, Filter

_UNCAPPED_REDIRECTIONS = 20


def load_attack(path: Path | str) -> AttackScenario:
    """Read an attack file; refuse a bad one with its line and what to write instead."""
    path = Path(path)
    text = read_text(path, remedy="Name a TOML file; examples/w3c/attacks has some", error=CampaignFileError)
    return _scenario(read_toml(text, file=str(path), error=CampaignFileError, folder=path.resolve().parent))


def with_fields(scenario: AttackScenario, fields: Mapping[str, Any]) -> AttackScenario:
    """Return the scenario with other values, each named as ``table.field``, read and checked like a file."""
    document = deepcopy(dict(scenario.document))
    for path, value in fields.items():
        table, dot, key = path.partition(".")
        if not dot or not isinstance(document.setdefault(table, {}), dict):
            raise CampaignFileError(
                f"{path!r} is not a field of a table", remedy="Write client.impression_quota", file=scenario.name
            )
        document[table][key] = value
    return _scenario(Section(document, file=scenario.name, error=CampaignFileError))


def parse_sweep(text: str) -> tuple[str, tuple[Any, ...]]:
    """Read ``table.field=value,value,…``; amounts and words stay text, other numbers become numbers."""
    path, sign, values = text.partition("=")
    parts = [part.strip() for part in values.split(",") if part.strip()]
    if not sign or "." not in path or not parts:
        raise CampaignFileError(
            f"{text!r} is not a sweep", remedy="Write client.impression_quota=0.5,1,2", file="--sweep"
        )
    return path.strip(), tuple(map(_number, parts))


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _scenario(top: Section) -> AttackScenario:
    client = top.section("client")
    activation = client.choice("activation", ("none", "kept", "consumed"), "none")
    config = parse_design(client).config(consume_activation=activation == "consumed")
    client.done()
    scenario = AttackScenario(
        name=top.text("name", example="Sybils at random"),
        seed=top.text("seed", "attack"),
        population=_population(top.section("population")),
        queries=_queries(top.section("queries")),
        config=config,
        activation=activation != "none",
        adversary=_adversary(top.section("attack"), config),
        document=top.values,
    )
    top.done()
    return scenario


def _population(section: Section) -> VisitPopulation:
    population = VisitPopulation(
        devices=section.whole("devices", 300, least=1, most=1_000_000),
        start_ms=section.day_ms("start", DEFAULT_START_MS),
        days=section.whole("days", 28, least=1, most=366),
        impression_sites=section.whole("impression_sites", 30, least=1, most=10_000),
        conversion_sites=section.whole("conversion_sites", 8, least=1, most=10_000),
        exponent=section.number("exponent", 0.6, least=0, most=10),
        ads=distribution(section, "ads", Distribution(name="geometric", parameters={"mean": 40.0})),
        conversion_rate=section.number("conversion_rate", 0.2, least=0, most=1),
        delay_days=distribution(section, "delay_days", Distribution(name="exponential", parameters={"mean": 1.0})),
    )
    section.done()
    return population


def _queries(section: Section) -> QuerySettings:
    queries = QuerySettings(
        buckets=section.whole("buckets", 5, least=1, most=4096),
        lookback_days=section.whole("lookback_days", 7, least=1, most=30),
        error=section.number("error", 0.05, least=0, most=10, above=True),
        tau=section.number("tau", 0.05, least=0, most=1, above=True),
    )
    section.done()
    return queries


def _adversary(section: Section, config: Config) -> AdversarySettings:
    capped = Filter.ACTION_CAP in config.filters
    adversary = AdversarySettings(
        kind=AdversaryKind(section.choice("kind", tuple(AdversaryKind), AdversaryKind.NONE)),
        sybils=section.whole("sybils", 25, least=1, most=10_000),
        share=section.number("share", 0.35, least=0, most=1, above=True),
        first_rank=section.whole("first_rank", 1, least=1, most=10_000),
        top_sites=section.whole("top_sites", 10, least=1, most=10_000),
        # Two more than the cap lets through; without a cap, as many as the evaluation of Big Bird tries.
        redirections=section.whole(
            "redirections", config.sites_per_action + 2 if capped else _UNCAPPED_REDIRECTIONS, least=1, most=1_000
        ),
        genuine_first=section.number("genuine_first", 0.5, least=0, most=1),
    )
    section.done()
    return adversary
