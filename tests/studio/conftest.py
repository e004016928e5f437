"""A studio that runs on loopback, over folders of its own."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from aggservice.campaign import load_campaign, run_campaign
from aggservice.studio import Access, Shelf, build_studio

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = {"x-aggservice-studio": "1", "content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStudio:
    """A studio and the folder that it shows. Its requests carry the token unless they have a header of their own."""

    port: int
    folder: Path
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def address(self) -> str:
        """The address that ``aggservice studio`` prints."""
        return f"{self.url}?token={self.token}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            own = {"authorization": f"Bearer {self.token}"}
            connection.request(method, path, body=body, headers=own | (headers or {}))
            answer = connection.getresponse()
            return Answer(status=answer.status, headers=dict(answer.getheaders()), body=answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.request("GET", f"/api/{path}")
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, /, **members: Any) -> Any:
        answer = self.try_post(path, **members)
        assert answer.status == 200, answer.body
        return answer.json

    def try_post(self, path: str, /, **members: Any) -> Answer:
        return self.request("POST", f"/api/{path}", json.dumps(members).encode(), OWN)

    def follow(self, feed: str) -> list[dict[str, Any]]:
        """Return every event of a feed, the last of which has a state."""
        answer = self.request("GET", f"/api/feeds/{feed}")
        lines = answer.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def serve(folder: Path, token: str = "secret-token") -> Iterator[RunningStudio]:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    app = build_studio(Shelf([folder]), Access.on_loopback(port, token))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not server.started and time.monotonic() < until:
        time.sleep(0.02)
    yield RunningStudio(port=port, folder=folder, token=token)
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="session")
def shelf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with campaigns, a finished run with its ledger, and scenarios."""
    folder = tmp_path_factory.mktemp("shelf")
    for name in ("thanksgiving", "late_reports"):
        shutil.copytree(EXAMPLES / name, folder / name)
    shutil.copytree(EXAMPLES / "w3c" / "scenarios", folder / "scenarios")
    small(folder / "small.toml")
    campaign = load_campaign(folder / "small.toml")
    run_campaign(campaign, folder / "small-run", seed="studio", workers=1, draw=False)
    return folder


def small(path: Path) -> None:
    """Write the Thanksgiving campaign with 600 people."""
    text = (EXAMPLES / "thanksgiving" / "campaign.toml").read_text(encoding="utf-8")
    assert "size = 20_000" in text
    path.write_text(text.replace("size = 20_000", "size = 600"), encoding="utf-8")


@pytest.fixture(scope="session")
def studio(shelf_folder: Path) -> Iterator[RunningStudio]:
    yield from serve(shelf_folder)
