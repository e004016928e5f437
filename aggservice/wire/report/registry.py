"""Device registries: their keys, and the tokens that they give, one per client and collection (docs/shuffling.md)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits
from aggservice.wire.errors import EncodingError, KeySetError
from aggservice.wire.hpke.key_sets import read_private_file
from aggservice.wire.origins import is_reporting_origin

KEY_BYTES = 32
_FIELD = "device_registry_private_key"
_MAX_FILE_BYTES = 4096
_REMEDY = "make a key pair with `aggservice keys registry`"
# The curve of RFC 8032, section 5.1: -x² + y² = 1 + d·x²·y² over the integers modulo p.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryKey:
    """The public key of a device registry.

    KeySetError for bytes that are not a point of the curve, which would verify nothing, and for a point of small order
    (32 zero bytes, for example), with which anyone can forge signatures.
    """

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise KeySetError(f"the registry's public key has {len(self.raw)} bytes: give {KEY_BYTES}")
        if not _is_safe_point(self.raw):
            raise KeySetError(f"these 32 bytes are not a valid Ed25519 public key: {_REMEDY}")

    @property
    def digest(self) -> str:
        """The SHA-256 of the key in hexadecimal, which identifies the key in the ledger and in statements."""
        return hashlib.sha256(self.raw).hexdigest()

    @classmethod
    def parse(cls, text: str) -> RegistryKey:
        """Read a key from 64 hexadecimal digits, or from the base64 of 32 bytes."""
        text = text.strip()
        try:
            raw = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise KeySetError(
                f"this is not a registry's public key: give 64 hexadecimal digits or the base64 of {KEY_BYTES} bytes"
            )
        return cls(raw=raw)

    @classmethod
    def read(cls, path: Path) -> RegistryKey:
        """Return the key in ``path``; a ``KeySetError`` names the file."""
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_FILE_BYTES)
        except OSError as error:
            raise KeySetError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from None
        if _FIELD.encode() in raw:
            raise KeySetError(f"{path} holds a registry's private key: name the file of its public key")
        try:
            return cls.parse(raw.decode("ascii"))
        except UnicodeDecodeError:
            raise KeySetError(f"{path}: a registry's public key is 64 hexadecimal digits or base64") from None
        except KeySetError as error:
            raise KeySetError(f"{path}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryKeyPair:
    """The key pair of a device registry. Only ``write`` puts the private half into text."""

    private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def create(cls, bits: Bits) -> RegistryKeyPair:
        """Return a new key pair."""
        return cls(private=Ed25519PrivateKey.from_private_bytes(bits.read(KEY_BYTES)))

    @property
    def public(self) -> RegistryKey:
        """The public half."""
        return RegistryKey(raw=self.private.public_key().public_bytes_raw())

    def write(self, path: Path) -> None:
        """Write the private key to ``path`` with permissions 0600; a file that exists is never overwritten."""
        text = base64.b64encode(self.private.private_bytes_raw()).decode()
        try:
            with whole_file(path, private=True, replace=False) as staged:
                staged.write_text(json.dumps({_FIELD: text}) + "\n", encoding="ascii")
        except FileExistsError:
            raise KeySetError(f"{path} exists already: name another file") from None

    @classmethod
    def read(cls, path: Path) -> RegistryKeyPair:
        """Return the key pair in ``path``; KeySetError if it is invalid or if others can read the file."""
        document = read_private_file(path, holds="a private key", remedy=_REMEDY)
        try:
            fields = json.loads(document)
            raw = base64.b64decode(fields[_FIELD], validate=True)
            return cls(private=Ed25519PrivateKey.from_private_bytes(raw))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise KeySetError(f"{path} is not a private key that `aggservice keys registry` wrote") from None


def _is_safe_point(raw: bytes) -> bool:
    """Return whether ``raw`` encodes, canonically, a point of the curve whose order is not 1, 2, 4 or 8."""
    number = int.from_bytes(raw, "little")
    y, sign = number & ((1 << 255) - 1), number >> 255
    if y >= _P:
        return False
    # RFC 8032, section 5.1.3: x² = (y² - 1) / (d·y² + 1); the denominator is never 0.
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if x * x % _P != square or (x == 0 and sign):
        return False
    for _ in range(3):
        product = _D * x * x * y * y % _P
        x, y = 2 * x * y * pow(1 + product, -1, _P) % _P, (y * y + x * x) * pow(1 - product, -1, _P) % _P
    return (x, y) != (0, 1)


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
