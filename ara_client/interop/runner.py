"""Running interoperability cases against ``Browser`` and comparing every report, time and payload field.

Aggregatable reports are sealed to a key made for the run, then opened, so the comparison covers the sent bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from operator import ne
from pathlib import Path
from traceback import format_exc
from typing import Any

from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import AggregatableReport, KeySet, decode_payload, open_report
from aggservice.wire.device import DeviceError, SendResult
from ara_client.browser import Browser
from ara_client.interop.cases import DEFAULT_CONFIG, Case, CaseEvent, InteropCaseError, load_case, load_config
from ara_client.randomness import FixedChoices
from ara_client.reports import EventLevelReport, OutgoingReport, VerboseDebugReport

JsonMap = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of a case: an empty diff, or a unified diff of expected and actual reports.

    ``ignored`` lists unknown fields of its configuration.
    """

    name: str
    reports: int
    diff: str
    ignored: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every report was as expected."""
        return not self.diff

    @property
    def differences(self) -> tuple[str, ...]:
        """The lines of the diff."""
        return tuple(self.diff.splitlines())


def run_directory(
    folder: Path, only: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
) -> Iterator[CaseResult]:
    """Run every case of a directory in order of name; ``only`` selects some by name.

    Raises ``InteropCaseError`` if the directory has no ``default_config.json``, no case, or not every selected case.
    """
    config = folder / DEFAULT_CONFIG
    if not config.is_file():
        raise InteropCaseError(f"{folder} has no {DEFAULT_CONFIG}: name the folder that holds Chromium's cases")
    default = load_config(config)
    paths = sorted(path for path in folder.glob("*.json") if path.name != DEFAULT_CONFIG)
    if only:
        missing = set(only) - {path.stem for path in paths}
        if missing:
            raise InteropCaseError(f"{folder} has no case named {', '.join(sorted(missing))}: check the spelling")
        paths = [path for path in paths if path.stem in only]
    if not paths:
        raise InteropCaseError(f"{folder} has no cases: name the folder that holds Chromium's cases")
    for done, path in enumerate(paths):
        if progress is not None:
            progress(done, len(paths))
        try:
            yield run_case(load_case(path, default))
        except DeviceError as error:
            yield CaseResult(name=path.stem, reports=0, diff=f"could not be run: {error}\n")
        except Exception:  # an error of this package fails this case, not the ones after it
            yield CaseResult(name=path.stem, reports=0, diff=f"could not be run:\n{format_exc()}")


def run_case(case: Case) -> CaseResult:
    """Run one case.

    Reports are compared in order of time; those of the same millisecond in any order, as in Chromium's own test,
    because the specification shuffles them.
    """
    actual = sorted_reports(_Run(case).reports())
    expected = sorted_reports([_normalise_expected(report) for report in case.expected])
    diff = "".join(
        line if line.endswith("\n") else line + "\n"
        for line in unified_diff(_lines(expected), _lines(actual), "expected", "actual", n=4)
    )
    if not diff and any(map(ne, _times(case.expected), _times(expected))):
        diff = "the expected reports are not in order of time: sort them in the case\n"
    return CaseResult(name=case.name, reports=len(actual), diff=diff, ignored=case.ignored)


class _Run:
    """One run of a case: a browser that starts at time 0, with fixed random choices and a scripted network."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._clock = ManualClock(0)
        self._draws = FixedChoices(case.config)
        bits = SecureBits()
        self._keys = KeySet.create(bits, self._clock)
        self._connected = True
        self._browser = Browser(
            clock=self._clock,
            bits=bits,
            config=case.config,
            keys=self._keys.public(self._clock),
            draws=self._draws,
            send=lambda _: SendResult.SENT if self._connected else SendResult.TRANSIENT_FAILURE,
        )

    def reports(self) -> list[JsonMap]:
        """Return every report that arrived, in the format of the cases."""
        sent: list[OutgoingReport] = []
        for event in self._case.events:
            sent += self._browser.advance(event.time_ms)
            sent += self._run_event(event)
        while pending := self._browser.pending:
            last_ms = max(report.time_ms or 0 for report in pending)
            sent += self._browser.advance(max(last_ms, self._clock.now_ms()))
        return [self._as_case(report) for report in sent]

    def _run_event(self, event: CaseEvent) -> list[OutgoingReport]:
        if event.connected is not None:
            self._connected = event.connected
            return []
        if event.request is None:
            self._browser.navigate()
            return self._browser.advance()
        exchange = self._browser.start(event.request)
        sent: list[OutgoingReport] = []
        for response in event.responses:
            sent += self._browser.advance(response.time_ms)
            self._draws.fake_reports = response.fake_reports
            self._draws.null_days = response.null_days
            sent += self._browser.respond(exchange, response.response)
        return sent + self._browser.finish(exchange)

    def _as_case(self, report: OutgoingReport) -> JsonMap:
        payload = report.to_dict()
        if isinstance(report, EventLevelReport):
            del payload["report_id"]
        elif isinstance(report, VerboseDebugReport):
            for entry in payload:
                entry["body"].pop("report_id", None)
        else:
            payload = self._opened(payload)
        return {"payload": payload, "report_time": str(report.time_ms), "report_url": report.url}

    def _opened(self, payload: JsonMap) -> JsonMap:
        """Return an aggregatable body with its payload opened, without the fields that differ between runs."""
        body = AggregatableReport.from_json(json.dumps(payload))
        del payload["aggregation_service_payloads"]
        shared_info = json.loads(body.shared_info)
        del shared_info["report_id"]
        payload["shared_info"] = shared_info
        contributions = decode_payload(open_report(body, self._keys)).contributions
        payload["histograms"] = [
            {"id": str(entry.filtering_id), "key": f"{entry.bucket:#x}", "value": entry.value}
            for index, entry in enumerate(contributions)
            if index == 0 or entry.bucket or entry.value
        ]
        return payload


def sorted_reports(reports: Sequence[JsonMap]) -> list[JsonMap]:
    """Return reports in order of time and, within a millisecond, of their text."""
    return sorted(reports, key=lambda report: (int(report["report_time"]), _text(report)))


def _normalise_expected(report: JsonMap) -> JsonMap:
    """Convert integer values of ``randomized_trigger_rate`` in an expected report to doubles; return the report."""
    bodies = report["payload"] if isinstance(report["payload"], list) else [{"body": report["payload"]}]
    for entry in bodies:
        rate = entry.get("body", {}).get("randomized_trigger_rate")
        if isinstance(rate, int):
            entry["body"]["randomized_trigger_rate"] = float(rate)
    return report


def _times(reports: Sequence[JsonMap]) -> list[str]:
    return [report["report_time"] for report in reports]


def _text(report: JsonMap) -> str:
    return json.dumps(report, sort_keys=True, indent=1)


def _lines(reports: Sequence[JsonMap]) -> list[str]:
    return [line + "\n" for report in reports for line in _text(report).split("\n")]
