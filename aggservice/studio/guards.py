"""Refuses every request that does not come from the studio's own page at one of its own addresses.

The checks run before any route: the Host header (against DNS rebinding), Origin and Sec-Fetch-Site (against requests
of other sites), a header that only the studio's own scripts send (against forged forms), a token (against other users
and programs of the machine), and the size of the body. Every answer carries a Content-Security-Policy without inline
scripts.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES: Final = 1 << 20
OWN_HEADER: Final = "x-aggservice-studio"
COOKIE: Final = "aggservice-studio-{port}"
"""The name of the cookie with the token. Browsers send cookies of a host to all of its ports."""
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The values of the Host header that are served, such as ``127.0.0.1:8750``, and the token of this start."""

    hosts: frozenset[str]
    token: str

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError("a studio needs a token: draw a random one at each start")

    @classmethod
    def on_loopback(cls, port: int, token: str) -> Access:
        """Return the access to a studio on a loopback port."""
        return cls(hosts=frozenset(f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")), token=token)


class Guard:
    """ASGI middleware that refuses every request that the studio's own page did not make."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        await self._app(scope, _Bounded(receive).receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._access.hosts:
            return _refuse(421, f"this studio is not at {host[:80]!r}: open the address that it printed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if origin is not None and origin not in {f"http://{one}" for one in self._access.hosts}:
            return _refuse(403, "this request comes from another origin: use the page that the studio serves")
        if site not in ("same-origin", "none") and not (
            site == "cross-site" and scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        ):
            return _refuse(403, "this request comes from another site: use the page that the studio serves")
        if scope["method"] not in ("GET", "HEAD"):
            if headers.get(OWN_HEADER) != "1" or headers.get("content-type") != "application/json":
                return _refuse(403, f"send JSON with the header {OWN_HEADER}: 1")
            length = headers.get("content-length", "")
            if not length.isdigit() or int(length) > MAX_BODY_BYTES:
                return _refuse(
                    413, f"the body is too large or its length is missing: send at most {MAX_BODY_BYTES:,} bytes"
                )
        return self._without_token(scope, headers)

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request without the token; a page opened with ``?token=`` gets a cookie."""
        token = self._access.token
        cookie = COOKIE.format(port=headers.get("host", "").rpartition(":")[2])
        given = cookie_parser(headers.get("cookie", "")).get(cookie, "")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if any(hmac.compare_digest(one.encode(), token.encode()) for one in (given, bearer)):
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and hmac.compare_digest(asked.encode(), token.encode()):
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(cookie, token, httponly=True, samesite="strict")
            return answer
        return _refuse(401, "open the address with the token that the studio printed")


class _Bounded:
    """Receives a body of at most as many bytes as the limit, whatever its length header says."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > MAX_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message


def _refuse(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)
