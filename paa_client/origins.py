"""Origins as text: those that receive reports, and the sites whose budgets are charged."""

from __future__ import annotations

from functools import lru_cache

from aggservice.wire import is_reporting_origin, parse_origin
from aggservice.wire.device import CallError


@lru_cache(maxsize=4096)
def serialize_origin(url: str) -> str:
    """Return the origin of ``url`` as text, without its path; raise ``CallError`` if it cannot receive reports.

    Reports go only to potentially trustworthy origins: https, or http on loopback (specification, "report
    creation and scheduling steps").
    """
    origin = parse_origin(url)
    if origin is None:
        raise CallError("SyntaxError", f"{url!r} is not the URL of an origin: use https")
    serialized = str(origin)
    if not is_reporting_origin(serialized):
        raise CallError("DataError", f"{url!r} cannot receive reports: use https")
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
