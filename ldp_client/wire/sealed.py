"""Local reports through the service: sealed on the device, and estimated from after the shuffle."""

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
    """Return the description of a protocol in its reports: identity, length, ε₀, ε∞, and whether they share nothing.

    ε₀ is the exact ε of one report and ε∞ that of all reports of one value, both rounded up to a millionth; ε∞ is None
    for a one-shot protocol, of which every report costs ε₀ again.
    """
    privacy = protocol.privacy
    if not privacy.first * MICRO < _LARGEST_MICRO:
        raise ProtocolError(f"a report with ε = {privacy.first:.6g} cannot be charged: use a smaller ε")
    first = _micro(privacy.first)
    memoizes = math.isfinite(privacy.worst_case) or protocol.chain.instant is not None
    bounded = memoizes and privacy.permanent * MICRO < _LARGEST_MICRO
    return Randomizer(
        identity=bytes.fromhex(randomizer_id(protocol)),
        report_bytes=report_bytes(protocol),
        epsilon_micro=first,
        epsilon_permanent_micro=max(first, _micro(privacy.permanent)) if bounded else None,
        independent=not protocol.shares,
    )


def _micro(epsilon: float) -> int:
    """Return ε in millionths: if within a relative 10⁻¹² of an integer, that integer; otherwise rounded up."""
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

    ``token`` is a device registry's token for this origin and report id (``Registry.token``), sealed with the report.
    """
    payload = LdpPayload(randomizer=randomizer_of(protocol), data=encode_report(protocol, report), token=token)
    text, sealed = seal_payload(payload.encode(), shared_info=shared_info, keys=keys, bits=bits)
    return AggregatableReport(shared_info=text, payloads=(sealed,))


def columns_of(protocol: AnyProtocol, shuffled: Iterable[bytes], *, refused: list[bytes] | None = None) -> Any:
    """Return shuffled reports as columns for ``protocol.estimate``.

    A device can send any bytes under a randomizer's name, and a shuffle cannot be repeated. So bytes that are not a
    report of this protocol are skipped and added to ``refused``; without that list they raise ``ReportError``.
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
