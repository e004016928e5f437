"""The grid of a sweep: paths into a campaign or attack file, their values, and the campaign at each point.

``queries.sales.epsilon=1,4,16`` names a field of the file by its path; an element of an array of tables is
named by its name, its index, or ``*`` for all. Every point is checked before the first is run.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.settings.campaign import Campaign

MAX_POINTS = 10_000
_AMOUNTS = ("epsilon", "delta", "others_epsilon")


class SweepError(CampaignError):
    """A sweep that cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepField:
    """A field of a file and the values it takes."""

    path: str
    values: tuple[Any, ...]

    @property
    def short(self) -> str:
        """The last part of the path, for headings."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point of the grid: the values of the swept fields, and the campaign that has them."""

    number: int
    values: Mapping[str, Any]
    campaign: Campaign

    @property
    def label(self) -> str:
        """The values of the point as text."""
        return ", ".join(f"{path} = {value}" for path, value in self.values.items())


def parse_field(text: str, document: Mapping[str, Any]) -> SweepField:
    """Read ``path=value,value,…``; values take the type that the field has in the document."""
    path, sign, values = text.partition("=")
    path = path.strip()
    parts = [part.strip() for part in values.split(",") if part.strip()]
    if not sign or not path or not parts:
        raise SweepError(f"{text!r} is not a sweep. Write a field and its values: queries.sales.epsilon=1,4,16")
    present = [table.get(key) for table, key in _holders(copy.deepcopy(dict(document)), path)]
    as_text = path.rpartition(".")[2] in _AMOUNTS or any(isinstance(value, str) for value in present)
    found = tuple(_value(part, as_text=as_text) for part in parts)
    if len(set(map(repr, found))) != len(found):
        raise SweepError(f"{path} has a value twice. Write each value once")
    return SweepField(path=path, values=found)


def _value(text: str, *, as_text: bool) -> Any:
    if as_text:
        return text
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text


def _holders(document: Mapping[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """Return the tables that hold the field, created if missing, and its key."""
    parts = path.split(".")
    tables: list[Any] = [document]
    walked: list[str] = []
    for part in parts[:-1]:
        following: list[Any] = []
        for table in tables:
            if isinstance(table, list):
                following += _elements(table, part, ".".join(walked), path)
            elif isinstance(table, dict):
                following.append(table.setdefault(part, {}))
            else:
                raise _no_table(path, ".".join(walked))
        tables = following
        walked.append(part)
    for table in tables:
        if isinstance(table, list):
            names = ", ".join(_names(table))
            raise SweepError(f"{path}: {'.'.join(walked)} is an array of tables. Name an element: {names}, or *")
        if not isinstance(table, dict):
            raise _no_table(path, ".".join(walked))
    return [(table, parts[-1]) for table in tables]


def _no_table(path: str, where: str) -> SweepError:
    return SweepError(f"{path}: {where} is not a table, so it has no fields. Write {where}=…")


def _names(tables: list[Any]) -> list[str]:
    return [str(one.get("name", place)) if isinstance(one, dict) else str(place) for place, one in enumerate(tables)]


def _elements(tables: list[Any], part: str, where: str, path: str) -> list[Any]:
    names = _names(tables)
    if part == "*":
        return tables
    if part in names:
        return [tables[names.index(part)]]
    if part.isdigit() and int(part) < len(tables):
        return [tables[int(part)]]
    raise SweepError(f"{path}: {where} has no element {part!r}. Write one of {', '.join(names)}, or *")


def grid_of(fields: Sequence[SweepField]) -> list[dict[str, Any]]:
    """Return the values of the fields at every point of their grid, by path; without fields, one point."""
    if len({field.path for field in fields}) != len(fields):
        raise SweepError("a sweep needs different fields, each named once")
    size = prod(len(field.values) for field in fields)
    if size > MAX_POINTS:
        raise SweepError(f"the grid has {size:,} points. Write fewer values: at most {MAX_POINTS:,} points")
    paths = [field.path for field in fields]
    return [dict(zip(paths, values, strict=True)) for values in product(*(field.values for field in fields))]


def changed_document(document: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's document with other values of some fields, given by their paths."""
    found: dict[str, Any] = copy.deepcopy(dict(document))
    for path, value in values.items():
        for table, key in _holders(found, path):
            table[key] = value
    return found


def points_of(campaign: Campaign, fields: Sequence[SweepField]) -> list[SweepPoint]:
    """Return every point of the grid, each read and checked like a campaign file; without fields, the campaign."""
    return [
        SweepPoint(number=number, values=values, campaign=changed(campaign, values))
        for number, values in enumerate(grid_of(fields))
    ]


def changed(campaign: Campaign, values: Mapping[str, Any]) -> Campaign:
    """Return the campaign with other values of some fields, given by their paths, read and checked like a file."""
    document = changed_document(campaign.document, values)
    label = ", ".join(f"{path} = {value}" for path, value in values.items())
    try:
        return campaign_of(document, folder=campaign.folder, files=campaign.files, file=f"the campaign with {label}")
    except CampaignError as problem:
        raise SweepError(str(problem)) from None
