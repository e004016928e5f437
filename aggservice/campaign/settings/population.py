"""The population interface: where the events of a campaign come from, as one class per model, and the table of them.

A model is the table ``[population.NAME]`` of a campaign file: its fields are its own settings, its methods what follows
from them. Everything else asks the model; nothing else knows which it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from aggservice.campaign.columns import Events
from aggservice.files.settings import read_settings
from aggservice.files.toml import Section
from aggservice.kinds import Kinds
from aggservice.mechanisms import Bits

if TYPE_CHECKING:
    from aggservice.campaign.settings.campaign import Campaign


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of given events: their people, their days, and the sites where conversions happen."""

    people: int
    start_ms: int
    days: int
    destinations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationModel(ABC):
    """Where events come from. ``extent`` gives the defaults of ``[population]`` if the events are given, not drawn."""

    name: ClassVar[str]
    drawn: ClassVar[bool] = False
    """Whether another seed draws other people."""
    has_columns: ClassVar[bool] = False
    """Whether events have columns, which key fields name, so that ``column`` gives their values."""

    extent: Extent | None = None

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read the model's own settings, the table ``[population.NAME]``."""
        return read_settings(section, cls)

    @classmethod
    def example(cls, folder: Path) -> Mapping[str, Any]:
        """Return a table ``[population.NAME]`` for the kit, whose files are written to ``folder``."""
        return {}

    @abstractmethod
    def events(self, campaign: Campaign, bits: Bits) -> Events:
        """Return the events within the campaign's days, in order of time; every draw comes from ``bits``."""

    def column(self, origin: str, name: str) -> Sequence[Any]:
        """Return a column of impressions or conversions (``origin``); ``CampaignError`` if there is none."""
        raise NotImplementedError

    def check_campaign(self, top: Section, campaign: Campaign) -> None:  # noqa: B027 - most have nothing to check
        """Refuse a whole campaign that the model cannot have."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that events are read from."""
        return ()

    def shifted(self, by_ms: int) -> Self:
        """Return the model with every given time later by ``by_ms``; drawn times follow the campaign's start."""
        return self

    def half(self, which: int) -> Self:
        """Return the model without the devices of the other half; drawn people differ by their seed already."""
        return self


POPULATIONS: Kinds[type[PopulationModel]] = Kinds(
    "population",
    base=PopulationModel,
    builtin={
        "simulated": "aggservice.campaign.world.population:SimulatedPopulation",
        "log": "aggservice.campaign.world.log_events:LogPopulation",
    },
)
