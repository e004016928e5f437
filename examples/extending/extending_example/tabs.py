"""A log reader: text with tabs, as a spreadsheet copies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.world.logs import LogReader
from aggservice.files.below import Opener


class TabLog(LogReader):
    """Text in UTF-8 with tabs between values and names in the first line; every value is text."""

    name = "tabs"
    suffixes = (".tsv", ".tab")

    @classmethod
    def example(cls, folder: Path) -> tuple[Path, Mapping[str, Sequence[Any]]]:
        path = folder / "log.tsv"
        path.write_text("time\tdevice\tad\n1700000000\tone\ta\n1700000060\ttwo\tb\n", encoding="utf-8")
        return path, {"time": ["1700000000", "1700000060"], "device": ["one", "two"], "ad": ["a", "b"]}

    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        (path,) = files
        try:
            with opened(path) as file:
                names, *rows = (line.split("\t") for line in file.read().decode("utf-8").splitlines())
            if any(len(row) != len(names) for row in rows):
                raise ValueError("a line has more or fewer values than the first")
            return {name: [row[place] for row in rows] for place, name in enumerate(names)}
        except (OSError, UnicodeDecodeError, ValueError) as problem:
            raise CampaignError(f"{path.name} cannot be read as text with tabs: {problem}") from None
