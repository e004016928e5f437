"""The URL that receives a report; it may be relative to the URL of the response (URL Standard, https base)."""

from __future__ import annotations

import re
from typing import Final

from aggservice.wire.origins import Url, is_other_url, parse_url

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_SINGLE_DOT: Final = frozenset({".", "%2e"})
_DOUBLE_DOT: Final = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


def resolve(text: str, base: str) -> Url | None:
    """Return the http or https URL of ``text``, resolved against ``base``; None if there is none.

    >>> str(resolve("../x?y", "https://base.example/a/b/c"))
    'https://base.example/a/x?y'
    """
    beside = parse_url(base)
    text = text.strip(_TRIMMED).replace("\t", "").replace("\n", "").replace("\r", "")
    scheme = _SCHEME.match(text)
    if scheme is not None:
        rest = text[scheme.end() :]
        same = beside is not None and scheme[1].lower() == beside.origin.scheme
        if is_other_url(text):
            return None
        if not same or rest[:2].replace("\\", "/") == "//":
            return _tidy(parse_url(text))
        text = rest  # a special scheme without slashes is relative to a base of the same scheme
    if beside is None:
        return None
    start = text.replace("\\", "/")
    if start.startswith("//"):
        return _tidy(parse_url(f"{beside.origin.scheme}:{text}"))
    path, query, _ = _split(beside.rest)
    if start.startswith("/"):
        joined = text
    elif text.startswith("?"):
        joined = path + text
    elif text.startswith("#") or not text:
        joined = path + query + text
    else:
        joined = path[: path.rfind("/") + 1] + text
    return _tidy(parse_url(f"{beside.origin}{joined}"))


def _tidy(url: Url | None) -> Url | None:
    """Return a URL without dot segments in its path."""
    if url is None:
        return None
    path, query, fragment = _split(url.rest)
    segments: list[str] = []
    parts = path.split("/")[1:]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part.lower() in _DOUBLE_DOT:
            del segments[-1:]
        elif part.lower() not in _SINGLE_DOT:
            segments.append(part)
            continue
        if last:
            segments.append("")
    return Url(url.origin, "/" + "/".join(segments) + query + fragment)


def _split(rest: str) -> tuple[str, str, str]:
    before, mark, after = rest.partition("#")
    path, question, query = before.partition("?")
    return path, question + query, mark + after
