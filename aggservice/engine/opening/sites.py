"""The site of an origin: its scheme and registrable domain, as the public suffix list divides names."""

from __future__ import annotations

from aggservice.wire import parse_origin


def site_of(origin: str) -> str | None:
    """Return the site of an origin such as ``https://ads.shop.example``; None when it has none, as an IP address has.

    >>> site_of("https://reports.adtech.co.uk:8443")
    'https://adtech.co.uk'
    """
    parsed = parse_origin(origin)
    return None if parsed is None else parsed.registrable_site
