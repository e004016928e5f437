"""Keys that have all expired, and two services that make the same key file at once."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from aggservice.client import Client, ClientError
from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.service import ServiceConfig, embedded
from aggservice.service.config.keyring import KeyRing
from aggservice.service.http.app import PUBLIC_KEYS_PATH
from aggservice.wire import KeySet

DAY_MS = 86_400_000


def test_a_service_whose_keys_have_expired_says_so_and_goes_on(tmp_path: Path) -> None:
    clock, bits = ManualClock(1_700_000_000_000), SecureBits()
    keys = KeySet.create(bits, clock, lifetime_ms=DAY_MS)
    config = ServiceConfig(state=tmp_path / "state", listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    config = replace(config, limits=replace(config.limits, processes=0))
    with embedded(config, keys=keys, clock=clock) as service, Client(service.address) as client:
        url = f"http://127.0.0.1:{service.service.http_port}{PUBLIC_KEYS_PATH}"
        assert client.public_keys().serialise() == urllib.request.urlopen(url, timeout=10).read().decode()
        clock.advance(2 * DAY_MS)
        with pytest.raises(ClientError, match="no key is published") as refused:
            client.public_keys()
        assert "keys rotate" in refused.value.remedy
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(url, timeout=10)
        assert answer.value.code == 503 and "keys rotate" in answer.value.read().decode()


def test_whoever_comes_second_uses_the_first_ones_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, path = ManualClock(1_700_000_000_000), tmp_path / "keys.json"
    first = KeyRing.load_or_create(path, SecureBits(), clock)
    seen = iter([False])  # as it was when the second one looked
    monkeypatch.setattr(Path, "exists", lambda self, **_: next(seen, True))
    second = KeyRing.load_or_create(path, SecureBits(), clock)
    assert second.public() == first.public()
