"""One HTTPS server that plays every host of a scenario: publishers, shops, ad-techs and the coordinator.

The browser's resolver leads all names here. Pages and registrations are answers that a test puts up by host and path;
what browsers post to the well-known endpoints is kept, and forwarded to a collector if there is one.
"""

from __future__ import annotations

import datetime
import http.client
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PUBLIC_KEYS = "/.well-known/aggregation-service/v1/public-keys"
REPORTS = ("/.well-known/attribution-reporting/", "/.well-known/private-aggregation/")
Header = tuple[str, str | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the site answers at one URL."""

    body: bytes = b""
    status: int = 200
    headers: Sequence[Header] = ()
    content_type: str = "text/html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A report as it arrived, and the collector's answer (0 without a collector)."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    time_ms: int
    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request that was not a report."""

    url: str
    headers: Mapping[str, str]
    time_ms: int


@dataclass(slots=True)
class Site:
    """The server. ``answers`` maps ``host/path`` to an answer; ``public_keys`` is the coordinator's JSON.

    ``collector`` is the host and port that reports are forwarded to.
    """

    public_keys: Callable[[], bytes] = field(default=lambda: b'{"keys":[]}')
    collector: str | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    posted: list[Posted] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        site = self

        class Handler(BaseHTTPRequestHandler):
            """Answers for the site."""

            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                site._get(self)

            def do_POST(self) -> None:
                site._post(self)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory(prefix="aggservice-site-") as folder:
            context.load_cert_chain(*_certificate(Path(folder)))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, name="site", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """The host and port to resolve every name to."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.server_address[1]}"

    def wait_for(self, ready: Callable[[list[Posted]], bool], *, wait_s: float = 20.0) -> list[Posted]:
        """Return the posted reports once they are ``ready``, or as they are after ``wait_s``."""
        until = time.monotonic() + wait_s
        while not ready(self.posted) and time.monotonic() < until:
            time.sleep(0.02)
        return list(self.posted)

    def wait_until_quiet(self, quiet_s: float = 1.0, *, wait_s: float = 60.0) -> list[Posted]:
        """Return the posted reports once none has come for ``quiet_s``."""
        until, count, since = time.monotonic() + wait_s, -1, 0.0
        while time.monotonic() < until:
            if len(self.posted) != count:
                count, since = len(self.posted), time.monotonic()
            elif time.monotonic() - since >= quiet_s:
                break
            time.sleep(0.02)
        return list(self.posted)

    def forget(self) -> None:
        """Forget what was posted and seen so far."""
        self.posted.clear()
        self.seen.clear()

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        host, now_ms = handler.headers.get("host", ""), time.time_ns() // 1_000_000
        self.seen.append(Seen(url=f"https://{host}{handler.path}", headers=dict(handler.headers), time_ms=now_ms))
        if handler.path == PUBLIC_KEYS:
            found = Answer(
                body=self.public_keys(), content_type="application/json", headers=(("Cache-Control", "max-age=3600"),)
            )
        else:
            found = self.answers.get(host + handler.path, Answer(status=404))
        _respond(handler, found)

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        now_ms = time.time_ns() // 1_000_000
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        status = 200
        if handler.path.startswith(REPORTS):
            if self.collector is not None:
                status = self._forward(handler.path, body)
            url = f"https://{handler.headers.get('host', '')}{handler.path}"
            forwarded = 0 if self.collector is None else status
            self.posted.append(
                Posted(url=url, headers=dict(handler.headers), body=body, time_ms=now_ms, status=forwarded)
            )
        _respond(handler, Answer(status=status))

    def _forward(self, path: str, body: bytes) -> int:
        connection = http.client.HTTPConnection(str(self.collector), timeout=30)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that the browser drops, as it does at its end."""


def _respond(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.send_response(answer.status)
    handler.send_header("Content-Type", answer.content_type)
    handler.send_header("Content-Length", str(len(answer.body)))
    for name, value in answer.headers:
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(answer.body)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a new self-signed certificate and its key; return their files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "site.test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private
