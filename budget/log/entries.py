"""The entries of the log: what each type holds, and its only encoding.

An entry is canonical JSON (``canonical``). It states its number (``seq``), the hash of the entry before (``previous``,
32 zero bytes for the first), and the count and SHA-256 of its packed unit keys. The keys are stored outside the entry:
it stays small enough for a receipt, and the log still holds everything that a replay needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from budget.amounts import ATTO_PLACES, LIMIT_MAX_MICRO, MICRO_PLACES, limit_units
from budget.errors import BudgetError, FormatError, JobNameError
from budget.filters import Filter, Spend, filter_from_plain, filter_to_plain, spend_to_plain
from budget.log.canonical import decode, encode
from budget.log.merkle import HASH_BYTES, leaf_hash
from budget.release import Release, release_from_plain, release_to_plain
from budget.terms import Terms, terms_from_plain, terms_to_plain
from budget.units import UNIT_BYTES

FORMAT: Final = "aggservice-ledger-2"
_FORMER: Final = "aggservice-ledger-1"
NO_ENTRY: Final = bytes(HASH_BYTES)
NAME_MAX: Final = 128
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,128}\Z")
_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")


def check_name(what: str, name: object) -> str:
    """Return a caller's name or job id; JobNameError unless it is 1 to 128 printable ASCII characters."""
    if not isinstance(name, str) or _PRINTABLE.match(name) is None:
        raise JobNameError(f"{what} must be 1 to {NAME_MAX} printable ASCII characters")
    return name


def _sha256(what: str, digest: object) -> bytes:
    if not isinstance(digest, bytes) or len(digest) != HASH_BYTES:
        raise BudgetError(f"{what} must be the {HASH_BYTES} bytes of a SHA-256 digest")
    return digest


