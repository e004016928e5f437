"""Local reports on the encrypted road: sealed to the service on the device, estimated from once they were shuffled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from aggservice.mechanisms import Bits
from aggservice.wire import AggregatableReport, PublicKeySet, Randomizer, SharedInfo
from aggservice.wire.report.body import seal_payload
from aggservice.wire.report.ldp_payload import LdpPayload
from ldp_client.errors import ProtocolError, ReportError
from ldp_client.estimation.steps import MICRO
from ldp_client.wire.reports import AnyProtocol, decode_report, encode_report, randomizer_id, report_bytes

_LARGEST_MICRO = (1 << 32) - 1


@lru_cache(maxsize=256)
def randomizer_of(protocol: AnyProtocol) -> Randomizer:
    """Return how the reports of a protocol name what randomized them: its identity, their length, ε₀ and ε∞.

    ε₀ is what one report truly leaks and ε∞ what all reports of one value leak, both rounded up to a millionth; ε∞ is
    None for a one-shot protocol, whose every report costs ε₀ anew.
    """
    privacy = protocol.privacy
    if not privacy.first * MICRO < _LARGEST_MICRO:
        raise ProtocolError(f"a report with ε = {privacy.first:.6g} cannot be charged")
    first = _micro(privacy.first)
    memoizes = math.isfinite(privacy.worst_case) or protocol.chain.instant is not None
    bounded = memoizes and privacy.permanent * MICRO < _LARGEST_MICRO
    return Randomizer(
        identity=bytes.fromhex(randomizer_id(protocol)),
        report_bytes=report_bytes(protocol),
        epsilon_micro=first,
        epsilon_permanent_micro=max(first, _micro(privacy.permanent)) if bounded else None,
    )


def _micro(epsilon: float) -> int:
    """Return ε in millionths, rounded up; it is the whole number that it is within 10⁻¹² of itself of, where it is."""
    scaled = epsilon * MICRO
    nearest = round(scaled)
    return max(1, nearest if abs(scaled - nearest) <= 1e-12 * scaled else math.ceil(scaled))


def seal_report(
    protocol: AnyProtocol,
    report: Any,
    *,
    shared_info: SharedInfo,
    keys: PublicKeySet,
    bits: Bits,
    token: bytes | None = None,
) -> AggregatableReport:
    """Return a client's report, sealed to the service and bound to ``shared_info``, as a browser would send it.

    ``token`` is a device registry's for this origin and report id (``Registry.token``); it is sealed with the report.
    """
    payload = LdpPayload(randomizer=randomizer_of(protocol), data=encode_report(protocol, report), token=token)
    text, sealed = seal_payload(payload.encode(), shared_info=shared_info, keys=keys, bits=bits)
    return AggregatableReport(shared_info=text, payloads=(sealed,))


def columns_of(protocol: AnyProtocol, shuffled: Iterable[bytes], *, refused: list[bytes] | None = None) -> Any:
    """Return shuffled reports as the columns that ``protocol.estimate`` takes.

    A device can send anything under a randomizer's name, and a shuffle happens once. What is no report of this
    protocol is left out and added to ``refused``; without such a list it is an error.
    """
    good = []
    for report in shuffled:
        try:
            good.append(decode_report(protocol, report))
        except ReportError:
            if refused is None:
                raise
            refused.append(report)
    return protocol.columns(good)
