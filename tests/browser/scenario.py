"""A fixed campaign of Attribution Reporting that uses every part of a registration, and the sums it must give.

Every source and trigger that pays for an aggregatable report has a debug key, so a debug run can read all of them.
``TRUTH`` is worked out by hand: bucket = source key | key piece.
"""

from __future__ import annotations

import json
from typing import Any

from ara_client.registration.headers import INFO_HEADER, SOURCE_HEADER, TRIGGER_HEADER

from .attribution import Hop, Kind, Step

ADTECH, OTHER = "adtech.example", "other.example"
NEWS, BLOG, SHOP, OUTLET = "news.example", "blog.example", "shop.example", "outlet.example"


def source(kind: Kind, context: str, *registrations: dict[str, Any], hosts: tuple[str, ...] = (ADTECH,)) -> Step:
    """Return a step that registers one source on each host, in a chain of redirects."""
    hops = tuple(
        Hop(host=host, headers=((SOURCE_HEADER, json.dumps(fields)),))
        for host, fields in zip(hosts, registrations, strict=True)
    )
    return Step(kind=kind, context=context, hops=hops)


def trigger(context: str, *, kind: Kind = "trigger", **fields: Any) -> Step:
    """Return a step that registers a trigger with debug reports."""
    text = json.dumps({"debug_reporting": True} | fields)
    return Step(kind=kind, context=context, hops=(Hop(host=ADTECH, headers=((TRIGGER_HEADER, text),)),))


def buys(campaign: int, region: int = 0) -> dict[str, Any]:
    """Return the aggregatable fields of a purchase."""
    values = {"campaign": campaign} | ({"region": region} if region else {})
    return {
        "aggregatable_trigger_data": [
            {"key_piece": "0x400", "source_keys": ["campaign"]},
            {"key_piece": "0xA80", "source_keys": ["region"], "not_filters": {"product": ["none"]}},
        ],
        "aggregatable_values": values,
    }


