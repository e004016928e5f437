"""A device registry: it gives each client at most one token per collection.

The operator of the service, or a party they trust, runs it; the caller who creates jobs never does. How it
authenticates clients (an account, an attestation by the device) is outside this package: ``client`` is their name.
"""

from __future__ import annotations

import json
import threading
from hashlib import sha256

from aggservice.wire import SharedInfo
from aggservice.wire.report.device_tokens import sign_token
from aggservice.wire.report.registry_keys import RegistryKey, RegistryKeyPair
from ldp_client.errors import RegistryError, StateError

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
