"""Fair allocation over every string of coins: exact expectations, sums, errors and the number of draws."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import inf

import pytest

from aggservice.kits.rules import paths
from aggservice.mechanisms import ForbiddenBits, ManualClock
from w3c_client import DEFAULT_SERVICE, Browser, Config, randomness
from w3c_client.credit import LastTouches, PositionBased, allocate_exactly, allocate_in_doubles, credited
from w3c_client.randomness import W3cWordChoices


def weights(credit: tuple[float, ...]) -> tuple[int, ...]:
    """The integer weights of last-n-touch if there are enough touches."""
    return credited(LastTouches(), len(credit), credit, len(credit))[1]


def test_expectations_are_exact_for_up_to_five_credits() -> None:
    leaves = 0
    for count in range(1, 6):
        for credit in product((1, 2, 3, 7) if count < 4 else (1, 2, 7), repeat=count):
            for value in (1, 2, 5):
                shares = [Fraction(value * item, sum(credit)) for item in credit]
                expected = [Fraction(0)] * count
                total = Fraction(0)
                for script in paths():
                    amounts = allocate_exactly(weights(credit), value, script.coin)
                    assert sum(amounts) == value and script.used <= count - 1
                    assert all(abs(amount - share) < 1 for amount, share in zip(amounts, shares, strict=True))
                    total += script.chance
                    expected = [one + script.chance * amount for one, amount in zip(expected, amounts, strict=True)]
                    leaves += 1
                assert expected == shares and total == 1
    assert leaves > 5_000


@pytest.mark.parametrize("credit", [(1, 1), (0.1, 0.2, 0.7), (1e-9, 3, 1e9), (5, 5, 5, 5, 5)])
def test_doubles_keep_the_sum_and_stay_within_one(credit: tuple[float, ...]) -> None:
    for value in (1, 3, 7, 4_294_967_295):
        for draw in (0.0, 0.3, 0.999999):
            amounts = allocate_in_doubles(credit, value, lambda draw=draw: draw)
            assert amounts is not None and sum(amounts) == value
            shares = [value * Fraction(str(item)) / sum(map(Fraction, map(str, credit))) for item in credit]
            assert all(abs(amount - share) < 1 + 1e-6 for amount, share in zip(amounts, shares, strict=True))


def test_credits_beyond_doubles_are_divided_exactly() -> None:
    assert allocate_in_doubles((1e308, 1e308), 2, lambda: 0.0) is None
    assert allocate_exactly(weights((1e308, 1e308)), 2, lambda *_: True) == [1, 1]
    assert allocate_exactly(weights((5e-324, 1e308)), 3, lambda *_: True)[0] in (0, 1)
    assert allocate_in_doubles((inf,), 1, lambda: 0.0) is None


@pytest.mark.parametrize("total", [1, 2, 3, 7])
def test_a_coin_has_exactly_its_probability(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``total`` equally likely draws, ``favourable`` give True."""
    for favourable in range(total + 1):
        left = list(range(total))
        monkeypatch.setattr(randomness, "uniform_below", lambda bits, below, left=left: left.pop(0))
        tossed = [randomness.RandomW3cChoices(ForbiddenBits()).coin(favourable, total) for _ in range(total)]
        assert sum(tossed) == favourable and not left


@pytest.mark.parametrize(
    ("touches", "most", "shares"),
    [
        (1, 20, "1"),
        (2, 20, "1/2 1/2"),
        (3, 20, "2/5 1/5 2/5"),
        (5, 20, "2/5 1/15 1/15 1/15 2/5"),
        (6, 4, "2/5 1/10 1/10 0 0 2/5"),
        (5, 2, "1/2 1/2"),
    ],
)
def test_position_based_shares(touches: int, most: int, shares: str) -> None:
    assert PositionBased().shares(touches, (1,), most) == [Fraction(one) for one in shares.split()]


def test_a_browser_divides_by_position() -> None:
    """Value 10 over four touches: 4, 1, 1 and 4, without a coin; the credits of the call do not matter."""
    clock = ManualClock(10**12)
    config = Config(attribution="position-based")  # type: ignore[arg-type]
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=W3cWordChoices(0))
    for index in range(4):
        browser.save_impression("news.example", {"histogramIndex": index})
        clock.advance(1_000)
    asked = {"aggregationService": DEFAULT_SERVICE, "histogramSize": 4, "value": 10, "maxValue": 10, "credit": [3]}
    assert browser.measure_conversion("shop.example", asked).histogram == (4, 1, 1, 4)
