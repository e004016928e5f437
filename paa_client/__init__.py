"""A browser's Private Aggregation and Shared Storage: worklets, contribution budgets, and the reports that leave.

``Browser`` is the API as Chromium ships it, or as the specification has it; ``model`` is the paper's Algorithm 3;
``recipes`` are measurements built on it; ``Fleet`` runs reach and frequency for millions of devices at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of

if TYPE_CHECKING:
    from paa_client.auction.participants import Auction, Bid, InterestGroup, Score
    from paa_client.auction.run import FencedFrame
    from paa_client.auction.signals import BaseValue, Signal
    from paa_client.browser import Browser
    from paa_client.config import Config, chromium, specification
    from paa_client.errors import PaaError
    from paa_client.fleet.fleet import Fleet, FleetReports
    from paa_client.model import PaaSrClient
    from paa_client.reporting.contributions import Contribution
    from paa_client.reporting.reports import SentReport
    from paa_client.storage import WindowStorage, WorkletStorage
    from paa_client.worklet.aggregation import PrivateAggregation
else:
    __getattr__ = exports_of(
        __name__,
        {
            "auction.participants": ("Auction", "Bid", "InterestGroup", "Score"),
            "auction.run": ("FencedFrame",),
            "auction.signals": ("BaseValue", "Signal"),
            "browser": ("Browser",),
            "config": ("Config", "chromium", "specification"),
            "errors": ("PaaError",),
            "fleet.fleet": ("Fleet", "FleetReports"),
            "model": ("PaaSrClient",),
            "reporting.contributions": ("Contribution",),
            "reporting.reports": ("SentReport",),
            "storage": ("WindowStorage", "WorkletStorage"),
            "worklet.aggregation": ("PrivateAggregation",),
        },
    )

__all__ = [
    "Auction",
    "BaseValue",
    "Bid",
    "Browser",
    "Config",
    "Contribution",
    "FencedFrame",
    "Fleet",
    "FleetReports",
    "InterestGroup",
    "PaaError",
    "PaaSrClient",
    "PrivateAggregation",
    "Score",
    "SentReport",
    "Signal",
    "WindowStorage",
    "WorkletStorage",
    "chromium",
    "specification",
]
