"""Every population and log reader passes its kit, and those that lie fail it with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.campaign.columns import Events
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.population import POPULATIONS
from aggservice.campaign.world.log_events import LogPopulation
from aggservice.campaign.world.logs import LOG_READERS, CsvLog
from aggservice.campaign.world.population import SimulatedPopulation
from aggservice.files.below import Opener, open_any
from aggservice.kits.failures import KitFailure
from aggservice.kits.populations import check_log_reader, check_population
from aggservice.mechanisms import Bits, SecureBits


@pytest.mark.parametrize("name", POPULATIONS.names)
def test_every_population_passes_its_kit(name: str) -> None:
    assert check_population(name) > 50


@pytest.mark.parametrize("name", LOG_READERS.names)
def test_every_log_reader_passes_its_kit(name: str) -> None:
    assert check_log_reader(name) == 6


def _backwards(events: Events) -> Events:
    return replace(events, impressions=replace(events.impressions, time_ms=events.impressions.time_ms[::-1]))


def _other_devices(events: Events) -> Events:
    return replace(events, devices=events.devices - 1)


def _no_codes(events: Events) -> Events:
    return replace(events, conversions=replace(events.conversions, codes={}))


def _floats(events: Events) -> Events:
    return replace(events, conversions=replace(events.conversions, value=events.conversions.value * 0.5))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lies(SimulatedPopulation):
    """Gives what is simulated, but changed by the function that a test sets."""

    name = "lies"

    def events(self, campaign: Campaign, bits: Bits) -> Events:
        return CHANGE[0](SimulatedPopulation.events(self, campaign, bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawsByItself(SimulatedPopulation):
    """Draws from bits of its own."""

    name = "draws-by-itself"

    def events(self, campaign: Campaign, bits: Bits) -> Events:
        return SimulatedPopulation.events(self, campaign, SecureBits())


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHalves(LogPopulation):
    """A log that cannot be divided."""

    name = "no-halves"

    def half(self, which: int) -> NoHalves:
        return self


CHANGE: list[Callable[[Events], Events]] = []


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POPULATIONS, "_added", {})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_backwards, "Impressions of lies are not in order of time"),
        (_other_devices, "device in Impressions of lies goes from .* it must be from 0 to"),
        (_no_codes, r"Conversions of lies have codes of \[\], and the keys need"),
        (_floats, "value in Conversions of lies is float64"),
    ],
)
def test_a_population_with_bad_columns_fails(change: Callable[[Events], Events], sentence: str) -> None:
    CHANGE[:] = [change]
    with pytest.raises(KitFailure, match=sentence):
        check_population(Lies)


def test_a_population_that_draws_by_itself_fails() -> None:
    """False alarms: none; two draws of secure bits would have to agree in every event."""
    with pytest.raises(KitFailure, match="draws-by-itself gives other events for the same seed"):
        check_population(DrawsByItself)


def test_halves_that_are_wholes_fail() -> None:
    with pytest.raises(KitFailure, match=r"the halves of no-halves have 80 and 80 of 80 events and share 7 devices"):
        check_population(NoHalves)


class OpensByItself(CsvLog):
    """Opens files without asking."""

    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        return CsvLog.read(self, files, open_any)


class SwallowsDamage(CsvLog):
    """Reads nothing from a file that it cannot read."""

    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        with opened(files[0]) as file:
            return {} if b"\xff" in file.read() else CsvLog.read(self, files, opened)


@pytest.mark.parametrize(
    ("liar", "sentence"),
    [(OpensByItself, "does not read its example"), (SwallowsDamage, "reads a damaged file without a word")],
)
def test_a_log_reader_that_lies_fails(liar: type[CsvLog], sentence: str) -> None:
    with pytest.raises(KitFailure, match=sentence):
        check_log_reader(liar)
