"""Continual Boolean collection: exact privacy, an unbiased tree, errors within Theorem 6's bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import SecureBits, SeededBits
from ldp_client import DyadicTree
from ldp_client.enumeration import distribution
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.protocols.dyadic import DyadicServer, NodeReport, cover, node_index, report_kernel
from twins.ldp_kernels import privacy_loss, report_twin

ALARM = 1e-9


def streams(tree: DyadicTree):  # type: ignore[no-untyped-def]
    """Every sequence of states with at most k changes, with the exact law of what its device sends."""
    found = {}
    for states in itertools.product((0, 1), repeat=tree.periods):
        if sum(a != b for a, b in itertools.pairwise((0, *states))) <= tree.changes:

            def program(draws, states=states):  # type: ignore[no-untyped-def]
                client = tree.client(draws)
                return tuple(client.report(state) for state in states)

            found[states] = distribution(program)
    return found


def printed_error_bound(tree: DyadicTree, users: int, beta: float) -> float:
    """The last line of Theorem 6's proof, which follows from ``error_bound`` for 16 periods or more."""
    log = math.log2(tree.periods)
    return tree.gain * tree.changes * log**1.5 * math.sqrt(users * math.log(2 * tree.periods / beta))


@pytest.mark.parametrize("periods, changes", [(1, 1), (2, 1), (4, 1), (4, 2), (8, 1)])
def test_the_exact_privacy_is_half_of_what_is_stated(periods: int, changes: int) -> None:
    tree = DyadicTree(periods=periods, changes=changes, epsilon_micro=1_000_000)
    laws = list(streams(tree).values())
    worst = max(privacy_loss(one, other) for one, other in itertools.permutations(laws, 2))
    assert worst <= tree.exact_epsilon + 1e-12
    assert tree.exact_epsilon == 0.5
    if periods >= 2 * changes:
        assert worst == pytest.approx(0.5, abs=1e-12)


def test_when_a_device_reports_says_nothing() -> None:
    """Which periods have a report depends on the level alone: the printed step 9, inside step 5, would tell."""
    tree = DyadicTree(periods=4, changes=2, epsilon_micro=1_000_000)
    times = []
    for law in streams(tree).values():
        by_time: dict[tuple[bool, ...], float] = {}
        for sent, chance in law.items():
            key = tuple(report is not None for report in sent)
            by_time[key] = by_time.get(key, 0.0) + float(chance)
        times.append(by_time)
    assert all(each == pytest.approx(times[0], abs=1e-15) for each in times)
    assert len(times[0]) == tree.levels


@pytest.mark.parametrize("periods, changes", [(2, 1), (4, 2), (8, 1)])
def test_the_tree_is_unbiased_exactly(periods: int, changes: int) -> None:
    """The expectation over every draw of a device of what the server makes of it is the state it held."""
    tree = DyadicTree(periods=periods, changes=changes, epsilon_micro=700_000)
    for states, law in streams(tree).items():
        expected = np.zeros(periods)
        for sent, chance in law.items():
            server = DyadicServer(tree)
            server.add(report for report in sent if report is not None)
            expected += float(chance) * server.estimates()
        np.testing.assert_allclose(expected, states, atol=1e-9)


def test_covers_are_disjoint_and_complete() -> None:
    for period in range(1, 65):
        leaves: list[int] = []
        for level, number in cover(period):
            width = 1 << (level - 1)
            leaves += range((number - 1) * width + 1, number * width + 1)
        assert leaves == list(range(1, period + 1))
        assert len({level for level, _ in cover(period)}) == len(cover(period))
    nodes = [(level, number) for level in (1, 2, 3) for number in range(1, (4 >> (level - 1)) + 1)]
    assert sorted(node_index(4, *node) for node in nodes) == list(range(1, 8))


@settings(deadline=None)
@given(
    st.integers(0, 4).flatmap(
        lambda power: st.tuples(
            st.lists(
                st.tuples(
                    st.lists(st.integers(0, 1), min_size=1 << power, max_size=1 << power),
                    st.integers(1, 4),
                    st.integers(1, power + 1),
                    st.booleans(),
                ),
                min_size=1,
                max_size=6,
            ),
            st.binary(min_size=104, max_size=104),
        )
    )
)
def test_the_kernel_is_the_client(case: tuple[list[tuple[list[int], int, int, bool]], bytes]) -> None:
    users, coins = case
    states = [row for row, _, _, _ in users]
    change, level, truthful = ([user[i] for user in users] for i in (1, 2, 3))
    nodes = [len(states[0]) >> (height - 1) for height in level]
    starts = [sum(nodes[:index]) for index in range(len(nodes))]
    sums = np.zeros(2 * len(states[0]), dtype=np.int64)
    report_kernel(
        np.array(states, dtype=np.int8),
        np.array(change),
        np.array(level),
        np.array(truthful),
        np.frombuffer(coins, dtype="<u8").astype(np.uint64),
        np.array(starts),
        sums,
    )
    assert sums.tolist() == report_twin(states, change, level, truthful, int.from_bytes(coins, "little"), starts)


