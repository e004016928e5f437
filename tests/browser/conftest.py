"""A real browser for the tests of this folder, and the count of reports that they compared."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aggservice.client import Client
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service import Collector, embedded
from aggservice.wire import KeySet, ReportBatch, read_reports

from ..service.operating.collecting import collecting
from .build import BuildUnavailable, axe_script, chromium_program
from .site import Site

_COUNTS = pytest.StashKey[dict[str, tuple[int, int]]]()


@functools.cache
def _missing(fixture: str) -> str | None:
    """Return why a fetched thing is missing, or None; it is fetched once per process."""
    try:
        {"build": chromium_program, "axe": axe_script}[fixture]()
    except BuildUnavailable as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the browser or the checker where they are missing; pytest shows one line per reason."""
    for fixture, what in (("build", "no browser"), ("axe", "no accessibility checker")):
        reason = _missing(fixture) if fixture in getattr(item, "fixturenames", ()) else None
        if reason is not None:
            pytest.skip(f"{what}: {reason}")


@pytest.fixture(scope="session")
def build() -> Path:
    """The browser's program; without it the test is skipped, and the reason says why."""
    return chromium_program()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that checks a page for faults of accessibility; without it the test is skipped."""
    return axe_script().read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A service, a collector and the site that leads browsers to them."""

    site: Site
    client: Client
    keys: KeySet
    collected: Path


@pytest.fixture
def stack(build: Path, tmp_path: Path) -> Iterator[Stack]:
    """Start the service, a collector in front of it, and the HTTPS site."""
    clock = SystemClock()
    keys = KeySet.create(SecureBits(), clock)
    folder = tmp_path / "collected"
    with (
        embedded(keys=keys) as service,
        Client(service.address) as client,
        collecting(Collector(folder, clock=clock)) as port,
        Site(public_keys=client.public_keys().serialise().encode, collector=f"127.0.0.1:{port}") as site,
    ):
        yield Stack(site=site, client=client, keys=keys, collected=folder)


def collected(folder: Path) -> list[ReportBatch]:
    """Return what a collector wrote below a folder."""
    return [batch for path in sorted(folder.rglob("*.avro")) for batch in read_reports(path)]


class Counts:
    """Adds up the reports that a test compared; the run's last lines show them."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        self._all = config.stash.setdefault(_COUNTS, {})
        self._name = name

    def record(self, equal: int, different: int) -> None:
        """Count reports that were compared."""
        compared, before = self._all.get(self._name, (0, 0))
        self._all[self._name] = (compared + equal + different, before + equal)


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> Counts:
    """The counter of this test."""
    return Counts(request.config, request.node.name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many reports were compared and how many were equal."""
    found = config.stash.get(_COUNTS, {})
    for name, (compared, equal) in found.items():
        terminalreporter.write_line(f"{name}: {compared:,} reports compared, {equal:,} equal")
    if found:
        compared, equal = (sum(column) for column in zip(*found.values(), strict=True))
        terminalreporter.write_line(f"real browser: {compared:,} reports compared, {equal:,} equal")
