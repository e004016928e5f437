"""Local reports on the encrypted road: sealed to the service on the device, estimated from once they were shuffled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from aggservice.wire import AggregatableReport, LdpPayload, PublicKeySet, Randomizer, SharedInfo, seal_payload
from ldp_client.errors import ProtocolError
from ldp_client.reports import AnyProtocol, decode_report, encode_report, randomizer_id, report_bytes
from ldp_client.steps import MICRO
from mechanisms import Bits

_LARGEST_MICRO = (1 << 32) - 1


@lru_cache(maxsize=256)
def randomizer_of(protocol: AnyProtocol) -> Randomizer:
    """Return how the reports of a protocol name what randomized them: its identity, their length, ε₀ and ε∞.

    ε₀ is what one report truly leaks, rounded up to a millionth; ε∞ what all reports of one value leak, None for a
    one-shot protocol, whose every report costs ε₀ anew.
    """
    privacy = protocol.privacy
    permanent = protocol.epsilon_permanent_micro
    first = getattr(protocol, "epsilon_first_micro", None)
    asked = permanent if first is None else first
    exact = math.ceil(privacy.first * MICRO * (1 + 1e-12))
    # The ε asked for is exact where the protocol meets it; the float beside it may be a unit in the last place off.
    epsilon_micro = asked if abs(privacy.first - asked / MICRO) < 1e-9 else exact
    memoizes = math.isfinite(privacy.worst_case)
    if not 0 < epsilon_micro <= _LARGEST_MICRO:
        raise ProtocolError(f"a report with ε = {privacy.first:.6g} cannot be charged")
    return Randomizer(
        identity=bytes.fromhex(randomizer_id(protocol)),
        report_bytes=report_bytes(protocol),
        epsilon_micro=epsilon_micro,
        epsilon_permanent_micro=max(permanent, epsilon_micro) if memoizes else None,
    )


def seal_report(
    protocol: AnyProtocol,
    report: Any,
    *,
    shared_info: SharedInfo,
    keys: PublicKeySet,
    bits: Bits,
) -> AggregatableReport:
    """Return a client's report, sealed to the service and bound to ``shared_info``, as a browser would send it."""
    payload = LdpPayload(randomizer=randomizer_of(protocol), data=encode_report(protocol, report))
    text, sealed = seal_payload(payload.encode(), shared_info=shared_info, keys=keys, bits=bits)
    return AggregatableReport(shared_info=text, payloads=(sealed,))


def columns_of(protocol: AnyProtocol, shuffled: Iterable[bytes]) -> Any:
    """Return shuffled reports as the columns that ``protocol.estimate`` takes."""
    return protocol.columns([decode_report(protocol, report) for report in shuffled])
