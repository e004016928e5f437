"""A browser's Attribution Reporting: from registrations to reports, with every limit and all the noise.

``Browser`` is one browser as Chromium 150 ships it. ``parse_source`` reads a registration header
by itself and lists every problem with it. ``ara_client.interop`` runs Chromium's interoperability cases.

``StateSpace`` counts and numbers the combinations of reports that a source can send, ``Corrector`` removes the bias of
noise from event-level counts, and ``Fleet`` is many browsers at once, in columns. ``ara_client.model`` is Algorithms 2,
4 and 8 of Ghazi et al. as printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of

if TYPE_CHECKING:
    from ara_client.browser import Browser
    from ara_client.config import Config
    from ara_client.event_noise.corrector import Corrector
    from ara_client.event_noise.response import channel_capacity, draw_states, response_rate
    from ara_client.event_noise.state_space import StateSpace, TriggerDataSpec, count_states
    from ara_client.fleet.columns import FleetReports, SourceColumns, TriggerColumns
    from ara_client.fleet.fleet import Fleet, FleetRules, TriggerOutcome, match_table
    from ara_client.randomness import FixedChoices
    from ara_client.registration.source import parse_source
    from ara_client.reports import AggregatableAttributionReport, EventLevelReport, VerboseDebugReport
    from ara_client.requests import Request, Response
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "AggregatableAttributionReport",
    "Browser",
    "Config",
    "Corrector",
    "EventLevelReport",
    "FixedChoices",
    "Fleet",
    "FleetReports",
    "FleetRules",
    "Request",
    "Response",
    "SourceColumns",
    "StateSpace",
    "TriggerColumns",
    "TriggerDataSpec",
    "TriggerOutcome",
    "VerboseDebugReport",
    "channel_capacity",
    "count_states",
    "draw_states",
    "match_table",
    "parse_source",
    "response_rate",
]
