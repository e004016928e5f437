"""The HTTP app: public keys at their well-known path, metrics for the operator, and routes of a collector."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from aggservice.service.config.callers import Register, Role
from aggservice.service.config.keyring import KeyRing
from aggservice.service.errors import ForbiddenError, ServiceError
from aggservice.service.metrics import CONTENT_TYPE, Metrics

STALLED: Final = 408
"""The status of a body that did not arrive in time."""


class BodyError(Exception):
    """A body that was not read; ``status`` is the HTTP status to answer with."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def read_body(request: Request, *, most: int, within_s: float, what: str) -> bytes:
    """Return the body of a request of at most ``most`` bytes; ``what`` names it in errors."""
    body = b""
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise BodyError(413, f"the {what} is larger than {most} bytes")
    except TimeoutError:
        raise BodyError(STALLED, f"the {what} did not arrive within {within_s} seconds") from None
    except ClientDisconnect:
        raise BodyError(400, f"the {what} did not arrive") from None
    return body


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


PUBLIC_KEYS_PATH = "/.well-known/aggregation-service/v1/public-keys"
_MAX_AGE_S = 3600


def build_app(
    *,
    keys: KeyRing,
    metrics: Metrics,
    register: Register,
    hosts: Hosts,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the app. ``routes`` are added unchanged, such as those of a collector."""

    async def public_keys(request: Request) -> Response:
        try:
            document = keys.public().serialise()
        except ServiceError as problem:
            return PlainTextResponse(f"{problem}. {problem.remedy}\n", status_code=503)
        return Response(
            document,
            media_type="application/json",
            headers={"Cache-Control": f"max-age={_MAX_AGE_S}"},
        )

    async def show_metrics(request: Request) -> Response:
        try:
            hosts.check(request)
            caller = register.find(authorization=request.headers.get("authorization"), certificate_names=())
        except HostRefusedError as problem:
            return PlainTextResponse(f"{problem}. {problem.remedy}\n", status_code=403)
        except ServiceError as problem:
            return PlainTextResponse(f"{problem}\n", status_code=401)
        if caller is None:
            return PlainTextResponse("this request has no credentials\n", status_code=401)
        if Role.OPERATOR not in caller.roles:
            return PlainTextResponse("only operators can read metrics\n", status_code=403)
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "SERVING"})

    return Starlette(
        routes=[
            Route(PUBLIC_KEYS_PATH, public_keys, methods=["GET"]),
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/healthz", health, methods=["GET"]),
            *routes,
        ]
    )
