"""HPKE key sets: public keys that clients fetch, private keys that open reports, and their rotation.

A key is published from ``not_before_ms`` until ``expiry_ms``. It opens reports for as long as it stays in the set,
because reports that were sealed to it keep arriving for months.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits, Clock, uniform_below
from aggservice.wire.errors import KeyNotFoundError, KeySetError
from aggservice.wire.hpke.sealing import KEY_BYTES, derive_private_key
from aggservice.wire.limits import MAX_TIME_S

WELL_KNOWN_PATH = "/.well-known/aggregation-service/v1/public-keys"
DAY_MS = 86_400_000
DEFAULT_LIFETIME_MS = 7 * DAY_MS
DEFAULT_OVERLAP_MS = DAY_MS
RETENTION_MS = 90 * DAY_MS
"""How long after its expiry a key still opens reports: the oldest report that is accepted is 90 days old."""
MAX_TIME_MS = 1000 * MAX_TIME_S
MAX_KEYS = 10_000
MAX_KEY_ID_CHARACTERS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key and its id, which reports name."""

    id: str
    key: X25519PublicKey

    def __post_init__(self) -> None:
        if not 1 <= len(self.id) <= MAX_KEY_ID_CHARACTERS:
            raise KeySetError(f"the key id has {len(self.id)} characters: use 1 to {MAX_KEY_ID_CHARACTERS}")


