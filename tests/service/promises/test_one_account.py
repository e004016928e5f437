"""A report has one budget: its keys belong to one ledger, and a service refuses another one or an older copy of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.service import EmbeddedService, ServiceConfig, embedded
from aggservice.service.config.settings import parse_config
from aggservice.service.errors import ConfigError
from aggservice.wire import read_key_set, write_key_set
from budget.errors import LedgerMismatchError, LedgerRewoundError

from ...engine.conftest import Maker

ASKS = JobParameters(attribution_report_to="https://adtech.example", epsilon="64")


@contextmanager
def serving(maker: Maker, state: Path, **more: Any) -> Iterator[tuple[EmbeddedService, Client]]:
    config = ServiceConfig(state=state, listen="127.0.0.1:0", **more)
    config = replace(config, limits=replace(config.limits, processes=0))
    with embedded(config, clock=maker.clock) as running, Client(running.address, attempts=1) as client:
        yield running, client


@pytest.fixture
def state(maker: Maker, tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    write_key_set(folder / "keys.json", maker.keys)
    return folder


def test_the_same_keys_with_another_ledger_are_refused(maker: Maker, state: Path, tmp_path: Path) -> None:
    """Five ledgers would have let one report spend 320, while each statement said 64."""
    report = maker.report({1: 100})
    with serving(maker, state) as (_, client):
        client.aggregate("a", ASKS, [report], domain=[1])
    plain = json.loads((state / "keys.json").read_text())
    assert plain["ledger"]["entries"] == 2
    for more in ({"ledger_path": tmp_path / "other.sqlite"}, {"ledger_path": state / "more" / ".." / "other.sqlite"}):
        (state / "more").mkdir(exist_ok=True)
        with pytest.raises(LedgerMismatchError, match="second budget"), serving(maker, state, **more):
            pass
    with (
        pytest.raises(LedgerMismatchError, match="keys new"),
        serving(maker, tmp_path / "elsewhere", keys=state / "keys.json"),
    ):
        pass
    with serving(maker, state) as (_, client), pytest.raises(ClientError, match="PRIVACY_BUDGET_EXHAUSTED"):
        client.aggregate("b", ASKS, [report], domain=[1])


def test_keys_of_a_memory_ledger_are_never_written(maker: Maker, state: Path) -> None:
    report = maker.report({1: 100})
    with pytest.raises(ConfigError, match="never written"), serving(maker, state, ledger="memory", keys=state / "x"):
        pass
    before = (state / "keys.json").read_bytes()
    loose = replace(ASKS, report_error_threshold_percentage="100")
    with serving(maker, state, ledger="memory") as (running, client):
        assert running.keys.pairs[0].id != maker.keys.pairs[0].id
        done = client.aggregate("a", loose, [report], domain=[1])
        assert done.error_counts["DECRYPTION_KEY_NOT_FOUND"] == 1, "these keys do not open it"
    assert (state / "keys.json").read_bytes() == before


def test_a_ledger_from_an_older_copy_is_refused(maker: Maker, state: Path, tmp_path: Path) -> None:
    report = maker.report({1: 100})
    with serving(maker, state) as (_, client):
        client.aggregate("before", ASKS, [maker.report({1: 1})], domain=[1])
    shutil.copytree(state, tmp_path / "copy")
    with serving(maker, state) as (_, client):
        client.aggregate("a", ASKS, [report], domain=[1])
    shutil.copy(tmp_path / "copy" / "ledger.sqlite", state / "ledger.sqlite")
    with pytest.raises(LedgerRewoundError, match="ledger restore"), serving(maker, state):
        pass
    # Nor with the key file alone, in the copied folder.
    shutil.copy(state / "keys.json", tmp_path / "copy" / "keys.json")
    with pytest.raises(LedgerRewoundError), serving(maker, tmp_path / "copy"):
        pass


def test_a_ledger_that_goes_back_under_a_running_service_charges_nothing_more(
    maker: Maker, state: Path, tmp_path: Path
) -> None:
    from budget import MemoryStore
    from budget.backup import copy_ledger
    from budget.witness import seen_in

    report = maker.report({1: 100})
    with serving(maker, state) as (running, client):
        client.aggregate("before", ASKS, [maker.report({1: 1})], domain=[1])
        kept = MemoryStore()
        copy_ledger(running.ledger.store, kept)
        client.aggregate("a", ASKS, [report], domain=[1])
        tables = ("head", "entries", "units", "jobs", "balances")
        running.ledger.store.write(
            "empty",
            lambda t: [t._run(f"DELETE FROM {table}", ()) for table in tables],  # type: ignore[attr-defined]
        )
        copy_ledger(kept, running.ledger.store)
        with pytest.raises(ClientError, match="older copy"):
            client.aggregate("b", ASKS, [report], domain=[1])
        assert seen_in(running.ledger.store).entries == 2


def test_rotated_and_replaced_keys_stay_with_their_ledger(maker: Maker, state: Path, tmp_path: Path) -> None:
    with serving(maker, state) as (running, client):
        client.aggregate("a", ASKS, [maker.report({1: 1})], domain=[1])
        rotated = read_key_set(state / "keys.json").rotate(maker.bits, maker.clock)
        write_key_set(state / "keys.json", rotated, replace=True)
        assert running.service.keys.refresh()
        fresh = type(rotated).create(maker.bits, maker.clock)
        write_key_set(state / "keys.json", fresh, replace=True)
        assert running.service.keys.refresh()
        account = read_key_set(state / "keys.json").account
        assert account is not None and account.entries == 2
    with serving(maker, tmp_path / "other", keys=tmp_path / "other.json"):
        pass
    other = read_key_set(tmp_path / "other.json")
    with serving(maker, state) as (running, _):
        before = [pair.id for pair in running.service.keys.keys.pairs]
        write_key_set(state / "keys.json", other, replace=True)
        with pytest.raises(LedgerMismatchError, match="belong to ledger"):
            running.service.keys.refresh()
        assert [pair.id for pair in running.service.keys.keys.pairs] == before


def test_a_configuration_with_keys_and_a_memory_ledger_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'set ledger\.store = "sqlite"'):
        parse_config({"state": "s", "keys": "keys.json", "ledger": {"store": "memory"}}, tmp_path)