STEPS: tuple[Step, ...] = (
    # Source 1: a click with everything. Its keys are 0x1000 and 0x2000.
    source("click", NEWS, {
        "destination": f"https://{SHOP}", "source_event_id": "1", "priority": "10", "debug_key": "101",
        "debug_reporting": True, "expiry": "604800", "filter_data": {"product": ["shoes"]},
        "aggregation_keys": {"campaign": "0x1000", "region": "0x2000"}, "named_budgets": {"bids": 20000},
        "aggregatable_debug_reporting": {"budget": 4096, "key_piece": "0x70000", "debug_data": [
            {"types": ["source-success"], "key_piece": "0x1", "value": 1000}]},
    }),
    # Source 2: a view for two shops, with listed trigger data and a window of its own.
    source("view", NEWS, {
        "destination": [f"https://{OUTLET}", "https://outlet2.example"], "source_event_id": "2", "debug_key": "102",
        "debug_reporting": True, "aggregation_keys": {"campaign": "0x5000"}, "trigger_data": [3, 9],
        "trigger_data_matching": "exact", "event_report_windows": {"end_times": [7200, 604800]},
    }),
    # Sources 3 and 4: one click, two origins, by a redirect.
    source("click", BLOG, {"destination": f"https://{OUTLET}", "source_event_id": "3", "priority": "-1"},
           {"destination": f"https://{SHOP}", "source_event_id": "4"}, hosts=(ADTECH, OTHER)),
    # Sources 5 and 6 have scopes; a trigger for "city" must find 5 although 6 is later.
    source("view", BLOG, {
        "destination": "https://hotel.example", "source_event_id": "5", "debug_key": "105",
        "aggregation_keys": {"campaign": "0x9000"}, "attribution_scopes": {"limit": 2, "values": ["city"]},
    }),
    source("view", BLOG, {
        "destination": "https://hotel.example", "source_event_id": "6", "debug_key": "106",
        "aggregation_keys": {"campaign": "0xF000"}, "attribution_scopes": {"limit": 2, "values": ["beach"]},
    }),
    # Source 1 pays 10000 for 0x1400 and 500 for 0x2A80.
    trigger(SHOP, debug_key="201", event_trigger_data=[{"trigger_data": "5", "priority": "1"}], **buys(10000, 500)),
    # A filter that does not match, then a deduplicated pair: only the first of the two pays 7.
    trigger(SHOP, debug_key="202", filters={"product": ["hats"]}, event_trigger_data=[{}], **buys(1)),
    trigger(SHOP, debug_key="203", event_trigger_data=[{"trigger_data": "2", "deduplication_key": "9"}],
            aggregatable_deduplication_keys=[{"deduplication_key": "9"}], **buys(7)),
    trigger(SHOP, debug_key="204", event_trigger_data=[{"trigger_data": "2", "deduplication_key": "9"}],
            aggregatable_deduplication_keys=[{"deduplication_key": "9"}], **buys(7)),
    # A context id: sent at once, padded, with a filtering ID; 3000 under filtering ID 5.
    trigger(SHOP, debug_key="205", trigger_context_id="order-é<1>", kind="plain",
            aggregatable_trigger_data=[{"key_piece": "0x400", "source_keys": ["campaign"]}],
            aggregatable_values={"campaign": {"value": 3000, "filtering_id": "5"}}),
    # Filtering IDs of three bytes; 2000 under filtering ID 70000.
    trigger(SHOP, debug_key="206", aggregatable_filtering_id_max_bytes=3,
            aggregatable_trigger_data=[{"key_piece": "0x400", "source_keys": ["campaign"]}],
            aggregatable_values=[{"values": {"campaign": {"value": 2000, "filtering_id": "70000"}}}]),
    # The named budget pays 15000, and refuses the next 15000.
    trigger(SHOP, debug_key="207", named_budgets=[{"name": "bids"}], **buys(15000)),
    trigger(SHOP, debug_key="208", named_budgets=[{"name": "bids"}], **buys(15000)),
    # More than is left of 65,536 for this source: refused, and an aggregatable debug report says so.
    trigger(SHOP, debug_key="209", aggregatable_debug_reporting={"key_piece": "0x8", "debug_data": [
        {"types": ["trigger-aggregate-insufficient-budget"], "key_piece": "0x10", "value": 5}]}, **buys(60000)),
    # The view's shop: source time included, data 9 is listed, data 1 is not; 100 for 0x5400 twice.
    trigger(OUTLET, debug_key="210", event_trigger_data=[{"trigger_data": "9"}],
            aggregatable_source_registration_time="include", **buys(100)),
    trigger(OUTLET, debug_key="211", event_trigger_data=[{"trigger_data": "1"}], **buys(100)),
    # Scopes: 5 pays 11 for 0x9400.
    trigger("hotel.example", debug_key="212", attribution_scopes=["city"], event_trigger_data=[{}], **buys(11)),
    # No source, no debug key; then two malformed headers of which one asks to be told.
    trigger("nothing.example", event_trigger_data=[{}]),
    Step(kind="view", context=NEWS, hops=(Hop(host=ADTECH, headers=(
        (SOURCE_HEADER, '{"destination": "http://insecure.example"}'), (INFO_HEADER, "report-header-errors"))),)),
    Step(kind="plain", context=SHOP, hops=(Hop(host=ADTECH, headers=((TRIGGER_HEADER, "{"),)),)),
)  # fmt: skip

TRUTH: dict[int, dict[int, int]] = {
    0: {0x1400: 10000 + 7 + 15000, 0x2A80: 500, 0x5400: 200, 0x9400: 11},
    5: {0x1400: 3000},
    70000: {0x1400: 2000},
}
"""By filtering ID: what each bucket's contributions sum to."""

DEBUG_TRUTH = {0x70001: 1000, 0x70018: 5}
"""The contributions of aggregatable debug reports: source 1 exists, and its budget did not suffice once."""