@dataclass(frozen=True, slots=True)
class PublicKeySet:
    """The keys a client may seal to."""

    keys: tuple[PublicKey, ...]

    def __post_init__(self) -> None:
        if not self.keys:
            raise KeySetError("the public key set is empty: run `aggservice keys new` or `keys rotate`")
        if len({key.id for key in self.keys}) != len(self.keys):
            raise KeySetError("two keys of the set have the same id: give each its own")

    @classmethod
    def parse(cls, document: str | bytes) -> PublicKeySet:
        """Return the keys of a JSON document ``{"keys": [{"id": ..., "key": base64}]}``."""
        entries = _entries(document)
        keys = []
        for entry in entries:
            raw = _decode_key(entry.get("key"), "key")
            keys.append(PublicKey(id=_key_id(entry), key=X25519PublicKey.from_public_bytes(raw)))
        return cls(tuple(keys))

    def serialise(self) -> str:
        """Return the JSON document that a service publishes at ``WELL_KNOWN_PATH``."""
        entries = [{"id": key.id, "key": _encode_key(key.key.public_bytes_raw())} for key in self.keys]
        return json.dumps({"keys": entries}, indent=2)

    def pick(self, bits: Bits) -> PublicKey:
        """Return one of the keys, each with the same probability."""
        return self.keys[uniform_below(bits, len(self.keys))]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A private key, and the times from and until which its public half is published."""

    id: str
    private: X25519PrivateKey = field(repr=False)
    not_before_ms: int
    expiry_ms: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.id) <= MAX_KEY_ID_CHARACTERS:
            raise KeySetError(f"the key id has {len(self.id)} characters: use 1 to {MAX_KEY_ID_CHARACTERS}")
        if not 0 <= self.not_before_ms < self.expiry_ms <= MAX_TIME_MS:
            raise KeySetError(
                "the times of the key are invalid: it must expire after it begins, both between 1970 and 9999"
            )

    @classmethod
    def create(cls, bits: Bits, *, not_before_ms: int, expiry_ms: int) -> KeyPair:
        """Return a new key with a random id."""
        private = derive_private_key(bits.read(KEY_BYTES))
        identity = UUID(bytes=bits.read(16), version=4)
        return cls(id=str(identity), private=private, not_before_ms=not_before_ms, expiry_ms=expiry_ms)

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(id=self.id, key=self.private.public_key())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAccount:
    """The one ledger that keys may be used with, and the newest entry of it that they have seen."""

    ledger_id: bytes
    entries: int
    last: bytes

    def to_plain(self) -> dict[str, Any]:
        """Return the account as the key file has it."""
        return {"id": self.ledger_id.hex(), "entries": self.entries, "last_entry": self.last.hex()}

    @classmethod
    def from_plain(cls, plain: Any) -> KeyAccount:
        """Read the account of a key file; KeySetError if it is malformed."""
        try:
            found = cls(
                ledger_id=bytes.fromhex(plain["id"]),
                entries=plain["entries"],
                last=bytes.fromhex(plain["last_entry"]),
            )
        except (KeyError, TypeError, ValueError):
            found = cls(ledger_id=b"", entries=0, last=b"")
        if not (len(found.ledger_id) == len(found.last) == KEY_BYTES and type(found.entries) is int):
            raise KeySetError("the key file names its ledger in a wrong form: put the newest copy of the file back")
        return found


@dataclass(frozen=True, slots=True)
class KeySet:
    """The private keys of a service, oldest first. ``account`` is the ledger that they belong to, once they do."""

    pairs: tuple[KeyPair, ...]
    account: KeyAccount | None = field(default=None, compare=False)
    _by_id: Mapping[str, X25519PrivateKey] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {pair.id: pair.private for pair in self.pairs})
        if len(self._by_id) != len(self.pairs):
            raise KeySetError("two keys of the set have the same id: give each its own")

    @classmethod
    def create(cls, bits: Bits, clock: Clock, *, count: int = 1, lifetime_ms: int = DEFAULT_LIFETIME_MS) -> KeySet:
        """Return a set of ``count`` new keys, published from now until ``lifetime_ms`` later."""
        if not 1 <= count <= MAX_KEYS:
            raise KeySetError(f"the key set would have {count} keys: use 1 to {MAX_KEYS}")
        now = clock.now_ms()
        pairs = (KeyPair.create(bits, not_before_ms=now, expiry_ms=now + lifetime_ms) for _ in range(count))
        return cls(tuple(pairs))

    def rotate(
        self,
        bits: Bits,
        clock: Clock,
        *,
        lifetime_ms: int = DEFAULT_LIFETIME_MS,
        overlap_ms: int = DEFAULT_OVERLAP_MS,
    ) -> KeySet:
        """Return the set with as many new keys as are published now (at least one), valid at once.

        Published keys expire ``overlap_ms`` from now at the latest, so that a client which fetched them just
        before still finds them valid; keys whose reports are all too old to be accepted are dropped.
        """
        now = clock.now_ms()
        if not 0 <= overlap_ms < lifetime_ms:
            raise KeySetError("the overlap is invalid: use 0 or more, and less than the lifetime of a key")
        count = max(1, len(self.published(now)))
        kept = []
        for pair in self.pairs:
            expiry = min(pair.expiry_ms, max(now + overlap_ms, pair.not_before_ms + 1))
            if expiry + RETENTION_MS > now:
                kept.append(replace(pair, expiry_ms=expiry))
        new = (KeyPair.create(bits, not_before_ms=now, expiry_ms=now + lifetime_ms) for _ in range(count))
        return KeySet((*kept, *new), self.account)

    def published(self, now_ms: int) -> tuple[KeyPair, ...]:
        """Return the keys whose public half is published at ``now_ms``."""
        return tuple(pair for pair in self.pairs if pair.not_before_ms <= now_ms < pair.expiry_ms)

    def public(self, clock: Clock) -> PublicKeySet:
        """Return the keys that clients may seal to now."""
        return PublicKeySet(tuple(pair.public for pair in self.published(clock.now_ms())))

    def private_key(self, key_id: str) -> X25519PrivateKey:
        """Return the key that opens reports sealed to ``key_id``; raise ``KeyNotFoundError`` if there is none."""
        try:
            return self._by_id[key_id]
        except KeyError:
            raise KeyNotFoundError(
                f"no private key has the id {key_id!r}: check that the report was sealed for this service"
            ) from None

    @property
    def by_id(self) -> Mapping[str, X25519PrivateKey]:
        """The private keys by id, for opening many reports."""
        return self._by_id

    @classmethod
    def parse(cls, document: str | bytes) -> KeySet:
        """Return the set that ``serialise`` wrote."""
        pairs = []
        for entry in _entries(document):
            private = X25519PrivateKey.from_private_bytes(_decode_key(entry.get("private_key"), "private_key"))
            times = (entry.get("not_before_ms"), entry.get("expiry_ms"))
            if not all(type(time) is int for time in times):
                raise KeySetError(
                    "a private key lacks not_before_ms or expiry_ms: give both, in milliseconds since 1970"
                )
            pairs.append(
                KeyPair(id=_key_id(entry), private=private, not_before_ms=times[0], expiry_ms=times[1])  # type: ignore[arg-type]
            )
        account = json.loads(document).get("ledger")
        return cls(tuple(pairs), None if account is None else KeyAccount.from_plain(account))

    def serialise(self) -> str:
        """Return the set, private halves included, as JSON text. Keep it secret."""
        entries = [
            {
                "id": pair.id,
                "private_key": _encode_key(pair.private.private_bytes_raw()),
                "not_before_ms": pair.not_before_ms,
                "expiry_ms": pair.expiry_ms,
            }
            for pair in self.pairs
        ]
        ledger = {} if self.account is None else {"ledger": self.account.to_plain()}
        return json.dumps({**ledger, "keys": entries}, indent=2) + "\n"


def _entries(document: str | bytes) -> list[dict[str, Any]]:
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        raise KeySetError("the key set is not valid JSON: make one with `aggservice keys new`") from None
    entries = fields.get("keys") if isinstance(fields, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KeySetError('the key set has the wrong form: use {"keys": [{"id": ..., "key": ...}, ...]}')
    if len(entries) > MAX_KEYS:
        raise KeySetError(f"the key set has {len(entries)} keys: use at most {MAX_KEYS}")
    return entries


def _key_id(entry: dict[str, Any]) -> str:
    identity = entry.get("id")
    try:
        if not isinstance(identity, str) or not identity.encode():
            raise KeySetError("a key has no id: give it a string")
    except UnicodeEncodeError:
        raise KeySetError("the id of a key has half of a surrogate pair: give an id of whole characters") from None
    return identity


def _decode_key(text: Any, name: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise KeySetError(f"{name} is not the base64 of {KEY_BYTES} bytes")
    return raw


def _encode_key(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def write_key_set(path: Path, keys: KeySet, *, replace: bool = False) -> None:
    """Write ``keys`` to ``path`` with permissions 0600; KeySetError if the file exists, unless ``replace``."""
    try:
        with whole_file(path, private=True, replace=replace) as staged:
            staged.write_text(keys.serialise(), encoding="utf-8")
    except FileExistsError:
        raise KeySetError(
            f"{path} exists already: rotate it with `aggservice keys rotate`, or name another file"
        ) from None


def read_private_file(path: Path, *, holds: str, remedy: str) -> bytes:
    """Return the bytes of ``path``; KeySetError if others can read it, or if it cannot be read."""
    try:
        mode = path.stat().st_mode
        document = path.read_bytes()
    except OSError as error:
        raise KeySetError(f"cannot read {path}: {error.strerror}; {remedy}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise KeySetError(f"{path} holds {holds} and others can read it: run `chmod 600 {path}`")
    return document


def read_key_set(path: Path) -> KeySet:
    """Return the key set in ``path``; KeySetError if it is invalid or if others can read the file."""
    document = read_private_file(path, holds="private keys", remedy="make one with `aggservice keys new`")
    try:
        return KeySet.parse(document)
    except KeySetError as error:
        raise KeySetError(f"{path}: {error}") from None


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Wait until no other process rewrites ``path``, and keep others from it: two at once would lose keys."""
    while True:
        try:
            file = path.open("rb")
        except OSError as error:
            raise KeySetError(f"cannot read {path}: {error.strerror}; make one with `aggservice keys new`") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
                continue  # another process has replaced it while this one waited
            yield
            return
