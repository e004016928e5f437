"""A browser's Attribution Reporting: registrations in, reports out, with every limit and all the noise between.

``Browser`` is one browser as Chromium 150 ships it. ``parse_source`` and ``parse_trigger`` read registrations on their
own, with every problem they have. ``ara_client.interop`` runs Chromium's interoperability cases.

``StateSpace`` counts and numbers what a source can send, ``Corrector`` undoes the noise in event-level counts, and
``Fleet`` is many browsers at once, in columns. ``ara_client.model`` is the paper's Algorithms 2, 4 and 8 as printed.
"""

from ara_client.browser import Browser
from ara_client.delivery.sending import SendResult
from ara_client.errors import AraClientError
from ara_client.event_noise.corrector import Corrector
from ara_client.event_noise.response import channel_capacity, draw_states, response_rate
from ara_client.event_noise.state_space import StateSpace, TriggerDataSpec, count_states
from ara_client.fleet.columns import FleetReports, SourceColumns, TriggerColumns
from ara_client.fleet.fleet import Fleet, FleetRules, Outcome, match_table
from ara_client.randomness import SettledDraws
from ara_client.registration.source import parse_source
from ara_client.reports import AggregatableAttributionReport, EventLevelReport, VerboseDebugReport
from ara_client.requests import Request, Response
from ara_client.vendor import VendorValues

__all__ = [
    "AggregatableAttributionReport",
    "AraClientError",
    "Browser",
    "Corrector",
    "EventLevelReport",
    "Fleet",
    "FleetReports",
    "FleetRules",
    "Outcome",
    "Request",
    "Response",
    "SendResult",
    "SettledDraws",
    "SourceColumns",
    "StateSpace",
    "TriggerColumns",
    "TriggerDataSpec",
    "VendorValues",
    "VerboseDebugReport",
    "channel_capacity",
    "count_states",
    "draw_states",
    "match_table",
    "parse_source",
    "response_rate",
]
