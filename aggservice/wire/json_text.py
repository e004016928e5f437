"""JSON text as Chromium's ``base::WriteJson`` writes it, for the bodies of reports."""

from __future__ import annotations

import json
from typing import Any


def write_json(value: Any) -> str:
    """Return a value as JSON: keys sorted, no spaces, ``<`` and line separators escaped, doubles as in ECMAScript.

    >>> write_json({"b": [2.5e-06, 8e-07, 1.0], "a": "<é>"})
    '{"a":"\\\\u003Cé>","b":[0.0000025,8e-7,1.0]}'
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{dump_json(key)}:{write_json(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_json, value)) + "]"
    return _double(value) if isinstance(value, float) else dump_json(value)


def dump_json(value: Any) -> str:
    """Return what ``write_json`` returns, several times as fast; ``value`` must not contain doubles."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003C").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _double(number: float) -> str:
    """Return the shortest decimal, in plain notation from 10⁻⁶ up to 10²¹, with a point or an exponent."""
    if number.is_integer() and abs(number) < 1e21:
        return f"{number:.1f}"
    mantissa, mark, exponent = repr(number).partition("e")
    if mark and -6 <= int(exponent) < 0:
        digits = len(mantissa.partition(".")[2])
        return f"{number:.{digits - int(exponent)}f}"
    return mantissa + mark + (f"{int(exponent):+d}".replace("+-", "-") if mark else "")
