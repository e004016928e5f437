"""The events of a campaign in columns: impressions (sources) and conversions (triggers), in order of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impressions:
    """Ads shown, in order of time. ``codes`` has one column per field that comes from the source."""

    time_ms: Ints
    device: Ints
    destination: Ints
    click: NDArray[np.bool_]
    codes: Mapping[str, Ints]

    def __len__(self) -> int:
        return self.time_ms.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversions:
    """What people bought, in order of time. ``dedup_key`` is −1 if the page gave none."""

    time_ms: Ints
    device: Ints
    destination: Ints
    value: Ints
    dedup_key: Ints
    codes: Mapping[str, Ints]

    def __len__(self) -> int:
        return self.time_ms.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """All events. ``devices`` is the number of devices."""

    impressions: Impressions
    conversions: Conversions
    devices: int

    def __len__(self) -> int:
        return len(self.impressions) + len(self.conversions)
