"""JSON with ``//`` comments, the format of the interoperability cases."""

from __future__ import annotations

import json
import re
from typing import Any

from aggservice.wire.json_text import write_json

_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*', re.DOTALL)


def strip_comments(text: str) -> str:
    """Return the text without comments; strings that contain slashes stay as they are."""
    return _STRING_OR_COMMENT.sub(lambda match: match[1] or "", text)


def loads(text: str) -> Any:
    """Return the value of JSON text that may have comments."""
    return json.loads(strip_comments(text))


def chromium_json(value: Any) -> str:
    """Return a value as Chromium's test runner writes a header that a case gives as JSON.

    Chromium reads integers beyond 32 bits as doubles, so it writes them as doubles.
    """
    return write_json(_as_read(value))


def _as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_read(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_as_read(entry) for entry in value]
    return float(value) if type(value) is int and not -(1 << 31) <= value < 1 << 31 else value
