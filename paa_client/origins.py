"""Origins that callers of the browser name, as text: who may report, and whose budget pays."""

from __future__ import annotations

from functools import lru_cache

from aggservice.wire import is_reporting_origin, parse_origin
from paa_client.errors import CallError


@lru_cache(maxsize=4096)
def serialize_origin(url: str) -> str:
    """Return the origin of ``url``, serialized; a path is dropped.

    Only potentially trustworthy origins are origins of reports: https, or http on loopback (specification, "report
    creation and scheduling steps").
    """
    origin = parse_origin(url)
    if origin is None:
        raise CallError("SyntaxError", f"{url!r} is not the URL of an https origin")
    serialized = str(origin)
    if not is_reporting_origin(serialized):
        raise CallError("DataError", f"{url!r} is not an origin that reports can go to: use https")
    return serialized


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str:
    """Return the schemeful site of an origin: its scheme and registrable domain.

    A host without a registrable domain (an address, ``localhost``, a public suffix) is its own site.
    """
    parsed = parse_origin(origin)
    if parsed is None:
        raise CallError("SyntaxError", f"{origin!r} is not an http or https origin")
    return parsed.site
