"""RAPPOR whose q moves towards p: its losses against whole sequences of reports, enumerated, and its devices."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from ldp_client import Rappor
from ldp_client.enumeration import distribution, stream_loss
from ldp_client.errors import LdpParameterError, StateError
from ldp_client.experiments.figures import FigureRequest, find_figure
from ldp_client.protocols.rappor_fading import FadingRappor
from twins.ldp_kernels import privacy_loss

F = Fraction
TINY = FadingRappor(rappor=Rappor(size=2, hashes=1, cohorts=1, f=F(1, 2), p=F(1, 2), q=F(3, 4)), ratio=F(1, 2))
DEPLOYED = FadingRappor(rappor=Rappor(), ratio=F(9, 10))


def two_strings() -> tuple[str, str]:
    """Return strings that set different bits of the tiny filter."""
    words = [f"word {number}" for number in range(20)]
    return next((a, b) for a in words for b in words if TINY.rappor.positions(a, 0) != TINY.rappor.positions(b, 0))


def rows(strings: tuple[str, ...]) -> dict[Any, Fraction]:
    def program(draws: Any) -> tuple[bytes, ...]:
        client = TINY.client(draws)
        return tuple(client.report(string).row for string in strings)

    return distribution(program)


def test_q_moves_to_p() -> None:
    assert [TINY.at(t).q for t in range(4)] == [F(3, 4), F(5, 8), F(9, 16), F(17, 32)]
    assert all(TINY.at(t).p == F(1, 2) for t in range(4))
    assert TINY.at(0) == TINY.rappor


def test_strings_that_all_differ_lose_exactly_the_sum() -> None:
    a, b = two_strings()
    losses = TINY.losses(2)
    assert privacy_loss(rows((a,)), rows((b,))) == pytest.approx(losses[0].strings, abs=1e-12)
    assert privacy_loss(rows((a, b)), rows((b, a))) == pytest.approx(losses[1].strings, abs=1e-12)
    assert losses[1].strings == pytest.approx(losses[0].first + losses[1].first)
    assert losses[1].fixed_strings == pytest.approx(2 * TINY.rappor.privacy.first)


def test_a_string_that_stays_loses_less_and_never_more_than_the_limit() -> None:
    a, b = two_strings()
    found = [privacy_loss(rows((a,) * k), rows((b,) * k)) for k in (1, 2, 3)]
    assert found == sorted(found)
    for loss, row in zip(found, TINY.losses(3), strict=True):
        assert loss <= min(row.strings, TINY.rappor.privacy.permanent) + 1e-12


@pytest.mark.parametrize("most", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_no_sequence_of_strings_loses_more_than_is_stated(most: int) -> None:
    """Every pair of sequences over two strings: two reports lose the sum of firsts, three stay within the bound."""
    words = two_strings()

    def make(draws: Any) -> Any:
        client = TINY.client(draws)
        return lambda index: client.report(words[index]).row

    found = [stream_loss(make, 2, length) for length in range(1, most + 1)]
    assert found == sorted(found)
    for loss, row in zip(found, TINY.losses(most), strict=True):
        assert loss <= row.sequence + 1e-12
    assert found[1] == pytest.approx(TINY.losses(2)[1].strings, abs=1e-12)


@pytest.mark.parametrize(("p", "q"), [(F(1, 2), F(3, 4)), (F(1, 4), F(1, 2))])
def test_one_report_of_any_string_loses_by_its_worst_row(p: Fraction, q: Fraction) -> None:
    """A bit that is set tells ln q/p, one that is clear ln (1-p)/(1-q): the larger is ln 2 in both cases."""
    fading = FadingRappor(rappor=Rappor(size=3, hashes=1, cohorts=1, f=F(1, 2), p=p, q=q), ratio=F(1, 2))
    rows_of_bits = list(product((0, 1), repeat=3))

    def chance(kept: tuple[int, ...], sent: tuple[int, ...]) -> Fraction:
        set_by = [q if bit else p for bit in kept]
        return math.prod((one if bit else 1 - one for one, bit in zip(set_by, sent, strict=True)), start=F(1))

    worst = max(chance(a, row) / chance(b, row) for a, b, row in product(rows_of_bits, repeat=3))
    assert worst == 8
    assert fading.losses(1)[0].sequence == pytest.approx(math.log(worst), abs=1e-12)


@pytest.mark.parametrize("fading", [TINY, DEPLOYED, FadingRappor(rappor=Rappor(f=0, q=F(9, 10)), ratio=F(1, 3))])
def test_all_collections_together_stay_below_the_limit(fading: FadingRappor) -> None:
    limit, long = fading.limit(), fading.losses(150)[-1]
    assert long.strings <= limit.strings <= 1.01 * long.strings
    assert long.sequence <= limit.sequence <= 1.01 * long.sequence
    assert long.fixed_strings == pytest.approx(150 * fading.rappor.privacy.first)
    assert limit.fixed_strings == math.inf


def test_a_report_sets_bits_as_its_collection_says() -> None:
    """The law of one bit after t skips is that of RAPPOR with q_t, which decodes it."""
    a, _ = two_strings()
    set_bit = TINY.rappor.positions(a, 0)[0]
    for t in range(3):

        def program(draws: Any, t: int = t) -> bool:
            client = TINY.client(draws)
            for _ in range(t):
                client.skip()
            return bool(client.report(a).row[0] >> set_bit & 1)

        chance = distribution(program)[True]
        assert abs(chance - TINY.at(t).set_chance) < F(1, 10**30)


def test_a_saved_device_goes_on_at_its_collection() -> None:
    whole = DEPLOYED.client(SeededBits("device"))
    expected = [whole.report(word) for word in ("a", "b", "a")]
    bits = SeededBits("device")
    client = DEPLOYED.client(bits)
    found = []
    for word in ("a", "b", "a"):
        found.append(client.report(word))
        client = DEPLOYED.restore(client.save(), bits)
    assert found == expected
    assert client.collection == 3
    state = json.loads(client.save())
    for change in ({"collection": -1}, {"collection": None}, {"collection": True}, {"device": 3}, {"device": "{}"}):
        broken = {**state, "memo": {**state["memo"], **change}}
        with pytest.raises(StateError):
            DEPLOYED.restore(json.dumps(broken).encode(), SecureBits())
    other = FadingRappor(rappor=Rappor(), ratio=F(8, 10))
    with pytest.raises(StateError, match="answers would not be private"):
        other.restore(client.save(), SecureBits())


def test_what_cannot_fade_is_refused() -> None:
    for ratio in (F(0), F(1), F(3, 2), 0.5, 1):
        with pytest.raises(LdpParameterError, match="ratio"):
            FadingRappor(rappor=Rappor(), ratio=ratio)  # type: ignore[arg-type]
    with pytest.raises(LdpParameterError, match="needs an instantaneous response"):
        FadingRappor(rappor=Rappor(p=F(0), q=F(1)), ratio=F(1, 2))
    for bad in (-1, 1.0, 10**9):
        with pytest.raises(LdpParameterError, match="collection"):
            TINY.at(bad)  # type: ignore[arg-type]
    with pytest.raises(LdpParameterError, match="collections must be"):
        TINY.losses(0)


def test_the_figure_has_the_losses(tmp_path: Any) -> None:
    made = find_figure("rappor-fading").make(FigureRequest(out=tmp_path, clock=ManualClock(0), collections=12))
    lines = made.files[0].read_text().splitlines()
    assert len(lines) == 13
    assert lines[1].split(",")[:2] == ["0", "0.75"]
