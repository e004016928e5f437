"""Random registrations in a real Chromium, as shipped, and in ``ara_client.Browser``: every report is the same.

``AGGSERVICE_BROWSER_SEED`` gives other random draws. False alarms: 4 tests of chance at 10⁻⁸ each.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import KeySet

from .conftest import Counts
from .devtools import Chromium
from .differential import Tally, fuzz_registrations, plausible, shrunk
from .site import Site

SEED = os.environ.get("AGGSERVICE_BROWSER_SEED", "1")
SMALL, LARGE = 200, 20_000
BROWSERS = 3
"""How many browsers share the large run."""


def registrations(seed: str, steps: int) -> Tally:
    """Fuzz one browser with a site of its own."""
    clock = SystemClock()
    keys = KeySet.create(SecureBits(), clock)
    public = keys.public(clock).serialise().encode()
    with Site(public_keys=lambda: public) as site, Chromium(resolve=site.address) as browser:
        return fuzz_registrations(browser, site, keys, seed=seed, steps=steps)


def test_random_registrations(build: Path, counts: Counts) -> None:
    tally = registrations(f"registrations {SEED}", SMALL)
    counts.record(tally.equal, len(tally.differences))
    assert not tally.differences, "\n\n".join(tally.differences)
    assert tally.registered > SMALL / 2 and tally.equal > SMALL / 2
    tally.check_chance()


@pytest.mark.soak
def test_many_random_registrations(build: Path, counts: Counts) -> None:
    with ThreadPoolExecutor(BROWSERS) as pool:
        seeds = [f"many registrations {SEED} {number}" for number in range(BROWSERS)]
        tallies = list(pool.map(lambda seed: registrations(seed, LARGE // BROWSERS + 1), seeds))
    tally = Tally()
    for one in tallies:
        tally.add(one)
    print(tally)
    counts.record(tally.equal, len(tally.differences))
    assert not tally.differences, "\n\n".join(tally.differences)
    assert tally.steps >= LARGE
    tally.check_chance()


def test_a_difference_is_shrunk_to_the_steps_that_make_it() -> None:
    assert shrunk(range(100), lambda part: 13 in part and 77 in part) == [13, 77]
    assert shrunk([1, 2, 3], lambda part: False) == [1, 2, 3]


def test_chance_is_told_from_a_fault() -> None:
    """Exact: the bounds are computed, nothing is drawn."""
    assert plausible(0, 5) and plausible(0, 0) and plausible(30, 20) and plausible(8, 20)
    assert not plausible(1, 0) and not plausible(0, 20) and not plausible(80, 20) and not plausible(40, 200)
