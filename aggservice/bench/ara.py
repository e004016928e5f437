"""Attribution Reporting, one core: a fleet against browsers on the same registrations and with the same reports."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import typer

import ara_client
from aggservice.bench import conclude, seconds
from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from ara_client.reports import OutgoingReport

_PROMISED_RATE = 1_000_000
_PROMISED_RATIO = 50
_DESTINATIONS = 5
_ROUNDS = 3

#: What leaves a fleet or a browser: the trigger's row, and (key, value) for each contribution.
Sent = list[tuple[int, tuple[tuple[int, int], ...]]]


def command(
    registrations: Annotated[int, typer.Option(min=1_000, help="Registrations of the fleet alone.")] = 2_000_000,
    shared: Annotated[int, typer.Option(min=100, help="Registrations that browsers run as well.")] = 60_000,
    full: Annotated[bool, typer.Option("--full", help="Ten million and 200,000 registrations.")] = False,
) -> None:
    """Attribution Reporting: Fleet over Browser, registrations per s.

    Both run the same registrations on one core, and must send the same reports.
    """
    if full:
        registrations, shared = 10_000_000, 200_000
    events = _Events(registrations, devices=max(1, registrations // 10))
    few = _Events(shared, devices=max(1, shared // 10))
    _fleet(few)  # compile

    _event_level()
    best = min(_fleet(events)[0] for _ in range(_ROUNDS))
    print(f"Fleet:   {registrations / best:12,.0f} registrations per second ({registrations:,} in {best:.2f} s)")
    same, by_fleet = min((_fleet(few) for _ in range(_ROUNDS)), key=lambda timed: timed[0])
    print(f"Fleet:   {shared / same:12,.0f} registrations per second on the {shared:,} that the browsers run too")
    alone, by_browsers = _browsers(few)
    print(f"Browser: {shared / alone:12,.0f} registrations per second on those ({shared:,} in {alone:.2f} s)")
    if by_fleet != by_browsers:
        print("the fleet and the browsers did not send the same reports: the times mean nothing")
        raise typer.Exit(1)
    print(f"both sent the same {len(by_fleet):,} reports")
    conclude(
        alone / same,
        "Fleet over Browser, registrations per second, one core, the same registrations",
        f"promised {_PROMISED_RATIO}; Fleet {registrations / best:,.0f} per second, promised {_PROMISED_RATE:,}; "
        f"Browser {shared / alone:,.0f} per second",
    )


def _event_level() -> None:
    """Print how long counting a large specification takes, and how many registrations per second can be randomized."""
    large = [ara_client.TriggerDataSpec(trigger_data=data, windows=5, buckets=3) for data in range(10)]
    made: list[ara_client.StateSpace] = []
    took = min(seconds(lambda: made.append(ara_client.StateSpace(large, 12))) for _ in range(_ROUNDS))
    print(f"States:  {made[0].count:,} counted in {1000 * took:.1f} ms (promised: 10^12 within a second)")
    draws = 10_000_000
    took = min(seconds(lambda: ara_client.draw_states(SecureBits(), 2925, Fraction(14), draws)) for _ in range(_ROUNDS))
    print(f"Noise:   {draws / took:12,.0f} exact draws per second at epsilon 14 over 2,925 states")


class _Events:
    """A month of registrations: seven sources to three triggers, five destinations, some filters and dedup keys."""

    def __init__(self, size: int, *, devices: int) -> None:
        rng = np.random.default_rng(size)
        self.size = size
        self.is_trigger = rng.random(size) < 0.3
        self.time_ms = np.sort(rng.integers(0, 30 * 86_400_000, size))
        self.device = rng.integers(0, devices, size)
        self.destination = rng.integers(0, _DESTINATIONS, size)
        self.priority = rng.integers(0, 3, size)
        self.expiry_s = rng.choice([86_400, 7 * 86_400, 30 * 86_400], size)
        self.filter = rng.integers(0, 3, size)
        self.dedup_key = rng.integers(0, 4, size)
        self.value = rng.integers(1, 30_000, size)
        self.devices = devices

    def columns(self) -> tuple[ara_client.SourceColumns, ara_client.TriggerColumns]:
        """Return the columns. The high half of a key is the row of its source, the low half that of its trigger."""
        row = np.arange(self.size)
        s, t = ~self.is_trigger, self.is_trigger

        def common(rows: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
            return {
                "order": row[rows],
                "time_ms": self.time_ms[rows],
                "device": self.device[rows],
                "destination": self.destination[rows],
                "filter": self.filter[rows],
            }

        sources = ara_client.SourceColumns.of(
            **common(s),
            priority=self.priority[s],
            expiry_ms=self.time_ms[s] + 1000 * self.expiry_s[s],
            key_high=row[s],
            key_low=0,
        )
        triggers = ara_client.TriggerColumns.of(
            **common(t), dedup_key=self.dedup_key[t], key_high=0, key_low=row[t], value=self.value[t]
        )
        return sources, triggers

    def header(self, row: int) -> tuple[str, str]:
        """Return the name and the JSON of one registration's header."""
        if self.is_trigger[row]:
            wanted = {} if self.filter[row] == 0 else {"filters": {"product": [str(self.filter[row])]}}
            return "Attribution-Reporting-Register-Trigger", json.dumps(
                {
                    "aggregatable_trigger_data": [{"key_piece": hex(row), "source_keys": ["value"]}],
                    "aggregatable_values": {"value": int(self.value[row])},
                    "aggregatable_deduplication_keys": [{"deduplication_key": str(self.dedup_key[row])}],
                    **wanted,
                }
            )
        product = {} if self.filter[row] == 0 else {"product": [str(self.filter[row])]}
        return "Attribution-Reporting-Register-Source", json.dumps(
            {
                "destination": f"https://shop{self.destination[row]}.example",
                "source_event_id": str(row),
                "priority": str(self.priority[row]),
                "expiry": str(self.expiry_s[row]),
                "filter_data": product,
                "aggregation_keys": {"value": hex(row << 64)},
            }
        )


