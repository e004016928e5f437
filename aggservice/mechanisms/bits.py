"""Where random bits come from: secure, seeded or forbidden.

Everything random in the project is drawn from a ``Bits`` that somebody passed in. This is the one module that
reads the system's entropy.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from aggservice.mechanisms.errors import RandomnessForbiddenError

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_WORD = 8

_fork_generation = 0


def _count_fork() -> None:
    global _fork_generation  # noqa: PLW0603 - a child process must know that it was forked
    _fork_generation += 1


os.register_at_fork(after_in_child=_count_fork)


class Bits(ABC):
    """A source of independent, uniform bits.

    ``private`` is False if somebody may know the bits. Noise from such a source protects nobody, and a summary that
    has it must say so.
    """

    private: bool

    @abstractmethod
    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""

    @abstractmethod
    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` 64-bit words (each the next eight bytes, little-endian)."""

    @abstractmethod
    def child(self, label: str) -> Bits:
        """Return an independent source; the same label of the same seeded source gives the same one.

        Work that is divided among processes uses one child per piece of work, so that the result does not depend on
        the number of processes.
        """

    def word(self) -> int:
        """Return the next 64-bit word as an integer."""
        return int.from_bytes(self.read(_WORD), "little")


class _Keystream:
    """AES-256 in counter mode over zeros: the stream of a 32-byte key."""

    def __init__(self, key: bytes) -> None:
        self._cipher: CipherContext = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def read(self, count: int) -> bytes:
        if count <= _CHUNK:
            return self._cipher.update(_ZEROS[:count])
        return self.fill(count).tobytes()

    def fill(self, count: int) -> NDArray[np.uint8]:
        """Return ``count`` bytes as an array, written in place a chunk at a time."""
        out = np.empty(count, dtype=np.uint8)
        view = out.data
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            self._cipher.update_into(_ZEROS if stop - start == _CHUNK else _ZEROS[: stop - start], view[start:stop])
        return out

    def words(self, count: int) -> NDArray[np.uint64]:
        return self.fill(count * _WORD).view("<u8").astype(np.uint64, copy=False)


class SecureBits(Bits):
    """Cryptographically secure bits: a keystream keyed by the system's entropy, with a new key after a fork."""

    private = True

    def __init__(self) -> None:
        self._born = (-1, -1)
        self._stream: _Keystream

    def _fresh(self) -> _Keystream:
        here = (os.getpid(), _fork_generation)
        if self._born != here:
            self._stream = _Keystream(os.urandom(32))
            self._born = here
        return self._stream

    def read(self, count: int) -> bytes:
        return self._fresh().read(count)

    def words(self, count: int) -> NDArray[np.uint64]:
        return self._fresh().words(count)

    def child(self, label: str) -> Bits:
        return SecureBits()

    def __reduce__(self) -> tuple[type[SecureBits], tuple[()]]:
        """Never pass a key to another process: the copy gets its own."""
        return (SecureBits, ())


class SeededBits(Bits):
    """The same bits on every machine for the same seed. Whoever knows the seed can remove the noise.

    >>> SeededBits("example").words(2).tolist() == SeededBits("example").words(2).tolist()
    True
    """

    private = False

    def __init__(self, seed: str | int | bytes) -> None:
        raw = seed if isinstance(seed, bytes) else str(seed).encode()
        self._key = hashlib.sha256(b"aggservice seeded bits\0" + raw).digest()
        self._stream = _Keystream(self._key)

    def read(self, count: int) -> bytes:
        return self._stream.read(count)

    def words(self, count: int) -> NDArray[np.uint64]:
        return self._stream.words(count)

    def child(self, label: str) -> SeededBits:
        return SeededBits(self._key + label.encode())

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        """A copy in another process begins at the first bit again: give each process a child of its own."""
        return (SeededBits._of_key, (self._key,))

    @classmethod
    def _of_key(cls, key: bytes) -> SeededBits:
        bits = cls(b"")
        bits._key, bits._stream = key, _Keystream(key)
        return bits


class ForbiddenBits(Bits):
    """A source that raises an error if bits are drawn. Pass it to code that must be deterministic."""

    private = False

    def read(self, count: int) -> bytes:
        raise RandomnessForbiddenError("this path must not draw randomness, but bits were drawn")

    def words(self, count: int) -> NDArray[np.uint64]:
        raise RandomnessForbiddenError("this path must not draw randomness, but bits were drawn")

    def child(self, label: str) -> Bits:
        return self
