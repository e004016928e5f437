"""A running service and reports for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aggservice.client import Client
from aggservice.service import EmbeddedService, embedded

from ..engine.conftest import Maker


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def service(maker: Maker) -> Iterator[EmbeddedService]:
    with embedded(keys=maker.keys, clock=maker.clock) as running:
        yield running


@pytest.fixture
def client(service: EmbeddedService) -> Iterator[Client]:
    with Client(service.address) as connected:
        yield connected
