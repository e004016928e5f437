"""Bodies of HTTP requests, of bounded size and within bounded time."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect, Request

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
