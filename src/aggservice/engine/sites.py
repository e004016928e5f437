"""The site of an origin: its scheme and registrable domain, as the public suffix list divides names."""

from __future__ import annotations

from functools import lru_cache

from publicsuffixlist import PublicSuffixList


@lru_cache(maxsize=1)
def _list() -> PublicSuffixList:
    return PublicSuffixList()


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str | None:
    """Return the site of an origin such as ``https://ads.shop.example``; None when it has none.

    >>> site_of("https://reports.adtech.co.uk:8443")
    'https://adtech.co.uk'
    """
    scheme, separator, rest = origin.partition("://")
    host = rest.partition(":")[0]
    if not separator or not host:
        return None
    domain = _list().privatesuffix(host)
    return f"{scheme}://{domain}" if domain else None
