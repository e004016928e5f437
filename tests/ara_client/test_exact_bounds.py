"""Bounds of a browser at their exact ends: windows to the millisecond, counts to one, coins to the last bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, SeededBits
from ara_client.constants import DAY_MS
from ara_client.event_noise.response import TRUTHFUL, draw_states
from ara_client.model import InteractiveRandomizedResponse
from ara_client.storage.limits import DebugBudgets, RateLimits

from .test_limits import REPORTERS, VENDOR, _source

WHOLE = 65_536


@pytest.mark.parametrize("start_ms", [0, 1, DAY_MS // 2, DAY_MS - 1, 20_000 * DAY_MS + 12_345])
@pytest.mark.parametrize(("after_ms", "allowed"), [(0, False), (1, False), (DAY_MS - 1, False), (DAY_MS, True)])
def test_a_day_of_debug_reports_rolls_to_the_millisecond(start_ms: int, after_ms: int, allowed: bool) -> None:
    budgets = DebugBudgets(VENDOR)

    def charge(now_ms: int) -> bool:
        return budgets.charge(
            WHOLE, context_site="https://c.test", reporting_origin=REPORTERS[0], source=None, now_ms=now_ms
        )

    assert charge(start_ms)
    assert charge(start_ms + after_ms) is allowed


@pytest.mark.parametrize("scope", ["event", "aggregatable"])
@pytest.mark.parametrize("most", [1, 3])
def test_attributions_of_a_site_end_at_their_number_and_begin_again_a_window_later(scope: Any, most: int) -> None:
    """The window counts by the time of the source, and a record is in it while it is strictly later than its start."""
    config = replace(VENDOR, max_attributions=most, rate_limit_window_ms=DAY_MS)
    limits = RateLimits(config)
    first = _source(0, 1_000, 0, (0,), 0, 30)
    site = first.registration.destinations[0]
    for report in range(most):
        assert limits.allows_attribution(first, scope, site)
        limits.add_attribution(first, scope, site, 1_000, report)
    assert not limits.allows_attribution(first, scope, site)
    assert not limits.allows_attribution(_source(2, 999 + DAY_MS, 0, (0,), 0, 30), scope, site)
    assert limits.allows_attribution(_source(4, 1_000 + DAY_MS, 0, (0,), 0, 30), scope, site)


class Words(Bits):
    """Gives one word, then a seeded stream."""

    private = False

    def __init__(self, word: int) -> None:
        self._word = [word]
        self._rest = SeededBits("rest")

    def read(self, count: int) -> bytes:
        return self.words(1).tobytes()[:count]

    def words(self, count: int) -> NDArray[np.uint64]:
        first, self._word = self._word, []
        return np.concatenate((np.array(first, dtype=np.uint64), self._rest.words(count - len(first))))

    def child(self, label: str) -> Bits:
        return self


@pytest.mark.parametrize("states", [2, 3, 27, 2925])
@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(14), Fraction(1, 10)])
def test_the_coin_of_event_level_reports_is_exact_to_64_bits(states: int, epsilon: Fraction) -> None:
    """The kernel fakes a state below |O|/(|O| − 1 + e^ε); the model is truthful below (e^ε − 1)/(e^ε + |O| − 1)."""
    with mpmath.workdps(60):
        e = mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator)
        fake = int(mpmath.floor(states / (states - 1 + e) * 2**64))
        truth = int(mpmath.floor((e - 1) / (e + states - 1) * 2**64))
    assert draw_states(Words(fake - 1), states, epsilon, 1)[0] != TRUTHFUL
    assert draw_states(Words(fake + 1), states, epsilon, 1)[0] == TRUTHFUL
    outputs = [(str(state),) for state in range(states)]
    for word, honest in ((truth - 1, True), (truth + 1, False)):
        response = InteractiveRandomizedResponse(epsilon=epsilon, outputs=outputs, bits=Words(word))
        assert (response.draw() is None) is honest
