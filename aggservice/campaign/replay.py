"""Replays event logs of measurement-simulation through simulated browsers, with the events' own keys and values.

The format is that of privacysandbox/measurement-simulation, OVERVIEW.md, "Source and trigger data input parameters":
one JSON object per event, in files by day. Each user gets an ``ara_client.Browser``, and the fields of an event become
its registration header. What a browser does not register is left out and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.world.logs import json_rows, log_files, time_ms_of
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits, ManualClock
from aggservice.wire import BucketRows, KeySet, PublicKeySet, ReportBatch, ReportWriter, Spans, write_buckets
from aggservice.wire.origins import parse_url
from aggservice.wire.report.body import open_report
from ara_client import AggregatableAttributionReport, Browser, Config, EventLevelReport, Request, Response
from ara_client.registration.headers import SOURCE_HEADER, TRIGGER_HEADER
from ara_client.registration.source import parse_source
from ara_client.registration.trigger import parse_trigger
from ara_client.reports import OutgoingReport

_DAY_MS = 86_400_000
_AFTER_MS = 31 * _DAY_MS
"""Sources expire after 30 days at most, and their last reports leave within a day."""
_TIMES = ("timestamp", "event_time", "trigger_time")
"""The names of an event's time; the library's first release had the last two."""
_PROBLEMS_KEPT = 5
_HELD = 2_000

_OF_THE_LOG = frozenset(
    {
        *_TIMES, "user_id", "source_type", "publisher", "web_destination", "attribution_destination",
        "destination_type", "enrollment_id", "registrant", "dedup_keys", "install_attribution_window",
        "post_install_exclusivity_window", "api_choice", "has_ar_debug_permission",
    }
)  # fmt: skip
"""Fields that say where and when an event happened, or that only Android has; all others belong to its header."""
_INTEGERS_AS_TEXT = frozenset(
    ["source_event_id", "priority", "debug_key", "trigger_data", "deduplication_key", "destination_limit_priority"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One registration of a log: its time, its user, and its place in the log."""

    time_ms: int
    user: str
    is_source: bool
    place: str
    request: Request
    response: Response


@dataclass(slots=True)
class Replayed:
    """What a replay did: counts of events and reports, what was left out by reason, and the first problems."""

    users: int = 0
    sources: int = 0
    triggers: int = 0
    reports: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return plain | {"reports": dict(self.reports), "left_out": dict(self.left_out)}

    def leave_out(self, reason: str, text: str) -> None:
        """Count an event that is left out, and keep the text of the first ones."""
        self.left_out[reason] += 1
        if len(self.problems) < _PROBLEMS_KEPT:
            self.problems.append(text)


def read_log(log: Path, replayed: Replayed, *, reporting_origin: str = "") -> list[LoggedEvent]:
    """Read the sources and triggers below a folder, in order of time.

    A row that cannot be understood is an error that names its place. Events of apps are left out. Without
    ``reporting_origin``, an event's ``enrollment_id`` must be the URL that its registration comes from.
    """
    found = []
    for is_source in (True, False):
        for path in log_files(log, "source" if is_source else "trigger"):
            for number, row in enumerate(json_rows(path), 1):
                place = f"{path.relative_to(log) if log.is_dir() else path.name}, row {number}"
                event = _event(row, place, replayed, is_source=is_source, reporting_origin=reporting_origin)
                if event is not None:
                    found.append(event)
    # At the same time a source comes first, as in the simulation library; sorting keeps the log's order otherwise.
    return sorted(found, key=lambda event: (event.time_ms, not event.is_source))


