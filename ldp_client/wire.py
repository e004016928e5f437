"""Local reports through the service: sealed on the device, estimated from after the shuffle, and the device registry.

A registry gives each client at most one token per collection. The operator of the service, or a party they trust, runs
it; the caller who creates jobs never does. How it authenticates clients (an account, an attestation by the device) is
outside this package: ``client`` is their name.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any

from aggservice.mechanisms import Bits
from aggservice.wire import AggregatableReport, PublicKeySet, Randomizer, SharedInfo
from aggservice.wire.report.body import seal_payload
from aggservice.wire.report.ldp_payload import LdpPayload
from aggservice.wire.report.registry import RegistryKey, RegistryKeyPair, sign_token
from ldp_client.errors import LdpParameterError, RegistryError, ReportError, StateError
from ldp_client.estimation import MICRO
from ldp_client.protocols.base import LocalProtocol

_LARGEST_MICRO = (1 << 32) - 1


@lru_cache(maxsize=256)
def randomizer_of(protocol: LocalProtocol) -> Randomizer:
    """Return the description of a protocol in its reports: identity, length, ε₀, ε∞, and whether they share nothing.

    ε₀ is the exact ε of one report and ε∞ that of all reports of one value, both rounded up to a millionth; ε∞ is None
    for a one-shot protocol, of which every report costs ε₀ again.
    """
    privacy = protocol.privacy
    if not privacy.first * MICRO < _LARGEST_MICRO:
        raise LdpParameterError(f"a report with ε = {privacy.first:.6g} cannot be charged: use a smaller ε")
    first = _micro(privacy.first)
    bounded = protocol.memoizes and privacy.permanent * MICRO < _LARGEST_MICRO
    return Randomizer(
        identity=bytes.fromhex(protocol.randomizer_id),
        report_bytes=protocol.report_bytes,
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
    protocol: LocalProtocol,
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
    payload = LdpPayload(randomizer=randomizer_of(protocol), data=protocol.encode(report), token=token)
    text, sealed = seal_payload(payload.encode(), shared_info=shared_info, keys=keys, bits=bits)
    return AggregatableReport(shared_info=text, payloads=(sealed,))


def columns_of(protocol: LocalProtocol, shuffled: Iterable[bytes], *, refused: list[bytes] | None = None) -> Any:
    """Return shuffled reports as columns for ``protocol.estimate``.

    A device can send any bytes under a randomizer's name, and a shuffle cannot be repeated. So bytes that are not a
    report of this protocol are skipped and added to ``refused``; without that list they raise ``ReportError``.
    """
    good = []
    for report in shuffled:
        try:
            good.append(protocol.decode(report))
        except ReportError:
            if refused is None:
                raise
            refused.append(report)
    return protocol.columns(good)


_KIND = "device registry 1"


class Registry:
    """Signs at most one token per client and collection, for any origin. Thread-safe.

    It keeps hashes of what it signed, not names of clients, and never sees a report. The key of a registry covers a
    site: a client of two origins of that site has one report per collection.
    """

    def __init__(self, keys: RegistryKeyPair) -> None:
        self._keys = keys
        self._by_client: dict[str, str] = {}
        self._by_report: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def public_key(self) -> RegistryKey:
        """The key for the service's configuration."""
        return self._keys.public

    def token(self, client: str, *, collection: str, shared_info: SharedInfo) -> bytes:
        """Return the token of ``client`` for the report that ``shared_info`` belongs to.

        The same request returns the same token. ``RegistryError`` if the client has a token for another report of this
        collection, or another client has one for this report id.
        """
        origin, report_id = shared_info.reporting_origin, shared_info.report_id_bytes
        token = sign_token(self._keys, origin=origin, collection=collection, report_id=report_id)
        who, report = _digest(collection, client), _digest(collection, report_id.hex())
        what = _digest(origin, report_id.hex())
        with self._lock:
            if self._by_client.get(who, what) != what:
                raise RegistryError(
                    f"this client already has a token for another report of collection {collection!r}: "
                    "a client may send one report per collection"
                )
            if self._by_report.get(report, who) != who:
                raise RegistryError(
                    f"another client already has a token for this report id in collection {collection!r}: "
                    "use a new report id"
                )
            self._by_client[who] = what
            self._by_report[report] = who
        return token

    def save(self) -> str:
        """Return the record of signed tokens for ``restore``, without the private key and without clients' names."""
        with self._lock:
            return json.dumps({"kind": _KIND, "clients": self._by_client, "reports": self._by_report})

    @classmethod
    def restore(cls, keys: RegistryKeyPair, saved: str) -> Registry:
        """Return the registry with the state in ``saved``."""
        try:
            plain = json.loads(saved)
        except (ValueError, RecursionError):
            raise StateError("the saved registry is not valid JSON: give what Registry.save returned") from None
        if not isinstance(plain, dict) or set(plain) != {"kind", "clients", "reports"} or plain["kind"] != _KIND:
            raise StateError("this is not a saved registry: give what Registry.save returned")
        registry = cls(keys)
        for part in (plain["clients"], plain["reports"]):
            if not isinstance(part, dict) or not all(isinstance(value, str) for value in part.values()):
                raise StateError("this is not a saved registry: give what Registry.save returned")
        registry._by_client, registry._by_report = plain["clients"], plain["reports"]
        return registry


def _digest(first: str, second: str) -> str:
    """Return a hash of two texts; different pairs of texts have different hashes."""
    raw = first.encode()
    return sha256(b"aggservice registry v1\0" + len(raw).to_bytes(4, "big") + raw + second.encode()).hexdigest()
