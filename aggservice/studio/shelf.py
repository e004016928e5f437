"""What the studio shows: campaign files, runs, ledgers and scenarios below the folders it was given.

An item's id is the number of its folder and the path below it. Ids are the only names that requests may use, and one
that leads out of its folder, through ``..`` or a link, is unknown. Files are read through ``aggservice.files.below``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from aggservice.campaign import Campaign, parse_campaign
from aggservice.files.below import Below
from aggservice.studio.errors import StudioError, UnknownItemError
from budget.log.export import MAGIC

DEMO: Final = "demo"
"""The id of the campaign that ``aggservice demo`` runs; it comes with the package."""
_MAX_DEPTH: Final = 5
_MAX_ITEMS: Final = 2_000
_MAX_SEEN: Final = 50_000
_MAX_TEXT_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 64 << 20
"""The largest file that the studio shows."""
_SKIPPED: Final = frozenset({"batches", "domains", "summaries", "plots", "node_modules", "__pycache__"})
_POPULATION: Final = re.compile(r"^\[population[].]", re.MULTILINE)
_EVENTS: Final = re.compile(r'"events"\s*:\s*\[')
_SQLITE: Final = b"SQLite format 3\x00"


class Kind(StrEnum):
    """A kind of item."""

    CAMPAIGN = "campaign"
    RUN = "run"
    COMPARISON = "comparison"
    LEDGER = "ledger"
    SCENARIO = "scenario"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something to open. ``name`` is its path as a person would write it."""

    id: str
    kind: Kind
    name: str


class Shelf:
    """The folders of a studio. It reads names and first bytes to find items, and follows no link."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._files = tuple(Below(folder=folder) for folder in folders)
        self.folders = tuple(files.folder for files in self._files)
        for folder in self.folders:
            if not folder.is_dir():
                raise StudioError(f"{folder} is not a folder: name folders with campaigns, runs or ledgers")

    def items(self) -> list[Item]:
        """Return up to 2,000 items in order of folder and path."""
        found = []
        for number, folder in enumerate(self.folders):
            for kind, path in _walk(self._files[number]):
                relative = path.relative_to(folder).as_posix()
                name = relative if len(self.folders) == 1 else f"{folder.name}/{relative}"
                found.append(Item(id=f"{number}/{relative}", kind=kind, name=name))
                if len(found) == _MAX_ITEMS:
                    return found
        return found

    def path(self, item: str, kind: Kind) -> Path:
        """Return the path of an item; UnknownItemError if it is not below its folder or not of this kind."""
        number, _, relative = item.partition("/")
        if not (number.isascii() and number.isdigit() and int(number) < len(self.folders)) or "\x00" in relative:
            raise UnknownItemError(f"{item[:200]!r} is not on the shelf: choose an item of the list")
        files = self._files[int(number)]
        try:
            path = files.path(relative)
            found = _kind_of(files, path)
            if found is Kind.LEDGER:  # SQLite opens what lies beside a database by its name
                for name in (f"{path.name}{end}" for end in ("-wal", "-shm", "-journal")):
                    files.path(path.with_name(name))
        except OSError:
            found = None
        if found is not kind:
            raise UnknownItemError(f"{item[:200]!r} is not a {kind} on the shelf: choose one of the list")
        return path

    def files(self, path: Path) -> Below:
        """Return the files of the folder that a path is below."""
        for files in self._files:
            if path == files.folder or path.is_relative_to(files.folder):
                return files
        raise UnknownItemError(f"{path.name} is in none of the studio's folders")

    def read(self, path: Path, most: int = _MAX_TEXT_BYTES) -> bytes:
        """Return a file of the shelf; OSError if it is missing, larger than ``most``, or behind a link."""
        return self.files(path).read(path, most)

    def parse(self, text: str, item: str = DEMO, *, number: int = 0, file: str = "campaign") -> Campaign:
        """Read a campaign that somebody gave as text. It may name files below the folder of the shelf that it is in.

        That is the folder of the item ``item``, a campaign of the shelf, or else the folder ``number``. Relative paths
        are relative to the item.
        """
        base = self.folders[number] if item == DEMO else self.path(item, Kind.CAMPAIGN).parent
        return parse_campaign(text, folder=base, file=file, files=self.files(base))

    def new_path(self, folder: int, name: str) -> Path:
        """Return a path for a new file or folder directly in a folder of the shelf; refuse one that is taken."""
        plain = name and len(name) <= 100 and all(letter.isalnum() or letter in "-_." for letter in name)
        if not plain or name.startswith("."):
            raise StudioError(f"{name[:100]!r} is not a plain name: use letters, digits, '-', '_' and '.'")
        if not 0 <= folder < len(self.folders):
            raise UnknownItemError(f"there is no folder {folder}")
        path = self.folders[folder] / name
        if path.exists() or path.is_symlink():
            raise StudioError(f"{name} exists in {self.folders[folder].name}: choose another name")
        return path

    def id_of(self, path: Path) -> str:
        """Return the id of a path below one of the folders."""
        for number, folder in enumerate(self.folders):
            if path.is_relative_to(folder):
                return f"{number}/{path.relative_to(folder).as_posix()}"
        raise UnknownItemError(f"{path.name} is in none of the studio's folders")


def _walk(below: Below) -> Iterator[tuple[Kind, Path]]:
    seen, top = 0, below.folder
    for current, folders, files in os.walk(top):
        here = Path(current)
        depth = len(here.relative_to(top).parts)
        folders[:] = sorted(
            name for name in folders if depth < _MAX_DEPTH and name not in _SKIPPED and not name.startswith(".")
        )
        seen += len(files)
        if seen > _MAX_SEEN:
            return
        folder = None if here == top else _kind_of(below, here)
        if folder is not None:
            yield folder, here
        for name in sorted(files):
            path = here / name
            kind = _kind_of(below, path)
            if kind is not None:
                yield kind, path


def _kind_of(files: Below, path: Path) -> Kind | None:
    """Return what a path is, judged by its name and first bytes; None for what is behind a link."""
    try:
        if files.path(path).is_dir():
            if files.is_file(path / "comparison.json"):
                return Kind.COMPARISON
            return Kind.RUN if files.is_file(path / "metrics.json") else None
        match path.suffix:
            case ".toml":
                return Kind.CAMPAIGN if _POPULATION.search(files.read(path, _MAX_TEXT_BYTES).decode()) else None
            case ".json" if path.name != "CONFIG.json":
                return Kind.SCENARIO if _EVENTS.search(files.read(path, _MAX_TEXT_BYTES).decode()) else None
            case ".sqlite" | ".db" | ".log":
                magic = MAGIC if path.suffix == ".log" else _SQLITE
                with files.open(path) as file:
                    return Kind.LEDGER if file.read(len(magic)) == magic else None
    except (OSError, UnicodeDecodeError):
        return None
    return None
