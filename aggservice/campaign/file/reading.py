"""Reading a campaign's tables strictly: each key by name and type, each refusal with its line and a remedy."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from aggservice.campaign.errors import CampaignFileError
from aggservice.campaign.file.lines import Lines


def read_text(path: Path, *, remedy: str) -> str:
    """Return the text of a file, or refuse it: ``remedy`` says where a good one is."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise CampaignFileError(f"cannot be read: {problem.strerror}", remedy=remedy, file=str(path)) from None
    except UnicodeDecodeError:
        raise CampaignFileError("is not UTF-8", remedy="Save it as UTF-8", file=str(path)) from None


def read_toml(text: str, file: str) -> Section:
    """Return the outermost table of a TOML text; what is no TOML is refused with its line."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        place = str(problem).rpartition("line ")[2].split(",")[0]
        raise CampaignFileError(
            f"is not TOML: {problem}",
            remedy="See https://toml.io for the format",
            line=int(place) if place.isdigit() else 0,
            file=file,
        ) from None
    return Section(document, file=file, lines=Lines.read(text))


class Section:
    """A table of a campaign file that remembers which of its keys have been read."""

    def __init__(self, values: dict[str, Any], *, file: str, lines: Lines, path: tuple[str | int, ...] = ()) -> None:
        self.values = values
        self.file = file
        self.lines = lines
        self.path = path
        self._taken: set[str] = set()

    def refuse(self, key: str, problem: str, remedy: str) -> NoReturn:
        """Refuse the file because of ``key`` (of this table itself when empty)."""
        path = (*self.path, key) if key else self.path
        name = ".".join(map(str, path)) or "the file"
        raise CampaignFileError(f"{name} {problem}", remedy=remedy, line=self.lines.of(path), file=self.file)

    def missing(self, key: str, remedy: str) -> NoReturn:
        """Refuse the file because ``key`` is not there; a field that looks like it is the likelier mistake."""
        for near in get_close_matches(key, [name for name in self.values if name not in self._taken], 1):
            self.refuse(near, "is not a field", f"Did you mean {key!r}?")
        self.refuse(key, "is missing", remedy)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def take(self, key: str) -> Any:
        """Return the value of a key as TOML gave it; None when absent."""
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
        """Return a string; without a default it must be there."""
        value = self._typed(key, (str,), "a string in quotes")
        if value is None:
            if default is None:
                self.missing(key, f'Write {key} = "{example or "…"}"')
            return default
        return str(value)

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        """Return one of some words."""
        value = self.text(key, default)
        if value not in options:
            self.refuse(key, f"is {value!r}", f"Write one of {', '.join(repr(option) for option in options)}")
        return value

    def whole(self, key: str, default: int | None, *, least: int, most: int) -> int:
        """Return a whole number within bounds; without a default it must be there."""
        value = self._typed(key, (int,), f"a whole number from {least:,} to {most:,}")
        if value is None:
            if default is None:
                self.missing(key, f"Write {key} = {max(least, 1)}")
            return default
        if not least <= value <= most:
            self.refuse(key, f"is {value}", f"Write a whole number from {least:,} to {most:,}")
        return int(value)

    def number(self, key: str, default: float | None, *, least: float, most: float, above: bool = False) -> float:
        """Return a number within bounds (``above``: strictly above the least)."""
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
        """Return an exact positive number: a whole number, or decimal text."""
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
        """Return a privacy amount as decimal text. ε and δ are never 0 unless ``zero`` says so."""
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
            self.refuse(key, f"is {text!r}", f'Write a decimal number {least}, such as "10": at 0 no noise is enough')
        return text

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._typed(key, (bool,), "true or false")
        return default if value is None else bool(value)

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._typed(key, (list,), 'a list of strings, such as ["a", "b"]')
        if value is None:
            if default is None:
                self.missing(key, f'Write {key} = ["a", "b"]')
            return tuple(default)
        if not value or not all(isinstance(one, str) and one for one in value) or len(set(value)) != len(value):
            self.refuse(key, "is not a list of distinct strings", 'Write a list such as ["a", "b"]')
        return tuple(value)

    def time_ms(self, key: str, default_ms: int) -> int:
        """Return a date, or a date and time with its offset from UTC, as milliseconds since 1970."""
        value = self.take(key)
        if value is None:
            return default_ms
        if isinstance(value, datetime.datetime):
            if value.tzinfo is None:
                self.refuse(key, "has no offset from UTC", "Write it with a Z, such as 2026-11-18T00:00:00Z")
            return round(value.timestamp() * 1000)
        if isinstance(value, datetime.date):
            midnight = datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)
            return round(midnight.timestamp() * 1000)
        self.refuse(key, f"is {value!r}", "Write a date such as 2026-11-18, without quotes")

    def file_path(self, key: str, folder: Path) -> Path | None:
        """Return a file that exists; a relative path is relative to the campaign file."""
        value = self._typed(key, (str,), "the path of a file, in quotes")
        if value is None:
            return None
        path = folder / str(value)
        if not path.is_file():
            self.refuse(key, f"names {value!r}, which is no file", f"Put it into {folder} or name another")
        return path

    def section(self, key: str) -> Section:
        """Return a table; an empty one when absent."""
        value = self._typed(key, (dict,), f"a table: [{key}]") or {}
        return Section(value, file=self.file, lines=self.lines, path=(*self.path, key))

    def sections(self, key: str) -> list[Section]:
        """Return an array of tables; empty when absent."""
        value = self._typed(key, (list,), f"an array of tables: [[{key}]]") or []
        if not all(isinstance(one, dict) for one in value):
            self.refuse(key, "is not an array of tables", f"Write [[{'.'.join(map(str, (*self.path, key)))}]]")
        return [
            Section(one, file=self.file, lines=self.lines, path=(*self.path, key, index))
            for index, one in enumerate(value)
        ]

    def done(self) -> None:
        """Refuse keys that nobody asked for."""
        for unknown in self.values:
            if unknown not in self._taken:
                near = get_close_matches(unknown, self._taken, 1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                self.refuse(unknown, "is not a field", f"{hint}Fields here: {', '.join(sorted(self._taken))}")
