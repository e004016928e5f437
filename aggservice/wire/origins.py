"""Origins and sites: where reports go, and whose budget pays.

URLs with the schemes http and https are parsed as in the URL Standard (backslashes, missing slashes, IPv4 in any base,
percent-encoded and internationalised hosts). Other schemes are refused. So are hosts that DNS cannot have (an empty
label, or one of more than 63 bytes), unless the caller asks for Chromium's parser.

A site is the scheme with the registrable domain (HTML, "obtain a site"), by the Public Suffix List with its private
part.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

import idna
from publicsuffixlist import PublicSuffixList

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_AUTHORITY: Final = re.compile(r"[/\\]*([^/\\?#]*)(.*)", re.DOTALL)
_FORBIDDEN_HOST: Final = frozenset("\0\t\n\r #/:<>?@[\\]^|%" + "".join(map(chr, range(0x20))) + "\x7f")
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_MAX_HOST_BYTES: Final = 253
_MAX_LABEL_BYTES: Final = 63
_MAX_ORIGIN_BYTES: Final = len("https://") + _MAX_HOST_BYTES + len(".:65535")
_IPV4_PART: Final = re.compile(r"0x(?P<hex>[0-9a-f]*)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9][0-9]*)")
_PATH_UNSAFE: Final = re.compile(r"[^!$&'()*+,\-./0-9:;=@A-Z_a-z~%?#\[\]|\\^]")


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """A tuple origin. ``str`` gives its serialisation, which leaves a default port out."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def site(self) -> str:
        """The serialised site: scheme and registrable domain, or the host if there is none."""
        return self.registrable_site or f"{self.scheme}://{self.host}"

    @property
    def registrable_site(self) -> str | None:
        """The site, if the host has a registrable domain; None for an address, ``localhost`` or a public suffix."""
        domain = _registrable_domain(self.host)
        return None if domain is None else f"{self.scheme}://{domain}"

    @property
    def suitable(self) -> bool:
        """Whether it is potentially trustworthy: https, or http on this machine (WICG, "suitable origin")."""
        return self.scheme == "https" or _is_local(self.host)


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed http or https URL: its origin, and the rest of it as serialised text."""

    origin: Origin
    rest: str

    def __str__(self) -> str:
        return f"{self.origin}{self.rest}"


@lru_cache(maxsize=65_536)
def parse_url(text: str, *, as_chromium: bool = False) -> Url | None:
    """Return ``text`` as a URL, or None if it is not a valid http or https URL.

    ``as_chromium`` also accepts hosts that only Chromium accepts: with empty or long labels, joiners anywhere, spaces
    or asterisks (both are escaped).
    """
    text = text.strip(_TRIMMED).replace("\t", "").replace("\n", "").replace("\r", "")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return None
    scheme = match[1].lower()
    if scheme not in _DEFAULT_PORTS:
        return None
    parts = _AUTHORITY.fullmatch(match[2])
    assert parts is not None  # the pattern matches every string
    location = parts[1].rpartition("@")[2]
    host, port = _split_port(location)
    number = _port(port, _DEFAULT_PORTS[scheme])
    parsed = _host(host, as_chromium=as_chromium)
    if parsed is None or number is None:
        return None
    return Url(Origin(scheme, parsed, number), _rest(parts[2]))


def is_other_url(text: str) -> bool:
    """Return whether ``text`` is an absolute URL with a scheme other than http and https."""
    match = _SCHEME.fullmatch(text.strip(_TRIMMED))
    return match is not None and match[1].lower() not in _DEFAULT_PORTS


def parse_origin(text: str) -> Origin | None:
    """Return the origin of the URL ``text``, or None if it is not a valid http or https URL."""
    url = parse_url(text)
    return None if url is None else url.origin


def is_reporting_origin(text: str) -> bool:
    """Return whether ``text`` is a serialised origin that can receive reports: https, or http on loopback.

    Port 0 is refused, because it cannot be reached. A text longer than any origin is neither parsed nor cached.
    """
    origin = parse_origin(text) if len(text) <= _MAX_ORIGIN_BYTES else None
    return origin is not None and origin.suitable and origin.port > 0 and str(origin) == text


def site_of(origin: str) -> str | None:
    """Return the site of an origin; None if it has no registrable domain (an address, ``localhost``).

    >>> site_of("https://reports.adtech.co.uk:8443")
    'https://adtech.co.uk'
    """
    parsed = parse_origin(origin)
    return None if parsed is None else parsed.registrable_site


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


@lru_cache(maxsize=65_536)
def _registrable_domain(host: str) -> str | None:
    name = host.removesuffix(".")
    # Chromium skips leading dots, and takes the label before the public suffix even if it is empty.
    known = name.lstrip(".").rpartition("..")[2]
    if _is_address(name) or not known or name.endswith("."):
        return None
    domain = _suffixes().privatesuffix(known)
    if domain is None:
        return None if known == name.lstrip(".") else host[len(name) - len(known) - 1 :]
    return host[len(name) - len(domain) :]


def _is_local(host: str) -> bool:
    name = host.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return host == "[::1]" or (_is_address(host) and host.startswith("127."))


def _is_address(host: str) -> bool:
    return host.startswith("[") or host.rpartition(".")[2].isdigit()


def _split_port(location: str) -> tuple[str, str]:
    if location.startswith("["):
        host, bracket, after = location.partition("]")
        return host + bracket, after.removeprefix(":") if after.startswith(":") or not after else "?"
    host, _, port = location.partition(":")
    return host, port


def _port(text: str, default: int) -> int | None:
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= 5 and int(digits) < 1 << 16 else None


def _host(text: str, *, as_chromium: bool) -> str | None:
    if text.startswith("["):
        return _ipv6(text[1:-1]) if text.endswith("]") else None
    try:
        decoded = unquote_to_bytes(text).decode()
        name = decoded.lower() if decoded.isascii() else _mapped(decoded, check_joiners=not as_chromium)
    except UnicodeError:
        return None
    if not name or not _FORBIDDEN_HOST.isdisjoint(name.replace(" ", "") if as_chromium else name):
        return None
    if as_chromium:
        name = name.replace(" ", "%20").replace("*", "%2A")
    host = ".".join(_to_ascii(label) for label in name.split("."))
    labels = host.removesuffix(".").split(".")
    if not as_chromium and not _fits_dns(host, labels):
        return None
    if labels[-1].isdigit() or re.fullmatch("0x[0-9a-f]*", labels[-1]):
        return _ipv4(labels)
    return host


def _fits_dns(host: str, labels: list[str]) -> bool:
    return len(host) <= _MAX_HOST_BYTES + 1 and all(0 < len(label) <= _MAX_LABEL_BYTES for label in labels)


def _mapped(domain: str, *, check_joiners: bool) -> str:
    """Return an internationalised domain mapped and checked (UTS #46, nontransitional: ß stays apart from ss)."""
    mapped = idna.uts46_remap(domain, std3_rules=False, transitional=False)
    for label in mapped.split("."):
        if not label.isascii():
            idna.check_initial_combiner(label)
            idna.check_bidi(label)
            joiners = (index for index, letter in enumerate(label) if letter in "\u200c\u200d")
            if check_joiners and not all(idna.valid_contextj(label, index) for index in joiners):
                raise UnicodeError("a joiner character is not between characters that it can join")
    return mapped


def _to_ascii(label: str) -> str:
    return label if label.isascii() else f"xn--{label.encode('punycode').decode()}"


def _ipv6(text: str) -> str | None:
    """Return an IPv6 address in brackets with its first longest run of zeros shortened; None if it is invalid."""
    try:
        value = int(ipaddress.IPv6Address(text if "%" not in text else ""))
    except ValueError:
        return None
    pieces = ":".join(f"{value >> shift & 0xFFFF:x}" for shift in range(112, -16, -16))
    runs = list(re.finditer(r"(?<![^:])0(?::0)+(?![^:])", pieces))
    if not runs:
        return f"[{pieces}]"
    longest = max(runs, key=lambda run: run.end() - run.start())
    return f"[{pieces[: longest.start()].removesuffix(':')}::{pieces[longest.end() :].removeprefix(':')}]"


def _ipv4(parts: list[str]) -> str | None:
    """Return the IPv4 address of a host of one to four numbers, each in any base; None if it is invalid."""
    if len(parts) > 4:
        return None
    numbers = []
    for part in parts:
        match = _IPV4_PART.fullmatch(part)
        if match is None:
            return None
        base = {"hex": 16, "octal": 8, "decimal": 10}[match.lastgroup or ""]
        numbers.append(int(match[match.lastgroup or ""] or "0", base))
    *leading, last = numbers
    if any(number > 255 for number in leading) or last >= 256 ** (5 - len(numbers)):
        return None
    value = last + sum(number << (8 * (3 - index)) for index, number in enumerate(leading))
    return str(ipaddress.IPv4Address(value))


def _rest(text: str) -> str:
    text = text if text[:1] in ("/", "\\") else "/" + text
    path, mark, after = re.fullmatch(r"([^?#]*)([?#]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    rest = path.replace("\\", "/") + mark + after
    return _PATH_UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode(errors="replace")), rest)
