"""Sources of bits: secure ones never repeat after a fork, seeded ones always do, forbidden ones refuse."""

import multiprocessing
import os
import pickle

import numpy as np
import pytest

from aggservice.mechanisms import ForbiddenBits, ManualClock, ParameterError, SecureBits, SeededBits
from aggservice.mechanisms.errors import RandomnessForbiddenError


def test_seeded_bits_are_the_same_everywhere() -> None:
    """The first words of a seed, computed once with another AES implementation's counter mode over zeros."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.hashes import SHA256, Hash

    digest = Hash(SHA256())
    digest.update(b"aggservice seeded bits\0seed")
    ecb = Cipher(algorithms.AES(digest.finalize()), modes.ECB()).encryptor()
    expected = ecb.update(b"".join(i.to_bytes(16, "big") for i in range(3)))
    bits = SeededBits("seed")
    assert bits.words(4).tobytes() + bits.read(16) == expected


def test_reading_in_pieces_gives_the_same_stream() -> None:
    whole = SeededBits(7).read(3 << 20)
    bits = SeededBits(7)
    pieces = bits.read(5) + bits.words(1000).tobytes() + bits.read((1 << 20) + 3) + bits.words(200_000).tobytes()
    assert whole.startswith(pieces)


def test_children_differ_by_label_and_repeat_by_seed() -> None:
    assert SeededBits(1).child("a").word() == SeededBits(1).child("a").word()
    assert len({SeededBits(1).child(label).word() for label in ("a", "b", "")} | {SeededBits(1).word()}) == 4


def test_a_forked_child_does_not_repeat_its_parent() -> None:
    bits = SecureBits()
    bits.word()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, bits.read(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 32) != bits.read(32)


def test_a_pickled_copy_keys_itself() -> None:
    bits = SecureBits()
    bits.word()
    copy = pickle.loads(pickle.dumps(bits))
    assert copy.read(32) != bits.read(32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(bits.read, (32,)) != bits.read(32)


def test_secure_words_use_every_bit() -> None:
    """Each of 64 bit positions is set about half the time; false-alarm rate 64·2·Q(6.5) < 10⁻⁸."""
    words = SecureBits().words(1 << 18)
    for position in range(64):
        ones = int(np.count_nonzero(words >> np.uint64(position) & np.uint64(1)))
        assert abs(ones - (1 << 17)) < 6.5 * (1 << 8)


def test_forbidden_bits_refuse() -> None:
    forbidden = ForbiddenBits()
    for draw in (forbidden.word, lambda: forbidden.words(1), lambda: forbidden.child("x").read(1)):
        with pytest.raises(RandomnessForbiddenError):
            draw()


def test_a_manual_clock_never_goes_back() -> None:
    clock = ManualClock(1000)
    clock.advance(5)
    assert clock.now_ms() == 1005
    with pytest.raises(ParameterError):
        clock.advance_to(1004)
