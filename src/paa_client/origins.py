"""Origins and the sites they belong to: who may report, and whose budget pays."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from publicsuffixlist import PublicSuffixList

from paa_client.errors import CallError

_DEFAULT_PORTS = {"https": 443, "http": 80}
_SUFFIXES = PublicSuffixList()
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost") or (_is_address(host) and ip_address(host).is_loopback)


@lru_cache(maxsize=4096)
def serialize_origin(url: str) -> str:
    """Return the origin of ``url``, serialized; a path is dropped.

    Only potentially trustworthy origins are origins of reports: https, or http on loopback (specification, "report
    creation and scheduling steps").
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise CallError("SyntaxError", f"{url!r} is not a URL") from None
    host = parts.hostname
    if not host or parts.scheme not in _DEFAULT_PORTS:
        raise CallError("SyntaxError", f"{url!r} is not the URL of an https origin")
    if _HOST.fullmatch(host) is None:
        raise CallError("SyntaxError", f"host {host!r} is not an ASCII domain name or IPv4 address: use punycode")
    if parts.scheme == "http" and not _is_loopback(host):
        raise CallError("DataError", f"{url!r} is not a potentially trustworthy origin: use https")
    return f"{parts.scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}")


@lru_cache(maxsize=4096)
def site_of(origin: str) -> str:
    """Return the schemeful site of a serialized origin: its scheme and registrable domain.

    A host without a registrable domain (an address, ``localhost``, a public suffix) is its own site.
    """
    parts = urlsplit(origin)
    host = parts.hostname or ""
    if _is_address(host):
        return f"{parts.scheme}://{host}"
    return f"{parts.scheme}://{_SUFFIXES.privatesuffix(host) or host}"
