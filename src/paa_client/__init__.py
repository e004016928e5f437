"""A browser's Private Aggregation and Shared Storage: worklets, contribution budgets, and the reports that leave.

``Browser`` is the API as the specification has it and Chromium runs it; ``model`` is the paper's Algorithm 3;
``recipes`` are measurements built on it; ``Fleet`` runs reach and frequency for millions of devices at once.
"""

from paa_client.aggregation import PrivateAggregation
from paa_client.auction import FencedFrame
from paa_client.auction_aggregation import AuctionAggregation, Function
from paa_client.auction_types import Auction, Bid, BidSignals, InterestGroup, ResultSignals, Score, ScoreSignals
from paa_client.browser import Browser
from paa_client.budgets import Budgeter, Denial
from paa_client.config import AWS_COORDINATOR, GCP_COORDINATOR, Api, Config, Rules, chromium
from paa_client.contributions import Contribution, ErrorEvent
from paa_client.errors import (
    CallError,
    ConfigError,
    PaaError,
    WorkletDataError,
    WorkletError,
    WorkletNotAllowedError,
    WorkletRangeError,
    WorkletTypeError,
)
from paa_client.fleet import Fleet, FleetReports
from paa_client.journal import Cause, ConsoleLine, Journal, Loss
from paa_client.operations import Operation
from paa_client.origins import serialize_origin, site_of
from paa_client.reports import Delivery, Report, SentReport
from paa_client.scopes import DebugDetails
from paa_client.signals import BaseValue, RejectReason, Signal
from paa_client.storage import WindowStorage, WorkletStorage

__all__ = [
    "AWS_COORDINATOR",
    "GCP_COORDINATOR",
    "Api",
    "Auction",
    "AuctionAggregation",
    "BaseValue",
    "Bid",
    "BidSignals",
    "Browser",
    "Budgeter",
    "CallError",
    "Cause",
    "Config",
    "ConfigError",
    "ConsoleLine",
    "Contribution",
    "DebugDetails",
    "Delivery",
    "Denial",
    "ErrorEvent",
    "FencedFrame",
    "Fleet",
    "FleetReports",
    "Function",
    "InterestGroup",
    "Journal",
    "Loss",
    "Operation",
    "PaaError",
    "PrivateAggregation",
    "RejectReason",
    "Report",
    "ResultSignals",
    "Rules",
    "Score",
    "ScoreSignals",
    "SentReport",
    "Signal",
    "WindowStorage",
    "WorkletDataError",
    "WorkletError",
    "WorkletNotAllowedError",
    "WorkletRangeError",
    "WorkletStorage",
    "WorkletTypeError",
    "chromium",
    "serialize_origin",
    "site_of",
]
