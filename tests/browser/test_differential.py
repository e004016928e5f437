"""Random registrations and worklets in a real Chromium and in our browsers: every report is the same.

``AGGSERVICE_BROWSER_SEED`` gives other random draws. False alarms: 4 tests of chance at 10⁻⁸ each.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import KeySet
from paa_client import Config

from .conftest import Counts
from .devtools import Chromium
from .differential import Tally, fuzz_registrations, fuzz_worklets, plausible, shrunk
from .private_aggregation import DEVELOPER_MODE
from .site import Site

SEED = os.environ.get("AGGSERVICE_BROWSER_SEED", "1")
SMALL = 200
BROWSERS = 3
"""How many browsers share a large run."""


@contextmanager
def browsing(*flags: str) -> Iterator[tuple[Chromium, Site, KeySet]]:
    """Start a browser with a site of its own."""
    clock = SystemClock()
    keys = KeySet.create(SecureBits(), clock)
    public = keys.public(clock).serialise().encode()
    with Site(public_keys=lambda: public) as site, Chromium(resolve=site.address, flags=flags) as browser:
        yield browser, site, keys


def registrations(seed: str, steps: int) -> Tally:
    """Fuzz one browser, as shipped, with registrations."""
    with browsing() as (browser, site, keys):
        return fuzz_registrations(browser, site, keys, seed=f"registrations {seed}", steps=steps)


def worklets(seed: str, runs: int, *, error_reporting: bool = False) -> Tally:
    """Fuzz one browser, without delays, with worklets and auctions."""
    config = Config(local_testing_mode=True, error_reporting=error_reporting, debug_mode_allowed=True)
    features = ["--enable-features=PrivateAggregationApiErrorReporting"] if error_reporting else []
    with browsing(DEVELOPER_MODE, *features) as (browser, site, keys):
        return fuzz_worklets(browser, site, keys, seed=f"worklets {seed}", runs=runs, config=config)


def in_parallel(fuzz: Callable[[str, int], Tally], name: str, steps: int) -> Tally:
    """Share the steps of a large run between browsers; print what they came to."""
    seeds = [f"{name} {SEED} {number}" for number in range(BROWSERS)]
    with ThreadPoolExecutor(BROWSERS) as pool:
        tallies = list(pool.map(lambda seed: fuzz(seed, math.ceil(steps / BROWSERS)), seeds))
    total = Tally()
    for tally in tallies:
        total.add(tally)
    print(f"{name}, seed {SEED}: {total}")
    return total


def conclude(tally: Tally, counts: Counts) -> None:
    """Assert that nothing differs and that chance is as it should be."""
    counts.record(tally.equal, len(tally.differences))
    assert not tally.differences, "\n\n".join(tally.differences)
    assert tally.equal > tally.steps / 2
    tally.check_chance()


def test_random_registrations(build: Path, counts: Counts) -> None:
    conclude(registrations(SEED, SMALL), counts)


def test_random_worklets(build: Path, counts: Counts) -> None:
    conclude(worklets(SEED, SMALL), counts)


def test_random_worklets_with_error_reporting(build: Path, counts: Counts) -> None:
    conclude(worklets(f"errors {SEED}", SMALL // 4, error_reporting=True), counts)


@pytest.mark.soak
def test_many_random_registrations(build: Path, counts: Counts) -> None:
    conclude(in_parallel(registrations, "many registrations", 20_000), counts)


@pytest.mark.soak
def test_many_random_worklets(build: Path, counts: Counts) -> None:
    conclude(in_parallel(worklets, "many worklets", 5_000), counts)


@pytest.mark.soak
def test_many_random_worklets_with_error_reporting(build: Path, counts: Counts) -> None:
    fuzz = functools.partial(worklets, error_reporting=True)
    conclude(in_parallel(fuzz, "many worklets with error reporting", 1_000), counts)


def test_a_difference_is_shrunk_to_the_steps_that_make_it() -> None:
    assert shrunk(range(100), lambda part: 13 in part and 77 in part) == [13, 77]
    assert shrunk([1, 2, 3], lambda part: False) == [1, 2, 3]


def test_chance_is_told_from_a_fault() -> None:
    """Exact: the bounds are computed, nothing is drawn."""
    assert plausible(0, 5) and plausible(0, 0) and plausible(30, 20) and plausible(8, 20)
    assert not plausible(1, 0) and not plausible(0, 20) and not plausible(80, 20) and not plausible(40, 200)
