"""Origins that the caller of the browser names."""

from __future__ import annotations

from aggservice.wire import Origin, parse_origin
from aggservice.wire.device import DeviceError
from aggservice.wire.origins import parse_url


class RequestError(DeviceError, ValueError):
    """The caller describes a request that no browser sends: an unsuitable context, or an impossible header."""


def parse_suitable_origin(text: str) -> Origin:
    """Return the origin of a URL that the caller names; raise ``RequestError`` if it is not suitable."""
    origin = parse_origin(text)
    if origin is None or not origin.suitable:
        raise RequestError(f"{text!r} is not a URL with a potentially trustworthy origin: use https")
    return origin


def parse_destination(text: str) -> Origin | None:
    """Return the origin of a destination as Chromium reads it, or None.

    A ``blob:`` URL has the origin of the URL inside, and so has a ``filesystem:`` URL with a path.
    """
    scheme, _, inner = text.strip().partition(":")
    inside = scheme.lower() in ("blob", "filesystem")
    url = parse_url(inner if inside else text, as_chromium=True)
    if url is None or (scheme.lower() == "filesystem" and url.rest == "/"):
        return None
    return url.origin
