"""The HTTP app: public keys at their well-known path, metrics for the operator, and routes of a collector."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from aggservice.service.config.callers import Register, Role
from aggservice.service.config.keyring import KeyRing
from aggservice.service.errors import ServiceError
from aggservice.service.http.hosts import HostRefusedError, Hosts
from aggservice.service.metrics import CONTENT_TYPE, Metrics

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
