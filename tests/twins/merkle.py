"""RFC 6962's own recursive definitions of the root and the path, which look at every leaf."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from budget.log.entries import _node_hash


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
