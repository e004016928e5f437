"""A Merkle tree over log entries (RFC 6962, section 2.1): short proofs that an entry is in a signed log.

Appending needs only the frontier: the roots of the full subtrees, largest first. The proof for a new last
entry is that frontier in reverse, so that a receipt needs no read of older entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

HASH_BYTES = 32


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry: SHA-256 of a zero byte and the entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


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
