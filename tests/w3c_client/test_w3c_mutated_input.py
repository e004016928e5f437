"""Mutated headers and option sets: each is refused by a named error, and nothing is stored."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from aggservice.mechanisms import ForbiddenBits, ManualClock
from w3c_client import DEFAULT_SERVICE, Browser, CallError, ErrorName, HeaderError
from w3c_client.headers import MEASURE_HEADER, SAVE_HEADER, parse_measure_conversion, parse_save_impression

COUNT = 10_000
URL = "https://tag.example/pixel"
SAVE = 'histogram-index=12, match-value=4, conversion-sites=("shop.example" "b.example"), lifetime-days=5, priority=-6'
MEASURE = (
    f'aggregation-service="{DEFAULT_SERVICE}", histogram-size=3, report-url="https://r.example/x", epsilon=2.1, '
    'value=3, max-value=4, lookback-days=5, match-values=(0 6), credit=(1 0.5), impression-sites=("c.example")'
)
PIECES = (
    "",
    "-",
    "1.5",
    "99999999999999999",
    '"',
    "(",
    ")",
    ",",
    "=",
    ";",
    "?1",
    "a",
    "é",
    "\x00",
    " ",
    ":YQ==:",
    "()",
)


def browser() -> Browser:
    return Browser(clock=ManualClock(10**12), bits=ForbiddenBits())


def stored(browser: Browser) -> tuple[Any, ...]:
    return browser.impressions, browser.budgets, browser.reports, browser.epoch_start_ms


def mutated(draw: random.Random, text: str) -> str:
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text) + 1)
        match draw.randrange(4):
            case 0:
                text = text[:at] + draw.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[at + draw.randint(1, 12) :]
            case 2:
                text = text[:at] + chr(draw.choice((draw.randrange(128), draw.randrange(0x3000)))) + text[at + 1 :]
            case _:
                text = text[:at] + text[at // 2 : at] + text[at:]
    return text


def test_ten_thousand_mutated_headers_are_refused_by_name() -> None:
    draw, here = random.Random(3), browser()
    before, refused, accepted = stored(here), 0, 0
    while refused < COUNT:
        name, text = draw.choice(((SAVE_HEADER, SAVE), (MEASURE_HEADER, MEASURE)))
        text = mutated(draw, text)
        try:
            if name == SAVE_HEADER:
                parse_save_impression(text)
            else:
                parse_measure_conversion(text, URL)
        except HeaderError as error:
            refused += 1
            assert len(str(error)) > 10
            assert here.respond("shop.example", URL, {name: text}) == []
        else:
            accepted += 1
            assert accepted < COUNT
    assert stored(here) == before and accepted > 100


GOOD_IMPRESSION: dict[str, Any] = {
    "histogramIndex": 3,
    "matchValue": 1,
    "conversionSites": ["shop.example"],
    "conversionCallers": ["tag.example"],
    "lifetimeDays": 7,
    "priority": -1,
}
GOOD_CONVERSION: dict[str, Any] = {
    "aggregationService": DEFAULT_SERVICE,
    "histogramSize": 4,
    "epsilon": 0.5,
    "value": 2,
    "maxValue": 5,
    "credit": [2, 1],
    "lookbackDays": 7,
    "matchValues": [1],
    "impressionSites": ["news.example"],
    "impressionCallers": [],
}
NUMBERS = (-1, 1 << 32, 1 << 70, -(1 << 40), 0.5, float("nan"), float("inf"), "1", True, [], {}, b"1", object())
LISTS = ("shop.example", 3, {}, [3], [None], ["localhost"], ["com"], ["https://a.example"], ["a.example"] * 50, [[]])
NOT_LISTS = ("x", 3, {}, [None], ["1"], [float("nan")], list(range(60)), [[]], [object()])
BAD: dict[str, tuple[Any, ...]] = {
    "histogramIndex": (*NUMBERS, 4096, None),
    "matchValue": NUMBERS,
    "conversionSites": LISTS,
    "conversionCallers": LISTS,
    "lifetimeDays": (*NUMBERS, 0),
    "priority": (1 << 31, -(1 << 31) - 1, 0.5, "1", True, [], float("nan")),
    "aggregationService": (None, "", 3, DEFAULT_SERVICE + "/", "https://unknown.example", [], b""),
    "histogramSize": (*NUMBERS, 0, 4097, None),
    "epsilon": (0, -1, 4294.1, float("nan"), float("inf"), "1", [], True, 10**400),
    "value": (*NUMBERS, 0, 6, 1 << 31),
    "maxValue": (*NUMBERS, 0, 1),
    "credit": (*NOT_LISTS, [], [0], [1, -1], [10**400]),
    "lookbackDays": (*NUMBERS, 0),
    "matchValues": (*NOT_LISTS, [-1], [0.5], [1 << 32]),
    "impressionSites": LISTS,
    "impressionCallers": LISTS,
}


def test_ten_thousand_mutated_option_sets_are_refused_by_name() -> None:
    draw, here = random.Random(4), browser()
    before = stored(here)
    seen: dict[str, int] = {}
    for number in range(COUNT):
        good = GOOD_IMPRESSION if draw.random() < 0.4 else GOOD_CONVERSION
        member = draw.choice(list(good))
        given: Any = {**good, member: draw.choice(BAD[member])}
        for _ in range(draw.randrange(3)):
            other = draw.choice([name for name in good if name != member])
            given[other] = draw.choice((*BAD[other], good[other]))
        if number % 500 == 0:
            given = draw.choice((None, 3, "options", [], object()))
        call = here.save_impression if good is GOOD_IMPRESSION else here.measure_conversion
        with pytest.raises(CallError) as caught:
            call("shop.example", given)
        assert caught.value.name in ErrorName and len(str(caught.value)) > 10
        seen[caught.value.name] = seen.get(caught.value.name, 0) + 1
    assert stored(here) == before
    assert set(seen) == {"TypeError", "RangeError", "SyntaxError", "ReferenceError"} and min(seen.values()) > 100


def test_the_good_ones_are_accepted() -> None:
    from w3c_client import ConversionOptions, ImpressionOptions
    from w3c_client.config import Config
    from w3c_client.options import check_conversion, check_impression

    check_impression(ImpressionOptions.from_members(GOOD_IMPRESSION), Config())
    check_conversion(ConversionOptions.from_members(GOOD_CONVERSION), Config())
    check_impression(parse_save_impression(SAVE), Config())
    check_conversion(parse_measure_conversion(MEASURE, URL)[0], Config())


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("save_impression", "histogram-index=a", None),
        ("save_impression", "histogram-index=1.0", None),
        ("save_impression", "conversion-sites=(a), histogram-index=1", None),
        ("save_impression", "match-value=-1, histogram-index=1", None),
        ("save_impression", "lifetime-days=1.2, histogram-index=1", None),
        ("save_impression", "priority=-2147483649, histogram-index=1", None),
        ("save_impression", "priority=-2147483648, histogram-index=1", {"histogramIndex": 1, "priority": -2147483648}),
        ("measure_conversion", 'report-url=a, aggregation-service="", histogram-size=1', None),
        ("measure_conversion", 'report-url="https://", aggregation-service="", histogram-size=1', None),
        (
            "measure_conversion",
            'credit=(-1 2.0), epsilon=-2.5, aggregation-service="", histogram-size=1, report-url="../x"',
            [
                {"credit": [-1, 2.0], "epsilon": -2.5, "aggregationService": "", "histogramSize": 1},
                "https://b.example/x",
            ],
        ),
    ],
)
def test_header_cases_that_the_vectors_leave_out(tmp_path: Path, kind: str, text: str, expected: Any) -> None:
    from w3c_client.scenarios import run_header_cases

    case = {"base_url": "https://b.example/a/b", kind: [{"name": "one", "input": text, "expected": expected}]}
    (tmp_path / "cases.json").write_text(json.dumps(case))
    assert [one.differences for one in run_header_cases(tmp_path / "cases.json")] == [()]
