"""Games against local randomizers, once and over time, and against the shuffle that hides whose report is which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aggservice.audit.games.game import Game, Played
from aggservice.audit.target import Attacked, Target
from aggservice.client import ShuffleParameters
from aggservice.mechanisms import Bits
from aggservice.wire import AggregatableReport, Api, SharedInfo
from ldp_client import (
    BitwiseEverlasting,
    bit_flip,
    l_grr,
    l_osue,
    l_sue,
    loloha,
    optimal_hashing,
    optimized_unary,
    randomized_response,
    randomizer_of,
    seal_report,
    sue,
)
from ldp_client.sampling.hashing import hash_values

Ints = NDArray[np.int64]
_REPORTS = 8
"""Reports per device in the longitudinal games."""
_ONE, _FIRST = 1_000_000, 400_000


def _bits(rows: Any) -> Ints:
    """Return, per report, 2 if the bit of value 0 is set, plus 1 if that of value 1 is."""
    words = np.asarray(rows)[:, 0].astype(np.int64)
    return 2 * (words & 1) + (words >> 1 & 1)


def _hashed(protocol: Any) -> Callable[[Any], Ints]:
    """Return, per report, 2 if it supports value 0, plus 1 if it supports value 1."""

    def supports(columns: Any) -> Ints:
        size = columns.values.size
        found = [
            hash_values(columns.multipliers, columns.addends, np.full(size, value, dtype=np.int64), protocol.g)
            == columns.values
            for value in (0, 1)
        ]
        return 2 * found[0].astype(np.int64) + found[1]

    return supports


def _plain(values: Any) -> Ints:
    """Return 2 for a report of value 0, 1 for one of value 1, 0 for others."""
    return np.where(values == 0, 2, np.where(values == 1, 1, 0)).astype(np.int64)


def _rows(columns: Any) -> Ints:
    return _bits(columns.rows)


def _sampled(protocol: Any, read: Callable[[Any], Ints], users: int, reports: int, bits: Bits) -> list[dict[str, Ints]]:
    """Return, for users who hold 0 and for users who hold 1, the first report, and reports for 0 less those for 1."""
    found = []
    for value in (0, 1):
        fleet = protocol.fleet(users, bits)
        seen = [read(fleet.report(np.full(users, value, dtype=np.int64))) for _ in range(reports)]
        lean = sum(((one == 2).astype(np.int64) - (one == 1) for one in seen), np.zeros(users, dtype=np.int64))
        found.append({"first report": seen[0], "lean": lean} if reports > 1 else {"first report": seen[0]})
    return found


def once(target: Target, scale: int) -> list[Played]:
    users = 40_000 * scale
    hashing = optimal_hashing(k=4, epsilon_micro=_ONE)
    protocols: list[tuple[Any, Callable[[Any], Ints]]] = [
        (randomized_response(k=4, epsilon_micro=_ONE), _plain),
        (sue(k=4, epsilon_micro=_ONE), _bits),
        (optimized_unary(k=4, epsilon_micro=_ONE), _bits),
        (hashing, _hashed(hashing)),
    ]
    played = []
    for protocol, read in protocols:
        first, second = _sampled(protocol, read, users, 1, target.bits)
        played.append(Played(first=first, second=second, epsilon=protocol.privacy.first, name=protocol.kind))
    return played


def over_time(target: Target, scale: int) -> list[Played]:
    """Let each device report one value eight times: all its reports together may reveal at most ε∞."""
    users = 12_000 * scale
    pair: dict[str, Any] = {"epsilon_permanent_micro": _ONE, "epsilon_first_micro": _FIRST}
    hashing = loloha(k=4, g=2, **pair)
    flips = bit_flip(k=4, buckets=4, sampled=4, epsilon_permanent_micro=_ONE)
    protocols: list[tuple[Any, Callable[[Any], Ints]]] = [
        (l_grr(k=4, **pair), _plain),
        (l_sue(k=4, **pair), _bits),
        (l_osue(k=4, **pair), _bits),
        (hashing, _hashed(hashing)),
        (flips, _rows),
        (BitwiseEverlasting(epsilon_permanent_micro=_ONE, epsilon_report_micro=_FIRST), _plain),
    ]
    played = []
    for protocol, read in protocols:
        first, second = _sampled(protocol, read, users, _REPORTS, target.bits)
        played.append(Played(first=first, second=second, epsilon=protocol.privacy.permanent, name=protocol.kind))
    return played


def _local(attacked: Attacked, protocol: Any, report: int) -> AggregatableReport:
    info = SharedInfo(
        api=Api.SHARED_STORAGE,
        report_id=str(UUID(bytes=attacked.bits.read(16), version=4)),
        reporting_origin=attacked.origin,
        scheduled_report_time_s=attacked.clock.now_ms() // 1000,
    )
    return seal_report(protocol, report, shared_info=info, keys=attacked.keys, bits=attacked.bits)


def shuffle(target: Target, scale: int) -> list[Played]:
    """Check that the order of a shuffle reveals nothing, and that a report beside two of the caller's own pays ε₀."""
    with target.open() as attacked:
        return [_order(attacked, 2_500 * scale), _among(attacked, 100 * scale)]


def _order(attacked: Attacked, half: int) -> Played:
    protocol = randomized_response(k=2 * half, epsilon_micro=_ONE)
    sealed = [_local(attacked, protocol, at) for at in range(2 * half)]
    asked = attacked.parameters(shuffle=ShuffleParameters(randomizer=randomizer_of(protocol).hex))
    summary = attacked.ask(asked, sealed)
    assert summary is not None
    order = np.array([int.from_bytes(one, "big") for one in summary.reports], dtype=np.int64)
    place = np.empty(2 * half, dtype=np.int64)
    place[order] = np.arange(2 * half)
    return Played(first={"place": place[:half]}, second={"place": place[half:]}, epsilon=0.0, name="order")


def _among(attacked: Attacked, jobs: int) -> Played:
    protocol = randomized_response(k=2, epsilon_micro=3 * _ONE)
    asked = attacked.parameters(shuffle=ShuffleParameters(randomizer=randomizer_of(protocol).hex))
    ones: tuple[list[int], list[int]] = ([], [])
    charged = 0.0
    for value, seen in enumerate(ones):
        for report in protocol.fleet(jobs, attacked.bits).report(np.full(jobs, value, dtype=np.int64)).tolist():
            mine = _local(attacked, protocol, report)
            summary = attacked.ask(asked, [mine, _local(attacked, protocol, 0), _local(attacked, protocol, 1)])
            assert summary is not None
            seen.append(sum(int.from_bytes(one, "big") for one in summary.reports))
            charged = charged or attacked.charged([mine])[0]
    first, second = ({"ones": np.array(seen, dtype=np.int64)} for seen in ones)
    return Played(first=first, second=second, epsilon=charged, name="a report among the caller's own")


GAMES = (
    Game(name="local reports, once", exposes="wrong probabilities of a randomizer", play=once, parts=4, service=False),
    Game(
        name="local reports over time",
        exposes="a memo that is forgotten or keyed wrongly",
        play=over_time,
        parts=6,
        service=False,
    ),
    Game(
        name="shuffle",
        exposes="an order that tells who sent what, a price below ε₀ without evidence",
        play=shuffle,
        parts=2,
    ),
)
