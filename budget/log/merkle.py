"""A Merkle tree over log entries (RFC 6962, section 2.1): short proofs that an entry is in a signed log.

Appending needs only the frontier: the roots of the full subtrees, largest first. The proof for a new entry in the log
that it completes is that frontier in reverse, so that a receipt costs no look at older entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

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
    """Return the proof for the leaf appended to a tree with this frontier, in the tree that it completes."""
    return tuple(reversed(frontier_before))


def _split(size: int) -> int:
    return 1 << ((size - 1).bit_length() - 1)


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes by the recursive definition; O(size)."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = _split(len(leaves))
    return _node_hash(tree_root(leaves[:k]), tree_root(leaves[k:]))


def path(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the proof that leaf ``index`` is in the tree over ``leaves`` (RFC 6962, section 2.1.1); O(size)."""
    if len(leaves) == 1:
        return ()
    k = _split(len(leaves))
    if index < k:
        return (*path(leaves[:k], index), tree_root(leaves[k:]))
    return (*path(leaves[k:], index - k), tree_root(leaves[:k]))


def root_from_path(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root that ``proof`` leads to from ``leaf`` (RFC 9162, section 2.1.3.2); None when it does not fit."""
    if not 0 <= index < size:
        return None
    place, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return None
        if place & 1 or place == last:
            found = _node_hash(sibling, found)
            while not place & 1 and place:
                place >>= 1
                last >>= 1
        else:
            found = _node_hash(found, sibling)
        place >>= 1
        last >>= 1
    return found if last == 0 else None
