"""Attacks on the studio: other hosts and origins, forged requests, paths, large bodies, many streams."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.studio import Access, Shelf, StudioError
from aggservice.studio.errors import UnknownItemError
from aggservice.studio.feeds import MAX_STREAMS, Feeds
from aggservice.studio.guards import MAX_BODY_BYTES
from aggservice.studio.shelf import Kind

from .conftest import OWN, RunningStudio


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example", ""])
def test_another_host_is_refused(studio: RunningStudio, host: str) -> None:
    """A name that DNS rebinding leads to this machine is not the studio's."""
    for path in ("/", "/api/shelf", "/main.js"):
        answer = studio.request("GET", path, headers={"host": host})
        assert answer.status in (400, 421) and b"items" not in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(studio: RunningStudio, headers: dict[str, str]) -> None:
    assert studio.request("GET", "/api/shelf", headers=headers).status == 403
    body = json.dumps({"design": "w3c"}).encode()
    assert studio.request("POST", "/api/device", body, OWN | headers).status == 403


def test_a_forged_form_is_refused(studio: RunningStudio) -> None:
    """What a page of another site can send without asking: no own header, or another content type."""
    body = json.dumps({"design": "w3c"}).encode()
    for headers in ({}, {"content-type": "application/json"}, {**OWN, "content-type": "text/plain"}):
        assert studio.request("POST", "/api/device", body, headers).status == 403
    own = {"origin": studio.url.rstrip("/")}
    assert studio.request("POST", "/api/device", body, OWN | own).status == 200
    assert studio.request("GET", "/api/device").status == 404


def test_every_answer_forbids_inline_scripts_and_framing(studio: RunningStudio) -> None:
    for path in ("/", "/api/shelf", "/nothing", "/api/result?run=0/none"):
        policy = studio.request("GET", path).headers["content-security-policy"]
        assert "script-src 'self';" in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    page = studio.request("GET", "/").body.decode()
    assert "<script>" not in page and "onclick" not in page and "http:" not in page and "https:" not in page


@pytest.mark.parametrize(
    "item",
    [
        "0/../secret.toml",
        "0/..%2fsecret.toml",
        "0//etc/passwd",
        "1/small.toml",
        "-1/small.toml",
        "0/link.toml",
        "0/",
        "x",
        "0/a\x00b",
    ],
)
def test_paths_outside_the_folders_are_unknown(studio: RunningStudio, item: str) -> None:
    secret = studio.folder.parent / "secret.toml"
    secret.write_text((studio.folder / "small.toml").read_text(encoding="utf-8"), encoding="utf-8")
    link = studio.folder / "link.toml"
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    answer = studio.request("GET", f"/api/campaign?campaign={quote(item, safe='')}")
    assert answer.status == 404 and b"population" not in answer.body
    assert not any("link" in one["id"] for one in studio.get("shelf")["items"])
    link.unlink()


@pytest.mark.parametrize("path", ["/../conftest.py", "/..%2f..%2fapp.py", "/%2e%2e/app.py", "/vendor/../../app.py"])
def test_static_files_stay_in_their_folder(studio: RunningStudio, path: str) -> None:
    assert studio.request("GET", path).status == 404


@pytest.mark.parametrize(
    "name", ["../up.toml", "a/b.toml", ".hidden.toml", "", "small.toml", "x.txt", "a" * 101 + ".toml"]
)
def test_a_file_is_saved_only_under_a_new_plain_name(studio: RunningStudio, name: str) -> None:
    toml = (studio.folder / "small.toml").read_text(encoding="utf-8")
    before = sorted(studio.folder.rglob("*"))
    assert studio.try_post("tune/save", toml=toml, name=name).status == 400
    assert sorted(studio.folder.rglob("*")) == before


def test_a_large_upload_is_refused_before_it_is_read(studio: RunningStudio) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=30)
    connection.putrequest("POST", "/api/tune")
    for name, value in (OWN | {"content-length": str(1 << 30)}).items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    chunked = OWN | {"transfer-encoding": "chunked"}
    assert studio.request("POST", "/api/tune", b"0\r\n\r\n", chunked).status == 413
    assert studio.request("POST", "/api/tune", b" " * (MAX_BODY_BYTES + 1), OWN).status == 413


