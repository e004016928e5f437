"""What can be found wrong with a configuration before a service starts: its files, and ports that are taken."""

from __future__ import annotations

import socket
import ssl

from aggservice.service.config.settings import ServiceConfig, TlsFiles, read_secret
from aggservice.service.errors import ConfigError
from aggservice.wire import read_key_set


def check_files(config: ServiceConfig) -> None:
    """Refuse files that are missing or do not fit together, and secret files that others can read."""
    if config.tls is not None:
        _check_tls(config.tls)
    if config.ledger_dsn_file is not None:
        read_secret(config.ledger_dsn_file, "ledger.dsn_file")
    keys = config.keys or config.state / "keys.json"
    if keys.exists():
        read_key_set(keys)


def _check_tls(tls: TlsFiles) -> None:
    read_secret(tls.private_key, "tls.private_key")
    authority = () if tls.client_authority is None else (("tls.client_authority", tls.client_authority),)
    for name, path in (("tls.certificate", tls.certificate), *authority):
        try:
            path.read_bytes()
        except OSError as problem:
            raise ConfigError(f"{name}: cannot read {path}: {problem.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.private_key, password=lambda: "")
    except (ssl.SSLError, ValueError) as problem:
        raise ConfigError(
            f"tls.certificate {tls.certificate} and tls.private_key {tls.private_key} do not fit together, or are not "
            "PEM: give a certificate and its own key, which has no password"
        ) from problem
    for name, path in authority:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError as problem:
            raise ConfigError(f"{name}: {path} holds no certificate in PEM") from problem


def open_port(address: str) -> socket.socket:
    """Return a socket that listens on ``host:port``; ConfigError if that is impossible."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as problem:
        raise ConfigError(f"cannot listen on {address}: check that the port is free") from problem


def check_ports(config: ServiceConfig) -> None:
    """Refuse a port that another program has, before anything is created or started."""
    for address in (config.listen, config.listen_mtls, config.http_listen):
        if address and not address.startswith("unix:"):
            open_port(address).close()
