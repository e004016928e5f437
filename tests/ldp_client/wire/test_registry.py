"""The device registry: one token per client and collection, also after a restart."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from aggservice.mechanisms import SecureBits
from aggservice.wire import Api, SharedInfo
from aggservice.wire.errors import EncodingError
from aggservice.wire.report.registry import RegistryKeyPair, TokenCheck
from ldp_client import Registry
from ldp_client.errors import RegistryError, StateError

PAIR = RegistryKeyPair.create(SecureBits())


def info(origin: str = "https://adtech.example") -> SharedInfo:
    return SharedInfo(
        api=Api.SHARED_STORAGE, report_id=str(uuid4()), reporting_origin=origin, scheduled_report_time_s=1_700_000_000
    )


def test_a_client_has_one_token_per_collection() -> None:
    registry, first = Registry(PAIR), info()
    token = registry.token("ada", collection="monday", shared_info=first)
    check = TokenCheck(key=registry.public_key, collection="monday")
    assert check.valid(token, origin=first.reporting_origin, report_id=first.report_id_bytes)
    assert registry.token("ada", collection="monday", shared_info=first) == token
    for second in (info(), info("https://two.adtech.example")):
        with pytest.raises(RegistryError, match="another report"):
            registry.token("ada", collection="monday", shared_info=second)
    with pytest.raises(RegistryError, match="another client"):
        registry.token("bob", collection="monday", shared_info=first)
    assert registry.token("ada", collection="tuesday", shared_info=info()) != token
    registry.token("bob", collection="monday", shared_info=info())
    with pytest.raises(EncodingError):
        registry.token("bob", collection="", shared_info=info())


def test_names_that_run_together_are_different_clients() -> None:
    registry = Registry(PAIR)
    registry.token("b", collection="a", shared_info=info())
    registry.token("", collection="ab", shared_info=info())
    registry.token("ab", collection="a", shared_info=info())


def test_a_registry_goes_on_after_a_restart() -> None:
    registry, first = Registry(PAIR), info()
    token = registry.token("ada@example.org", collection="monday", shared_info=first)
    saved = registry.save()
    assert "@" not in saved and "example" not in saved
    again = Registry.restore(PAIR, saved)
    assert again.token("ada@example.org", collection="monday", shared_info=first) == token
    with pytest.raises(RegistryError):
        again.token("ada@example.org", collection="monday", shared_info=info())
    with pytest.raises(RegistryError, match="another report"):
        Registry.restore(PAIR, saved).token("ada@example.org", collection="monday", shared_info=info())
    with pytest.raises(RegistryError, match="another client"):
        Registry.restore(PAIR, saved).token("bob@example.org", collection="monday", shared_info=first)
    for wrong in ("", "[]", "{}", saved.replace("registry 1", "registry 2"), saved[:-1] + ', "more": 1}'):
        with pytest.raises(StateError):
            Registry.restore(PAIR, wrong)
    with pytest.raises(StateError):
        Registry.restore(PAIR, '{"kind": "device registry 1", "clients": {"x": 1}, "reports": {}}')


class Slow(dict[str, str]):
    """Looks up so slowly that another thread looks up before this one has written, unless it has to wait."""

    def get(self, *key: Any) -> Any:
        found = super().get(*key)
        time.sleep(0.05)
        return found


def test_of_many_requests_at_once_one_gets_the_token() -> None:
    registry = Registry(PAIR)
    registry._by_client = Slow()

    def ask(_: int) -> bool:
        try:
            registry.token("ada", collection="monday", shared_info=info())
        except RegistryError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 1
