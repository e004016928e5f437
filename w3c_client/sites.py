"""Sites of a call: the page's top-level site, and the intermediary site that calls on its behalf."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from aggservice.wire import parse_origin
from w3c_client.errors import CallError, ErrorName

_NOT_IN_A_HOST: Final = frozenset("/\\?#@: \x7f" + "".join(map(chr, range(0x20))))


@lru_cache(maxsize=65_536)
def parse_site(text: str) -> str | None:
    """Return the registrable domain of a host name, or None (specification, "parse a site").

    A port, a path or a URL fails in the host parser; an address, a public suffix and ``localhost`` have no site.

    >>> parse_site("extra.example.com"), parse_site("localhost"), parse_site("https://example.com")
    ('example.com', None, None)
    """
    if not _NOT_IN_A_HOST.isdisjoint(text):
        return None
    origin = parse_origin(f"https://{text}")
    site = None if origin is None else origin.registrable_site
    if site is None:
        return None
    domain = site.removeprefix("https://")
    return None if f".{domain.removesuffix('.')}".endswith(".localhost") else domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The origin of a call: the top level, the frame that calls, its tab, and what its permissions policy allows.

    ``top_level`` and ``frame`` are host names or https origins. A page without a ``tab`` counts as activated.
    ``action`` is the number of the user's action that led to this page, for designs that cap the sites per action;
    no cap applies to None.
    """

    top_level: str
    frame: str | None = None
    tab: str | None = None
    action: int | None = None
    may_save: bool = True
    may_measure: bool = True


@dataclass(frozen=True, slots=True)
class Caller:
    """The sites of a call: the top level's, and the intermediary's if the calling frame is of another site."""

    top_level: str
    intermediary: str | None

    @property
    def site(self) -> str:
        """The caller: the intermediary if there is one, else the top level."""
        return self.intermediary or self.top_level


@lru_cache(maxsize=65_536)
def caller_of(top_level: str, frame: str | None) -> Caller:
    """Return the sites of a call (specification, "obtain the implicit API inputs").

    Raises the platform's ``SyntaxError`` if either has no site. HTML's own step would accept ``localhost``, but the
    specification's note and vectors refuse it.
    """
    top = _site_of(top_level)
    inner = None if frame is None else _site_of(frame)
    return Caller(top, None if inner == top else inner)


def _site_of(text: str) -> str:
    if not isinstance(text, str):
        raise CallError(ErrorName.TYPE, f"a site must be text, not {type(text).__name__}")
    host = text
    if text.startswith("https://"):
        origin = parse_origin(text)
        host = text if origin is None else origin.host
    site = parse_site(host)
    if site is None:
        raise CallError(ErrorName.SYNTAX, f"{text!r} has no site: use an https origin with a registrable domain")
    return site
