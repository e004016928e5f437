"""A browser's Private Aggregation and Shared Storage: worklets, contribution budgets, and the reports that leave.

``Browser`` is the API as Chromium ships it, or as the specification has it; ``model`` is the paper's Algorithm 3;
``recipes`` are measurements built on it; ``Fleet`` runs reach and frequency for millions of devices at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of

if TYPE_CHECKING:
    from paa_client.auction.participants import Auction, BaseValue, Bid, InterestGroup, Score, Signal
    from paa_client.auction.run import FencedFrame
    from paa_client.browser import Browser
    from paa_client.config import Config, chromium, specification
    from paa_client.fleet import Fleet, RecipeReports
    from paa_client.model import PaaSrClient
    from paa_client.reporting.contributions import HistogramContribution
    from paa_client.storage import WindowStorage, WorkletStorage
    from paa_client.worklet import PrivateAggregation
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "Auction",
    "BaseValue",
    "Bid",
    "Browser",
    "Config",
    "FencedFrame",
    "Fleet",
    "HistogramContribution",
    "InterestGroup",
    "PaaSrClient",
    "PrivateAggregation",
    "RecipeReports",
    "Score",
    "Signal",
    "WindowStorage",
    "WorkletStorage",
    "chromium",
    "specification",
]
