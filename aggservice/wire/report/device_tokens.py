"""Device tokens: signatures by which a device registry confirms that a report comes from one of its clients.

The registry signs at most one token per client and collection. A token binds the reporting origin, the collection and
the report id, and travels inside the sealed payload: those who handle the report cannot see, make, remove or move
it. The registry never sees what a report contains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from aggservice.wire.errors import EncodingError
from aggservice.wire.origins import is_reporting_origin
from aggservice.wire.report.registry_keys import RegistryKey, RegistryKeyPair

TOKEN_BYTES = 64
MAX_COLLECTION_CHARACTERS = 64
_REPORT_ID_BYTES = 16
_DOMAIN = b"aggservice device token v1\0"


def check_collection(label: str) -> None:
    """Raise ``EncodingError`` unless the collection label has 1 to 64 characters, all printable ASCII."""
    if not 1 <= len(label) <= MAX_COLLECTION_CHARACTERS or not (label.isascii() and label.isprintable()):
        raise EncodingError(
            f"the collection {label[:80]!r} is invalid: use 1 to {MAX_COLLECTION_CHARACTERS} printable ASCII characters"
        )


def token_message(*, origin: str, collection: str, report_id: bytes) -> bytes:
    """Return the bytes that a token signs: a fixed prefix, origin and collection with their lengths, and the id.

    ``origin`` is a reporting origin as a browser writes it and ``report_id`` the 16 bytes of the report's UUID.
    """
    if not is_reporting_origin(origin):
        raise EncodingError(f"{origin!r} is not a reporting origin such as https://adtech.example")
    check_collection(collection)
    if len(report_id) != _REPORT_ID_BYTES:
        raise EncodingError(f"the report id has {len(report_id)} bytes: give the {_REPORT_ID_BYTES} bytes of a UUID")
    return _prefix(origin, collection) + report_id


@lru_cache(maxsize=4096)
def _prefix(origin: str, collection: str) -> bytes:
    name, label = origin.encode(), collection.encode()
    return _DOMAIN + len(name).to_bytes(2, "big") + name + len(label).to_bytes(1, "big") + label


def sign_token(keys: RegistryKeyPair, *, origin: str, collection: str, report_id: bytes) -> bytes:
    """Return the 64 bytes of a token. It signs whatever it is given; ``ldp_client.Registry`` decides who gets one."""
    return keys.private.sign(token_message(origin=origin, collection=collection, report_id=report_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCheck:
    """Checks tokens against a registry's public key and the collection that a job names."""

    key: RegistryKey
    collection: str

    def __post_init__(self) -> None:
        check_collection(self.collection)

    def valid(self, token: bytes, *, origin: str, report_id: bytes) -> bool:
        """Return whether the registry signed ``token`` for this origin, collection and report id.

        ``origin`` and ``report_id`` come from a parsed ``shared_info``. Costs one Ed25519 verification.
        """
        try:
            _loaded(self.key.raw).verify(token, _prefix(origin, self.collection) + report_id)
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=64)
def _loaded(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)
