"""Parse thousands of ``shared_info`` texts into columns, in one pass.

A kernel reads the text that browsers write: a flat JSON object of plain strings with the known names. Anything else
goes to the single parser, one at a time, so that both accept and refuse the same texts under the same counters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.wire.batch.spans import Spans
from aggservice.wire.errors import ReportStatus, SharedInfoError
from aggservice.wire.limits import MAX_SHARED_INFO_BYTES, MAX_TIME_S
from aggservice.wire.origins import is_reporting_origin
from aggservice.wire.report.shared_info import UNVERSIONED, W3C_NUMBERS, Api, SharedInfo

APIS = tuple(Api)
"""The column ``api`` holds indexes into this tuple."""

ABSENT = -1
_OK = int(ReportStatus.OK)
_UNRECOGNISED = 255
_MALFORMED_ORIGIN = int(ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED)
_VERSIONS = ("0.1", "1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInfoColumns:
    """The fields of many ``shared_info`` texts; the other columns of a row are valid only if its ``status`` is OK (0).

    ``api``, ``version``, ``origin`` and ``destination`` are indexes into ``APIS``, ``versions``, ``origins`` and
    ``destinations``; an absent destination or source time is -1. The last three columns are the numbers of W3C
    reports, and -1 for others. Reports without a version are refused here.
    """

    status: NDArray[np.uint8]
    api: NDArray[np.int8]
    version: NDArray[np.int32]
    report_id: NDArray[np.uint8]
    origin: NDArray[np.int32]
    destination: NDArray[np.int32]
    scheduled_report_time_s: NDArray[np.int64]
    source_registration_time_s: NDArray[np.int64]
    debug_mode: NDArray[np.bool_]
    histogram_size: NDArray[np.int64]
    max_value: NDArray[np.int64]
    epsilon_micro: NDArray[np.int64]
    versions: tuple[str, ...]
    origins: tuple[str, ...]
    destinations: tuple[str, ...]

    def __len__(self) -> int:
        return self.status.size

    def row(self, row: int) -> SharedInfo:
        """Return one row as an object; its status must be OK."""
        source = int(self.source_registration_time_s[row])
        destination = int(self.destination[row])
        raw = self.report_id[row].tobytes().hex()
        size, most, micro = (
            None if number == ABSENT else int(number)
            for number in (self.histogram_size[row], self.max_value[row], self.epsilon_micro[row])
        )
        return SharedInfo(
            api=APIS[self.api[row]],
            version=self.versions[self.version[row]],
            report_id=f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}",
            reporting_origin=self.origins[self.origin[row]],
            scheduled_report_time_s=int(self.scheduled_report_time_s[row]),
            attribution_destination=None if destination == ABSENT else self.destinations[destination],
            source_registration_time_s=None if source == ABSENT else source,
            debug_mode=bool(self.debug_mode[row]),
            histogram_size=size,
            max_value=most,
            epsilon_micro=micro,
        )


class _TextIndex:
    """Gives each distinct text an index, counted from 0."""

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self._indexes = {text.encode(): index for index, text in enumerate(texts)}

    def add(self, raw: bytes) -> int:
        """Return the index of a text; a new text gets the next one."""
        return self._indexes.setdefault(raw, len(self._indexes))

    def texts(self) -> tuple[str, ...]:
        """Return the texts in the order of their indexes."""
        return tuple(raw.decode() for raw in self._indexes)


def parse_shared_info_batch(texts: Spans) -> SharedInfoColumns:
    """Return the fields of every text. A text that the single parser refuses gets the status of its error."""
    rows = len(texts)
    status = np.zeros(rows, dtype=np.uint8)
    api = np.zeros(rows, dtype=np.int8)
    version = np.zeros(rows, dtype=np.int32)
    report_id = np.zeros((rows, 16), dtype=np.uint8)
    times = np.zeros((2, rows), dtype=np.int64)
    debug_mode = np.zeros(rows, dtype=np.bool_)
    numbers = np.full((len(W3C_NUMBERS), rows), ABSENT, dtype=np.int64)
    found = np.zeros((rows, _FIELDS, 2), dtype=np.int64)
    parse_kernel(
        texts.buffer, texts.starts, texts.stops, status, api, version, report_id, times, debug_mode, numbers, found
    )
    good = status == _OK
    origins, destinations, versions = _TextIndex(), _TextIndex(), _TextIndex(_VERSIONS)
    origin = _interned(texts, found[:, _ORIGIN], good, origins)
    destination = _interned(texts, found[:, _DESTINATION], good & (found[:, _DESTINATION, 0] >= 0), destinations)
    malformed = [index for index, text in enumerate(origins.texts()) if not is_reporting_origin(text)]
    if malformed:
        status[good & np.isin(origin, malformed)] = _MALFORMED_ORIGIN
    for row in np.flatnonzero(status == _UNRECOGNISED).tolist():
        try:
            info = SharedInfo.parse(texts[row])
            if info.version == UNVERSIONED or info.api is None:
                raise SharedInfoError(ReportStatus.UNSUPPORTED_SHAREDINFO_VERSION, "shared_info: version is missing")
        except SharedInfoError as error:
            status[row] = error.status
            continue
        status[row] = _OK
        api[row] = APIS.index(info.api)
        version[row] = versions.add(info.version.encode())
        report_id[row] = np.frombuffer(info.report_id_bytes, dtype=np.uint8)
        origin[row] = origins.add(info.reporting_origin.encode())
        if info.attribution_destination is not None:
            destination[row] = destinations.add(info.attribution_destination.encode())
        source = info.source_registration_time_s
        times[:, row] = info.scheduled_report_time_s, ABSENT if source is None else source
        debug_mode[row] = info.debug_mode
        if info.api is Api.W3C_ATTRIBUTION:
            numbers[:, row] = [getattr(info, name) for name in W3C_NUMBERS]
    return SharedInfoColumns(
        status=status,
        api=api,
        version=version,
        report_id=report_id,
        origin=origin,
        destination=destination,
        scheduled_report_time_s=times[0],
        source_registration_time_s=times[1],
        debug_mode=debug_mode,
        **dict(zip(W3C_NUMBERS, numbers, strict=True)),
        versions=versions.texts(),
        origins=origins.texts(),
        destinations=destinations.texts(),
    )


def _interned(
    texts: Spans, found: NDArray[np.int64], chosen: NDArray[np.bool_], index: _TextIndex
) -> NDArray[np.int32]:
    """Return, per chosen row, the index of the text between its start and stop in ``found``; -1 for other rows."""
    column = np.full(len(texts), ABSENT, dtype=np.int32)
    rows = np.flatnonzero(chosen)
    starts, stops = found[rows, 0], found[rows, 1]
    # Texts repeat: those of equal hash are compared with the first of them, and only that one is looked up.
    _, first, group = np.unique(hash_texts(texts.buffer, starts, stops), return_index=True, return_inverse=True)
    alike = same_texts(texts.buffer, starts, stops, first[group])
    looked_up = first if alike.all() else np.concatenate((first, np.flatnonzero(~alike)))
    spans = Spans(buffer=texts.buffer, starts=starts[looked_up], stops=stops[looked_up])
    known = np.fromiter(map(index.add, spans), dtype=np.int32, count=looked_up.size)
    taken = known[group]
    taken[~alike] = known[first.size :]
    column[rows] = taken
    return column


_NAMES = (
    "api",
    "attribution_destination",
    "debug_mode",
    "report_id",
    "reporting_origin",
    "scheduled_report_time",
    "source_registration_time",
    "version",
    *(key for key, _ in W3C_NUMBERS.values()),
)
_FIELDS = len(_NAMES)
_API, _DESTINATION, _DEBUG, _REPORT_ID, _ORIGIN, _SCHEDULED, _SOURCE, _VERSION, _NUMBERS = range(9)
_NAME_BYTES = np.frombuffer("".join(_NAMES).encode(), dtype=np.uint8)
_NAME_STOPS = np.cumsum([len(name) for name in _NAMES])
_API_BYTES = np.frombuffer("".join(APIS).encode(), dtype=np.uint8)
_API_STOPS = np.cumsum([len(name) for name in APIS])
_API_HAS_DESTINATION = np.array([name.has_destination for name in APIS])
_API_HAS_SOURCE = np.array([name.has_source_time for name in APIS])
_W3C = APIS.index(Api.W3C_ATTRIBUTION)
_MOST = np.array([most for _, most in W3C_NUMBERS.values()], dtype=np.int64)
_ENABLED = np.frombuffer(b"enabled", dtype=np.uint8)
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _DASH, _ZERO = 0x22, 0x5C, 0x3A, 0x2C, 0x7B, 0x7D, 0x2D, 0x30
_MAX_DIGITS = 12


@njit(cache=True)
def _among(buffer, start, stop, words, word_stops):  # type: ignore[no-untyped-def]
    """Return the number of the word, among the concatenated ``words``, that ``buffer[start:stop]`` equals, or -1."""
    word_start = 0
    for word in range(word_stops.size):
        if word_stops[word] - word_start == stop - start:
            same = True
            for index in range(stop - start):
                if buffer[start + index] != words[word_start + index]:
                    same = False
                    break
            if same:
                return word
        word_start = word_stops[word]
    return -1


@njit(cache=True)
def hash_texts(buffer, starts, stops):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of each text (FNV-1a, Fowler, Noll and Vo); equal texts have equal hashes."""
    out = np.empty(starts.size, dtype=np.uint64)
    for row in range(starts.size):
        h = np.uint64(0xCBF29CE484222325)
        for at in range(starts[row], stops[row]):
            h = (h ^ np.uint64(buffer[at])) * np.uint64(0x100000001B3)
        out[row] = h
    return out


