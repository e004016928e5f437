"""Signed evidence for others to keep: checkpoints of the whole log, and receipts for one entry of it.

Both are canonical JSON, so that people can read them and any changed byte is detected. A receipt holds the entry, a
checkpoint and the Merkle path between them: the public key is enough to check it without the log, and with the log
anyone can check that the entry is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits
from budget.errors import BudgetError, FormatError
from budget.log.entries import (
    Entry,
    Genesis,
    decode,
    encode,
    entry_from_plain,
    entry_hash,
    from_hex,
    last_path,
    root,
    root_from_path,
)
from budget.store import HASH_BYTES

_CHECKPOINT: Final = "aggservice-checkpoint-1"
_RECEIPT: Final = "aggservice-receipt-1"
_SEED_BYTES: Final = 32


class Signer:
    """The Ed25519 key of a ledger (RFC 8032). Its seed is never in the database or in a message."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != _SEED_BYTES:
            raise BudgetError(f"an Ed25519 seed has {_SEED_BYTES} bytes, not {len(seed)}")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, bits: Bits) -> Signer:
        """Return a new key drawn from ``bits``."""
        return cls(bits.read(_SEED_BYTES))

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Read the key from a file of 64 hex digits that only its owner can read."""
        try:
            if path.stat().st_mode & 0o077:
                raise BudgetError(f"others can read it: run 'chmod 600 {path}'")
            return cls(bytes.fromhex(path.read_text("ascii").strip()))
        except (OSError, ValueError, BudgetError) as problem:
            raise BudgetError(f"the signing key in {path} cannot be used: {problem}") from problem

    @classmethod
    def load_or_create(cls, path: Path, bits: Bits) -> Signer:
        """Read the key from ``path``, or draw a new one and write it there, readable by its owner only."""
        if not path.exists():
            seed = bits.read(_SEED_BYTES)
            # The first writer wins; later ones read that file.
            with suppress(FileExistsError), whole_file(path, private=True, replace=False) as staged:
                staged.write_text(seed.hex() + "\n", "ascii")
        return cls.load(path)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of ``message``."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Signer(public_key={self.public_key.hex()})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A signed statement: this ledger, at ``entries`` entries, had this last hash and this Merkle root."""

    ledger_id: bytes
    entries: int
    head: bytes
    root: bytes
    time_ms: int
    public_key: bytes
    signature: bytes = b""

    def _plain(self) -> dict[str, Any]:
        return {
            "format": _CHECKPOINT,
            "ledger": self.ledger_id.hex(),
            "entries": self.entries,
            "head": self.head.hex(),
            "root": self.root.hex(),
            "time_ms": self.time_ms,
            "public_key": self.public_key.hex(),
        }

    def signed_by(self, signer: Signer) -> Checkpoint:
        """Return this checkpoint with its signature over the canonical bytes of everything else."""
        own = replace(self, public_key=signer.public_key)
        return replace(own, signature=signer.sign(encode(own._plain())))

    def to_plain(self) -> dict[str, Any]:
        """Return the plain values, signature included."""
        return self._plain() | {"signature": self.signature.hex()}

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return encode(self.to_plain())

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Checkpoint:
        """Read the plain values; FormatError unless they are exactly a checkpoint with a valid signature."""
        try:
            found = cls(
                ledger_id=from_hex(plain["ledger"], HASH_BYTES),
                entries=plain["entries"],
                head=from_hex(plain["head"], HASH_BYTES),
                root=from_hex(plain["root"], HASH_BYTES),
                time_ms=plain["time_ms"],
                public_key=from_hex(plain["public_key"], 32),
                signature=from_hex(plain["signature"], 64),
            )
        except (KeyError, TypeError) as problem:
            raise FormatError(f"this is not a checkpoint: {problem!r}") from problem
        if found.to_plain() != plain or type(found.entries) is not int or not found.entries > 0:
            raise FormatError("this is not a checkpoint: its members or values are wrong")
        try:
            Ed25519PublicKey.from_public_bytes(found.public_key).verify(found.signature, encode(found._plain()))
        except (InvalidSignature, ValueError) as problem:
            raise FormatError("the signature of the checkpoint does not verify") from problem
        return found

    @classmethod
    def from_bytes(cls, raw: bytes) -> Checkpoint:
        """Read canonical bytes, checking the signature against the key named in them."""
        return cls.from_plain(decode(raw))


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Proof that an entry is in the log up to a checkpoint. Valid once built by ``issue`` or ``from_bytes``."""

    entry: dict[str, Any]
    path: tuple[bytes, ...]
    checkpoint: Checkpoint

    @property
    def seq(self) -> int:
        """The entry's number in the log."""
        return int(self.entry["seq"])

    @property
    def leaf(self) -> bytes:
        """The entry's hash, at which its Merkle path begins."""
        return entry_hash(encode(self.entry))

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return encode(
            {
                "format": _RECEIPT,
                "entry": self.entry,
                "path": [one.hex() for one in self.path],
                "checkpoint": self.checkpoint.to_plain(),
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> Receipt:
        """Read canonical bytes; FormatError unless the signature verifies and the path leads to the signed root."""
        plain = decode(raw)
        try:
            if set(plain) != {"format", "entry", "path", "checkpoint"} or plain["format"] != _RECEIPT:
                raise FormatError("this is not a receipt: its members or format are wrong")
            path = tuple(from_hex(one, HASH_BYTES) for one in plain["path"])
            entry, seq = plain["entry"], plain["entry"]["seq"]
        except (KeyError, TypeError) as problem:
            raise FormatError(f"this is not a receipt: {problem!r}") from problem
        receipt = cls(entry=entry, path=path, checkpoint=Checkpoint.from_plain(plain["checkpoint"]))
        if receipt.to_bytes() != raw or type(seq) is not int:
            raise FormatError("this is not a receipt: it is not in canonical form")
        found = root_from_path(receipt.leaf, seq, receipt.checkpoint.entries, path)
        if found != receipt.checkpoint.root:
            raise FormatError("the path of the receipt does not lead from its entry to the signed root")
        return receipt

    def result_digests(self) -> set[str]:
        """Return the SHA-256, in hex, of everything the entry released: the result and each of its files.

        A valid signature does not prove that the entry is well formed: malformed parts are skipped.
        """
        result = self.entry.get("result")
        files = result.get("files") if isinstance(result, dict) else None
        named = [result, *files] if isinstance(files, list) else []
        found = (one.get("sha256") for one in named if isinstance(one, dict))
        return {digest for digest in found if isinstance(digest, str)}

    def parsed(self, loss_name: str) -> Entry:
        """Return the entry that the receipt proves."""
        return entry_from_plain(self.entry, None if self.entry.get("type") == Genesis.type else loss_name)


def issue(
    *,
    signer: Signer,
    entry: dict[str, Any],
    raw: bytes,
    frontier_before: Sequence[bytes],
    frontier: Sequence[bytes],
    ledger_id: bytes,
) -> Receipt:
    """Return the receipt of the entry just appended, against the log that ends with it."""
    checkpoint = Checkpoint(
        ledger_id=ledger_id,
        entries=int(entry["seq"]) + 1,
        head=entry_hash(raw),
        root=root(frontier),
        time_ms=int(entry["time_ms"]),
        public_key=signer.public_key,
    ).signed_by(signer)
    return Receipt(entry=entry, path=last_path(frontier_before), checkpoint=checkpoint)


Signed = TypeVar("Signed", Checkpoint, Receipt)


def read_evidence(kind: type[Signed], path: Path) -> Signed:
    """Read a checkpoint or a receipt from its file; an error names the file."""
    try:
        return kind.from_bytes(path.read_bytes())
    except (FormatError, OSError) as problem:
        raise FormatError(f"{path} is not a valid {kind.__name__.lower()}: {problem}") from problem
