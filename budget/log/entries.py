"""The entries of the log: what each type holds, and its only encoding.

An entry is canonical JSON (``canonical``). It states its number (``seq``), the hash of the entry before (``previous``,
32 zero bytes for the first), and the count and SHA-256 of its packed unit keys. The keys are stored outside the entry:
it stays small enough for a receipt, and the log still holds everything that a replay needs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from budget.amounts import ATTO_PLACES, LIMIT_MAX_MICRO, MICRO_PLACES, limit_units
from budget.errors import BudgetError, FormatError, JobNameError
from budget.filters import Filter, Spend, filter_from_plain, filter_to_plain, spend_to_plain
from budget.release import Release, release_from_plain, release_to_plain
from budget.store import HASH_BYTES
from budget.terms import Terms, terms_from_plain, terms_to_plain
from budget.units import UNIT_BYTES


def entry_hash(raw: bytes) -> bytes:
    """Return SHA-256 of a zero byte and an entry: the ``previous`` of the next one, its leaf in the Merkle tree."""
    return hashlib.sha256(b"\x00" + raw).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def extend(frontier: Sequence[bytes], size: int, leaf: bytes) -> tuple[bytes, ...]:
    """Return the frontier of a tree of ``size`` + 1 leaves from that of ``size``. O(log size)."""
    stack = [*frontier, leaf]
    while size & 1:
        right, left = stack.pop(), stack.pop()
        stack.append(_node_hash(left, right))
        size >>= 1
    return tuple(stack)


def root(frontier: Sequence[bytes]) -> bytes:
    """Return the root over a frontier (of the empty tree: SHA-256 of nothing)."""
    if not frontier:
        return hashlib.sha256(b"").digest()
    stack = list(frontier)
    top = stack.pop()
    while stack:
        top = _node_hash(stack.pop(), top)
    return top


def last_path(frontier_before: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the proof for a leaf appended to a tree with this frontier, as the last leaf of the new tree."""
    return tuple(reversed(frontier_before))


@dataclass(frozen=True, slots=True, kw_only=True)
class PathNode:
    """One step of a proof: the sibling, the side on which it stands, and the hash of the two."""

    sibling: bytes
    left: bool
    node: bytes


def path_nodes(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> list[PathNode] | None:
    """Return each step of ``proof`` from ``leaf`` to a root (RFC 9162, section 2.1.3.2); None if it does not fit."""
    if not 0 <= index < size:
        return None
    position, last, found = index, size - 1, leaf
    nodes = []
    for sibling in proof:
        if last == 0:
            return None
        left = bool(position & 1) or position == last
        found = _node_hash(sibling, found) if left else _node_hash(found, sibling)
        nodes.append(PathNode(sibling=sibling, left=left, node=found))
        while left and not position & 1 and position:
            position >>= 1
            last >>= 1
        position >>= 1
        last >>= 1
    return nodes if last == 0 else None


def root_from_path(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root that ``proof`` leads to from ``leaf``; None if it does not fit."""
    nodes = path_nodes(leaf, index, size, proof)
    return None if nodes is None else nodes[-1].node if nodes else leaf


_NUMBER_MAX: Final = 2**53
_DEPTH_MAX: Final = 12


def _check(value: object, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise FormatError(f"the value is nested more than {_DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise FormatError(f"a key must be text, not {type(key).__name__}")
            _check(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if not -_NUMBER_MAX < value < _NUMBER_MAX:
            raise FormatError(f"the number {value} is not below 2^53: write it as text")
    elif not isinstance(value, str):
        raise FormatError(f"{type(value).__name__} has no canonical encoding")


def encode(value: dict[str, Any]) -> bytes:
    """Return the canonical bytes of ``value``: dicts, lists, texts and integers only.

    >>> encode({"b": [1, "é"], "a": {}})
    b'{"a":{},"b":[1,"\\\\u00e9"]}'
    """
    _check(value, 0)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def decode(raw: bytes) -> dict[str, Any]:
    """Return the object that ``raw`` encodes, or FormatError if ``raw`` is not its canonical encoding."""
    try:
        value = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError) as problem:
        raise FormatError(f"these bytes are not canonical JSON: {problem}") from problem
    if not isinstance(value, dict):
        raise FormatError("these bytes are not a JSON object")
    if encode(value) != raw:
        raise FormatError("these bytes are JSON, but not in canonical form")
    return value


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
