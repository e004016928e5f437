"""Shared Storage: what a store does over time, its limits, and who may read it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock
from aggservice.wire.device import CallError
from paa_client import WindowStorage, WorkletStorage
from paa_client.effects import WorkletNotAllowedError, WorkletTypeError
from paa_client.storage import Database, code_units

LIFETIME_MS = 30 * 86_400_000


def database(clock: ManualClock, max_bytes: int = 5 * 1024 * 1024) -> Database:
    return Database(clock=clock, lifetime_ms=LIFETIME_MS, max_bytes=max_bytes)


def test_writes_replace_append_and_may_leave_what_is_there() -> None:
    store = database(ManualClock())
    store.set("a", "1")
    store.set("a", "2", ignore_if_present=True)
    assert store.get("a") == "1"
    store.set("a", "3")
    store.append("a", "4")
    store.append("b", "5")
    store.set("c", "6", ignore_if_present=True)
    assert store.entries() == [("a", "34"), ("b", "5"), ("c", "6")]
    store.delete("b")
    store.delete("b")
    assert store.get("b") is None
    store.clear()
    assert store.entries() == []
    assert store._bytes == 0


def test_an_entry_expires_thirty_days_after_its_last_write() -> None:
    clock = ManualClock(1_000)
    store = database(clock)
    store.set("set", "x")
    store.append("appended", "x")
    clock.advance(LIFETIME_MS - 1)
    assert store.get("set") == "x"
    store.set("set", "y", ignore_if_present=True)
    store.append("appended", "y")
    clock.advance(1)
    assert store.get("set") is None, "a write that was ignored does not prolong an entry"
    assert store.entries() == [("appended", "xy")]
    store.set("set", "z", ignore_if_present=True)
    assert store.get("set") == "z", "an expired entry is not present"
    clock.advance(LIFETIME_MS)
    assert store.entries() == []


def test_sizes_count_utf16_bytes_and_room_is_made_from_what_expired() -> None:
    clock = ManualClock()
    store = database(clock, max_bytes=20)
    assert code_units("a😀") == 3
    assert store.set("k", "😀" * 4)
    assert store._bytes == 18
    assert not store.append("k", "ab")
    assert store.get("k") == "😀" * 4, "a write without room changes nothing"
    assert store.append("k", "a")
    assert not store.set("l", "")
    clock.advance(LIFETIME_MS)
    assert store.set("l", "m" * 9)
    assert store.entries() == [("l", "m" * 9)]


BAD = [("", "x"), (1, "x"), ("k", 1), ("k", None), ("k" * 11, "x"), ("k", "v" * 11), ("\U0001f600" * 6, "x")]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_keys_and_values_are_strings_of_bounded_length(key: object, value: object) -> None:
    store = database(ManualClock(), max_bytes=20)
    with pytest.raises(WorkletTypeError):
        store.set(key, value)  # type: ignore[arg-type]
    page = WindowStorage(store)
    for write in (page.set, page.append):
        with pytest.raises(CallError, match="TypeError"):
            write(key, value)  # type: ignore[operator]
    with pytest.raises(CallError, match="TypeError"):
        page.delete("")
    assert store.entries() == []


def test_pages_write_and_only_running_operations_read() -> None:
    store = database(ManualClock())
    page = WindowStorage(store)
    page.set("a", "1")
    page.append("a", "2")
    page.set("b", "3")
    page.delete("b")
    for reading in ("get", "length", "keys", "entries", "__iter__"):
        assert not hasattr(page, reading)
    worklet = WorkletStorage(store)
    assert worklet.get("a") == "12"
    assert (worklet.length(), list(worklet.keys()), list(worklet)) == (1, ["a"], [("a", "12")])
    iterator = worklet.entries()
    worklet.clear()
    assert list(iterator) == [("a", "12")], "iteration is over the entries as they stood"
    worklet.close()
    for use in (lambda: worklet.get("a"), lambda: worklet.set("a", "1"), lambda: list(worklet)):
        with pytest.raises(WorkletNotAllowedError):
            use()
    page.clear()


KEYS = st.sampled_from(["a", "b", "cc", "😀"])
VALUES = st.text(max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES, st.booleans()),
    st.tuples(st.just("append"), KEYS, VALUES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("wait"), st.sampled_from([1, LIFETIME_MS // 2, LIFETIME_MS - 1, LIFETIME_MS])),
    st.tuples(st.just("clear")),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=40))
def test_the_store_is_a_map_whose_entries_expire(steps: list[tuple[object, ...]]) -> None:
    """Against the plainest model: a dictionary of value and time of writing, with everything recomputed each time."""
    clock = ManualClock()
    limit = 40
    store = database(clock, max_bytes=limit)
    model: dict[str, tuple[str, int]] = {}

    def size(entries: dict[str, tuple[str, int]]) -> int:
        return sum(len(key.encode("utf-16-le")) + len(value.encode("utf-16-le")) for key, (value, _) in entries.items())

    for step in steps:
        model = {key: entry for key, entry in model.items() if entry[1] + LIFETIME_MS > clock.now_ms()}
        match step:
            case ("set", key, value, ignore):
                wanted = {**model, key: (value, clock.now_ms())} if not (ignore and key in model) else model
                fits = size(wanted) <= limit
                assert store.set(key, value, ignore_if_present=ignore) is fits
                model = wanted if fits else model
            case ("append", key, value):
                wanted = {**model, key: (model.get(key, ("", 0))[0] + value, clock.now_ms())}
                fits = size(wanted) <= limit
                assert store.append(key, value) is fits
                model = wanted if fits else model
            case ("get", key):
                assert store.get(key) == model.get(key, (None, 0))[0]
            case ("delete", key):
                store.delete(key)
                model.pop(key, None)
            case ("wait", duration):
                clock.advance(duration)
            case ("clear",):
                store.clear()
                model = {}
        store._check()
    assert dict(store.entries()) == {
        key: value for key, (value, written) in model.items() if written + LIFETIME_MS > clock.now_ms()
    }
