"""The site of an origin: its scheme and registrable domain, as the public suffix list divides names."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from publicsuffixlist import PublicSuffixList


@lru_cache(maxsize=1)
def _list() -> PublicSuffixList:
    return PublicSuffixList()


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str | None:
    """Return the site of an origin such as ``https://ads.shop.example``; None when it has none, as an IP address has.

    >>> site_of("https://reports.adtech.co.uk:8443")
    'https://adtech.co.uk'
    """
    try:
        parts = urlsplit(origin)
        host = parts.hostname
    except ValueError:
        return None
    if not host or _is_address(host):
        return None
    domain = _list().privatesuffix(host)
    return f"{parts.scheme}://{domain}" if domain else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
