"""Registrations: what the headers of a response say, or every problem with them."""

from ara_client.registration.filters import FilterConfig, FilterPair
from ara_client.registration.headers import parse_eligible, parse_info, parse_os_registrations
from ara_client.registration.problems import Parsed, Problem
from ara_client.registration.source import SourceRegistration, parse_source
from ara_client.registration.trigger import TriggerRegistration, parse_trigger

__all__ = [
    "FilterConfig",
    "FilterPair",
    "Parsed",
    "Problem",
    "SourceRegistration",
    "TriggerRegistration",
    "parse_eligible",
    "parse_info",
    "parse_os_registrations",
    "parse_source",
    "parse_trigger",
]
