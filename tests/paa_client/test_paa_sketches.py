"""Reach from sketches: the law of reading a noisy sketch, and its variance against the direct method."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aggservice.mechanisms import DiscreteLaplace, ManualClock, SecureBits, SeededBits
from aggservice.wire.device import DeviceConfigError
from paa_client import Browser, Config
from paa_client.recipes.estimates import service_noise
from paa_client.recipes.reach import Reach
from paa_client.recipes.sketches import ReachSketch, Readout, merge_sketches

NOISE = service_noise(10)


def read(cells: NDArray[np.int64], value: int, noise: DiscreteLaplace) -> NDArray[np.bool_]:
    """Add noise to true counts of users and read which cells look occupied."""
    draws = noise.sample(SecureBits(), cells.size).reshape(cells.shape)
    return 2 * (cells * value + draws) >= value


def fill(users: int, size: int, sketches: int) -> NDArray[np.int64]:
    """Return the counts of many sketches with ``users`` users each."""
    draws = np.random.Generator(np.random.PCG64(12345 + users + size))
    cells = draws.integers(0, size, (sketches, users)) + size * np.arange(sketches)[:, None]
    return np.bincount(cells.ravel(), minlength=size * sketches).reshape(sketches, size)


def test_devices_of_one_user_count_once_and_sketches_merge() -> None:
    sketch = ReachSketch(size=64)
    clock = ManualClock(1_700_000_040_000)
    totals: Counter[int] = Counter()
    users = [f"user {number // 2}" for number in range(80)]
    for number, user in enumerate(users):
        browser = Browser(clock=clock, bits=SeededBits(number), config=Config(local_testing_mode=True))
        browser.register("https://ad.example", "view", sketch.operation)
        browser.storage("https://ad.example").set("user-id", user)
        day = number % 2
        browser.run("https://ad.example", "view", {"content": day})
        browser.run("https://ad.example", "view", {"content": day, "user": "somebody else, too late"})
        assert browser.journal.console == []
        for delivery in browser.take_due():
            for made in delivery.report.contributions:
                totals[made.bucket] += made.value
    expected = Counter(sketch.bucket(number % 2, sketch.cell(user)) for number, user in enumerate(users))
    assert totals == {bucket: count * sketch.value for bucket, count in expected.items()}
    monday, tuesday = (sketch.occupied(totals, day) for day in (0, 1))
    cells = {sketch.cell(user) for user in users}
    assert set(np.flatnonzero(merge_sketches([monday, tuesday]))) == cells
    assert np.array_equal(monday, tuesday), "the same users on both days"
    without_noise = sketch.readout(None).estimate(len(cells))
    assert without_noise == pytest.approx(math.log(1 - len(cells) / 64) / math.log(1 - 1 / 64))
    anonymous = Browser(clock=clock, bits=SeededBits("x"), config=Config(local_testing_mode=True))
    anonymous.register("https://ad.example", "view", sketch.operation)
    anonymous.run("https://ad.example", "view", {"content": 0})
    assert anonymous.take_due() == [], "a device without a user's id is in no sketch"


def test_hashing_is_uniform() -> None:
    """χ² of 20,000 users over 100 cells: below its mean + 10 standard deviations (fixed users, so it never changes)."""
    sketch = ReachSketch(size=100, salt="campaign")
    counts = np.bincount([sketch.cell(user) for user in range(20_000)], minlength=100)
    statistic = float(((counts - 200) ** 2 / 200).sum())
    assert statistic < 99 + 10 * math.sqrt(2 * 99)
    assert sketch.cell(1) != ReachSketch(size=10**9).cell(1)


def exact_moments(size: int, value: int, noise: DiscreteLaplace, users: int) -> tuple[float, float]:
    """Return E[Y₁] and E[Y₁Y₂] by going through every placement of the users."""

    def empty(count: int) -> float:
        return float(noise.cdf(-(-value // 2) - 1 - count * value))

    one = pair = 0.0
    for placement in product(range(size), repeat=users):
        counts = np.bincount(placement, minlength=size)
        one += empty(int(counts[0]))
        pair += empty(int(counts[0])) * empty(int(counts[1]))
    return one / size**users, pair / size**users


@pytest.mark.parametrize(("size", "users"), [(3, 0), (3, 1), (3, 4), (4, 5)])
@pytest.mark.parametrize(("value", "epsilon"), [(65_536, 10), (65_536 // 5, 2), (3, 64), (1, 1)])
def test_the_law_of_reading_is_exact(size: int, users: int, value: int, epsilon: int) -> None:
    noise = service_noise(epsilon)
    readout = Readout.of(size, value, noise)
    one, pair = exact_moments(size, value, noise, users)
    made_one, _, made_pair = readout._moments(users)
    assert made_one == pytest.approx(one, rel=1e-9)
    assert made_pair == pytest.approx(pair, rel=1e-9)
    assert readout.expected(users) == pytest.approx(size * (1 - one), rel=1e-9)


SIZES = [(300, 1_000, 1), (1_500, 1_000, 1), (500, 1_000, 4), (800, 500, 2)]


@pytest.mark.parametrize(("users", "size", "cap"), SIZES)
def test_estimates_are_right_on_average_and_as_uncertain_as_stated(users: int, size: int, cap: int) -> None:
    """4,000 sketches: mean within 6 standard errors and a bias of 1 %, variance within 6 of its own and 3 %.

    False alarms: a mean of 4,000 strays by 6 standard errors with probability 2·10⁻⁹. The standard error of a
    variance is taken from the fourth moment of the sample. The white paper's estimator ignores noise; where noise
    matters (cap 4) it is far off, which is asserted too.
    """
    sketch = ReachSketch(size=size, cap=cap)
    occupied = read(fill(users, size, 4_000), sketch.value, NOISE).sum(axis=1)
    readout = sketch.readout(NOISE)
    table = {int(seen): readout.estimate(int(seen)) for seen in np.unique(occupied)}
    estimates = np.array([table[int(seen)] for seen in occupied])
    error = estimates.std() / math.sqrt(4_000)
    assert abs(estimates.mean() - users) < 6 * error + 0.01 * users
    variance = estimates.var()
    fourth = float(((estimates - estimates.mean()) ** 4).mean())
    variance_error = math.sqrt((fourth - variance**2) / 4_000)
    assert abs(variance - readout.variance(users)) < 6 * variance_error + 0.03 * variance
    plain = sketch.readout(None)
    naive = np.array([plain.estimate(int(seen)) for seen in occupied])
    if cap == 4:
        assert abs(naive.mean() - users) > 0.1 * users


def test_the_direct_method_is_better_where_it_applies_and_sketches_where_it_does_not() -> None:
    """For one slice the direct method's noise is that of one bucket; a sketch pays for collisions and every cell.

    Of two days together direct counts only the sum; the union needs the sketch.
    """
    sketch = ReachSketch(size=10_000)
    direct = float(NOISE.variance()) / Reach().value ** 2  # of the direct method, in units of a contribution
    assert direct == pytest.approx(0.02, rel=1e-3)
    for users in (100, 1_000, 10_000):
        assert sketch.readout(NOISE).variance(users) > 100 * direct
    both = fill(3_000, 10_000, 1)[0]
    monday = np.maximum(both, 0)
    days = [read(monday, sketch.value, NOISE), read(monday, sketch.value, NOISE)]
    union = sketch.readout(NOISE).estimate(int(merge_sketches(days).sum()), sketches=2)
    deviation = math.sqrt(sketch.readout(NOISE).variance(3_000))
    assert abs(union - 3_000) < 8 * deviation, "the same 3,000 on both days, not 6,000"


def test_edges_of_the_estimator() -> None:
    readout = ReachSketch(size=100, cap=8).readout(NOISE)
    assert readout.expected(0) > 1, "noise alone makes cells look occupied"
    assert readout.estimate(0) == 0.0
    assert readout.estimate(100) == math.inf
    for users in (0.5, 10, 1_000):
        assert readout.expected(users + 1) > readout.expected(users)
    with pytest.raises(DeviceConfigError):
        readout.estimate(101)
    bad: list[Any] = [{"size": 2}, {"size": 10, "cap": 0}]
    for arguments in bad:
        with pytest.raises(DeviceConfigError):
            ReachSketch(**arguments)
    with pytest.raises(DeviceConfigError):
        ReachSketch(size=10).bucket(0, 10)
