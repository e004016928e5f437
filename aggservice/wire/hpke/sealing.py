"""Sealing a payload to the aggregation service and opening it there: HPKE, RFC 9180, base mode.

``info`` is ``aggregation_service`` followed by the exact bytes of ``shared_info``; the associated data is empty; a
sealed payload is the 32-byte encapsulated key followed by the ciphertext.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from aggservice.mechanisms import Bits
from aggservice.wire.errors import DecryptionError, KeySetError, PayloadError, PayloadFlaw
from aggservice.wire.hpke.sender import KEY_BYTES, BaseSender, derive_private_key
from aggservice.wire.limits import MAX_PAYLOAD_BYTES

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
