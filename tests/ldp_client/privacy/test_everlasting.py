"""Bitwise Everlasting Privacy: the client's exact law, its estimator, its error, and that a device can go on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from aggservice.mechanisms import ForbiddenBits, SecureBits, SeededBits
from aggservice.mechanisms.composition import tight_chain
from ldp_client import BitwiseEverlasting
from ldp_client.enumeration import distribution
from ldp_client.errors import LdpParameterError, ReportError, StateError
from twins.ldp_kernels import privacy_loss

PROTOCOL = BitwiseEverlasting(epsilon_permanent_micro=800_000, epsilon_report_micro=1_300_000)
ALARM = 1e-9


def printed_error_bound(users: int, beta: float) -> float:
    """Section 6's bound, (ε₁+2)(ε₂+2)/(ε₁ε₂)·√(32 ln(2/β)/n), at least eight times Hoeffding's."""
    return (0.8 + 2) * (1.3 + 2) / (0.8 * 1.3) * math.sqrt(32 * math.log(2 / beta) / users)


def stream(value: int, reports: int):  # type: ignore[no-untyped-def]
    def program(draws):  # type: ignore[no-untyped-def]
        client = PROTOCOL.client(draws)
        return tuple(client.report(value) for _ in range(reports))

    return distribution(program)


def test_one_report_has_the_privacy_of_the_chain() -> None:
    loss = privacy_loss(stream(0, 1), stream(1, 1))
    assert loss == pytest.approx(tight_chain(0.8, 1.3), abs=1e-12)
    assert PROTOCOL.privacy.first == pytest.approx(loss, abs=1e-12)
    kept = PROTOCOL.epsilon_permanent_micro / 1e6
    assert (PROTOCOL.privacy.permanent, PROTOCOL.privacy.worst_case) == (kept, 2 * kept)


def test_reports_never_reveal_more_than_the_kept_bit() -> None:
    laws = [(stream(0, k), stream(1, k)) for k in range(1, 9)]
    losses = [max(privacy_loss(zero, one), privacy_loss(one, zero)) for zero, one in laws]
    assert losses == sorted(losses)
    assert losses[-1] <= 0.8 + 1e-12
    exact = PROTOCOL.finite_state()
    for k, loss in enumerate(losses, 1):
        assert exact.everlasting(k) == pytest.approx(loss, abs=1e-12)
    assert exact.everlasting(40) == pytest.approx(0.8, abs=1e-9)


def test_the_matrices_are_the_clients() -> None:
    exact = PROTOCOL.finite_state()
    for value in (0, 1):
        for sent, chance in stream(value, 4).items():
            counts = (sent.count(0), sent.count(1))
            assert math.exp(exact.log_probability(value, counts)) == pytest.approx(float(chance), rel=1e-12)


def test_the_estimator_is_the_papers_with_a_mean_for_its_sum() -> None:
    reports = np.array([0, 1, 1, 0, 1, 1, 1, 0, 0, 1])
    one, two = math.exp(0.8), math.exp(1.3)
    printed = (one * two + 1 - (one + 1) * (two + 1) * reports.mean()) / ((one - 1) * (two - 1))
    frequencies = PROTOCOL.estimate(reports).frequencies
    assert frequencies[0] == pytest.approx(printed, rel=1e-12)
    assert frequencies.sum() == pytest.approx(1, rel=1e-12)


def test_a_fleet_is_estimated_within_the_bound() -> None:
    """Alarm 10⁻⁹ for the bound (Hoeffding) and 10⁻⁹ for the normal score, at 40,000 users over three collections."""
    users, share = 40_000, 0.37
    values = (np.arange(users) < share * users).astype(np.int64)
    fleet = PROTOCOL.fleet(users, SecureBits())
    for _ in range(3):
        estimate = PROTOCOL.estimate(fleet.report(values))
        error = abs(estimate.frequencies[1] - share)
        assert error <= PROTOCOL.error_bound(users, ALARM) <= printed_error_bound(users, ALARM)
        assert error <= norm.isf(ALARM / 2) * math.sqrt(PROTOCOL.support.variance(users, share))
    assert (fleet.memoized() == 1).all()


def test_a_fleet_keeps_its_bits() -> None:
    """Many reports of one user average to the kept bit's law, not to the population's: their mean has two peaks."""
    users, reports = 300, 400
    fleet = PROTOCOL.fleet(users, SecureBits())
    values = np.zeros(users, dtype=np.int64)
    means = np.mean([fleet.report(values) for _ in range(reports)], axis=0)
    keep = 1 / (1 + math.exp(-1.3))
    # Hoeffding at 10⁻¹² a user: each mean is near one of the two laws.
    near = math.sqrt(math.log(2e12) / (2 * reports))
    assert ((abs(means - keep) < near) | (abs(means - (1 - keep)) < near)).all()
    assert (abs(means - keep) < near).any() and (abs(means - (1 - keep)) < near).any()


def test_a_device_stops_and_goes_on() -> None:
    client = PROTOCOL.client(SeededBits("device"))
    for value in (0, 1, 0):
        client.report(value)
    saved = client.save()
    again = PROTOCOL.restore(saved, SeededBits("later"))
    assert again.save() == saved
    assert again.memoized == 2
    other = BitwiseEverlasting(epsilon_permanent_micro=800_000, epsilon_report_micro=1_300_001)
    with pytest.raises(StateError, match=r"not to"):
        other.restore(saved, SeededBits("later"))
    with pytest.raises(StateError):
        PROTOCOL.restore(saved.replace(b'"0": 1', b'"0": 7').replace(b'"0": 0', b'"0": 7'), ForbiddenBits())


def test_clients_and_columns_agree() -> None:
    reports = [PROTOCOL.client(SeededBits(f"user {i}")).report(i % 2) for i in range(50)]
    assert PROTOCOL.columns(reports).tolist() == reports
    with pytest.raises(ReportError):
        PROTOCOL.columns([0, 2])
    with pytest.raises(ReportError):
        PROTOCOL.estimate(np.array([], dtype=np.int64))
    with pytest.raises(ReportError):
        PROTOCOL.client(SeededBits("x")).report(2)
    with pytest.raises(LdpParameterError):
        BitwiseEverlasting(epsilon_permanent_micro=0, epsilon_report_micro=1)
    with pytest.raises(LdpParameterError):
        PROTOCOL.error_bound(10, 1.0)
