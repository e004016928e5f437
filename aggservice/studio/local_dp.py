"""Local DP: what one device memoizes and reports, how estimates sharpen with users, how trackable a device becomes."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from aggservice.mechanisms import Bits, SecureBits, SeededBits
from aggservice.studio.given import Given, to_plain
from ldp_client import LocalProtocol, build, trackability
from ldp_client.protocols import methods

_MAX_VALUES: Final = 256
_MAX_REPORTS: Final = 30
_FLEETS: Final = (100, 1_000, 10_000, 100_000)


def _bits(given: Given) -> Bits:
    seed = given.text("seed", "", most=200)
    return SeededBits(f"studio {seed}") if seed else SecureBits()


def _protocol(given: Given) -> LocalProtocol:
    permanent = given.micro("epsilon", "2", most=20)
    first = given.micro("first", "1", most=20)
    k = given.whole("k", 16, least=2, most=_MAX_VALUES)
    name = given.choice("method", list(methods()), "RAPPOR")
    protocol: LocalProtocol = build(name, k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first)
    return protocol


def local_dp(given: Given) -> dict[str, Any]:
    """Return one device's memoized answers and reports of a series of values, and estimates of growing fleets.

    Users hold each value with a probability proportional to 1/rank. The error is given beside V*, the method's variance
    (Eq. 5 of the LOLOHA paper). ``methods`` are all methods with words for each.
    """
    protocol, bits = _protocol(given), _bits(given)
    values = [given.whole("value", 0, least=0, most=protocol.k - 1)] * given.whole(
        "reports", 5, least=1, most=_MAX_REPORTS
    )
    client = protocol.client(bits.child("client"))
    reports = [to_plain(client.report(value)) for value in values]
    weights = 1 / np.arange(1, protocol.k + 1)
    fleets = []
    for users in _FLEETS:
        counts = np.floor(users * weights / weights.sum()).astype(np.int64)
        counts[0] += users - counts.sum()
        held = np.repeat(np.arange(protocol.k), counts)
        found = protocol.estimate(protocol.fleet(users, bits.child(f"fleet {users}")).report(held))
        true = np.bincount(protocol.cell(held), minlength=protocol.cells) / users
        fleets.append(
            {
                "users": users,
                "mse": found.mse(true),
                "expected": float(np.mean(protocol.support.variance(users, true))),
                "truth": true.tolist(),
                "estimate": found.frequencies.tolist(),
            }
        )
    return {
        "methods": methods(),
        "method": protocol.describe(),
        "privacy": protocol.privacy,
        "memo": json.loads(client.save())["memo"],
        "reports": reports,
        "fleets": fleets,
    }


def tracking(given: Given) -> dict[str, Any]:
    """Return median and 90th percentile of trackability for 2 to ``reports`` reports (Naor and Vexler, section 5)."""
    protocol, bits = _protocol(given), _bits(given)
    law = protocol.stream_law(given.whole("value", 0, least=0, most=protocol.k - 1))
    rows = []
    for count in range(2, given.whole("reports", 12, least=2, most=_MAX_REPORTS) + 1):
        found = trackability(law, count, 400, bits.child(f"reports {count}"))
        rows.append({"reports": count, "median": found.percentile(0.5).value, "high": found.percentile(0.9).value})
    return {"rows": rows}
