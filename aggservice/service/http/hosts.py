"""The names under which the HTTP app answers, against DNS rebinding.

A page of ``evil.example`` whose name suddenly resolves to 127.0.0.1 is of the same origin as a service there, so its
requests carry no Origin header; but their Host header still says ``evil.example``. A service without callers has
no other protection from it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from aggservice.service.errors import ForbiddenError

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?", re.ASCII)
_SHOWN: Final = 80


class HostRefusedError(ForbiddenError):
    """The Host header has a name under which this service does not answer."""

    remedy = "Use 127.0.0.1 or localhost, or ask the operator to add the name to http_hosts."


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The names that are served: those of loopback, and the operator's; any name if ``everyone``."""

    names: frozenset[str]
    everyone: bool

    @classmethod
    def of(cls, names: tuple[str, ...], *, has_callers: bool) -> Hosts:
        """Return what a configuration allows: all names if callers must authenticate and no name is configured."""
        return cls(names=frozenset(name.lower() for name in names), everyone=has_callers and not names)

    def check(self, request: Request) -> None:
        """Refuse a request to another name."""
        if self.everyone:
            return
        given = request.headers.getlist("host")
        if len(given) != 1 or not self._serves(given[0]):
            shown = given[0][:_SHOWN] if given else ""
            raise HostRefusedError(f"this service does not answer under the name {shown!r} of the Host header")

    def _serves(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found["name"]
        if name == "localhost" or name in self.names:
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False
