"""Games against local randomizers, once and over time, and against the shuffle that hides whose report is which."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aggservice.audit.games.game import Game, Played
from aggservice.audit.target import Attacked, Target
from aggservice.client import ShuffleParameters
from aggservice.mechanisms import Bits
from aggservice.wire import AggregatableReport, Api, SharedInfo
from ldp_client import PROTOCOLS, LocalProtocol, randomized_response, randomizer_of, seal_report

Ints = NDArray[np.int64]
_REPORTS = 8
"""Reports per device in the longitudinal games."""
_ONE = 1_000_000


def _attacked(*, memoizes: bool) -> list[LocalProtocol]:
    """Return the first example of each kind in the table over numbers: of one-shot kinds, or of those with a memo."""
    found: dict[str, LocalProtocol] = {}
    for entry in dict.fromkeys(PROTOCOLS[name] for name in PROTOCOLS):
        for protocol in entry.examples():
            if protocol.values is not None and protocol.memoizes == memoizes:
                found.setdefault(protocol.kind, protocol)
    return list(found.values())


def _played(protocol: LocalProtocol, users: int, reports: int, bits: Bits, epsilon: float) -> Played:
    """Return, for users who hold 0 and for users who hold 1, the first report, and reports for 0 less those for 1.

    A report is 2 if it supports the value 0, plus 1 if it supports the value 1.
    """
    found = []
    for value in (0, 1):
        fleet = protocol.fleet(users, bits)
        sent = [fleet.report(np.full(users, value, dtype=np.int64)) for _ in range(reports)]
        seen = [2 * protocol.supports(one, 0).astype(np.int64) + protocol.supports(one, 1) for one in sent]
        lean = sum(((one == 2).astype(np.int64) - (one == 1) for one in seen), np.zeros(users, dtype=np.int64))
        found.append({"first report": seen[0], "lean": lean} if reports > 1 else {"first report": seen[0]})
    return Played(first=found[0], second=found[1], epsilon=epsilon, name=protocol.kind)


_ONCE, _OVER_TIME = _attacked(memoizes=False), _attacked(memoizes=True)


def once(target: Target, scale: int) -> list[Played]:
    users = 40_000 * scale
    return [_played(one, users, 1, target.bits, one.privacy.first) for one in _ONCE]


def over_time(target: Target, scale: int) -> list[Played]:
    """Let each device report one value eight times: all its reports together may reveal at most ε∞."""
    users = 12_000 * scale
    return [_played(one, users, _REPORTS, target.bits, one.privacy.permanent) for one in _OVER_TIME]


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
    Game("local reports, once", "wrong probabilities of a randomizer", once, parts=len(_ONCE), service=False),
    Game(
        "local reports over time",
        "a memo that is forgotten or keyed wrongly",
        over_time,
        parts=len(_OVER_TIME),
        service=False,
    ),
    Game("shuffle", "an order that tells who sent what, a price below ε₀ without evidence", shuffle, parts=2),
)