def test_bodies_that_are_not_objects_get_a_sentence(studio: RunningStudio) -> None:
    for body in (b"", b"[]", b"{", b"1", b"[" * 100_000, b'{"toml": 3}', b'{"toml": "\\ud800"}'):
        answer = studio.request("POST", "/api/tune", body, OWN)
        assert answer.status == 400 and answer.json["error"]


def test_many_open_streams_are_bounded(studio: RunningStudio) -> None:
    """A feed that does not end keeps its streams; the first 16 are served, a thousand more are refused by name."""
    feeds = Feeds()
    feeds.open("busy")
    held = [feeds.reserve("busy") for _ in range(MAX_STREAMS)]
    for _ in range(1_000):
        with pytest.raises(StudioError, match="16 streams are open"):
            feeds.reserve("busy")
    assert len(held) == MAX_STREAMS
    assert studio.request("GET", "/api/feeds/none").status == 404


def test_a_token_is_asked_for_on_loopback_too(studio: RunningStudio) -> None:
    """Other users and programs of the machine reach the port: nothing is served without the token of this start."""
    without = {"authorization": ""}
    for path in ("/", "/main.js", "/api/shelf", "/api/feeds/x", "/api/campaign?campaign=0/small.toml"):
        assert studio.request("GET", path, headers=without).status == 401
    body = json.dumps({"design": "w3c"}).encode()
    assert studio.request("POST", "/api/device", body, OWN | without).status == 401
    for token in ("wrong", "", "Bearer", "secret-toke", "secret-token-", "sécret"):
        assert studio.request("GET", f"/?token={quote(token)}", headers=without).status == 401
        assert studio.request("GET", "/api/shelf", headers={"authorization": f"Bearer {quote(token)}"}).status == 401
    assert studio.request("GET", "/api/shelf?token=secret-token", headers=without).status == 401
    opened = studio.request("GET", "/?token=secret-token", headers=without)
    assert (
        opened.status == 303
        and opened.headers["location"] == "/"
        and "HttpOnly" in opened.headers["set-cookie"]
        and "strict" in opened.headers["set-cookie"].lower()
    )
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert str(studio.port) in cookie  # browsers send cookies of a host to all of its ports
    assert studio.request("GET", "/api/shelf", headers=without | {"cookie": cookie}).status == 200
    for elsewhere in ({"origin": "https://evil.example"}, {"sec-fetch-site": "same-site"}):
        assert studio.request("GET", "/api/shelf", headers=without | {"cookie": cookie} | elsewhere).status == 403
    with pytest.raises(ValueError, match="needs a token"):
        Access.on_loopback(80, "")


def test_the_command_prints_an_address_with_a_new_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: served.append((self.config.app, sockets)))
    seen = set()
    for _ in range(2):
        shown = CliRunner().invoke(app, ["studio", str(tmp_path), "--no-browser"])
        assert shown.exit_code == 0, shown.output
        found = re.search(r"studio: http://127.0.0.1:\d+/\?token=([\w-]{32})\n", shown.output)
        assert found is not None, shown.output
        seen.add(found[1])
    assert len(seen) == len(served) == 2
    for _, sockets in served:
        sockets[0].close()


def test_a_shelf_shows_what_it_recognises(shelf_folder: Path) -> None:
    shelf = Shelf([shelf_folder])
    kinds = {item.id: item.kind for item in shelf.items()}
    assert kinds["0/small.toml"] is Kind.CAMPAIGN
    assert kinds["0/small-run"] is Kind.RUN
    assert kinds["0/small-run/ledger/ledger.sqlite"] is Kind.LEDGER
    assert kinds["0/small-run/ledger/ledger.log"] is Kind.LEDGER
    assert kinds["0/scenarios/cost-rounds-up.json"] is Kind.SCENARIO
    with pytest.raises(UnknownItemError):
        shelf.path("0/small.toml", Kind.RUN)
    with pytest.raises(StudioError, match="is not a folder"):
        Shelf([shelf_folder / "small.toml"])


def test_a_campaign_whose_population_is_only_a_log_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log.toml").write_text('name = "a"\n[population.log]\nsources = "s.csv"\n', encoding="utf-8")
    (tmp_path / "other.toml").write_text("[populations]\n", encoding="utf-8")
    assert [(item.name, item.kind) for item in Shelf([tmp_path]).items()] == [("log.toml", Kind.CAMPAIGN)]