def _vendor() -> ara_client.Config:
    """Return limits under which both send the same reports: noise, and limits that a fleet lacks, are off."""
    plenty = 1 << 30
    return ara_client.Config(
        max_sources_per_origin=plenty,
        max_aggregatable_reports_per_destination=plenty,
        max_attributions=plenty,
        aggregatable_delay_span_ms=0,
        null_rate_excluding_source_time=0.0,
    )


def _new_fleet() -> ara_client.Fleet:
    products = range(3)
    # A source or trigger without the filter (0) matches anything.
    matches = ara_client.match_table(
        products, products, lambda source, trigger: 0 in (source, trigger) or source == trigger
    )
    return ara_client.Fleet(bits=SeededBits("bench"), rules=ara_client.FleetRules.deployed(_vendor()), matches=matches)


def _fleet(events: _Events) -> tuple[float, Sent]:
    """Return the time a fleet takes from columns to reports, and what it sent."""
    sources, triggers = events.columns()
    fleet = _new_fleet()
    made = []
    took = seconds(lambda: made.append(fleet.register(sources, triggers)))
    reports = made[0]
    if events.size > 1_000_000:
        return took, []
    return took, [
        (
            int(triggers.order[reports.trigger[row]]),
            tuple((key, value) for key, value, _ in reports.contributions(row)),
        )
        for row in range(len(reports))
    ]


def _browsers(events: _Events) -> tuple[float, Sent]:
    """Return the time that browsers take from headers to unsealed reports, and what they sent."""
    vendor, bits = _vendor(), SeededBits("bench")
    browsers = [ara_client.Browser(clock=ManualClock(0), bits=bits, config=vendor) for _ in range(events.devices)]
    click = ara_client.Request(context="https://publisher.example", eligible="navigation-source")
    visits = [ara_client.Request(context=f"https://shop{site}.example") for site in range(_DESTINATIONS)]
    work = []
    for row in range(events.size):
        name, text = events.header(row)
        response = ara_client.Response(url="https://adtech.example/register", headers={name: text})
        request = visits[events.destination[row]] if events.is_trigger[row] else click
        work.append((row, browsers[events.device[row]], int(events.time_ms[row]), request, response))
    arrived: list[tuple[int, OutgoingReport]] = []

    def run() -> None:
        for row, browser, now, request, response in work:
            reports = browser.advance(now)
            reports += browser.register(request, response)
            reports += browser.advance(now)
            arrived.extend((row, report) for report in reports)

    took = seconds(run)
    sent: Sent = [
        (row, tuple((part.bucket, part.value) for part in report.contributions))
        for row, report in arrived
        if isinstance(report, ara_client.AggregatableAttributionReport)
    ]
    return took, sent
