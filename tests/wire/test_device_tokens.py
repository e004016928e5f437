"""Device tokens and registry keys: what is bound, what is refused, and the files."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import SecureBits, SeededBits
from aggservice.wire.errors import EncodingError, KeySetError
from aggservice.wire.report.registry import (
    TOKEN_BYTES,
    RegistryKey,
    RegistryKeyPair,
    TokenCheck,
    sign_token,
    token_message,
)

PAIR = RegistryKeyPair.create(SeededBits("registry"))
ORIGIN, COLLECTION, REPORT_ID = "https://adtech.example", "monday", bytes(range(16))
CHECK = TokenCheck(key=PAIR.public, collection=COLLECTION)
TOKEN = sign_token(PAIR, origin=ORIGIN, collection=COLLECTION, report_id=REPORT_ID)
LABELS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=64)


def test_a_token_is_for_one_origin_collection_report_and_registry() -> None:
    assert len(TOKEN) == TOKEN_BYTES
    assert CHECK.valid(TOKEN, origin=ORIGIN, report_id=REPORT_ID)
    assert pickle.loads(pickle.dumps(CHECK)) == CHECK
    assert not CHECK.valid(TOKEN, origin="https://adtech.example:8443", report_id=REPORT_ID)
    assert not CHECK.valid(TOKEN, origin=ORIGIN, report_id=REPORT_ID[::-1])
    assert not TokenCheck(key=PAIR.public, collection="Monday").valid(TOKEN, origin=ORIGIN, report_id=REPORT_ID)
    other = RegistryKeyPair.create(SecureBits())
    assert not TokenCheck(key=other.public, collection=COLLECTION).valid(TOKEN, origin=ORIGIN, report_id=REPORT_ID)
    forged = sign_token(other, origin=ORIGIN, collection=COLLECTION, report_id=REPORT_ID)
    assert not CHECK.valid(forged, origin=ORIGIN, report_id=REPORT_ID)
    # Without its domain the same text under the same key is no token.
    bare = PAIR.private.sign(token_message(origin=ORIGIN, collection=COLLECTION, report_id=REPORT_ID)[27:])
    assert not CHECK.valid(bare, origin=ORIGIN, report_id=REPORT_ID)


def test_no_flipped_bit_is_a_token() -> None:
    for bit in range(8 * TOKEN_BYTES):
        flipped = (int.from_bytes(TOKEN, "big") ^ 1 << bit).to_bytes(TOKEN_BYTES, "big")
        assert not CHECK.valid(flipped, origin=ORIGIN, report_id=REPORT_ID)
    for wrong in (b"", TOKEN[:-1], TOKEN + b"\0", bytes(64)):
        assert not CHECK.valid(wrong, origin=ORIGIN, report_id=REPORT_ID)


@given(
    st.tuples(
        st.sampled_from(["https://a.example", "https://ab.example"]), LABELS, st.binary(min_size=16, max_size=16)
    ),
    st.tuples(
        st.sampled_from(["https://a.example", "https://ab.example"]), LABELS, st.binary(min_size=16, max_size=16)
    ),
)
def test_different_things_have_different_messages(one: tuple[str, str, bytes], two: tuple[str, str, bytes]) -> None:
    messages = [token_message(origin=origin, collection=label, report_id=raw) for origin, label, raw in (one, two)]
    assert (messages[0] == messages[1]) == (one == two)


@pytest.mark.parametrize(
    "changes",
    [
        {"collection": ""},
        {"collection": "x" * 65},
        {"collection": "naïve"},
        {"collection": "tab\t"},
        {"origin": "adtech.example"},
        {"origin": "https://adtech.example/"},
        {"report_id": bytes(15)},
    ],
)
def test_what_no_token_is_for_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(EncodingError):
        sign_token(PAIR, **{"origin": ORIGIN, "collection": COLLECTION, "report_id": REPORT_ID, **changes})  # type: ignore[arg-type]


def test_public_keys_are_hexadecimal_or_base64(tmp_path: Path) -> None:
    raw = PAIR.public.raw
    path = tmp_path / "registry.pub"
    for text in (raw.hex(), raw.hex().upper() + "\n", base64.b64encode(raw).decode() + "\r\n"):
        path.write_text(text)
        assert RegistryKey.read(path) == PAIR.public
    for wrong in (b"", b"zz" * 32, raw.hex().encode()[:-2], raw, base64.b64encode(raw + b"x"), b"ab\xff"):
        path.write_bytes(wrong)
        with pytest.raises(KeySetError, match=r"registry\.pub"):
            RegistryKey.read(path)
    with pytest.raises(KeySetError, match="aggservice keys registry"):
        RegistryKey.read(tmp_path / "missing")


@pytest.mark.parametrize(
    "text",
    [
        "00" * 32,
        "01" + "00" * 31,
        "ec" + "ff" * 30 + "7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "02" + "00" * 31,
        "01" + "00" * 30 + "80",
        "ff" * 32,
    ],
)
def test_keys_under_which_anybody_or_nobody_can_sign_are_refused(text: str) -> None:
    """Points of order 4, 1, 2, 8 and 8, then no point, a sign without an x, and a y that is not below p."""
    with pytest.raises(KeySetError, match="not a valid Ed25519 public key"):
        RegistryKey.parse(text)


def test_every_key_pair_has_a_public_key_that_is_taken() -> None:
    for _ in range(100):
        public = RegistryKeyPair.create(SecureBits()).public
        assert RegistryKey.parse(public.raw.hex()) == public


def test_private_keys_are_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    PAIR.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert RegistryKeyPair.read(path).public == PAIR.public
    with pytest.raises(KeySetError, match="exists already"):
        PAIR.write(path)
    with pytest.raises(KeySetError, match="holds a registry's private key"):
        RegistryKey.read(path)
    secret = base64.b64encode(PAIR.private.private_bytes_raw()).decode()
    assert secret in path.read_text() and secret not in repr(PAIR)
    path.chmod(0o640)
    with pytest.raises(KeySetError, match="chmod 600"):
        RegistryKeyPair.read(path)
    path.chmod(0o600)
    for wrong in ("", "[]", "{}", '{"device_registry_private_key": 7}', '{"device_registry_private_key": "AA=="}'):
        path.write_text(wrong)
        with pytest.raises(KeySetError, match="keys registry"):
            RegistryKeyPair.read(path)
    with pytest.raises(KeySetError, match="cannot read"):
        RegistryKeyPair.read(tmp_path / "missing")
