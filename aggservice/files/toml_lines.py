"""The line of each key of a TOML document, which ``tomllib`` does not keep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TRIPLE = re.compile(r'"""|\'\'\'')


@dataclass(frozen=True, slots=True)
class Lines:
    """The line of each key, by its path: ``("queries", 1, "epsilon")`` is the second query's epsilon."""

    line_of_path: Mapping[Path, int]

    def of(self, path: Sequence[str | int]) -> int:
        """Return the line of ``path``, or of the innermost table that holds it and has a known line; otherwise 0."""
        for length in range(len(path), 0, -1):
            if (line := self.line_of_path.get(tuple(path[:length]))) is not None:
                return line
        return 0

    @classmethod
    def read(cls, text: str) -> Lines:
        """Find the keys of a document that ``tomllib`` has accepted.

        Only headers and ``key =`` at the start of a line are found; a value inside an inline table or a list has the
        line of the key that holds it.

        >>> Lines.read("[a]\\nb = 1\\n[[c]]\\n[[c]]\\nd = 2").of(("c", 1, "d"))
        5
        """
        lines: dict[Path, int] = {}
        counts: dict[Path, int] = {}
        table: Path = ()
        quoted = False
        for number, line in enumerate(text.splitlines(), 1):
            inside = quoted
            if len(_TRIPLE.findall(line)) % 2:
                quoted = not quoted
            if inside:
                continue
            if header := _HEADER.match(line):
                table = cls._enter(header[1], _parts(header[2]), counts)
                lines.setdefault(table, number)
                if table and isinstance(table[-1], int):
                    lines.setdefault(table[:-1], number)
            elif key := _KEY.match(line):
                lines.setdefault((*table, *_parts(key[1])), number)
        return cls(lines)

    @staticmethod
    def _enter(bracket: str, parts: list[str], counts: dict[Path, int]) -> Path:
        """Return the path of a table header. The name of an array of tables stands for its last table so far."""
        path: Path = ()
        for index, part in enumerate(parts):
            path = (*path, part)
            if bracket == "[[" and index == len(parts) - 1:
                counts[path] = counts.get(path, -1) + 1
            if path in counts:
                path = (*path, counts[path])
        return path


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]
