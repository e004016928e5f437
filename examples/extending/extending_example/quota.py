"""An on-device rule: what all callers on one advertiser's site may learn together about an epoch of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from w3c_client import Config, OnDeviceRule
from w3c_client.rules import ScopeColumn


@dataclass(frozen=True)
class AdvertiserQuota(OnDeviceRule):
    """A quota per advertiser, which is the conversion site, over all intermediaries that measure there.

    ``scope`` says what shares one quota beside the epoch. The capacity is the rule's own; the built-in rules read
    theirs from ``Config``. Every epoch with matches pays for twice the value, as ``OnDeviceRule.cost`` says: without
    its ads, the value can move from one bucket to another.
    """

    name = "advertiser-quota"
    title = "quota per advertiser"
    scope: ClassVar[tuple[ScopeColumn, ...]] = (ScopeColumn.CONVERSION_SITE,)
    capacity_micro: int = 500_000

    def capacity(self, config: Config) -> int:
        return self.capacity_micro
