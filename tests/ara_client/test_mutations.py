"""Ten thousand mutations of real headers: never a traceback, always what the specification asks for."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aggservice.mechanisms import ForbiddenBits, ManualClock
from ara_client import Browser, Config, FixedChoices, Request, Response, VerboseDebugReport
from ara_client.interop.cases import chromium_json, loads
from ara_client.registration.headers import parse_info
from ara_client.reports import OutgoingReport

from ..mutations import mutated, mutated_text

MUTATIONS = 10_000
SOURCE, TRIGGER = "Attribution-Reporting-Register-Source", "Attribution-Reporting-Register-Trigger"
OS_SOURCE, OS_TRIGGER = "Attribution-Reporting-Register-OS-Source", "Attribution-Reporting-Register-OS-Trigger"
INFO = "Attribution-Reporting-Info"
SCALARS: list[Any] = [
    None, True, 0, -1, 1.5, 2**31, 2**63, 1e308, "", "0", "-1", "x" * 70, "\u0000", "é", [], {}, [[]], {"": {}}, "0x",
    "https://a.test", ["https://a.test"] * 4, {"_lookback_window": 0}, float("nan"),
]  # fmt: skip
NOISE = '{}[]",:\\0123456789abcdefghijklmnopqrstuvwxyz-_;=?*()\t\n\x00é\ud800 '


def _corpus(shared: Path) -> list[dict[str, Any]]:
    """Return the responses of every interoperability case."""
    found = []
    for path in sorted((shared / "vectors" / "chromium-ara-interop").glob("*.json")):
        for entry in loads(path.read_text()).get("input", {}).get("registrations", ()):
            found += [response["response"] for response in entry.get("responses", ())]
    return found


def _mutate_text(text: str, rng: random.Random) -> str | bytes:
    """Return text with a few characters changed, or cut, or as bytes that are not UTF-8."""
    changed = mutated_text(text, rng, letters=NOISE)
    return changed.encode(errors="replace") + b"\xff" if rng.random() < 0.05 else changed


def _mutations(responses: list[dict[str, Any]], rng: random.Random) -> dict[str, str | bytes]:
    headers = rng.choice(responses)
    out: dict[str, str | bytes] = {}
    for name, value in headers.items():
        changed = value
        if not isinstance(value, str) and rng.random() < 0.6:
            changed = mutated(value, rng, scalars=SCALARS, letters=NOISE)
        try:
            text = changed if isinstance(changed, str) else chromium_json(changed)
        except OverflowError:
            text = json.dumps(changed)
        out[name] = _mutate_text(text, rng) if rng.random() < 0.5 else text
    if rng.random() < 0.7:
        out[INFO] = "report-header-errors" + rng.choice(["", "", ", preferred-platform=web"])
    if rng.random() < 0.03:
        out[rng.choice([OS_SOURCE, OS_TRIGGER])] = _mutate_text('"https://r.test/os";debug-reporting', rng)
    return out


def _plain(value: str | bytes, *, navigation: bool) -> str:
    """Return a header as text: of a navigation, what is not UTF-8 becomes lone surrogates; of others, it is Latin-1."""
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape") if navigation else value.decode("latin-1")
    return value.strip()


def _is_json_map(text: str) -> bool:
    """Return whether text is a JSON map, by a reader of its own: Python's, without the numbers it adds to JSON."""
    try:
        text.encode()
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _judge(headers: dict[str, str | bytes], request: Request, reports: list[OutgoingReport]) -> str:
    """Assert that the reports are what the headers call for; return what the outcome was."""
    verbose = [report for report in reports if isinstance(report, VerboseDebugReport)]
    errors = [entry for report in verbose for entry in report.data if entry.type == "header-parsing-error"]
    for report in verbose:
        json.loads(report.to_json())
    navigation = request.eligible == "navigation-source"
    info = parse_info(_plain(headers[INFO], navigation=navigation)) if INFO in headers else None
    wants = info is not None and info.report_header_errors and not request.fenced
    if not wants:
        assert errors == []
        return "silent"
    assert len(errors) <= 1
    is_source = request.eligible is not None
    eligible = {SOURCE, OS_SOURCE} if is_source else {TRIGGER, OS_TRIGGER}
    given = [name for name in headers if name in eligible]
    if errors:
        body = errors[0].body
        assert body["header"] in given
        assert body["value"] == re.sub(
            "[\ud800-\udfff]", "\ufffd", _plain(headers[body["header"]], navigation=navigation)
        )
        assert body["context_site"] == ("https://source.test" if is_source else "https://destination.test")
        assert errors[0].problems and "error" not in body
        return "reported"
    web = SOURCE if is_source else TRIGGER
    if given == [web]:
        assert _is_json_map(_plain(headers[web], navigation=navigation)), headers[web]
        return "accepted"
    return "silent"


@pytest.mark.parametrize("seed", [1, 2])
def test_malformed_headers_are_reported_or_dropped(shared: Path, seed: int) -> None:
    responses = _corpus(shared)
    assert len(responses) == 486
    rng = random.Random(seed)
    config = Config(os_registration_supported=True)
    clock = ManualClock(0)
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=FixedChoices(config))
    outcomes: Counter[str] = Counter()
    for serial in range(MUTATIONS // 2):
        headers = _mutations(responses, rng)
        is_source = any(name in (SOURCE, OS_SOURCE) for name in headers)
        request = Request(
            context="https://source.test" if is_source else "https://destination.test",
            eligible=rng.choice(["navigation-source", "event-source"]) if is_source else None,
            fenced=rng.random() < 0.05,
        )
        response = Response(url="https://reporter.test/x", headers=headers, debug_allowed=rng.random() < 0.5)
        reports = browser.register(request, response)
        outcomes[_judge(headers, request, reports)] += 1
        if serial % 50 == 0:
            reports = browser.advance(clock.now_ms() + rng.choice([1, 1000, 90_000_000]))
            for report in reports:
                assert report.url.startswith("https://reporter.test/")
    browser.check()
    assert sum(outcomes.values()) == MUTATIONS // 2
    assert min(outcomes["reported"], outcomes["accepted"], outcomes["silent"]) > 500, outcomes
