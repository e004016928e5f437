"""Origins that the caller of the browser names."""

from __future__ import annotations

from aggservice.wire import Origin, parse_origin
from ara_client.errors import RequestError


def parse_suitable_origin(text: str) -> Origin:
    """Return the origin of a URL that the caller names; raise ``RequestError`` if it is not suitable."""
    origin = parse_origin(text)
    if origin is None or not origin.suitable:
        raise RequestError(f"{text!r} is not a URL with a potentially trustworthy origin: use https")
    return origin
