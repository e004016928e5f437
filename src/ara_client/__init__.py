"""A browser's Attribution Reporting: registrations in, reports out, with every limit and all the noise between.

``Browser`` is one browser as Chromium 150 ships it. ``parse_source`` and ``parse_trigger`` read registrations on their
own, with every problem they have. ``ara_client.interop`` runs Chromium's interoperability cases.
"""

from ara_client.browser import Browser
from ara_client.delivery import SendResult
from ara_client.errors import (
    AraClientError,
    ConfigurationError,
    InteropCaseError,
    RequestError,
    UnsealedReportError,
)
from ara_client.origins import Origin
from ara_client.randomness import BitsDraws, Draws, SettledDraws
from ara_client.registration import (
    Parsed,
    Problem,
    SourceRegistration,
    TriggerRegistration,
    parse_source,
    parse_trigger,
)
from ara_client.reports import (
    AggregatableAttributionReport,
    AggregatableDebugReport,
    EventLevelReport,
    Report,
    VerboseDebugData,
    VerboseDebugReport,
)
from ara_client.requests import Exchange, Request, Response
from ara_client.vendor import VendorValues

__all__ = [
    "AggregatableAttributionReport",
    "AggregatableDebugReport",
    "AraClientError",
    "BitsDraws",
    "Browser",
    "ConfigurationError",
    "Draws",
    "EventLevelReport",
    "Exchange",
    "InteropCaseError",
    "Origin",
    "Parsed",
    "Problem",
    "Report",
    "Request",
    "RequestError",
    "Response",
    "SendResult",
    "SettledDraws",
    "SourceRegistration",
    "TriggerRegistration",
    "UnsealedReportError",
    "VendorValues",
    "VerboseDebugData",
    "VerboseDebugReport",
    "parse_source",
    "parse_trigger",
]
