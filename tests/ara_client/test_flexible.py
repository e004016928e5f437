"""Android's full-flexible event cases, where their behaviour is the web's, and the ledger against Algorithm 4."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import KeySet, decode_payload, open_report
from ara_client import (
    AggregatableAttributionReport,
    Browser,
    Config,
    EventLevelReport,
    FixedChoices,
    Request,
    Response,
    VerboseDebugReport,
)
from ara_client.interop.cases import loads
from ara_client.model import EventClient, EventSource, TrigSpec
from ara_client.model import Trigger as ModelTrigger
from ara_client.registration.windows import ReportWindows, TriggerSpec
from ara_client.reports import OutgoingReport
from ara_client.storage.sources import AttributedTrigger, FlexibleLedger

CASES = 19
NOT_THE_WEBS = {
    "flex_event_value_sum_event_no_trigger_dedup_key": "a deduplication_key of null, which the web refuses",
    "flex_event_with_coarse_destinations": "destinations in apps and on the web at once, reported coarsely",
}
EVENT_LEVEL_ONLY = {
    "flex_event_attribution_rate_limits_aggregate_and_v1_interplay": "two limits on attributions where the web has one",
}
FLAGS = {
    "measurement_flex_api_max_information_gain_event": "max_channel_capacity_event",
    "measurement_flex_api_max_information_gain_navigation": "max_channel_capacity_navigation",
    "measurement_max_event_attribution_per_rate_limit_window": "max_attributions",
}


def _cases(shared: Path) -> list[Path]:
    return sorted((shared / "vectors" / "android-flex-event").glob("*.json"))


def _web(value: Any) -> Any:
    """Turn apps into sites: what Android calls android-app://x is https://x here."""
    return json.loads(json.dumps(value).replace("android-app://", "https://"))


def _run(case: dict[str, Any]) -> tuple[list[OutgoingReport], KeySet]:
    """Run a case: its registrations in order of time, then until nothing waits."""
    changes: dict[str, Any] = {
        FLAGS[name]: float(value) if "gain" in name else int(value)
        for name, value in case["phflags_override"].items()
        if name in FLAGS
    }
    config = replace(
        Config(),
        full_flexible_events=True,
        aggregatable_min_delay_ms=600_000,
        aggregatable_delay_span_ms=3_000_000,
        **changes,
    )
    clock = ManualClock(0)
    keys = KeySet.create(SecureBits(), clock, lifetime_ms=1 << 47)
    browser = Browser(
        clock=clock, bits=SecureBits(), config=config, draws=FixedChoices(config), keys=keys.public(clock)
    )
    entries = [entry for kind in case["input"].values() for entry in kind]
    sent: list[OutgoingReport] = []
    for entry in sorted(entries, key=lambda entry: int(entry["timestamp"])):
        wanted = entry["registration_request"]
        source_type = wanted.get("source_type")
        request = Request(
            context=f"https://{wanted['registrant']}",
            eligible=None if source_type is None else f"{source_type}-source",
        )
        sent += browser.advance(int(entry["timestamp"]))
        for response in entry["responses"]:
            headers = {
                name: json.dumps(_web(value)) for name, value in response["response"].items() if value is not None
            }
            allowed = bool(response.get("has_ad_id_permission", False))
            sent += browser.register(request, Response(url=response["url"], headers=headers, debug_allowed=allowed))
    while pending := browser.pending:
        sent += browser.advance(max(report.time_ms or 0 for report in pending))
    browser.check()
    return sent, keys


def _actual(report: OutgoingReport, keys: KeySet) -> dict[str, Any]:
    payload = report.to_dict()
    if isinstance(report, EventLevelReport):
        del payload["report_id"]
    elif isinstance(report, AggregatableAttributionReport):
        assert report.sealed is not None
        contributions = decode_payload(open_report(report.sealed, keys)).contributions
        payload = {
            "histograms": [{"key": f"{c.bucket:#x}", "value": c.value} for c in contributions if c.value],
            "attribution_destination": json.loads(payload["shared_info"])["attribution_destination"],
        }
    return {"url": report.url, "time": str(report.time_ms), "payload": payload}


