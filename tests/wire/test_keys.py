"""Key sets: rotation with overlap, documents, files, and the uniform pick."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire import KeySet, PublicKeySet, ReportStatus, read_key_set, seal, write_key_set
from aggservice.wire.errors import KeyNotFoundError, KeySetError
from aggservice.wire.hpke.key_sets import sole_writer
from aggservice.wire.hpke.sealing import open_sealed

DAY_MS = 86_400_000


def test_a_rotation_overlaps_and_old_keys_still_open() -> None:
    clock = ManualClock(1_700_000_000_000)
    first = KeySet.create(SeededBits("keys"), clock, count=2)
    old = first.public(clock).keys[0]
    sealed = seal(b"payload", shared_info="{}", key=old.key)

    clock.advance(6 * DAY_MS)
    second = first.rotate(SecureBits(), clock)
    assert len(second.public(clock).keys) == 4
    clock.advance(DAY_MS)
    assert len(second.public(clock).keys) == 2
    assert old.id not in {key.id for key in second.public(clock).keys}
    assert open_sealed(sealed, shared_info="{}", key=second.private_key(old.id)) == b"payload"

    clock.advance(91 * DAY_MS)
    third = second.rotate(SecureBits(), clock)
    with pytest.raises(KeyNotFoundError) as caught:
        third.private_key(old.id)
    assert caught.value.status is ReportStatus.DECRYPTION_KEY_NOT_FOUND
    assert len(third.public(clock).keys) == 1


def test_an_expired_set_has_nothing_to_publish_until_it_is_rotated() -> None:
    clock = ManualClock(0)
    keys = KeySet.create(SecureBits(), clock, lifetime_ms=10)
    clock.advance(10)
    with pytest.raises(KeySetError, match="rotate"):
        keys.public(clock)
    assert len(keys.rotate(SecureBits(), clock).public(clock).keys) == 1
    with pytest.raises(KeySetError):
        keys.rotate(SecureBits(), clock, lifetime_ms=5, overlap_ms=5)


def test_documents_come_back() -> None:
    clock = ManualClock(5)
    keys = KeySet.create(SeededBits(3), clock, count=3)
    again = KeySet.parse(keys.serialise())
    assert [pair.id for pair in again.pairs] == [pair.id for pair in keys.pairs]
    assert again.serialise() == keys.serialise()
    assert KeySet.create(SeededBits(3), clock, count=3).serialise() == keys.serialise()
    public = keys.public(clock)
    assert PublicKeySet.parse(public.serialise()).serialise() == public.serialise()
    assert [set(entry) for entry in json.loads(public.serialise())["keys"]] == [{"id", "key"}] * 3
    secret = json.loads(keys.serialise())["keys"][0]["private_key"]
    assert secret not in public.serialise()
    assert secret not in repr(keys)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        '{"keys": {}}',
        '{"keys": [1]}',
        '{"keys": []}',
        '{"keys": [{"id": "a"}]}',
        '{"keys": [{"id": "a", "key": "AAAA"}]}',
        '{"keys": [{"id": "a", "key": "!"}]}',
        '{"keys": [{"key": "two07NuSOLRSgJSE4mz3kMrmZ/jqLVYKZ2SW/8LDS3Y="}]}',
        '{"keys": [{"id": "\\ud800", "key": "two07NuSOLRSgJSE4mz3kMrmZ/jqLVYKZ2SW/8LDS3Y="}]}',
        '{"keys": [{"id": "", "key": "two07NuSOLRSgJSE4mz3kMrmZ/jqLVYKZ2SW/8LDS3Y="}]}',
        '{"keys": [{"id": "a", "key": "two07NuSOLRSgJSE4mz3kMrmZ/jqLVYKZ2SW/8LDS3Y="},'
        ' {"id": "a", "key": "two07NuSOLRSgJSE4mz3kMrmZ/jqLVYKZ2SW/8LDS3Y="}]}',
    ],
)
def test_a_document_that_is_no_key_set_is_refused(document: str) -> None:
    with pytest.raises(KeySetError):
        PublicKeySet.parse(document)


def test_private_documents_need_times() -> None:
    keys = json.loads(KeySet.create(SecureBits(), ManualClock(0)).serialise())
    for change in ({"expiry_ms": "1"}, {"not_before_ms": None}, {"expiry_ms": 0}, {"private_key": "AAAA"}):
        with pytest.raises(KeySetError):
            KeySet.parse(json.dumps({"keys": [keys["keys"][0] | change]}))


def test_files_are_private_and_never_half_written(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = KeySet.create(SecureBits(), ManualClock(0))
    write_key_set(path, keys)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_set(path).serialise() == keys.serialise()
    with pytest.raises(KeySetError, match="exists already"):
        write_key_set(path, keys)
    other = KeySet.create(SecureBits(), ManualClock(0))
    write_key_set(path, other, replace=True)
    assert read_key_set(path).serialise() == other.serialise()
    assert os.listdir(tmp_path) == ["keys.json"]
    path.chmod(0o640)
    with pytest.raises(KeySetError, match="chmod 600"):
        read_key_set(path)
    with pytest.raises(KeySetError, match="keys new"):
        read_key_set(tmp_path / "none.json")


def test_two_that_rotate_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_key_set(path, KeySet.create(SecureBits(), ManualClock(0)))
    entered = threading.Event()
    order: list[str] = []

    def second() -> None:
        entered.set()
        with sole_writer(path):
            order.append("second")

    waiting = threading.Thread(target=second)
    with sole_writer(path):
        waiting.start()
        assert entered.wait(60)
        write_key_set(path, read_key_set(path), replace=True)  # the second waits for a file that is replaced meanwhile
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]
    with pytest.raises(KeySetError, match="keys new"), sole_writer(tmp_path / "none.json"):
        pass


def test_times_that_no_calendar_has_are_refused() -> None:
    entry = json.loads(KeySet.create(SecureBits(), ManualClock(0)).serialise())["keys"][0]
    for change in ({"expiry_ms": 10**18}, {"not_before_ms": -1}, {"not_before_ms": entry["expiry_ms"]}):
        with pytest.raises(KeySetError, match="1970 and 9999"):
            KeySet.parse(json.dumps({"keys": [entry | change]}))


def test_the_pick_is_uniform() -> None:
    """Chi-square over 3 keys and 30,000 picks: 40 is passed by chance with probability below 3e-9."""
    keys = KeySet.create(SecureBits(), ManualClock(0), count=3).public(ManualClock(0))
    bits = SecureBits()
    counts = Counter(keys.pick(bits).id for _ in range(30_000))
    assert len(counts) == 3
    assert sum((count - 10_000) ** 2 / 10_000 for count in counts.values()) < 40
