"""JSON with ``//`` comments, the format of the interoperability cases."""

from __future__ import annotations

import json
import re
from typing import Any

_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*', re.DOTALL)


def strip_comments(text: str) -> str:
    """Return the text without comments; strings that contain slashes stay as they are."""
    return _STRING_OR_COMMENT.sub(lambda match: match[1] or "", text)


def loads(text: str) -> Any:
    """Return the value of JSON text that may have comments."""
    return json.loads(strip_comments(text))


def chromium_json(value: Any) -> str:
    """Return a value as Chromium's ``base::WriteJson`` writes it: keys sorted, no spaces, ``<`` escaped.

    A case may give a header as JSON; this is the text that the browser then receives. Chromium writes integers beyond
    32 bits as doubles.
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{_string(key)}:{chromium_json(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(chromium_json, value)) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float) or (type(value) is int and not -(1 << 31) <= value < 1 << 31):
        return _double(float(value))
    return json.dumps(value)


def _string(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted.replace("<", "\\u003C").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _double(number: float) -> str:
    """Return the shortest decimal, in plain notation up to 10²¹, with a point or an exponent."""
    if number.is_integer() and abs(number) < 1e21:
        return f"{number:.1f}"
    mantissa, mark, exponent = repr(number).partition("e")
    return mantissa + mark + (f"{int(exponent):+d}".replace("+-", "-") if mark else "")