@njit(cache=True)
def same_texts(buffer, starts, stops, others):  # type: ignore[no-untyped-def]
    """Return, for each row i, whether its text equals the text of row ``others[i]``."""
    out = np.empty(starts.size, dtype=np.bool_)
    for row in range(starts.size):
        other = others[row]
        length = stops[row] - starts[row]
        out[row] = length == stops[other] - starts[other]
        if out[row]:
            for index in range(length):
                if buffer[starts[row] + index] != buffer[starts[other] + index]:
                    out[row] = False
                    break
    return out


@njit(cache=True)
def _string_stop(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return the position of the quote that ends the plain string beginning at ``start``, or -1."""
    for at in range(start, stop):
        byte = buffer[at]
        if byte == _QUOTE:
            return at
        if byte < 0x21 or byte > 0x7E or byte == _BACKSLASH:
            return -1
    return -1


@njit(cache=True)
def _fields(buffer, start, stop, found):  # type: ignore[no-untyped-def]
    """Write the start and stop of each known field's value; return False if the text is not a flat, plain object."""
    for field in range(_FIELDS):
        found[field, 0] = -1
        found[field, 1] = -1
    if stop - start < 2 or stop - start > MAX_SHARED_INFO_BYTES or buffer[start] != _OPEN or buffer[stop - 1] != _CLOSE:
        return False
    at = start + 1
    while True:
        if at + 1 >= stop or buffer[at] != _QUOTE:
            return False
        name_stop = _string_stop(buffer, at + 1, stop)
        if name_stop < 0 or name_stop + 2 >= stop:
            return False
        field = _among(buffer, at + 1, name_stop, _NAME_BYTES, _NAME_STOPS)
        if field < 0 or found[field, 0] >= 0 or buffer[name_stop + 1] != _COLON or buffer[name_stop + 2] != _QUOTE:
            return False
        value_stop = _string_stop(buffer, name_stop + 3, stop)
        if value_stop < 0 or value_stop + 1 >= stop:
            return False
        found[field, 0] = name_stop + 3
        found[field, 1] = value_stop
        at = value_stop + 2
        if buffer[value_stop + 1] == _CLOSE:
            return at == stop
        if buffer[value_stop + 1] != _COMMA:
            return False


@njit(cache=True)
def _whole(buffer, start, stop, most):  # type: ignore[no-untyped-def]
    """Return the number, if it is in decimal without leading zeros and at most ``most``; otherwise -1."""
    digits = stop - start
    if start < 0 or digits < 1 or digits > _MAX_DIGITS or (digits > 1 and buffer[start] == _ZERO):
        return -1
    total = np.int64(0)
    for at in range(start, stop):
        digit = np.int64(buffer[at]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        total = total * 10 + digit
    return total if total <= most else -1


@njit(cache=True)
def _uuid(buffer, start, stop, into):  # type: ignore[no-untyped-def]
    """Write the 16 bytes of a UUID in its usual form; return False for anything else."""
    if start < 0 or stop - start != 36:
        return False
    nibbles = 0
    for index in range(36):
        byte = np.int64(buffer[start + index])
        if index in (8, 13, 18, 23):
            if byte != _DASH:
                return False
            continue
        if 0x30 <= byte <= 0x39:
            nibble = byte - 0x30
        elif 0x61 <= byte <= 0x66:
            nibble = byte - 0x57
        elif 0x41 <= byte <= 0x46:
            nibble = byte - 0x37
        else:
            return False
        if nibbles % 2 == 0:
            into[nibbles // 2] = nibble << 4
        else:
            into[nibbles // 2] |= nibble
        nibbles += 1
    return True


@njit(cache=True)
def parse_kernel(  # type: ignore[no-untyped-def]
    buffer, starts, stops, status, api, version, report_id, times, debug_mode, numbers, found
):
    """Fill the columns of every text in the form browsers write; the others get the status 255.

    ``times`` gets the scheduled time and the source's time, ``found`` the start and stop of each value. Origins are not
    checked here: few are distinct, so the caller checks each once.
    """
    for row in range(starts.size):
        status[row] = _UNRECOGNISED
        spans = found[row]
        if not _fields(buffer, starts[row], stops[row], spans):
            continue
        if spans[_API, 0] < 0 or spans[_ORIGIN, 1] <= spans[_ORIGIN, 0]:
            continue
        which = _among(buffer, spans[_API, 0], spans[_API, 1], _API_BYTES, _API_STOPS)
        if which < 0:
            continue
        at = spans[_VERSION, 0]
        if at < 0 or spans[_VERSION, 1] - at != 3 or buffer[at + 1] != 0x2E:
            continue
        first, last = buffer[at] - _ZERO, buffer[at + 2] - _ZERO
        if not ((first == 0 and last == 1) or (first == 1 and last == 0)):
            continue
        if not _uuid(buffer, spans[_REPORT_ID, 0], spans[_REPORT_ID, 1], report_id[row]):
            continue
        times[0, row] = _whole(buffer, spans[_SCHEDULED, 0], spans[_SCHEDULED, 1], MAX_TIME_S)
        if times[0, row] < 0:
            continue
        times[1, row] = -1
        if _API_HAS_DESTINATION[which]:
            if spans[_DESTINATION, 1] <= spans[_DESTINATION, 0]:
                continue
        else:
            spans[_DESTINATION, 0] = -1
        if _API_HAS_SOURCE[which] and spans[_SOURCE, 0] >= 0:
            times[1, row] = _whole(buffer, spans[_SOURCE, 0], spans[_SOURCE, 1], MAX_TIME_S)
            if times[1, row] < 0:
                continue
        if which == _W3C:
            valid = True
            for index in range(_MOST.size):
                at = _NUMBERS + index
                numbers[index, row] = _whole(buffer, spans[at, 0], spans[at, 1], _MOST[index])
                valid = valid and numbers[index, row] >= 1
            if not valid:
                continue
        if spans[_DEBUG, 0] >= 0:
            if spans[_DEBUG, 1] - spans[_DEBUG, 0] != _ENABLED.size:
                continue
            enabled = True
            for index in range(_ENABLED.size):
                enabled = enabled and buffer[spans[_DEBUG, 0] + index] == _ENABLED[index]
            if not enabled:
                continue
            debug_mode[row] = True
        api[row] = which
        version[row] = first
        status[row] = 0
