"""The credentials of a client, and the addresses that they may be sent to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aggservice.client.errors import bad_argument
from aggservice.wire import parse_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A caller's token or certificate. ``root_certificates`` (PEM) turns on TLS."""

    token: str | None = field(default=None, repr=False)
    root_certificates: bytes | None = None
    certificate: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise bad_argument("the token is not printable ASCII text: check that the token file is the right one")
        if (self.certificate is None) != (self.private_key is None):
            raise bad_argument("certificate and private_key go together: give both, or neither")
        if self.certificate is not None and self.root_certificates is None:
            raise bad_argument("a client certificate needs TLS: give root_certificates too")

    def check_address(self, address: str) -> None:
        """Refuse to send a token in clear text to another machine."""
        if self.token is None or self.root_certificates is not None or address.startswith("unix:"):
            return
        origin = parse_origin(f"http://{address}")
        if origin is None or not origin.suitable:
            raise bad_argument(
                f"a token is sent to {address} over TLS only: give root_certificates, or an address of this machine"
            )

    @classmethod
    def from_files(
        cls,
        *,
        token_file: Path | None = None,
        root_certificates: Path | None = None,
        certificate: Path | None = None,
        private_key: Path | None = None,
    ) -> Credentials:
        """Read credentials from files."""
        return cls(
            token=token_file.read_text(encoding="utf-8", errors="replace").strip() if token_file else None,
            root_certificates=root_certificates.read_bytes() if root_certificates else None,
            certificate=certificate.read_bytes() if certificate else None,
            private_key=private_key.read_bytes() if private_key else None,
        )