def _event(
    row: Mapping[str, Any], place: str, replayed: Replayed, *, is_source: bool, reporting_origin: str
) -> LoggedEvent | None:
    def text(*names: str) -> str:
        value = next((row[name] for name in names if row.get(name) not in (None, "")), None)
        if value is None:
            raise CampaignError(f"{place}: it has no {' or '.join(names)}")
        return str(value)

    try:
        time_ms = time_ms_of(next((row[name] for name in _TIMES if name in row), None))
    except ValueError as problem:
        raise CampaignError(f"{place}: the timestamp is {problem}") from None
    destination = text(*(("web_destination", "destination") if is_source else ("attribution_destination",)))
    page = text("publisher") if is_source else destination
    if any(one.startswith("android-app:") for one in (destination, page)):
        replayed.leave_out("of an app", f"{place}: browsers measure the web, and this is about an app")
        return None
    url = reporting_origin or text("enrollment_id")
    for name, one in (("enrollment_id", url), ("publisher" if is_source else "attribution_destination", page)):
        if parse_url(one) is None:
            remedy = ": give the reporting origin with --reporting-origin" if name == "enrollment_id" else ""
            raise CampaignError(f"{place}: {name} is {one[:80]!r}, which is not a URL{remedy}")
    kind = text("source_type").lower() if is_source else ""
    if kind not in ("event", "navigation", ""):
        raise CampaignError(f"{place}: source_type is {kind!r}: write EVENT or NAVIGATION")
    header = _source_header(row, destination) if is_source else _trigger_header(row, place)
    origin = parse_url(page)
    assert origin is not None
    return LoggedEvent(
        time_ms=time_ms,
        user=text("user_id"),
        is_source=is_source,
        place=place,
        request=Request(context=str(origin.origin), eligible=f"{kind}-source" if is_source else None),
        response=Response(
            url=url,
            headers={SOURCE_HEADER if is_source else TRIGGER_HEADER: json.dumps(header)},
            debug_allowed=row.get("has_ar_debug_permission") is True,
        ),
    )


def _source_header(row: Mapping[str, Any], destination: str) -> dict[str, Any]:
    header = {name: _as_headers_write(name, value) for name, value in row.items() if name not in _OF_THE_LOG}
    header["destination"] = destination
    keys = header.get("aggregation_keys")
    if isinstance(keys, list):  # the log may have one object per key, and in the first release with names for its parts
        header["aggregation_keys"] = {
            name: piece
            for one in keys
            for name, piece in ({one["id"]: one["key_piece"]} if {"id", "key_piece"} == set(one) else one).items()
        }
    return header


