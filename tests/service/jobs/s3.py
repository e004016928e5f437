"""An S3 server on loopback, behind a proxy that can cut connections and notes what was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

BUCKET = "bucket"


class Proxy:
    """Passes bytes on to a server. ``cut_after`` ends each upload after so many bytes; None lets everything through.

    ``asked`` are the request lines seen.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cut_after: int | None = None
        self.cuts = 0
        self.asked: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()
            uploaded: int | None = None
            while data := client.recv(1 << 16):
                for line in data.split(b"\r\n"):
                    if line.endswith(b"HTTP/1.1"):
                        self.asked.append(line.decode("latin-1"))
                        uploaded = 0 if line.startswith(b"PUT") else None
                if uploaded is not None and self.cut_after is not None:
                    left = self.cut_after - uploaded
                    if len(data) > left:
                        server.sendall(data[: max(0, left)])
                        self.cuts += 1
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    uploaded += len(data)
                server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Listen no more."""
        self._listening.close()


@contextmanager
def s3_server(patch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Any]]:
    """Start a server with one bucket; point the usual variables of the environment at it; yield its proxy and store."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed: no S3 server to test against")
    obstore = pytest.importorskip("obstore", reason="obstore is not installed: no object storage")
    from obstore.store import S3Store

    from aggservice.service.jobs import objects

    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port()[1])
    for request in ("POST /moto-api/reset", f"PUT /{BUCKET}"):  # what an earlier server of this process held is gone
        with socket.create_connection(server.get_host_and_port()) as raw:
            raw.sendall(f"{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
            assert b"200" in raw.recv(1000)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        patch.setenv(name, value)
    objects.open_bucket.cache_clear()
    try:
        direct = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        yield proxy, _Bucket(obstore, S3Store(BUCKET, endpoint=direct, client_options={"allow_http": True}))
    finally:
        proxy.close()
        server.stop()
        objects.open_bucket.cache_clear()


class _Bucket:
    """The bucket, past the proxy."""

    def __init__(self, library: Any, store: Any) -> None:
        self._library = library
        self._store = store

    def put(self, key: str, raw: bytes) -> None:
        self._library.put(self._store, key, raw)

    def get(self, key: str) -> bytes:
        return bytes(self._library.get(self._store, key).bytes())

    def names(self) -> list[str]:
        return sorted(one["path"] for page in self._library.list(self._store) for one in page)
