"""What registrations say, and every problem with them, with its path."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ara_client import Config, parse_source
from ara_client.constants import DAY_MS, HOUR_MS
from ara_client.registration.headers import (
    choose_platform,
    normalise_headers,
    parse_eligible,
    parse_info,
    parse_os_registrations,
    printable,
)
from ara_client.registration.source import SourceRegistration
from ara_client.registration.trigger import TriggerRegistration, parse_trigger

VENDOR = Config()
DESTINATION = "https://shop.example"
COORDINATOR = str(VENDOR.aggregation_coordinators[1])


def source(fields: dict[str, Any], source_type: str = "navigation", config: Config = VENDOR) -> SourceRegistration:
    parsed = parse_source(json.dumps({"destination": DESTINATION} | fields), source_type, config)
    assert parsed.problems == ()
    assert parsed.value is not None
    return parsed.value


def trigger(fields: dict[str, Any], config: Config = VENDOR) -> TriggerRegistration:
    parsed = parse_trigger(json.dumps(fields), config)
    assert parsed.problems == ()
    assert parsed.value is not None
    return parsed.value


def source_paths(fields: dict[str, Any], config: Config = VENDOR) -> list[tuple[str | int, ...]]:
    parsed = parse_source(json.dumps({"destination": DESTINATION} | fields), "navigation", config)
    assert (parsed.value is None) == bool(parsed.problems)
    return [problem.path for problem in parsed.problems]


def trigger_paths(fields: dict[str, Any]) -> list[tuple[str | int, ...]]:
    parsed = parse_trigger(json.dumps(fields), VENDOR)
    assert (parsed.value is None) == bool(parsed.problems)
    return [problem.path for problem in parsed.problems]


def test_defaults_of_a_navigation_source() -> None:
    plain = source({})
    assert plain.destinations == (DESTINATION,)
    assert plain.expiry_ms == plain.aggregatable_window_ms == 30 * DAY_MS
    assert plain.windows.ends_ms == (2 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS)
    assert plain.trigger_data == tuple(range(8))
    assert (plain.max_event_level_reports, plain.event_level_epsilon) == (3, 14.0)
    assert plain.debug.budget == 0 and not plain.debug.data


def test_defaults_of_an_event_source_and_rounding_of_its_expiry() -> None:
    plain = source({}, "event")
    assert plain.windows.ends_ms == (30 * DAY_MS,)
    assert (plain.trigger_data, plain.max_event_level_reports) == ((0, 1), 1)
    assert source({"expiry": 86400 + 43199}, "event").expiry_ms == DAY_MS
    assert source({"expiry": "129600"}, "event").expiry_ms == 2 * DAY_MS
    assert source({"expiry": 129600}).expiry_ms == 129_600_000


def test_durations_are_clamped() -> None:
    assert source({"expiry": 1}).expiry_ms == DAY_MS
    assert source({"expiry": "18446744073709551615"}).expiry_ms == 30 * DAY_MS
    assert source({"expiry": 1e300}).expiry_ms == 30 * DAY_MS
    assert source({"event_report_window": 1}).windows.ends_ms == (HOUR_MS,)
    assert source({"event_report_window": "259200"}).windows.ends_ms == (2 * DAY_MS, 3 * DAY_MS)
    assert source({"aggregatable_report_window": 0}).aggregatable_window_ms == HOUR_MS
    listed = source({"expiry": 86400, "event_report_windows": {"start_time": 5, "end_times": [7200, 1e9]}})
    assert (listed.windows.start_ms, listed.windows.ends_ms) == (5000, (2 * HOUR_MS, DAY_MS))


def test_whole_numbers_may_be_written_with_a_point() -> None:
    text = '{"destination": "https://shop.example", "max_event_level_reports": 2.0, "trigger_data": [0, 1e0]}'
    parsed = parse_source(text, "navigation", VENDOR)
    assert parsed.value is not None
    assert (parsed.value.max_event_level_reports, parsed.value.trigger_data) == (2, (0, 1))


def test_destinations_are_distinct_sites_in_order() -> None:
    many = {"destination": ["https://z.test", "https://b.a.test", "https://a.test", "https://z.test/x"]}
    assert source(many).destinations == ("https://a.test", "https://z.test")


def test_trigger_data_matching() -> None:
    exact = source({"trigger_data": [7, 5], "trigger_data_matching": "exact"})
    assert [exact.match_trigger_data(data) for data in (7, 5, 6)] == [7, 5, None]
    modulus = source({"trigger_data": [2, 1, 0]})
    assert modulus.match_trigger_data(2**64 - 1) == (2**64 - 1) % 3
    assert source({"trigger_data": []}).match_trigger_data(0) is None


def test_every_problem_of_a_source_is_found_with_its_path() -> None:
    bad = {
        "destination": ["https://a.test", 3, "http://b.test"],
        "source_event_id": 1,
        "priority": "1.5",
        "destination_limit_priority": "9223372036854775808",
        "expiry": -1,
        "filter_data": {"source_type": [], "_x": [], "a" * 26: [], "b": "c", "d": [1, "e" * 26]},
        "aggregation_keys": {"k": "0x", "l" * 26: "0x1", "m": 1},
        "aggregatable_report_window": "x",
        "event_report_windows": {"start_time": -1, "end_times": [3600, "7200"]},
        "trigger_data": [1, 1, -1, 2**32],
        "max_event_level_reports": 21,
        "event_level_epsilon": 14.5,
        "trigger_data_matching": "fuzzy",
        "attribution_scopes": {"limit": 0, "values": [1], "max_event_states": 0},
        "named_budgets": {"a": 65537, "b" * 26: 1},
    }
    paths = source_paths(bad)
    expected: list[tuple[str | int, ...]] = [
        ("expiry",), ("trigger_data_matching",), ("event_report_windows", "start_time"),
        ("event_report_windows", "end_times", 1), ("max_event_level_reports",), ("trigger_data", 1),
        ("trigger_data", 2), ("trigger_data", 3), ("destination", 1), ("destination", 2), ("source_event_id",),
        ("priority",), ("destination_limit_priority",), ("filter_data", "source_type"), ("filter_data", "_x"),
        ("filter_data", "a" * 26), ("filter_data", "b"), ("filter_data", "d", 0), ("filter_data", "d", 1),
        ("aggregatable_report_window",), ("aggregation_keys", "k"), ("aggregation_keys", "l" * 26),
        ("aggregation_keys", "m"), ("event_level_epsilon",), ("attribution_scopes", "limit"),
        ("attribution_scopes", "values", 0), ("attribution_scopes", "max_event_states"), ("named_budgets", "a"),
        ("named_budgets", "b" * 26),
    ]  # fmt: skip
    assert sorted(map(str, paths)) == sorted(map(str, expected))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"destination": []}, ("destination",)),
        ({"destination": [f"https://{name}.test" for name in "abcd"]}, ("destination",)),
        ({"destination": {}}, ("destination",)),
        ({"trigger_data": [1, 2]}, ()),
        ({"trigger_data": list(range(33))}, ("trigger_data",)),
        ({"filter_data": {str(n): [] for n in range(51)}}, ("filter_data",)),
        ({"filter_data": {"a": [str(n) for n in range(51)]}}, ("filter_data", "a")),
        ({"aggregation_keys": {str(n): "0x1" for n in range(21)}}, ("aggregation_keys",)),
        ({"named_budgets": {str(n): 1 for n in range(26)}}, ("named_budgets",)),
        ({"event_report_window": 3600, "event_report_windows": {"end_times": [3600]}}, ("event_report_windows",)),
        ({"event_report_windows": {"end_times": []}}, ("event_report_windows", "end_times")),
        ({"event_report_windows": {"end_times": [3600, 3600]}}, ("event_report_windows", "end_times", 1)),
        ({"event_report_windows": {}}, ("event_report_windows",)),
        ({"attribution_scopes": {"limit": 1, "values": ["a", "b"]}}, ("attribution_scopes", "values")),
        ({"attribution_scopes": {"limit": 1, "values": []}}, ("attribution_scopes", "values")),
        ({"attribution_scopes": {"limit": 1}}, ("attribution_scopes",)),
        ({"event_level_epsilon": True}, ("event_level_epsilon",)),
        ({"max_event_level_reports": 1.5}, ("max_event_level_reports",)),
    ],
)
def test_one_problem_of_a_source(fields: dict[str, Any], path: tuple[str | int, ...]) -> None:
    assert source_paths(fields) == [path]


def test_a_flaw_of_debugging_costs_the_debugging_only() -> None:
    text = json.dumps({
        "destination": DESTINATION, "debug_key": -1,
        "aggregatable_debug_reporting": {"budget": 10, "key_piece": "0x1", "debug_data": [{"value": 11}]},
    })  # fmt: skip
    parsed = parse_source(text, "event", VENDOR)
    assert parsed.value is not None
    assert parsed.value.debug_key is None
    assert parsed.value.debug.budget == 0
    assert [problem.path for problem in parsed.ignored] == [
        ("debug_key",),
        ("aggregatable_debug_reporting", "debug_data", 0),
    ]


def test_debug_data_for_types_that_are_not_named() -> None:
    config = source({
        "aggregatable_debug_reporting": {
            "budget": 9, "key_piece": "0x10", "aggregation_coordinator_origin": COORDINATOR + "/x",
            "debug_data": [
                {"key_piece": "0x1", "value": 9, "types": ["source-success", "source-of-the-future"]},
                {"key_piece": "0x2", "value": 3, "types": ["unspecified"]},
            ],
        }
    }).debug  # fmt: skip
    assert str(config.coordinator) == COORDINATOR
    assert (config.data["source-success"].value, config.data["source-noised"].value) == (9, 3)
    assert "source-of-the-future" not in config.data
    assert len(config.data) == 15


@pytest.mark.parametrize("types", [[], ["unspecified", "unspecified"], ["source-noised"] * 2, ["new", "new"], [1]])
def test_debug_types_are_listed_once(types: list[Any]) -> None:
    data = [{"key_piece": "0x1", "value": 1, "types": types}]
    fields = {"aggregatable_debug_reporting": {"budget": 9, "key_piece": "0x10", "debug_data": data}}
    assert not source(fields).debug.data


def test_a_whole_trigger() -> None:
    whole = trigger({
        "event_trigger_data": [
            {"trigger_data": "7", "priority": "-5", "deduplication_key": "1", "filters": {"a": ["b"]}},
            {"not_filters": [{"_lookback_window": 10, "c": []}, {}]},
        ],
        "aggregatable_trigger_data": [{"key_piece": "0xA80", "source_keys": ["b", "b"]}],
        "aggregatable_values": {"b": 5, "c": {"value": 7, "filtering_id": "255"}},
        "aggregatable_deduplication_keys": [{"deduplication_key": "2"}, {}],
        "named_budgets": [{"name": "x"}, {}],
        "aggregation_coordinator_origin": COORDINATOR,
        "aggregatable_source_registration_time": "include",
        "attribution_scopes": ["s", "s"],
        "debug_key": "9", "debug_reporting": True,
    })  # fmt: skip
    first, second = whole.event_triggers
    assert (first.data, first.priority, first.dedup_key) == (7, -5, 1)
    assert first.filters.positive[0].values == {"a": frozenset("b")}
    assert [config.lookback_ms for config in second.filters.negative] == [10_000]
    assert whole.aggregatable_trigger_data[0].source_keys == {"b"}
    assert [(v.value, v.filtering_id) for v in whole.aggregatable_values[0].values.values()] == [(5, 0), (7, 255)]
    assert whole.includes_source_time and not whole.sends_unconditionally
    assert whole.scopes == {"s"}
    assert trigger({}).has_aggregatable_data is False
    assert trigger({"aggregatable_values": [{"values": {}}]}).has_aggregatable_data is False


def test_every_problem_of_a_trigger_is_found_with_its_path() -> None:
    paths = trigger_paths({
        "event_trigger_data": [{"trigger_data": 1, "filters": {"_a": []}}, 3],
        "filters": [{"a": "b"}, {"_lookback_window": 0}],
        "not_filters": 1,
        "aggregatable_trigger_data": [{"source_keys": [1]}, {"key_piece": "1"}],
        "aggregatable_values": [{"values": {"a": 0, "b": {"value": 1, "filtering_id": "256"}, "c": {}}}, {}, []],
        "aggregatable_deduplication_keys": {},
        "named_budgets": [{"name": 1}],
        "aggregation_coordinator_origin": "https://stranger.test",
        "aggregatable_source_registration_time": "sometimes",
        "trigger_context_id": "x" * 65,
        "aggregatable_filtering_id_max_bytes": 9,
        "attribution_scopes": [1],
    })  # fmt: skip
    expected: list[tuple[str | int, ...]] = [
        ("event_trigger_data", 0, "trigger_data"), ("event_trigger_data", 0, "filters", "_a"),
        ("event_trigger_data", 1), ("filters", 0, "a"), ("filters", 1, "_lookback_window"), ("not_filters",),
        ("aggregatable_trigger_data", 0), ("aggregatable_trigger_data", 0, "source_keys", 0),
        ("aggregatable_trigger_data", 1, "key_piece"), ("aggregatable_values", 0, "values", "a"),
        ("aggregatable_values", 0, "values", "b", "filtering_id"), ("aggregatable_values", 0, "values", "c"),
        ("aggregatable_values", 1), ("aggregatable_values", 2), ("aggregatable_deduplication_keys",),
        ("named_budgets", 0, "name"), ("aggregation_coordinator_origin",),
        ("aggregatable_source_registration_time",), ("trigger_context_id",),
        ("aggregatable_filtering_id_max_bytes",), ("attribution_scopes", 0),
    ]  # fmt: skip
    assert sorted(map(str, paths)) == sorted(map(str, expected))


def test_source_time_and_a_context_id_exclude_each_other() -> None:
    include = {"aggregatable_source_registration_time": "include"}
    assert trigger_paths(include | {"trigger_context_id": "x"}) == [()]
    assert trigger_paths(include | {"aggregatable_filtering_id_max_bytes": 2}) == [()]


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{", '{"destination": NaN}', "Infinity", '{"a": 1e999}', '{"a": "\\ud800"}', "{'a': 1}",
        '{"a": 1,}', "\ufeff{}", '{"a": "\n"}', "[" * 300 + "]" * 300, '{"a":' * 100_000, "9" * 5000, "truex",
        '{"a": "\ud800"}',
    ],
)  # fmt: skip
def test_text_that_is_not_a_json_map_is_one_problem(text: str) -> None:
    for parsed in (parse_source(text, "event", VENDOR), parse_trigger(text, VENDOR)):
        assert parsed.value is None
        assert [problem.path for problem in parsed.problems] == [()]


def test_the_depth_of_a_text_is_found_in_one_pass() -> None:
    """Once this took time quadratic in the quotes of a string without end: hours for a header of this size."""
    text = "[" * 201 + '"' + '\\"' * 500_000
    assert parse_source(text, "event", VENDOR).problems[0].path == ()
    assert parse_source("[" * 150 + '"' + "[" * 150 + '\\"' + "]" * 100, "event", VENDOR).value is None


def test_problems_read_well() -> None:
    parsed = parse_trigger('{"event_trigger_data": [{"trigger_data": 1}]}', VENDOR)
    message = "must be an integer from 0 to 18446744073709551615, written in base 10 in a string"
    assert str(parsed.problems[0]) == f'["event_trigger_data"][0]["trigger_data"]: {message}'


@pytest.mark.parametrize(
    ("header", "source_type", "may_trigger"),
    [
        (None, None, True), ("", None, False), ("event-source", "event", False), ("trigger", None, True),
        ("event-source, trigger", "event", True), ("navigation-source", "navigation", False),
        ("not-event-source, trigger=event-source;navigation-source=3", None, True), ("event-source=?0", "event", False),
    ],
)  # fmt: skip
def test_eligibility(header: str | None, source_type: str | None, may_trigger: bool) -> None:
    parsed = parse_eligible(header)
    assert parsed is not None
    assert (parsed.source_type, parsed.trigger) == (source_type, may_trigger)


@pytest.mark.parametrize(
    "header", ["navigation-source, trigger", "navigation-source, event-source", "!", "a=", "\ud800"]
)
def test_headers_no_browser_sends(header: str) -> None:
    assert parse_eligible(header) is None


def test_info() -> None:
    info = parse_info("preferred-platform=os;x, report-header-errors")
    assert info is not None
    assert (info.preferred_platform, info.report_header_errors) == ("os", True)
    assert parse_info(None) == parse_info("")
    for bad in ("preferred-platform=ios", 'preferred-platform="os"', "report-header-errors=1", "?", "a=(1 2"):
        assert parse_info(bad) is None


def test_os_registrations() -> None:
    parsed = parse_os_registrations('"https://r.test/x";debug-reporting, tok, 1, "nonsense", ("a"), "app://y"')
    assert parsed is not None
    assert [(str(entry.url), entry.debug_reporting) for entry in parsed] == [
        ("https://r.test/x", True),
        ("None", False),
    ]
    assert parse_os_registrations("tok") is None
    assert parse_os_registrations('"unterminated') is None


def test_platform() -> None:
    web_only = {"os_supported": False}
    both = {"os_supported": True}
    assert choose_platform("w", None, None, **web_only) == "web"
    assert choose_platform(None, "o", None, **web_only) is None
    assert choose_platform(None, "o", None, **both) == "os"
    assert choose_platform("w", "o", None, **both) is None
    assert choose_platform("w", "o", "os", **both) == "os"
    assert choose_platform("w", "o", "os", **web_only) == "web"
    assert choose_platform(None, "o", "os", **web_only) is None
    assert choose_platform(None, "o", "web", **both) is None
    assert choose_platform("w", None, "os", **both) is None


def test_headers_are_found_whatever_their_case() -> None:
    assert normalise_headers({"A-B": " x ", "a-b": b"y", "c": b"\xff"}) == {"a-b": "x, y", "c": "\udcff"}
    assert printable("a\udcff") == "a\ufffd"


def test_trigger_specs_are_read_only_where_they_are_asked_for() -> None:
    summed = {"trigger_data": [0, 1], "summary_operator": "value_sum", "summary_buckets": [5, 10]}
    specs = [summed, {"trigger_data": [2]}]
    assert source({"trigger_specs": specs}).specs is None
    flexible = replace(VENDOR, full_flexible_events=True)
    parsed = source({"trigger_specs": specs}, config=flexible)
    assert parsed.specs is not None
    assert parsed.trigger_data == (0, 1, 2)
    assert parsed.specs[0].bucket_range(0) == (5, 9)
    assert parsed.specs[0].bucket_range(1) == (10, 2**32 - 1)
    assert (parsed.specs[1].buckets, parsed.specs[1].sums_values) == ((1, 2, 3), False)
    bad = [{"trigger_data": [0, 0], "summary_buckets": [2, 2], "summary_operator": "max"}, {}, {"trigger_data": [0]}]
    assert source_paths({"trigger_specs": bad, "trigger_data": [0]}, flexible) == [
        ("trigger_data",),
        ("trigger_specs", 0, "trigger_data", 1),
        ("trigger_specs", 0, "summary_operator"),
        ("trigger_specs", 0, "summary_buckets", 1),
        ("trigger_specs", 1),
        ("trigger_specs", 2, "trigger_data", 0),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "destination", "expiry", "priority", "filter_data", "aggregation_keys", "event_report_windows", "trigger_data",
    "attribution_scopes", "named_budgets", "aggregatable_debug_reporting", "event_trigger_data", "aggregatable_values",
    "filters", "not_filters", "aggregatable_trigger_data", "trigger_specs", "max_event_level_reports",
]  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.booleans())
def test_any_json_parses_or_has_problems(fields: dict[str, Any], flexible: bool) -> None:
    config = replace(VENDOR, full_flexible_events=flexible)
    text = json.dumps(fields, ensure_ascii=True)
    for parsed in (parse_source(text, "event", config), parse_trigger(text, config)):
        assert (parsed.value is None) == bool(parsed.problems)
