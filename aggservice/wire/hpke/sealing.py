"""Sealing a payload to the aggregation service and opening it there: HPKE, RFC 9180, base mode.

``info`` is ``aggregation_service`` followed by the exact bytes of ``shared_info``; the associated data is empty; a
sealed payload is the 32-byte encapsulated key followed by the ciphertext.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from aggservice.mechanisms import Bits
from aggservice.wire.errors import DecryptionError, KeySetError, PayloadError, PayloadFlaw
from aggservice.wire.limits import MAX_PAYLOAD_BYTES

KEY_BYTES = 32
NONCE_BYTES = 12
_VERSION = b"HPKE-v1"
_KEM_SUITE = b"KEM\x00\x20"
_SUITE = b"HPKE\x00\x20\x00\x01\x00\x03"
_MODE_BASE = b"\x00"
_HASH = SHA256()


def labeled_extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    """RFC 9180, section 4, ``LabeledExtract``."""
    return HKDF.extract(_HASH, salt, _VERSION + suite + label + material)


def labeled_expand(suite: bytes, secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """RFC 9180, section 4, ``LabeledExpand``."""
    labeled = length.to_bytes(2, "big") + _VERSION + suite + label + info
    return HKDFExpand(_HASH, length, labeled).derive(secret)


def derive_private_key(material: bytes) -> X25519PrivateKey:
    """Return the private key derived from at least 32 bytes of key material (section 7.1.3, ``DeriveKeyPair``)."""
    secret = labeled_extract(_KEM_SUITE, b"", b"dkp_prk", material)
    return X25519PrivateKey.from_private_bytes(labeled_expand(_KEM_SUITE, secret, b"sk", b"", KEY_BYTES))


class BaseSender:
    """A sender's context in base mode (sections 5.1.1 and 5.2): seals messages in order under one encapsulated key."""

    def __init__(self, recipient: X25519PublicKey, info: bytes, ephemeral: X25519PrivateKey) -> None:
        self.encapsulated = ephemeral.public_key().public_bytes_raw()
        exchanged = ephemeral.exchange(recipient)
        secret = labeled_extract(_KEM_SUITE, b"", b"eae_prk", exchanged)
        kem_context = self.encapsulated + recipient.public_bytes_raw()
        shared = labeled_expand(_KEM_SUITE, secret, b"shared_secret", kem_context, KEY_BYTES)
        context = (
            _MODE_BASE
            + labeled_extract(_SUITE, b"", b"psk_id_hash", b"")
            + labeled_extract(_SUITE, b"", b"info_hash", info)
        )
        secret = labeled_extract(_SUITE, shared, b"secret", b"")
        self._aead = ChaCha20Poly1305(labeled_expand(_SUITE, secret, b"key", context, KEY_BYTES))
        self._nonce = int.from_bytes(labeled_expand(_SUITE, secret, b"base_nonce", context, NONCE_BYTES), "big")
        self._sequence = 0

    def seal(self, plaintext: bytes, associated: bytes = b"") -> bytes:
        """Return the ciphertext of the next message."""
        nonce = (self._nonce ^ self._sequence).to_bytes(NONCE_BYTES, "big")
        self._sequence += 1
        return self._aead.encrypt(nonce, plaintext, associated)


SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
INFO_PREFIX = b"aggregation_service"
OVERHEAD_BYTES = 48
"""What sealing adds: the encapsulated key and the tag."""


def hpke_info(shared_info: str | bytes, *, unversioned: bool = False) -> bytes:
    """Return HPKE's ``info`` for a report; reports without a version have a zero byte after the prefix."""
    raw = shared_info.encode() if isinstance(shared_info, str) else shared_info
    return INFO_PREFIX + (b"\x00" if unversioned else b"") + raw


def seal(
    plaintext: bytes,
    *,
    shared_info: str | bytes,
    key: X25519PublicKey,
    bits: Bits | None = None,
    unversioned: bool = False,
) -> bytes:
    """Return ``plaintext`` sealed to ``key`` and bound to ``shared_info``.

    If ``bits`` is None or private, ``cryptography`` draws the ephemeral key. Otherwise ``bits`` gives 32 bytes of key
    material: a seeded run seals to the same bytes every time, and protects nothing. A key of small order, for which
    anyone could open the payload, raises ``KeySetError``.
    """
    return seal_bound(plaintext, info=hpke_info(shared_info, unversioned=unversioned), key=key, bits=bits)


def seal_bound(plaintext: bytes | memoryview, *, info: bytes, key: X25519PublicKey, bits: Bits | None) -> bytes:
    """Return ``plaintext`` sealed to ``key`` and bound to ``info``; ``bits`` and errors are as for ``seal``."""
    ephemeral = None if bits is None or bits.private else derive_private_key(bits.read(KEY_BYTES))
    try:
        if ephemeral is None:
            return SUITE.encrypt(bytes(plaintext), key, info)
        sender = BaseSender(key, info, ephemeral)
    except ValueError:
        raise KeySetError("the public key is a point of small order (RFC 7748, section 6.1): use another key") from None
    return sender.encapsulated + sender.seal(bytes(plaintext))


def open_sealed(sealed: bytes, *, shared_info: str | bytes, key: X25519PrivateKey, unversioned: bool = False) -> bytes:
    """Return the plaintext; raise ``DecryptionError`` if ``sealed`` does not open with this key and ``shared_info``."""
    if len(sealed) > MAX_PAYLOAD_BYTES + OVERHEAD_BYTES:
        raise PayloadError(PayloadFlaw.OVERSIZED)
    try:
        return SUITE.decrypt(sealed, key, hpke_info(shared_info, unversioned=unversioned))
    except (InvalidTag, ValueError):
        raise DecryptionError from None
