"""The Host header of HTTP requests: a web page that rebinds its name to this machine reaches nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from .http_world import World, asks, error, http_world

OPEN: dict[str, Any] = {"callers": ()}


LOOPBACK = ("127.0.0.1", "127.0.0.1:8080", "127.9.9.9:1", "localhost", "LOCALHOST:99", "[::1]", "[::1]:8080")


STRANGE = (
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "localhost.evil.example:8080",
    "evil.example#127.0.0.1",
    "127.0.0.1@evil.example",
    "localhost:8080:8080",
    "192.0.2.1",
    "0.0.0.0",
    "[::2]",
    "localhost.",
    "",
)


def metrics_of(world: World, host: str) -> int:
    status, _ = world.raw("/metrics", token=None, Host=host)
    return status


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_service_without_callers_answers_on_loopback(maker: Any, tmp_path: Path, host: str) -> None:
    with http_world(maker, tmp_path, **OPEN) as world:
        assert error(world.get("none", token=None, Host=host))[0] == 404
        assert metrics_of(world, host) == 200


def test_a_page_that_rebinds_its_name_reaches_nothing(maker: Any, tmp_path: Path) -> None:
    """Without callers, without an Origin header: the Host header is what gives such a page away."""
    with http_world(maker, tmp_path, **OPEN) as world:
        for host in STRANGE:
            for answer in (world.get("none", token=None, Host=host), world.create(asks("x"), token=None, Host=host)):
                assert error(answer) == (403, "PERMISSION_DENIED", "PERMISSION_ERROR"), host
                assert "Host header" in answer[1]["error"]["message"]
                assert "http_hosts" in answer[1]["error"]["details"][0]["metadata"]["remedy"]
            assert metrics_of(world, host) == 403
        assert error(world.get("x", token=None))[0] == 404


def test_the_operator_names_further_hosts(maker: Any, tmp_path: Path) -> None:
    with http_world(maker, tmp_path, http_hosts=("Service.example", "[2001:db8::1]"), **OPEN) as world:
        for host in ("service.example", "SERVICE.example:8080", "[2001:db8::1]:80", "localhost"):
            assert error(world.get("none", token=None, Host=host))[0] == 404, host
        for host in ("other.service.example", "service.example.evil.example"):
            assert error(world.get("none", token=None, Host=host))[0] == 403, host


def test_with_callers_any_host_is_served_unless_hosts_are_named(maker: Any, tmp_path: Path) -> None:
    with http_world(maker, tmp_path) as world:
        assert error(world.get("none", Host="anything.example"))[0] == 404
    (tmp_path / "named").mkdir()
    with http_world(maker, tmp_path / "named", http_hosts=("service.example",)) as world:
        assert error(world.get("none", Host="service.example"))[0] == 404
        assert error(world.get("none", Host="anything.example"))[0] == 403


def test_two_host_headers_are_refused(maker: Any, tmp_path: Path) -> None:
    with http_world(maker, tmp_path, **OPEN) as world:
        with socket.create_connection(("127.0.0.1", world.service.service.http_port), timeout=30) as connection:
            connection.sendall(
                b"GET /v1alpha/getJob?job_request_id=a HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"
                b"Connection: close\r\n\r\n"
            )
            raw = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert int(raw.split()[1]) in (400, 403), raw[:200]
