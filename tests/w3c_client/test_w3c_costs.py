"""What a conversion costs an epoch's budget: the loss rounded up, never down."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest

from w3c_client.budgets import exact_cost


@pytest.mark.parametrize("epsilon", [0.000001, 0.013, 1.0, 1 / 3])
@pytest.mark.parametrize(("sensitivity", "max_value"), [(1, 1), (1, 2), (2, 3), (5, 7), (1, 10**6), (65_536, 65_536)])
def test_a_cost_is_the_least_integer_at_or_above_the_loss(sensitivity: int, max_value: int, epsilon: float) -> None:
    micro = ceil(Fraction(str(epsilon)) * 10**6)
    assert exact_cost(sensitivity, max_value, epsilon) == ceil(Fraction(micro * sensitivity, 2 * max_value))