def from_hex(text: object, length: int) -> bytes:
    """Return ``length`` bytes from their canonical text; FormatError for any other."""
    if not isinstance(text, str) or len(text) != 2 * length or _HEX.match(text) is None:
        raise FormatError(f"expected {2 * length} lower-case hex digits")
    return bytes.fromhex(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A result file: its name within the output folder, its size and its SHA-256."""

    name: str
    size: int
    sha256: bytes

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or "\\" in self.name or "\0" in self.name or self.name in (".", ".."):
            raise BudgetError(f"a result file needs a name without a folder, not {self.name!r}")
        if not self.size >= 0:
            raise BudgetError(f"the size of a file must be 0 or more, not {self.size}")
        _sha256("a file digest", self.sha256)

    def to_plain(self) -> dict[str, Any]:
        """Return the plain values of an entry or a manifest."""
        return {"name": self.name, "size": self.size, "sha256": self.sha256.hex()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> FileDigest:
        """Read back what ``to_plain`` wrote."""
        return cls(name=plain["name"], size=plain["size"], sha256=from_hex(plain["sha256"], HASH_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDigest:
    """What was released: SHA-256 and size of the result bytes, and of each file when the bytes are a manifest."""

    sha256: bytes
    size: int
    files: tuple[FileDigest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsDigest:
    """The units of an entry: their count, and SHA-256 over their packed keys."""

    count: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """The first entry: filter, privacy unit and bounds, whether budget recovery is allowed, and the public key."""

    type: ClassVar[str] = "genesis"
    seq: int = 0
    previous: bytes = NO_ENTRY
    time_ms: int
    filter: Filter
    terms: Terms
    recovery: bool
    public_key: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEntry:
    """A release that was paid for: caller and request, units and their cost, and the result."""

    type: ClassVar[str] = "release"
    seq: int
    previous: bytes
    time_ms: int
    caller: str
    job_id: str
    request_digest: bytes
    release: Release
    cost: Spend
    units: UnitsDigest
    result: ResultDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEntry:
    """An operator's decision to refund, once and in full, what the units of an earlier release paid."""

    type: ClassVar[str] = "recovery"
    seq: int
    previous: bytes
    time_ms: int
    operator: str
    reason: str
    recovers: int
    cost: Spend
    units: UnitsDigest


Entry = Genesis | ReleaseEntry | RecoveryEntry


def entry_to_plain(entry: Entry, loss_name: str) -> dict[str, Any]:
    """Return the plain values of an entry; ``loss_name`` is ``epsilon`` or ``rho``, as the filter says."""
    plain: dict[str, Any] = {
        "type": entry.type,
        "seq": entry.seq,
        "previous": entry.previous.hex(),
        "time_ms": entry.time_ms,
    }
    if isinstance(entry, Genesis):
        return plain | {
            "format": FORMAT,
            "filter": filter_to_plain(entry.filter),
            "terms": terms_to_plain(entry.terms),
            "recovery": "on" if entry.recovery else "off",
            "public_key": entry.public_key.hex(),
            "nonce": entry.nonce.hex(),
            "unit_bytes": UNIT_BYTES,
        }
    plain |= {
        "cost": spend_to_plain(entry.cost, loss_name),
        "units": {"count": entry.units.count, "sha256": entry.units.sha256.hex()},
    }
    if isinstance(entry, RecoveryEntry):
        return plain | {"operator": entry.operator, "reason": entry.reason, "recovers": entry.recovers}
    files = [one.to_plain() for one in entry.result.files]
    return plain | {
        "caller": entry.caller,
        "job_id": entry.job_id,
        "request": entry.request_digest.hex(),
        "release": release_to_plain(entry.release),
        "result": {"sha256": entry.result.sha256.hex(), "size": entry.result.size, "files": files},
    }


def entry_to_bytes(entry: Entry, loss_name: str) -> bytes:
    """Return the canonical bytes of an entry."""
    return encode(entry_to_plain(entry, loss_name))


def entry_hash(raw: bytes) -> bytes:
    """Return the hash of an entry: the ``previous`` of the next one, and its leaf in the Merkle tree."""
    return leaf_hash(raw)


def _spend(plain: dict[str, str], loss_name: str) -> Spend:
    return Spend(
        loss_micro=limit_units("cost", plain[loss_name], MICRO_PLACES, LIMIT_MAX_MICRO, minimum=0),
        delta_atto=limit_units("cost", plain["delta"], ATTO_PLACES, 10**ATTO_PLACES, minimum=0),
        uses=int(plain["uses"]),
    )


def _result(plain: dict[str, Any]) -> ResultDigest:
    files = tuple(map(FileDigest.from_plain, plain["files"]))
    return ResultDigest(sha256=from_hex(plain["sha256"], HASH_BYTES), size=plain["size"], files=files)


def _build(plain: dict[str, Any], loss_name: str | None) -> Entry:
    common: dict[str, Any] = {
        "seq": plain["seq"],
        "previous": from_hex(plain["previous"], HASH_BYTES),
        "time_ms": plain["time_ms"],
    }
    if plain["type"] == Genesis.type:
        if plain.get("format") == _FORMER:
            raise FormatError(
                "this ledger has the former format, whose first entry does not name the privacy unit. Audit it with "
                "version 0.1, which wrote it, and keep it. Start a new ledger (another file or database) for reports "
                "scheduled from now on: in a new ledger, reports that the old one charged would have a second budget"
            )
        return Genesis(
            **common,
            filter=filter_from_plain(plain["filter"]),
            terms=terms_from_plain(plain["terms"]),
            recovery=plain["recovery"] == "on",
            public_key=from_hex(plain["public_key"], 32),
            nonce=from_hex(plain["nonce"], 16),
        )
    if loss_name is None:
        raise FormatError("the first entry of a log must be a genesis entry")
    paid: dict[str, Any] = {
        "cost": _spend(plain["cost"], loss_name),
        "units": UnitsDigest(count=plain["units"]["count"], sha256=from_hex(plain["units"]["sha256"], HASH_BYTES)),
    }
    if plain["type"] == RecoveryEntry.type:
        return RecoveryEntry(
            **common, **paid, operator=plain["operator"], reason=plain["reason"], recovers=plain["recovers"]
        )
    if plain["type"] != ReleaseEntry.type:
        raise FormatError(f"{plain['type']!r} is not a type of log entry")
    return ReleaseEntry(
        **common,
        **paid,
        caller=check_name("the caller", plain["caller"]),
        job_id=check_name("the job id", plain["job_id"]),
        request_digest=from_hex(plain["request"], HASH_BYTES),
        release=release_from_plain(plain["release"]),
        result=_result(plain["result"]),
    )


def entry_from_plain(plain: dict[str, Any], loss_name: str | None) -> Entry:
    """Read an entry; FormatError unless encoding it again gives exactly the same values."""
    try:
        entry = _build(plain, loss_name)
        again = entry_to_plain(entry, loss_name or "")
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, BudgetError) as problem:
        raise FormatError(f"this is not a log entry: {problem!r}") from problem
    if again != plain:
        raise FormatError("this is not a log entry: its keys or values differ from those of its type")
    return entry


def entry_from_bytes(raw: bytes, loss_name: str | None) -> Entry:
    """Read an entry from its canonical bytes. ``loss_name`` comes from the genesis; None reads a genesis only."""
    return entry_from_plain(decode(raw), loss_name)