def _expected(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the expected reports in the web's words: each replacement is a documented difference."""
    out = []
    for report in [report for kind in _web(case["output"]).values() for report in kind]:
        payload = report["payload"]
        if isinstance(payload, list):
            for entry in payload:
                body = entry["body"]
                if entry["type"] == "source-channel-capacity-limit":
                    body["limit"] = float(body["limit"])
                for name in ("source_site", "attribution_destination"):
                    body[name] = _site(body[name])
        elif "histograms" in payload:
            destination = _site(payload["shared_info"]["attribution_destination"])
            payload = {"histograms": payload["histograms"], "attribution_destination": destination}
        else:
            payload["attribution_destination"] = _site(payload["attribution_destination"])
            if isinstance(payload.get("trigger_summary_bucket"), str):
                payload["trigger_summary_bucket"] = json.loads(payload["trigger_summary_bucket"])
            if "trigger_debug_keys" not in payload:
                payload.pop("source_debug_key", None)
        out.append({"url": report["report_url"], "time": report["report_time"], "payload": payload})
    return out


def _site(origin: str | list[str]) -> str:
    """Return the site of an origin: an app is one, the web has registrable domains."""
    if isinstance(origin, list):
        return str(origin)
    return "https://" + ".".join(origin.removeprefix("https://").split(".")[-2:])


def _key(report: dict[str, Any]) -> tuple[int, str]:
    return int(report["time"]), json.dumps(report, sort_keys=True)


def test_there_are_as_many_cases_as_were_read(shared: Path) -> None:
    names = {path.stem for path in _cases(shared)}
    assert len(names) == CASES
    assert names > set(NOT_THE_WEBS)


def test_cases_whose_behaviour_is_the_webs(shared: Path) -> None:
    ran = 0
    for path in _cases(shared):
        if path.stem in NOT_THE_WEBS:
            continue
        case = loads(path.read_text())
        sent, keys = _run(case)
        expected = sorted(_expected(case), key=_key)
        if path.stem in EVENT_LEVEL_ONLY:
            sent = [report for report in sent if isinstance(report, EventLevelReport)]
            expected = [report for report in expected if report["url"].endswith("report-event-attribution")]
        assert sorted((_actual(report, keys) for report in sent), key=_key) == expected, path.stem
        ran += 1
    assert ran == CASES - len(NOT_THE_WEBS)


@pytest.mark.parametrize("name", sorted(NOT_THE_WEBS))
def test_the_other_cases_do_differ(shared: Path, name: str) -> None:
    case = loads((shared / "vectors" / "android-flex-event" / f"{name}.json").read_text())
    sent, keys = _run(case)
    actual = sorted((_actual(report, keys) for report in sent), key=_key)
    assert not any(isinstance(report, VerboseDebugReport) for report in sent)
    assert actual != sorted(_expected(case), key=_key)


SPECS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 60), min_size=1, max_size=3, unique=True).map(sorted),
        st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(sorted),
    ),
    min_size=1,
    max_size=3,
)
TRIGGERS = st.lists(st.tuples(st.integers(0, 59), st.integers(0, 2), st.integers(1, 9)), max_size=12)


@given(SPECS, TRIGGERS)
def test_the_ledger_is_algorithm_4_while_the_cap_does_not_bind(
    specs: list[tuple[list[int], list[int]]], triggers: list[tuple[int, int, int]]
) -> None:
    """Equal priorities, and a cap as large as all buckets: a report at the end of the window that crosses."""
    cap = sum(len(buckets) for _, buckets in specs)
    own = [
        TriggerSpec(
            trigger_data=(data,),
            windows=ReportWindows(start_ms=0, ends_ms=tuple(ends)),
            sums_values=True,
            buckets=tuple(buckets),
        )
        for data, (ends, buckets) in enumerate(specs)
    ]
    ledger = FlexibleLedger(own, cap)
    model = EventClient()
    source = EventSource(
        src_id=1,
        dest="d",
        registered=0,
        exp_date=100,
        src_filt=frozenset("f"),
        max_rep=cap,
        trig_spec=tuple(TrigSpec(data, tuple(ends), tuple(buckets)) for data, (ends, buckets) in enumerate(specs)),
    )
    model.register_source(source)
    expected, sent = [], []
    planned: list[tuple[int, int, int]] = []
    now = -1
    for time, data, value in [*sorted(triggers), (99, 0, 0)]:
        expected += [(end, report.trig_data, report.bucket) for end, report in model.pass_windows(now, time)]
        sent += [plan for plan in planned if plan[0] <= time]
        planned = [plan for plan in planned if plan[0] > time]
        now = time
        if not value or data >= len(specs) or time >= specs[data][0][-1]:
            continue
        model.register_trigger(ModelTrigger(time, "d", frozenset("f"), data, value))
        ledger.settle(time, range(len(triggers) * cap))
        windows = own[data].windows
        ledger.add(
            AttributedTrigger(
                trigger_data=data,
                left=value,
                priority=0,
                time_ms=time,
                window_end_ms=windows.ends_ms[windows.index_at(time)],
                debug_key=None,
            )
        )
        reports = ledger.plan(time)
        for identity, report in enumerate(reports):
            ledger.keep(report, identity)
        planned = [
            (report.due_ms, report.trigger_data, own[report.trigger_data].buckets[report.bucket_index])
            for report in reports
        ]
    assert sorted(sent) == sorted(expected)


class Wandering:
    """A clock that is put forward and back."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


def test_a_clock_that_is_put_back_sends_no_report_again() -> None:
    config = replace(Config(), full_flexible_events=True)
    clock = Wandering()
    browser = Browser(clock=clock, bits=SecureBits(), config=config, draws=FixedChoices(config))
    day = 86_400_000
    spec = {"trigger_data": [0], "event_report_windows": {"end_times": [86_400, 172_800]}, "summary_buckets": [1, 2, 3]}
    source = {"destination": "https://shop.test", "trigger_specs": [spec]}
    request = Request(context="https://news.test", eligible="navigation-source")
    header = {"Attribution-Reporting-Register-Source": json.dumps(source)}
    browser.register(request, Response(url="https://reporter.test/", headers=header))
    header = {"Attribution-Reporting-Register-Trigger": '{"event_trigger_data": [{"trigger_data": "0"}]}'}
    buckets = []
    for time_ms in (day - 1, day, day - 2, day, 2 * day - 1, 2 * day, 3 * day):
        clock.time_ms = time_ms
        sent = browser.advance()
        if time_ms % day:
            sent += browser.register(
                Request(context="https://shop.test"), Response(url="https://reporter.test/", headers=header)
            )
        buckets += [(time_ms, report.summary_bucket) for report in sent if isinstance(report, EventLevelReport)]
    assert buckets == [(day, (1, 1)), (day, (2, 2)), (2 * day, (3, (1 << 32) - 1))]
