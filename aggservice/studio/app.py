"""The studio's web app: its routes, the JSON form of answers and refusals, and the static pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from aggservice import __version__
from aggservice.campaign import CampaignError
from aggservice.client import ClientError
from aggservice.job.errors import EngineError
from aggservice.mechanisms import MechanismError
from aggservice.studio.devices import Devices
from aggservice.studio.errors import StudioError
from aggservice.studio.feeds import Feeds
from aggservice.studio.follow import follow
from aggservice.studio.given import Given, to_plain
from aggservice.studio.guards import Access, Guard
from aggservice.studio.ledgers import Ledgers
from aggservice.studio.local_dp import local_dp, tracking
from aggservice.studio.runs import Runs
from aggservice.studio.shelf import Shelf
from aggservice.studio.tune import Tune
from aggservice.wire import WireError
from budget.errors import BudgetError
from ldp_client import LdpError
from w3c_client import DeviceError

_REFUSALS = (
    StudioError,
    CampaignError,
    BudgetError,
    LdpError,
    DeviceError,
    WireError,
    EngineError,
    MechanismError,
    ClientError,
)


def build_studio(shelf: Shelf, access: Access) -> Starlette:
    """Return the app over the folders of a shelf."""
    feeds = Feeds()
    runs, tune, devices = Runs(shelf, feeds), Tune(shelf), Devices(shelf)
    ledgers = Ledgers(shelf, feeds)

    def listing(given: Given) -> dict[str, Any]:
        folders = [folder.name for folder in shelf.folders]
        return {"version": __version__, "folders": folders, "items": [asdict(item) for item in shelf.items()]}

    async def events(request: Request) -> Response:
        try:
            stream = feeds.reserve(request.path_params["feed"])
        except StudioError as problem:
            return _refused(problem)
        return StreamingResponse(stream, media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        yield
        await run_in_threadpool(runs.stop)

    reads: dict[str, Callable[[Given], Any]] = {
        "shelf": listing,
        "campaign": tune.campaign,
        "result": runs.result,
        "comparison": runs.comparison,
        "ledger": ledgers.overview,
        "ledger/entries": ledgers.entries,
        "ledger/unit": ledgers.unit,
        "ledger/receipt": ledgers.receipt,
        "device/scenarios": devices.scenarios,
    }
    writes: dict[str, Callable[[Given], Any]] = {
        "tune": tune.expect,
        "tune/edit": tune.edit,
        "tune/save": tune.save,
        "runs": runs.start,
        "runs/cancel": runs.cancel,
        "follow": partial(follow, shelf),
        "ledger/service": ledgers.service,
        "ledger/verify": ledgers.verify,
        "ledger/tamper": ledgers.tamper,
        "device": devices.new,
        "device/do": devices.do,
        "device/scenario": devices.scenario,
        "local-dp": local_dp,
        "local-dp/tracking": tracking,
    }
    static = StaticFiles(directory=str(files("aggservice.studio") / "static"), html=True)
    return Starlette(
        routes=[
            *(Route(f"/api/{path}", _endpoint(function), methods=["GET"]) for path, function in reads.items()),
            *(Route(f"/api/{path}", _endpoint(function), methods=["POST"]) for path, function in writes.items()),
            Route("/api/feeds/{feed}", events, methods=["GET"]),
            Mount("/", static),
        ],
        middleware=[Middleware(Guard, access=access)],
        lifespan=lifespan,
    )


def _endpoint(function: Callable[[Given], Any]) -> Callable[[Request], Any]:
    """Return a route that calls a function of a part, in a thread, with what the request gives."""

    async def call(request: Request) -> Response:
        values: Any = dict(request.query_params)
        if request.method == "POST":
            try:
                values = json.loads(await request.body())
            except ClientDisconnect:
                return _refused(StudioError("the request ended early, or is larger than the studio accepts"))
            except (ValueError, RecursionError):
                return _refused(StudioError("the body is not valid JSON"))
            if not isinstance(values, dict):
                return _refused(StudioError("the body must be a JSON object"))
        try:
            return JSONResponse(to_plain(await run_in_threadpool(function, Given(values))))
        except _REFUSALS as problem:
            return _refused(problem)

    return call


def _refused(problem: Exception) -> Response:
    return JSONResponse({"error": str(problem)}, status_code=getattr(problem, "status", 400))
