"""Checks of input before anything is computed from it: counts, probabilities, reports and columns.

Types are strict: a count is never a float or a Boolean, and an unsigned word is never a signed one. Messages show
parameters, never a user's value.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ldp_client.errors import LdpParameterError, ReportError

Words = NDArray[np.uint64]
Columns = TypeVar("Columns")

#: The largest accepted number of reports, users or draws.
MOST = (1 << 63) - 1


def short_text(parameter: object, longest: int = 80) -> str:
    """Return a short text of a parameter for an error message. Not for a user's value."""
    try:
        text = repr(parameter)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deeply nested lists
        return f"a {type(parameter).__name__} too long to print"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def is_count(value: object, least: int, most: int = MOST) -> bool:
    """Return whether ``value`` is an integer in [least, most], of Python or of numpy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


def is_chance(value: object) -> bool:
    """Return whether ``value`` is a number strictly between 0 and 1."""
    return isinstance(value, int | float | Fraction | np.floating) and bool(0 < value < 1)


def check_stream(reports: object) -> None:
    """Raise ``LdpParameterError`` unless the number of reports is an integer of at least 1."""
    if not is_count(reports, 1):
        raise LdpParameterError(f"reports must be an integer of at least 1, not {short_text(reports)}")


def check_error_terms(users: object, beta: object) -> None:
    """Raise ``LdpParameterError`` unless there is at least one user and 0 < β < 1."""
    if not is_count(users, 1) or not is_chance(beta):
        raise LdpParameterError(
            f"an error bound needs at least one user and 0 < β < 1, got {short_text(users)} users and "
            f"β = {short_text(beta)}"
        )


def as_list(reports: Iterable[Any], what: str) -> list[Any]:
    """Return clients' reports as a list; ``ReportError`` if they are not a sequence."""
    try:
        return list(reports)
    except TypeError:
        pass
    raise ReportError(f"{what} must be a sequence, not a single {type(reports).__name__}")


def whole_numbers(given: Any, limit: int, what: str) -> NDArray[np.int64]:
    """Return integers in [0, limit), given as any sequence, as an array; ``limit`` is at most 2^62."""
    if isinstance(given, np.ndarray):
        return check_numbers(given, limit, what)
    items = as_list(given, what)
    if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
        raise ReportError(f"{what} must be integers in [0, {limit})")
    if not all(0 <= item < limit for item in items):
        raise ReportError(f"{what} must lie in [0, {limit})")
    return np.array(items, dtype=np.int64)


def check_columns(columns: object, kind: type[Columns]) -> Columns:
    """Return one collection's columns; ReportError unless they are of class ``kind``."""
    if not isinstance(columns, kind):
        raise ReportError(
            f"cannot estimate from a {type(columns).__name__}: give {kind.__name__} from `columns` or a fleet"
        )
    return columns


def check_numbers(column: object, limit: int, what: str) -> NDArray[np.int64]:
    """Return a column of integers in [0, limit), one per report."""
    array = _array(column, what)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ReportError(f"{what} must be one integer per report, not {array.dtype}{array.shape}")
    whole = array.astype(np.int64, copy=False)  # unsigned words of 2^63 and above become negative
    if whole.size and not 0 <= whole.min() <= whole.max() < limit:
        raise ReportError(f"{what} must lie in [0, {limit})")
    return whole


def check_words(column: object, shape: tuple[int, ...], what: str) -> Words:
    """Return a column of unsigned 64-bit words of this shape; numpy would later turn signed ones into floats."""
    array = _array(column, what)
    if array.dtype != np.uint64 or array.shape != shape:
        raise ReportError(f"{what} must be uint64 words of shape {shape}, not {array.dtype}{array.shape}")
    return array


def check_rows(rows: object, width: int, what: str) -> Words:
    """Return any number of rows of ``width`` words."""
    return check_words(rows, (rows.shape[0] if isinstance(rows, np.ndarray) and rows.ndim else 0, width), what)


def _array(column: object, what: str) -> NDArray[Any]:
    if not isinstance(column, np.ndarray) or isinstance(column, np.ma.MaskedArray):
        raise ReportError(
            f"{what} must be a numpy array, as `columns` or a fleet returns it, not a {type(column).__name__}"
        )
    return np.asarray(column)


def check_value(value: int | np.integer[Any], k: int) -> int:
    """Return ``value`` as an int; ReportError if it is not an integer in [0, k)."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < k:
        raise ReportError(f"a value must be an integer in [0, {k})")
    return int(value)


def check_values(values: ArrayLike, k: int, users: int) -> NDArray[np.int64]:
    """Return ``values`` as an array with one integer in [0, k) per user."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):  # lists of different lengths
        array = np.empty(0, dtype=np.object_)
    if array.shape != (users,) or array.dtype.kind not in "iu":
        raise ReportError(f"values must be {users} integers, one per user, not {array.dtype}{array.shape}")
    return check_numbers(array, k, "values")


def check_users(users: int) -> int:
    """Return the size of a fleet; ReportError if it is not an integer of at least one."""
    if isinstance(users, bool) or not isinstance(users, int) or not 0 < users < 1 << 31:
        raise ReportError(f"users must be an integer from 1 to 2^31 - 1, not {short_text(users)}")
    return users
