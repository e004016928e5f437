"""A browser's Attribution Reporting: registrations in, reports out, with every limit and all the noise between.

``Browser`` is one browser as Chromium 150 ships it. ``parse_source`` and ``parse_trigger`` read registrations on their
own, with every problem they have. ``ara_client.interop`` runs Chromium's interoperability cases.

``StateSpace`` counts and numbers what a source can send, ``Corrector`` undoes the noise in event-level counts, and
``Fleet`` is many browsers at once, in columns. ``ara_client.model`` is the paper's Algorithms 2, 4 and 8 as printed.
"""

from aggservice.wire.origins import Origin
from ara_client.browser import Browser
from ara_client.corrector import Corrector, Estimate
from ara_client.delivery import SendResult
from ara_client.errors import (
    AraClientError,
    ConfigurationError,
    InteropCaseError,
    RequestError,
    UnsealedReportError,
)
from ara_client.fleet import Fleet, FleetRules, Outcome, match_table
from ara_client.fleet_columns import FleetReports, SourceColumns, TriggerColumns
from ara_client.randomized import channel_capacity, draw_state, draw_states, response_rate, scopes_channel_capacity
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
from ara_client.states import StateReport, StateSpace, TriggerDataSpec, count_states, state_at
from ara_client.vendor import VendorValues

__all__ = [
    "AggregatableAttributionReport",
    "AggregatableDebugReport",
    "AraClientError",
    "BitsDraws",
    "Browser",
    "ConfigurationError",
    "Corrector",
    "Draws",
    "Estimate",
    "EventLevelReport",
    "Exchange",
    "Fleet",
    "FleetReports",
    "FleetRules",
    "InteropCaseError",
    "Origin",
    "Outcome",
    "Parsed",
    "Problem",
    "Report",
    "Request",
    "RequestError",
    "Response",
    "SendResult",
    "SettledDraws",
    "SourceColumns",
    "SourceRegistration",
    "StateReport",
    "StateSpace",
    "TriggerColumns",
    "TriggerDataSpec",
    "TriggerRegistration",
    "UnsealedReportError",
    "VendorValues",
    "VerboseDebugData",
    "VerboseDebugReport",
    "channel_capacity",
    "count_states",
    "draw_state",
    "draw_states",
    "match_table",
    "parse_source",
    "parse_trigger",
    "response_rate",
    "scopes_channel_capacity",
    "state_at",
]
