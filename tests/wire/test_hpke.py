"""The seeded sender against RFC 9180, appendix A.2.1, and against ``cryptography``'s receiver."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import ForbiddenBits, SecureBits, SeededBits
from aggservice.mechanisms.errors import RandomnessForbiddenError
from aggservice.wire import seal
from aggservice.wire.errors import DecryptionError, KeySetError
from aggservice.wire.hpke.sealing import SUITE, BaseSender, derive_private_key, open_sealed

IKM_E = bytes.fromhex("909a9b35d3dc4713a5e72a4da274b55d3d3821a37e5d099e74a647db583a904b")
SK_E = bytes.fromhex("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600")
ENC = bytes.fromhex("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a")
IKM_R = bytes.fromhex("1ac01f181fdf9f352797655161c58b75c656a6cc2716dcb66372da835542e1df")
SK_R = bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb")
PK_R = bytes.fromhex("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a")
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
PLAINTEXT = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
CIPHERTEXTS = {
    0: "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28",
    1: "6b53c051e4199c518de79594e1c4ab18b96f081549d45ce015be002090bb119e85285337cc95ba5f59992dc98c",
    2: "71146bd6795ccc9c49ce25dda112a48f202ad220559502cef1f34271e0cb4b02b4f10ecac6f48c32f878fae86b",
    4: "63357a2aa291f5a4e5f27db6baa2af8cf77427c7c1a909e0b37214dd47db122bb153495ff0b02e9e54a50dbe16",
    255: "18ab939d63ddec9f6ac2b60d61d36a7375d2070c9b683861110757062c52b8880a5f6b3936da9cd6c23ef2a95c",
    256: "7a4a13e9ef23978e2c520fd4d2e757514ae160cd0cd05e556ef692370ca53076214c0c40d4c728d6ed9e727a5b",
}


def test_the_sender_gives_the_ciphertexts_of_the_rfc() -> None:
    sender = BaseSender(X25519PublicKey.from_public_bytes(PK_R), INFO, derive_private_key(IKM_E))
    assert sender.encapsulated == ENC
    found = {}
    for sequence in range(257):
        sealed = sender.seal(PLAINTEXT, b"Count-%d" % sequence)
        if sequence in CIPHERTEXTS:
            found[sequence] = sealed.hex()
    assert found == CIPHERTEXTS
    assert len(found) == 6


def test_key_pairs_are_derived_as_the_rfc_derives_them() -> None:
    # X25519 ignores the bits that clamping fixes, so keys are compared by what they give.
    for material, private in ((IKM_E, SK_E), (IKM_R, SK_R)):
        derived = derive_private_key(material)
        assert derived.private_bytes_raw() == private
    assert derive_private_key(IKM_R).public_key().public_bytes_raw() == PK_R


@given(plaintext=st.binary(max_size=2000), text=st.text(max_size=200), seed=st.integers())
def test_what_a_seeded_sender_seals_opens_with_the_suite(plaintext: bytes, text: str, seed: int) -> None:
    key = X25519PrivateKey.from_private_bytes(SK_R)
    sealed = seal(plaintext, shared_info=text, key=key.public_key(), bits=SeededBits(seed))
    assert SUITE.decrypt(sealed, key, b"aggregation_service" + text.encode()) == plaintext
    assert open_sealed(sealed, shared_info=text, key=key) == plaintext


def test_seeded_sealing_repeats_and_private_sealing_does_not() -> None:
    key = X25519PrivateKey.from_private_bytes(SK_R).public_key()

    def sealed(bits: SecureBits | SeededBits | None) -> bytes:
        return seal(b"payload", shared_info="{}", key=key, bits=bits)

    assert sealed(SeededBits(1)) == sealed(SeededBits(1)) != sealed(SeededBits(2))
    assert sealed(None) != sealed(None)
    assert sealed(SecureBits()) != sealed(SecureBits())
    bits = SeededBits(1)
    assert sealed(bits) != sealed(bits)
    with pytest.raises(RandomnessForbiddenError):
        seal(b"payload", shared_info="{}", key=key, bits=ForbiddenBits())


def test_a_payload_opens_only_under_its_key_its_shared_info_and_whole() -> None:
    key, other = X25519PrivateKey.from_private_bytes(SK_R), X25519PrivateKey.from_private_bytes(SK_E)
    sealed = seal(b"payload", shared_info="{}", key=key.public_key())
    assert open_sealed(sealed, shared_info="{}", key=key) == b"payload"
    attempts = [(sealed, "{}", other), (sealed, "{ }", key), (bytes(48), "{}", key), (b"\xff" * 60, "{}", key)]
    attempts += [(sealed[:length], "{}", key) for length in range(len(sealed))]
    for position in range(len(sealed)):
        for bit in range(8):
            # The top bit of an encapsulated key is ignored by X25519 but not by HPKE, which hashes it.
            altered = bytearray(sealed)
            altered[position] ^= 1 << bit
            attempts.append((bytes(altered), "{}", key))
    messages = set()
    for attempt, text, private in attempts:
        with pytest.raises(DecryptionError) as caught:
            open_sealed(attempt, shared_info=text, key=private)
        messages.add(str(caught.value))
        assert caught.value.__cause__ is None
    assert len(messages) == 1
    with pytest.raises(DecryptionError):
        open_sealed(sealed, shared_info="{}", key=key, unversioned=True)


@pytest.mark.parametrize("raw", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_of_small_order_is_refused_by_name(raw: bytes) -> None:
    key = X25519PublicKey.from_public_bytes(raw)
    for bits in (None, SecureBits(), SeededBits(b"small")):
        with pytest.raises(KeySetError, match="small order"):
            seal(b"open to all", shared_info="{}", key=key, bits=bits)