def _trigger_header(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    header = {name: _as_headers_write(name, value) for name, value in row.items() if name not in _OF_THE_LOG}
    if isinstance(header.get("filters"), str):  # as in the first release
        try:
            header["filters"] = json.loads(header["filters"])
        except ValueError:
            raise CampaignError(f"{place}: filters is not JSON") from None
    values = header.get("aggregatable_values")
    if isinstance(values, dict):  # the log may have them as text
        try:
            header["aggregatable_values"] = {
                name: int(value) if isinstance(value, str) else value for name, value in values.items()
            }
        except ValueError:
            raise CampaignError(f"{place}: aggregatable_values must be whole numbers") from None
    return header


def _as_headers_write(name: str, value: Any) -> Any:
    """Return a value as a header holds it: a 64-bit number, which the log may hold as a number, becomes text."""
    if isinstance(value, dict):
        return {key: _as_headers_write(key, one) for key, one in value.items()}
    if isinstance(value, list):
        return [
            _as_headers_write("", one) if not isinstance(one, dict) else _as_headers_write(name, one) for one in value
        ]
    if name in _INTEGERS_AS_TEXT and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def reports_of(
    events: list[LoggedEvent], bits: Bits, replayed: Replayed, keys: PublicKeySet
) -> Iterator[OutgoingReport]:
    """Yield what the browsers of all users send, user by user, until their last source has expired."""
    by_user: dict[str, list[LoggedEvent]] = {}
    for event in events:
        by_user.setdefault(event.user, []).append(event)
    vendor = Config()
    for user, mine in by_user.items():
        replayed.users += 1
        browser = Browser(clock=ManualClock(mine[0].time_ms), bits=bits.child(f"user {user}"), config=vendor, keys=keys)
        for event in mine:
            yield from browser.advance(event.time_ms)
            replayed.sources += event.is_source
            replayed.triggers += not event.is_source
            _check(event, vendor, replayed)
            yield from browser.register(event.request, event.response)
        yield from browser.advance(mine[-1].time_ms + _AFTER_MS)


def _check(event: LoggedEvent, vendor: Config, replayed: Replayed) -> None:
    """Count a registration that the browser will not take, with what is wrong with it."""
    (text,) = map(str, event.response.headers.values())
    kind = (event.request.eligible or "").removesuffix("-source")
    parsed = parse_source(text, kind, vendor) if event.is_source else parse_trigger(text, vendor)
    if parsed.problems:
        replayed.leave_out("refused by the browser", f"{event.place}: {parsed.problems[0]}")


def replay_log(
    log: Path, out: Path, *, bits: Bits, keys: PublicKeySet | None = None, reporting_origin: str = ""
) -> Replayed:
    """Replay a log into a new folder: ``aggregatable/DAY.avro``, ``event-level.jsonl`` and ``domain.avro``.

    With ``keys`` reports are sealed to them; otherwise their payloads are in the clear, as ``aggservice aggregate``
    reads them. The domain has every key that occurs. Copies for debugging and verbose reports are only counted.
    """
    replayed = Replayed()
    events = read_log(log, replayed, reporting_origin=reporting_origin)
    if not events:
        raise CampaignError(
            f"{log} has no events of the web: name a folder with files *source*.json and *trigger*.json"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CampaignError(f"{out} exists and is not an empty folder: name another with --out")
    (out / "aggregatable").mkdir(parents=True)
    own = KeySet.create(bits.child("keys"), ManualClock(events[0].time_ms)) if keys is None else None
    public = keys or own.public(ManualClock(events[0].time_ms))  # type: ignore[union-attr]
    buckets: set[int] = set()
    with ExitStack() as stack, whole_file(out / "event-level.jsonl") as lines:
        days = _Days(out / "aggregatable", own, stack)
        with lines.open("w", encoding="utf-8") as file:
            for report in reports_of(events, bits, replayed, public):
                debug = getattr(report, "debug", False)
                replayed.reports[("debug/" if debug else "") + report.endpoint] += 1
                if isinstance(report, AggregatableAttributionReport) and not debug:
                    days.add(report)
                    buckets.update(one.bucket for one in report.contributions)
                elif isinstance(report, EventLevelReport) and not debug:
                    file.write(report.to_json() + "\n")
        days.flush()
    split = [(bucket >> 64, bucket & (1 << 64) - 1) for bucket in sorted(buckets)]
    high, low = (np.array([one[half] for one in split], dtype=np.uint64) for half in (0, 1))
    write_buckets(out / "domain.avro", BucketRows.domain(high, low))
    return replayed


class _Days:
    """Writes aggregatable reports to one Avro file per UTC day of their scheduled time."""

    def __init__(self, folder: Path, own: KeySet | None, stack: ExitStack) -> None:
        self._folder, self._own, self._stack = folder, own, stack
        self._writers: dict[str, ReportWriter] = {}
        self._held: dict[str, list[tuple[bytes, bytes, bytes]]] = {}
        self._count = 0

    def add(self, report: AggregatableAttributionReport) -> None:
        """Add a report. Open it first if this run sealed it to keys of its own."""
        sealed = report.sealed
        assert sealed is not None
        payload = sealed.payloads[0].payload if self._own is None else open_report(sealed, self._own)
        day = datetime.fromtimestamp(report.scheduled_time_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
        row = payload, sealed.payloads[0].key_id.encode(), sealed.shared_info.encode()
        self._held.setdefault(day, []).append(row)
        self._count += 1
        if self._count >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        for day, rows in self._held.items():
            if day not in self._writers:
                self._writers[day] = self._stack.enter_context(ReportWriter(self._folder / f"{day}.avro"))
            payloads, key_ids, infos = (Spans.of(list(column)) for column in zip(*rows, strict=True))
            self._writers[day].write(ReportBatch(payloads=payloads, key_ids=key_ids, shared_infos=infos))
        self._held, self._count = {}, 0
