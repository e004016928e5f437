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


@pytest.mark.parametrize("same_number", [False, True])
def test_a_forked_child_does_not_repeat_its_parent(monkeypatch: pytest.MonkeyPatch, same_number: bool) -> None:
    """Process numbers may repeat: the first process of every container is 1."""
    if same_number:
        monkeypatch.setattr(os, "getpid", lambda: 1)
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


def keystream(key: bytes, count: int) -> bytes:
    """Return the bytes of AES-256 in counter mode, block by block."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    ecb = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return ecb.update(b"".join(i.to_bytes(16, "big") for i in range(-(-count // 16))))[:count]


def test_secure_bits_are_keyed_by_the_systems_entropy_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is AES under the 32 bytes that the system gave: for a source, each child and each copy its own 32."""
    keys = [bytes([number]) * 32 for number in range(1, 8)]
    left = iter(keys)

    def entropy(count: int) -> bytes:
        assert count == 32
        return next(left)

    monkeypatch.setattr(os, "urandom", entropy)
    bits = SecureBits()
    for key, source in zip(
        keys,
        [
            bits,
            SecureBits(),
            bits.child("job"),
            bits.child("job"),
            pickle.loads(pickle.dumps(bits)),
            pickle.loads(pickle.dumps(bits)),
            pickle.loads(pickle.dumps(bits.child("job"))),
        ],
        strict=True,
    ):
        assert type(source) is SecureBits and source.private
        assert source.read(40) + source.words(3).tobytes() == keystream(key, 64)
    assert next(left, None) is None


def test_children_of_secure_bits_are_independent_whatever_their_labels() -> None:
    bits = SecureBits()
    drawn = [bits.child(label).read(16) for label in ("noise", "noise", "order", "order", "")]
    drawn += [bits.child("noise").child("a").read(16), SecureBits().child("noise").read(16), bits.read(16)]
    assert len(set(drawn)) == len(drawn)


def test_copies_of_one_pickle_draw_their_own() -> None:
    raw = pickle.dumps(SecureBits())
    copies = [pickle.loads(raw) for _ in range(3)]
    assert all(type(one) is SecureBits and one.private for one in copies)
    assert len({one.read(16) for one in copies}) == 3


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
