"""The two tables of an event log, sources and triggers, as columns under the campaign's names for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogTable:
    """One table as columns; ``names`` maps the campaign's names to those in the file, ``digest`` is over both."""

    columns: Mapping[str, Sequence[Any]]
    file: Path
    names: Mapping[str, str]
    digest: str = ""

    def column(self, name: str) -> Sequence[Any]:
        """Return a column by the campaign's name for it; if it is missing, the error lists those that exist."""
        own = self.names.get(name, name)
        if own not in self.columns:
            existing = ", ".join(map(repr, self.columns))
            raise CampaignError(f"{self.file.name} has no column {own!r}; it has {existing}")
        return self.columns[own]

    def __contains__(self, name: str) -> bool:
        return self.names.get(name, name) in self.columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogTables:
    """The sources and the triggers of a log."""

    sources: LogTable
    triggers: LogTable

    @property
    def both(self) -> tuple[LogTable, LogTable]:
        """Sources, then triggers."""
        return self.sources, self.triggers
