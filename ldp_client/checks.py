"""What comes in from outside, checked before anything is computed from it: counts, chances, reports, columns.

A number is taken only as what it is: no float that happens to be whole, no Boolean for a count, no signed word for an
unsigned one. Messages show parameters, never what a user holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ldp_client.errors import ReportError

Words = NDArray[np.uint64]
Columns = TypeVar("Columns")

#: More reports, users or draws than this are taken for a mistake.
MOST = (1 << 63) - 1


def shown(parameter: object, longest: int = 80) -> str:
    """Return a parameter as a message may show it, short whatever it is. Not for what a user holds."""
    try:
        text = repr(parameter)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, lists in lists in lists
        return f"a {type(parameter).__name__} too long to print"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def is_count(value: object, least: int, most: int = MOST) -> bool:
    """Return whether ``value`` is a whole number in [least, most], of Python or of numpy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


def is_chance(value: object) -> bool:
    """Return whether ``value`` is a number strictly between 0 and 1."""
    return isinstance(value, int | float | Fraction | np.floating) and bool(0 < value < 1)


def as_list(reports: Iterable[Any], what: str) -> list[Any]:
    """Return clients' reports as a list."""
    try:
        return list(reports)
    except TypeError:
        pass
    raise ReportError(f"{what} must be a sequence, not a single {type(reports).__name__}")


def whole_numbers(given: Any, limit: int, what: str) -> NDArray[np.int64]:
    """Return whole numbers in [0, limit), from any sequence of them, as an array; ``limit`` is at most 2^62."""
    if isinstance(given, np.ndarray):
        return check_numbers(given, limit, what)
    items = as_list(given, what)
    if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
        raise ReportError(f"{what} must be whole numbers in [0, {limit})")
    if not all(0 <= item < limit for item in items):
        raise ReportError(f"{what} must lie in [0, {limit})")
    return np.array(items, dtype=np.int64)


def check_columns(columns: object, kind: type[Columns]) -> Columns:
    """Return one collection's columns, refusing what is of another protocol or no columns at all."""
    if not isinstance(columns, kind):
        raise ReportError(
            f"estimates are made from {kind.__name__}, as `columns` or a fleet returns them, "
            f"not from a {type(columns).__name__}"
        )
    return columns


def check_numbers(column: object, limit: int, what: str) -> NDArray[np.int64]:
    """Return a column of whole numbers in [0, limit), one a report."""
    array = _array(column, what)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ReportError(f"{what} must be one whole number a report, not {array.dtype}{array.shape}")
    whole = array.astype(np.int64, copy=False)  # what an unsigned word holds beyond 2^63 becomes negative
    if whole.size and not 0 <= whole.min() <= whole.max() < limit:
        raise ReportError(f"{what} must lie in [0, {limit})")
    return whole


def check_words(column: object, shape: tuple[int, ...], what: str) -> Words:
    """Return a column of unsigned 64-bit words of this shape; signed ones would turn into floats further on."""
    array = _array(column, what)
    if array.dtype != np.uint64 or array.shape != shape:
        raise ReportError(f"{what} must be uint64 words of shape {shape}, not {array.dtype}{array.shape}")
    return array


def check_rows(rows: object, width: int, what: str) -> Words:
    """Return rows of ``width`` words, as many as there are."""
    return check_words(rows, (rows.shape[0] if isinstance(rows, np.ndarray) and rows.ndim else 0, width), what)


def _array(column: object, what: str) -> NDArray[Any]:
    if not isinstance(column, np.ndarray) or isinstance(column, np.ma.MaskedArray):
        raise ReportError(
            f"{what} must be a numpy array, as `columns` or a fleet returns it, not a {type(column).__name__}"
        )
    return np.asarray(column)
