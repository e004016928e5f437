"""Header cases: a file of ``Save-Impression`` and ``Measure-Conversion`` values, each with the expected options.

``expected`` is None if the header must be refused. Otherwise it is the options by the platform's names, and for
``Measure-Conversion`` also the URL of the report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from w3c_client.calls.headers import read_measure_conversion, read_save_impression
from w3c_client.errors import HeaderError, ScenarioError
from w3c_client.scenarios.runner import ScenarioResult


def run_header_cases(path: Path) -> Iterator[ScenarioResult]:
    """Run the cases of a file in its order."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        base = fields.get("base_url", "https://base.example/")
        cases = [(kind, case) for kind in ("save_impression", "measure_conversion") for case in fields.get(kind, ())]
        named = [(f"{kind}/{case['name']}", kind, case["input"], case["expected"]) for kind, case in cases]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ScenarioError(f"{path} is not a file of header cases: {error!r}") from error
    for name, kind, text, expected in named:
        parse = _save if kind == "save_impression" else lambda given: _measure(given, base)
        yield ScenarioResult(name=name, differences=tuple(_differences(parse, text, expected)))


def _differences(parse: Callable[[str], Any], text: str, expected: Any) -> Iterator[str]:
    try:
        found = parse(text)
    except HeaderError as error:
        if expected is not None:
            yield f"expected {json.dumps(expected)}, refused: {error}"
        return
    if found != expected:
        yield f"expected {json.dumps(expected)}, got {json.dumps(found)}"


def _save(text: str) -> dict[str, Any]:
    return _members(read_save_impression(text))


def _measure(text: str, base: str) -> list[Any]:
    given, url = read_measure_conversion(text, base)
    return [_members(given), url]


def _members(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a header by the platform's names."""
    return {
        re.sub("_([a-z])", lambda found: found[1].upper(), field): list(value) if isinstance(value, tuple) else value
        for field, value in given.items()
    }
