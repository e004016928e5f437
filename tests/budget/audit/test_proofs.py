"""Canonical bytes, the Merkle tree, checkpoints and receipts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import SecureBits, SeededBits
from budget import BudgetError, Receipt, Signer
from budget.errors import FormatError
from budget.log.entries import decode, encode, entry_hash, extend, last_path, root, root_from_path
from budget.log.proofs import Checkpoint
from twins.merkle import path, tree_root

# RFC 6962's own small tree, as its reference implementation tests it: eight leaves and the root over the first n.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def test_the_tree_has_the_roots_that_certificate_transparency_publishes() -> None:
    frontier: tuple[bytes, ...] = ()
    assert root(frontier).hex() == hashlib.sha256(b"").hexdigest()
    for size, (leaf, expected) in enumerate(zip(LEAVES, ROOTS, strict=True)):
        frontier = extend(frontier, size, entry_hash(bytes.fromhex(leaf)))
        assert root(frontier).hex() == expected
    assert len(ROOTS) == 8


@given(st.integers(1, 70), st.data())
def test_paths_lead_to_the_root_and_nowhere_else(size: int, data: st.DataObject) -> None:
    leaves = [entry_hash(bytes([i])) for i in range(size)]
    frontiers: list[tuple[bytes, ...]] = [()]
    for i, leaf in enumerate(leaves):
        frontiers.append(extend(frontiers[-1], i, leaf))
    assert root(frontiers[-1]) == tree_root(leaves)
    assert last_path(frontiers[-2]) == path(leaves, size - 1)
    index = data.draw(st.integers(0, size - 1))
    proof = path(leaves, index)
    assert root_from_path(leaves[index], index, size, proof) == tree_root(leaves)
    other = data.draw(st.integers(0, size - 1))
    if other != index:
        assert root_from_path(leaves[other], index, size, proof) != tree_root(leaves)
    assert root_from_path(leaves[index], index, size, [*proof, bytes(32)]) is None
    assert root_from_path(leaves[index], size, size, proof) is None
    if proof:
        assert root_from_path(leaves[index], index, size, proof[:-1]) is None


PLAIN = st.recursive(
    st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), PLAIN, max_size=4))
def test_canonical_bytes_come_back_and_no_other_bytes_do(value: dict[str, object]) -> None:
    raw = encode(value)
    assert decode(raw) == value and encode(decode(raw)) == raw
    for other in (raw + b" ", b" " + raw, raw[:-1]):
        with pytest.raises(FormatError):
            decode(other)


@pytest.mark.parametrize("bad", [{"a": 1.0}, {"a": None}, {"a": True}, {"a": 2**53}, {"a": b""}, {1: "a"}])
def test_what_has_no_canonical_form_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        encode(bad)


@pytest.mark.parametrize(
    "raw",
    [b'{"a":1,"a":2}', b'{"b":1,"a":2}', b'{"a":1e0}', b'{"a":"\\u0041"}', b"[]", b"{", b'{"a":NaN}', b'{"a":-0}'],
)
def test_other_spellings_are_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode(raw)


def test_a_deep_document_is_refused_not_followed() -> None:
    with pytest.raises(FormatError):
        decode(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_a_checkpoint_verifies_and_every_changed_byte_is_found() -> None:
    signer = Signer.generate(SeededBits("checkpoint"))
    digest = hashlib.sha256(b"x").digest()
    checkpoint = Checkpoint(
        ledger_id=digest, entries=3, head=digest, root=digest, time_ms=5, public_key=signer.public_key
    ).signed_by(signer)
    raw = checkpoint.to_bytes()
    assert Checkpoint.from_bytes(raw) == checkpoint
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1 << (place % 8)
        with pytest.raises(FormatError):
            Checkpoint.from_bytes(bytes(changed))


def test_the_key_file_is_private_shared_and_stable(tmp_path: Path) -> None:
    file = tmp_path / "ledger.key"
    first = Signer.load_or_create(file, SecureBits())
    again = Signer.load_or_create(file, SecureBits())
    assert first.public_key == again.public_key
    assert file.stat().st_mode & 0o777 == 0o600 and [one.name for one in tmp_path.iterdir()] == ["ledger.key"]
    assert file.read_text().strip() not in repr(first)
    file.chmod(0o640)
    with pytest.raises(BudgetError, match="others can read it"):
        Signer.load(file)
    file.chmod(0o600)
    file.write_text("not a key")
    with pytest.raises(BudgetError, match=r"the signing key in .* cannot be used"):
        Signer.load(file)


@pytest.mark.parametrize(
    "result", ["x", {}, {"files": "abc"}, {"files": [1]}, {"files": [{"sha256": {}}]}, {"sha256": 1, "files": []}]
)
def test_a_receipt_over_an_entry_of_no_shape_names_no_result(result: object) -> None:
    """Anyone can sign a receipt with their own key; a reader compares the key before they trust it."""
    signer, entry = Signer.generate(SeededBits("forger")), {"seq": 0, "result": result}
    checkpoint = Checkpoint(
        ledger_id=bytes(32),
        entries=1,
        head=bytes(32),
        root=entry_hash(encode(entry)),
        time_ms=0,
        public_key=signer.public_key,
    ).signed_by(signer)
    read = Receipt.from_bytes(Receipt(entry=entry, path=(), checkpoint=checkpoint).to_bytes())
    assert read.result_digests() == set()