def states_of(users: int, periods: int) -> np.ndarray:
    """Users who turn on in different periods, and a third of whom turn off again half way through what is left."""
    on = np.arange(users) % periods
    off = np.where(np.arange(users) % 3 == 0, (on + periods) // 2, periods)
    time = np.arange(periods)
    return ((time >= on[:, None]) & (time < off[:, None])).astype(np.int8)


@pytest.mark.parametrize("periods", [1, 16, 64])
def test_a_fleet_is_estimated_within_the_bound(periods: int) -> None:
    """Alarm 10⁻⁹ (Hoeffding over all periods); the printed bound is larger than that from d = 16 on."""
    users = 30_000
    tree = DyadicTree(periods=periods, changes=min(2, periods), epsilon_micro=1_000_000)
    states = states_of(users, periods)
    server = DyadicServer(tree)
    server.add_sums(tree.fleet_sums(states, SecureBits()))
    error = np.abs(server.estimates() - states.sum(axis=0)).max()
    assert error <= tree.error_bound(users, ALARM)
    if periods >= 16:
        assert tree.error_bound(users, ALARM) <= printed_error_bound(tree, users, ALARM)
    # The bound is not idle: the error is of its order, being a sum of thousands of signs times a scale.
    assert error > tree.scale * 0.5


def test_clients_add_up_like_a_fleet() -> None:
    """500 single devices over 8 periods, alarm 10⁻⁹, and every report accounted for."""
    tree = DyadicTree(periods=8, changes=2, epsilon_micro=2_000_000)
    states = states_of(500, 8)
    server = DyadicServer(tree)
    bits = SecureBits()
    sent = 0
    for row in states:
        client = tree.client(bits)
        reports = [client.report(bool(state)) for state in row]
        sent += sum(report is not None for report in reports)
        server.add(report for report in reports if report is not None)
    assert sent >= 500
    assert np.abs(server.estimates() - states.sum(axis=0)).max() <= tree.error_bound(500, ALARM)


def test_a_device_stops_and_goes_on_in_any_period() -> None:
    tree = DyadicTree(periods=8, changes=3, epsilon_micro=1_000_000)
    states = (0, 1, 1, 0, 0, 1, 1, 1)

    def whole(draws):  # type: ignore[no-untyped-def]
        client = tree.client(draws)
        return tuple(client.report(state) for state in states)

    def broken(draws):  # type: ignore[no-untyped-def]
        client = tree.client(draws)
        sent = []
        for state in states:
            client = tree.restore(client.save(), draws)
            sent.append(client.report(state))
        return tuple(sent)

    assert distribution(whole) == distribution(broken)
    saved = tree.client(SeededBits("x")).save()
    for old, new in ((b'"held": 0', b'"held": 2'), (b'"period": 0', b'"period": -1'), (b'"level"', b'"height"')):
        with pytest.raises(StateError):
            tree.restore(saved.replace(old, new), SeededBits("x"))


def test_nonsense_is_refused() -> None:
    tree = DyadicTree(periods=4, changes=2, epsilon_micro=1_000_000)
    for periods, changes in ((3, 1), (0, 1), (4, 0), (4, 5)):
        with pytest.raises(LdpParameterError):
            DyadicTree(periods=periods, changes=changes, epsilon_micro=1_000_000)
    server = DyadicServer(tree)
    for report in (
        NodeReport(level=4, period=4, sign=1),
        NodeReport(level=2, period=3, sign=1),
        NodeReport(level=1, period=5, sign=1),
        NodeReport(level=1, period=1, sign=0),
    ):
        with pytest.raises(ReportError):
            server.add([report])
    with pytest.raises(ReportError):
        server.estimate(0)
    with pytest.raises(ReportError):
        server.add_sums(np.zeros(3, dtype=np.int64))
    with pytest.raises(ReportError):
        tree.fleet_sums(np.full((2, 4), 2), SeededBits("x"))
    client = tree.client(SeededBits("x"))
    for _ in range(4):
        client.report(False)
    with pytest.raises(ReportError, match="periods have passed"):
        client.report(False)
    assert tree.scale == pytest.approx(2 * 3 * (math.exp(0.5) + 1) / (math.exp(0.5) - 1))
