"""JSON values with their paths: read each value, note what is wrong with it, continue.

Every reader returns None after noting a problem, so that a parser can go through a whole registration and report
everything that is wrong with it. Numbers are read as Chromium reads them: 3.0 counts as an integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from ara_client.constants import INT64_MAX, INT64_MIN, UINT64_MAX

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a registration. ``path`` leads to the value: keys and list indexes from the root."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        where = "".join(f"[{part}]" if isinstance(part, int) else f'["{part}"]' for part in self.path)
        return f"{where or 'root'}: {self.message}"


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """The outcome of parsing: a value, or the problems that prevented one.

    ``ignored`` lists problems of optional debugging fields, which the specification ignores.
    """

    value: T | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()


_MAX_DEPTH: Final = 200
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD]")
_UNSIGNED: Final = re.compile(r"\+?[0-9]+")
_SIGNED: Final = re.compile(r"[+-]?[0-9]+")
_KEY_PIECE: Final = re.compile(r"0[xX][0-9a-fA-F]{1,32}")
_ABSENT: Final = object()
_MAX_DIGITS: Final = 40


class InvalidJsonError(ValueError):
    """The text is not RFC 8259 JSON, or nests too deep."""


class Node:
    """A JSON value at a path, with the list of problems that its registration has so far."""

    __slots__ = ("path", "problems", "value")

    def __init__(self, value: Any, path: tuple[str | int, ...], problems: list[Problem]) -> None:
        self.value = value
        self.path = path
        self.problems = problems

    def problem(self, message: str) -> None:
        """Note what is wrong with this value."""
        self.problems.append(Problem(self.path, message))

    def field(self, key: str) -> Node | None:
        """Return the value of a key of this map, or None if the key is absent."""
        value = self.value.get(key, _ABSENT)
        return None if value is _ABSENT else Node(value, (*self.path, key), self.problems)

    def unsigned64_field(self, key: str) -> int | None:
        """Return the 64-bit unsigned integer of a key of this map, or None if it is absent or malformed."""
        node = self.field(key)
        return None if node is None else node.unsigned64()

    def signed64_field(self, key: str) -> int | None:
        """Return the 64-bit signed integer of a key of this map, or None if it is absent or malformed."""
        node = self.field(key)
        return None if node is None else node.signed64()

    def fields(self) -> Iterator[tuple[str, Node]]:
        """Yield keys and values of this map, in the order of their UTF-8 bytes, as Chromium keeps them."""
        for key in sorted(self.value, key=str.encode):
            yield key, Node(self.value[key], (*self.path, key), self.problems)

    def entries(self) -> Iterator[Node]:
        """Yield the values of this list."""
        for index, value in enumerate(self.value):
            yield Node(value, (*self.path, index), self.problems)

    def is_map(self) -> bool:
        """Return whether this is a map; note a problem if not."""
        if isinstance(self.value, dict):
            return True
        self.problem("must be a map")
        return False

    def is_list(self) -> bool:
        """Return whether this is a list; note a problem if not."""
        if isinstance(self.value, list):
            return True
        self.problem("must be a list")
        return False

    def string(self, max_bytes: int | None = None) -> str | None:
        """Return this string, of at most ``max_bytes`` bytes of UTF-8."""
        if not isinstance(self.value, str):
            self.problem("must be a string")
            return None
        if max_bytes is not None and len(self.value.encode()) > max_bytes:
            self.problem(f"must not be longer than {max_bytes} bytes")
            return None
        return self.value

    def integer(self, low: int, high: int) -> int | None:
        """Return this number, which must be an integer in the range."""
        value = self.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            self.problem(f"must be an integer from {low} to {high}")
            return None
        return value

    def unsigned64(self) -> int | None:
        """Return the 64-bit unsigned integer that this string writes in base 10."""
        return self._decimal(_UNSIGNED, 0, UINT64_MAX)

    def signed64(self) -> int | None:
        """Return the 64-bit signed integer that this string writes in base 10."""
        return self._decimal(_SIGNED, INT64_MIN, INT64_MAX)

    def key_piece(self) -> int | None:
        """Return the 128-bit integer that this string writes in base 16 (WICG, "parse an aggregation key piece")."""
        if not isinstance(self.value, str) or not _KEY_PIECE.fullmatch(self.value):
            self.problem("must be 0x followed by 1 to 32 hexadecimal digits, in a string")
            return None
        return int(self.value, 16)

    def _decimal(self, pattern: re.Pattern[str], low: int, high: int) -> int | None:
        text = self.value
        if isinstance(text, str) and len(text) <= _MAX_DIGITS and pattern.fullmatch(text):
            number = int(text)
            if low <= number <= high:
                return number
        self.problem(f"must be an integer from {low} to {high}, written in base 10 in a string")
        return None


def parse_registration(text: str, read: Callable[[Node, Node], T]) -> Parsed[T]:
    """Parse a header's text as a JSON map; return what ``read`` builds from the map, or every problem with it.

    ``read`` gets the map as two nodes. Problems noted through the first refuse the registration. The second is for
    debugging fields: problems noted through it are only listed in ``ignored``.
    """
    problems: list[Problem] = []
    ignored: list[Problem] = []
    try:
        root = Node(load_json(text), (), problems)
    except InvalidJsonError as error:
        return Parsed(None, (Problem((), str(error)),))
    value = read(root, Node(root.value, (), ignored)) if root.is_map() else None
    return Parsed(None if problems else value, tuple(problems), tuple(ignored))


def load_json(text: str) -> Any:
    """Return the value of RFC 8259 text; raise ``InvalidJsonError`` for other text, such as NaN or lone surrogates."""
    if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(text) > _MAX_DEPTH:
        raise InvalidJsonError("nests deeper than 200 levels")
    try:
        text.encode()
        value = _DECODER.decode(text)
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidJsonError(f"not JSON: {error}") from None
    return value


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= 16 else _float(text)


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise InvalidJsonError("a number is too large")
    return number


def _constant(text: str) -> NoReturn:
    raise InvalidJsonError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _depth(text: str) -> int:
    """Return how deep the brackets outside strings nest. Linear: a string without an end is searched for only once."""
    depth = deepest = 0
    for bracket in re.findall(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', text):
        depth += (bracket in "[{") - (bracket in "]}") if len(bracket) == 1 else 0
        deepest = max(deepest, depth)
    return deepest
