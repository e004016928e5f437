"""HPKE base mode for a sender with a given ephemeral key, for reproducible runs.

RFC 9180, sections 4 to 6, for DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and ChaCha20Poly1305, over the primitives of
``cryptography``. A private run does not use this: it seals with ``cryptography``'s own ``Suite``.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

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
