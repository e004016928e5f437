"""Reading TOML strictly: each key by name and type; each refusal names the line and says what to write instead."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from aggservice.files.below import Below, Opener, open_any

KeyPath = tuple[str | int, ...]

_SHOWN_OPTIONS = 20
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TRIPLE = re.compile(r'"""|\'\'\'')


class FileError(Exception):
    """A file that is refused: where, why, and what to write instead. Each package raises a subclass of its own.

    ``line`` counts from 1; 0 means that the error has no line, because something is missing.
    """

    def __init__(self, problem: str, *, remedy: str, line: int = 0, file: str) -> None:
        super().__init__(f"{file}, line {line}: {problem}. {remedy}" if line else f"{file}: {problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.line = line
        self.file = file


def read_text(path: Path, *, remedy: str, error: type[FileError], opened: Opener = open_any) -> str:
    """Return the text of a file. If it cannot be read, raise ``error`` with ``remedy``, which says what to do."""
    try:
        with TextIOWrapper(opened(path), encoding="utf-8") as file:
            return file.read()
    except OSError as problem:
        raise error(f"cannot be read: {problem.strerror}", remedy=remedy, file=str(path)) from None
    except UnicodeDecodeError:
        raise error("is not UTF-8", remedy="Save it as UTF-8", file=str(path)) from None


def read_toml(
    text: str, *, file: str, error: type[FileError], folder: Path = Path(), files: Below | None = None
) -> Section:
    """Return the outermost table of a TOML text. Relative paths in it are relative to ``folder``.

    If somebody else gave the text, ``files`` are those that it may name.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        line = str(problem).rpartition("line ")[2].split(",")[0]
        raise error(
            f"is not TOML: {problem}",
            remedy="See https://toml.io for the format",
            line=int(line) if line.isdigit() else 0,
            file=file,
        ) from None
    return Section(document, file=file, error=error, folder=folder, lines=Lines.read(text), files=files)


class Section:
    """A table of a file. It remembers which keys were read; ``done`` refuses the others.

    With ``files``, paths in it lead to those alone: read them with ``opened``.
    """

    def __init__(
        self,
        values: dict[str, Any],
        *,
        file: str,
        error: type[FileError],
        folder: Path = Path(),
        lines: Lines | None = None,
        path: tuple[str | int, ...] = (),
        files: Below | None = None,
    ) -> None:
        self.files = files
        self.values = values
        self.file = file
        self.folder = folder
        self.lines = lines or Lines({})
        self.path = path
        self._error = error
        self._taken: set[str] = set()

    @property
    def opened(self) -> Opener:
        """What opens the files that this table names."""
        return open_any if self.files is None else self.files.open

    @property
    def line(self) -> int:
        """The line of this table's header."""
        return self.lines.of(self.path)

    def refuse(self, key: str, problem: str, remedy: str) -> NoReturn:
        """Refuse the file because of ``key``, or because of this table if ``key`` is empty."""
        path = (*self.path, key) if key else self.path
        raise self._error(f"{_name(path)} {problem}", remedy=remedy, line=self.lines.of(path), file=self.file)

    def missing(self, key: str, remedy: str) -> NoReturn:
        """Refuse the file because ``key`` is missing, or because a similar, unknown key looks like a misspelling."""
        for similar in get_close_matches(key, [name for name in self.values if name not in self._taken], 1):
            self.refuse(similar, "is not a field", f"Did you mean {key!r}?")
        self.refuse(key, "is missing", remedy)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def take(self, key: str) -> Any:
        """Return the value of a key as TOML gave it; None if absent."""
        self._taken.add(key)
        return self.values.get(key)

    def _typed(self, key: str, kinds: tuple[type, ...], what: str) -> Any:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.refuse(key, f"is {value!r}", f"Write {what}")
        return value

    def text(self, key: str, default: str | None = None, *, example: str = "") -> str:
        """Return a string; without a default the key is required."""
        value = self._typed(key, (str,), "a string in quotes")
        if value is None:
            if default is None:
                self.missing(key, f'Write {key} = "{example or "…"}"')
            return default
        return str(value)

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """Return a string that must be one of ``options``; without a default the key is required."""
        value = self.text(key, default, example=options[0])
        if value not in options:
            self.refuse(key, f"is {value!r}", f"Write one of {', '.join(repr(option) for option in options)}")
        return value

    def whole(self, key: str, default: int | None, *, least: int, most: int) -> int:
        """Return a whole number within bounds; without a default the key is required."""
        value = self._typed(key, (int,), f"a whole number from {least:,} to {most:,}")
        if value is None:
            if default is None:
                self.missing(key, f"Write {key} = {max(least, 1)}")
            return default
        if not least <= value <= most:
            self.refuse(key, f"is {value}", f"Write a whole number from {least:,} to {most:,}")
        return int(value)

    def number(self, key: str, default: float | None, *, least: float, most: float, above: bool = False) -> float:
        """Return a number from ``least`` to ``most``; with ``above`` it must be greater than ``least``."""
        bounds = f"{'above' if above else 'from'} {least:g} to {most:g}"
        value = self._typed(key, (int, float), f"a number {bounds}")
        if value is None:
            if default is None:
                self.missing(key, f"Write a number {bounds}")
            return default
        found = float(value)
        if not (least < found if above else least <= found) or not found <= most:
            self.refuse(key, f"is {value}", f"Write a number {bounds}")
        return found

    def exact(self, key: str, default: Fraction, *, above: Fraction, most: Fraction) -> Fraction:
        """Return an exact number above ``above`` and at most ``most``: a whole number or decimal text."""
        value = self._typed(key, (int, str, float), 'a whole number, or a decimal number in quotes such as "0.5"')
        if value is None:
            return default
        try:
            found = Fraction(str(value))
        except (ValueError, ZeroDivisionError):
            self.refuse(key, f"is {value!r}", 'Write a number such as 16 or "0.5"')
        if not above < found <= most:
            self.refuse(key, f"is {value}", f"Write a number above {above} and at most {most}")
        return found

    def amount(self, key: str, default: str | None = None, *, zero: bool = False) -> str:
        """Return a privacy amount as decimal text, greater than 0; ``zero`` also allows 0."""
        value = self._typed(key, (str, int, float), 'a decimal number in quotes, such as "10" or "0.25"')
        if value is None:
            if default is None:
                self.missing(key, f'Write {key} = "10"')
            return default
        if isinstance(value, float):
            self.refuse(key, f"is the float {value!r}", f'Write decimal text, {key} = "{value}", which is exact')
        text = str(value).strip()
        try:
            found = Fraction(text)
        except (ValueError, ZeroDivisionError):
            self.refuse(key, f"is {text!r}", 'Write a decimal number in quotes, such as "10" or "0.25"')
        if "/" in text or not (found > 0 or (zero and found == 0)):
            least = "0 or more" if zero else "above 0"
            self.refuse(key, f"is {text!r}", f'Write a decimal number {least}, such as "10"')
        return text

    def flag(self, key: str, default: bool) -> bool:
        """Return the value of a key that must be true or false; ``default`` if absent."""
        value = self._typed(key, (bool,), "true or false")
        return default if value is None else bool(value)

    def texts(self, key: str, default: Sequence[str] | None = None, *, any_list: bool = False) -> tuple[str, ...]:
        """Return a list of strings, at least one and all different; ``any_list`` allows empty lists and repeats."""
        value = self._typed(key, (list,), 'a list of strings, such as ["a", "b"]')
        if value is None:
            if default is None:
                self.missing(key, f'Write {key} = ["a", "b"]')
            return tuple(default)
        if any_list and all(isinstance(one, str) for one in value):
            return tuple(value)
        if not value or not all(isinstance(one, str) and one for one in value) or len(set(value)) != len(value):
            self.refuse(key, "is not a list of distinct strings", 'Write a list such as ["a", "b"]')
        return tuple(value)

    def choices(
        self, key: str, options: Sequence[str], default: Sequence[str] | None = None, *, any_list: bool = False
    ) -> tuple[str, ...]:
        """Return a list of strings as ``texts`` does; each must be one of ``options``."""
        found = self.texts(key, default, any_list=any_list)
        for one in found:
            if one not in options:
                shown = ", ".join(map(repr, options[:_SHOWN_OPTIONS]))
                self.refuse(key, f"has {one!r}", f"Write some of {shown}{', …' * (len(options) > _SHOWN_OPTIONS)}")
        return found

    def time_ms(self, key: str) -> int | None:
        """Return a date and time with its offset from UTC as milliseconds since 1970; None if absent."""
        value = self._typed(key, (datetime.datetime,), "a date and time such as 2027-01-01T00:00:00Z, without quotes")
        if value is None:
            return None
        if value.tzinfo is None:
            self.refuse(key, "has no offset from UTC", "Write it with a Z, such as 2027-01-01T00:00:00Z")
        return round(value.timestamp() * 1000)

    def day_ms(self, key: str, default_ms: int) -> int:
        """Return what ``time_ms`` returns; a date alone means its midnight in UTC."""
        value = self.take(key)
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return round(datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC).timestamp() * 1000)
        if value is not None and not isinstance(value, datetime.datetime):
            self.refuse(key, f"is {value!r}", "Write a date such as 2026-11-18, without quotes")
        found = self.time_ms(key)
        return default_ms if found is None else found

    def path_to(self, key: str) -> Path | None:
        """Return a path, which need not exist; a relative one is relative to the folder of this file."""
        value = self._typed(key, (str,), "a path in quotes")
        if "\0" in str(value):
            self.refuse(key, "holds a null character, which no path has", "Write a path in quotes")
        if value is None:
            return None
        path = self.folder / str(value)
        if self.files is not None:
            try:
                return self.files.path(path)
            except OSError:
                problem = f"names {value!r}, which is outside the folders that this file may name, or behind a link"
                self.refuse(key, problem, "Name a file below the folder of this file")
        return path

    def existing_file(self, key: str, *, example: str) -> Path:
        """Return the path of a file that exists; the key is required."""
        path = self.path_to(key)
        if path is None:
            self.missing(key, f'Write {key} = "{example}"')
        if not path.is_file():
            problem = f"names {self.values[key]!r}, which is not a file"
            self.refuse(key, problem, f"Put it into {self.folder} or name another")
        return path

    def section(self, key: str) -> Section:
        """Return a table; an empty one if absent."""
        return self._inner(self._typed(key, (dict,), f"a table: [{self._header(key)}]") or {}, key)

    def sections(self, key: str) -> list[Section]:
        """Return an array of tables; empty if absent."""
        remedy = f"an array of tables: [[{self._header(key)}]]"
        value = self._typed(key, (list,), remedy) or []
        if not all(isinstance(one, dict) for one in value):
            self.refuse(key, "is not an array of tables", f"Write {remedy}")
        return [self._inner(one, key, index) for index, one in enumerate(value)]

    def _header(self, key: str) -> str:
        return ".".join(part for part in (*self.path, key) if isinstance(part, str))

    def _inner(self, values: dict[str, Any], *path: str | int) -> Section:
        return Section(
            values,
            file=self.file,
            error=self._error,
            folder=self.folder,
            lines=self.lines,
            path=(*self.path, *path),
            files=self.files,
        )

    def done(self) -> None:
        """Refuse the file if it has keys that were not read."""
        for unknown in self.values:
            if unknown not in self._taken:
                similar = get_close_matches(unknown, self._taken, 1)
                hint = f"Did you mean {similar[0]!r}? " if similar else ""
                self.refuse(unknown, "is not a field", f"{hint}Fields here: {', '.join(sorted(self._taken))}")


def _name(path: Sequence[str | int]) -> str:
    """Return a path as text.

    >>> _name(("queries", 1, "epsilon"))
    'queries[1].epsilon'
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".") or "the file"


@dataclass(frozen=True, slots=True)
class Lines:
    """The line of each key, which ``tomllib`` does not keep.

    Keys are known by their paths: ``("queries", 1, "epsilon")`` is the second query's epsilon.
    """

    line_of_path: Mapping[KeyPath, int]

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
        lines: dict[KeyPath, int] = {}
        counts: dict[KeyPath, int] = {}
        table: KeyPath = ()
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
    def _enter(bracket: str, parts: list[str], counts: dict[KeyPath, int]) -> KeyPath:
        """Return the path of a table header. The name of an array of tables stands for its last table so far."""
        path: KeyPath = ()
        for index, part in enumerate(parts):
            path = (*path, part)
            if bracket == "[[" and index == len(parts) - 1:
                counts[path] = counts.get(path, -1) + 1
            if path in counts:
                path = (*path, counts[path])
        return path


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]
