"""The two tables of an event log, sources and triggers, as columns under the campaign's names for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogTables:
    """Sources and triggers as columns; ``names`` maps the campaign's names to the log's columns."""

    sources: Mapping[str, Sequence[Any]]
    triggers: Mapping[str, Sequence[Any]]
    source_file: Path
    trigger_file: Path
    names: Mapping[str, str]

    def column(self, name: str, *, of_source: bool) -> Sequence[Any]:
        """Return a column by the campaign's name for it; if it is missing, the error lists those that exist."""
        table, path = (self.sources, self.source_file) if of_source else (self.triggers, self.trigger_file)
        return column_of(table, self.names.get(name, name), path)

    def has(self, name: str, *, of_source: bool) -> bool:
        """Whether the log has this column."""
        return self.names.get(name, name) in (self.sources if of_source else self.triggers)


def column_of(table: Mapping[str, Sequence[Any]], name: str, path: Path) -> Sequence[Any]:
    """Return one column; raise ``CampaignError`` with the existing columns if it is missing."""
    if name not in table:
        raise CampaignError(f"{path.name} has no column {name!r}; it has {', '.join(map(repr, table))}")
    return table[name]
