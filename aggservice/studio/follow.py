"""Follow one report: a simulated conversion from its registration to its place in a summary, step by step.

Every step is the library's own: the Attribution Reporting browser, the wire format, the collector, the engine and a
ledger in memory. The data is simulated from a seed, so showing what is inside a report harms no one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aggservice.campaign import Campaign
from aggservice.campaign.columns import Events, Fate
from aggservice.campaign.devices.amounts import contribution_units
from aggservice.campaign.service.runner import EngineRunner
from aggservice.campaign.settings.campaign import DAY_MS
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import Truth, simulate_reports
from aggservice.client import JobParameters, Summary
from aggservice.engine import InlineOpener, LocalEngine, ledger_terms
from aggservice.mechanisms import Bits, ManualClock, SeededBits
from aggservice.service.http.collector import accept
from aggservice.studio.errors import StudioError
from aggservice.studio.given import Given
from aggservice.studio.shelf import DEMO, Shelf
from aggservice.wire import AggregatableReport as SealedReport
from aggservice.wire import KeySet, ReportBatch, decode_payload, open_report, parse_shared_info_batch, report_units
from ara_client import Browser, Request, Response
from ara_client.reports import AggregatableAttributionReport
from budget import EpsilonDeltaFilter, Ledger, MemoryStore, Signer

_MAX_PEOPLE: Final = 50_000
_WORDS: Final = {int(fate): fate.words for fate in Fate}
_PATH: Final = "/.well-known/attribution-reporting/report-aggregate-attribution"
SOURCE, TRIGGER = "Attribution-Reporting-Register-Source", "Attribution-Reporting-Register-Trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what happened, in words and as values, and the page of the docs that explains it."""

    name: str
    text: str
    values: dict[str, Any]
    docs: str


def follow(shelf: Shelf, given: Given) -> dict[str, Any]:
    """Return the steps of the first conversion with number ``conversion`` or more and ``fate`` (empty: any fate)."""
    campaign = shelf.parse(given.text("toml"), given.text("campaign") if given.has("campaign") else DEMO)
    if not campaign.client.can_follow:
        raise StudioError(
            "only a deployed browser of Attribution Reporting can be followed: "
            'write kind = "attribution", form = "deployed" and api = "ara"'
        )
    if not campaign.population.model.drawn or campaign.population.size > _MAX_PEOPLE:
        raise StudioError(f"the population is too large or comes from a log: simulate at most {_MAX_PEOPLE:,} people")
    bits = SeededBits(f"studio {given.text('seed', 'studio', most=200)}")
    truth = simulate_reports(campaign, RunChain(bits))
    fates = truth.items.fate.reshape(-1, len(campaign.measures))[:, 0]
    count = len(truth.events.conversions)
    wanted = np.arange(count) >= given.whole("conversion", 0, least=0, most=max(0, count - 1))
    if given.text("fate", "", most=60):
        wanted &= fates == _fate(given.text("fate")).value
    if not wanted.any():
        raise StudioError("no later conversion has this fate: choose a smaller number, or another fate")
    chosen = int(np.flatnonzero(wanted)[0])
    return {
        "conversions": count,
        "conversion": chosen,
        "fate": _WORDS[int(fates[chosen])],
        "fates": {_WORDS[int(one)]: int((fates == one).sum()) for one in np.unique(fates)},
        "steps": _Walk(campaign, truth, chosen, bits.child("walk")).steps(),
    }


def _fate(words: str) -> Fate:
    for fate in Fate:
        if fate.words == words:
            return fate
    raise StudioError(f"{words!r} is not a fate: use one of {', '.join(fate.words for fate in Fate)}")


class _Walk:
    """One conversion and everything that its device did before it."""

    def __init__(self, campaign: Campaign, truth: Truth, conversion: int, bits: Bits) -> None:
        self._campaign, self._truth, self._conversion = campaign, truth, conversion
        self._clock = ManualClock(campaign.population.start_ms)
        self._bits = bits
        self._keys = KeySet.create(bits.child("keys"), self._clock)
        public = self._keys.public(self._clock)
        self._browser = Browser(clock=self._clock, bits=bits.child("browser"), keys=public)
        self._steps: list[Step] = []

    def steps(self) -> list[Step]:
        """Return the steps, up to where the conversion's contribution ended."""
        self._register()
        report = self._report()
        if report is not None:
            self._seal(report)
            batch = self._collect(report)
            self._aggregate(report, batch)
        return self._steps

    def _add(self, name: str, text: str, docs: str, **values: Any) -> None:
        self._steps.append(Step(name=name, text=text, values=values, docs=docs))

    def _register(self) -> None:
        """Register the device's earlier ads and conversions, and then the conversion itself."""
        events, campaign = self._truth.events, self._campaign
        ads, buys, chosen = events.impressions, events.conversions, self._conversion
        device, until = int(buys.device[chosen]), int(buys.time_ms[chosen])
        shown = np.flatnonzero((ads.device == device) & (ads.time_ms <= until))
        before = np.flatnonzero((buys.device == device) & (np.arange(len(buys)) <= chosen))
        order = sorted(
            [(int(ads.time_ms[row]), 0, row) for row in shown] + [(int(buys.time_ms[row]), 1, row) for row in before]
        )
        sources = []
        for time_ms, kind, row in order:
            self._browser.advance(max(time_ms, self._clock.now_ms()))
            if kind == 0:
                header = _source(campaign, events, int(row))
                eligible = "navigation-source" if ads.click[row] else "event-source"
                self._register_one(campaign.population.sites[0], eligible, SOURCE, header)
                sources.append({"days": _days(campaign, time_ms), "eligible": eligible, "header": header})
            else:
                header = _trigger(campaign, events, int(row))
                self._register_one(campaign.population.destinations[int(buys.destination[row])], None, TRIGGER, header)
        text = f"The device saw {len(sources)} ads; the ad-tech answered each with {SOURCE}."
        self._add("The ads", text, "ara_client.md", sources=sources)
        self._add(
            "The conversion",
            f"At the shop, the ad-tech answered with {TRIGGER}. Key pieces of ad and purchase are combined with OR.",
            "ara_client.md",
            days=_days(campaign, until),
            header=_trigger(campaign, events, chosen),
            value=int(buys.value[chosen]),
        )

    def _register_one(self, context: str, eligible: str | None, header: str, value: dict[str, Any]) -> None:
        url = f"{self._campaign.reporting_origin}/register"
        response = Response(url=url, headers={header: json.dumps(value)})
        self._browser.register(Request(context=context, eligible=eligible), response)

    def _report(self) -> AggregatableAttributionReport | None:
        """Wait for the report of this conversion; None if the browser made none."""
        began = self._clock.now_ms()
        pending = [one for one in self._browser.pending if isinstance(one, AggregatableAttributionReport)]
        mine = [one for one in pending if one.scheduled_time_ms >= began]
        sent = self._browser.advance(began + DAY_MS)
        fate = _WORDS[int(self._truth.items.fate[self._conversion * len(self._campaign.measures)])]
        real = [
            one for one in sent if isinstance(one, AggregatableAttributionReport) and one.scheduled_time_ms >= began
        ]
        latest = max(real, key=lambda one: one.scheduled_time_ms, default=None)
        decided = "made a report" if mine else "made no report"
        self._add(
            "What the browser decided",
            f"It {decided}; in the campaign's own run this conversion is {fate}.",
            "ara_client.md",
            pending=len(mine),
            contributions=[]
            if latest is None
            else [
                {"bucket": hex(one.bucket), "value": one.value, **self._names(one.bucket)}
                for one in latest.contributions
            ],
            null=latest is not None and latest.is_null,
        )
        return latest

    def _names(self, bucket: int) -> dict[str, str]:
        return self._campaign.keys.names(bucket >> 64, bucket & ((1 << 64) - 1))

    def _seal(self, report: AggregatableAttributionReport) -> None:
        sealed = report.sealed
        assert sealed is not None
        plain = open_report(sealed, self._keys)
        decoded = decode_payload(plain)
        entries = [
            {"bucket": hex(one.bucket), "value": one.value, "id": one.filtering_id} for one in decoded.contributions
        ]
        self._add(
            "The payload",
            f"CBOR of {len(plain)} bytes: the contributions, padded with empty ones to a constant number.",
            "wire.md",
            cbor=plain.hex(),
            entries=entries,
        )
        self._add(
            "The sealed report",
            "HPKE seals the payload to the service's key; shared_info stays readable and is authenticated.",
            "wire.md",
            body=report.to_dict(),
            sealed_bytes=len(sealed.payloads[0].payload),
        )

    def _collect(self, report: AggregatableAttributionReport) -> ReportBatch:
        endpoint, received, info = accept(_PATH, report.to_json().encode())
        assert isinstance(received, SealedReport) and info is not None
        self._add(
            "The collector",
            f"The ad-tech's collector accepted the POST and wrote it to the folder {endpoint.folder!r}. It has no key.",
            "service.md",
            url=report.url,
            shared_info=json.loads(received.shared_info),
        )
        return ReportBatch.of([received])

    def _aggregate(self, report: AggregatableAttributionReport, batch: ReportBatch) -> None:
        """Run a paid job over this report alone, and show the same key in the whole campaign beside it."""
        query, campaign = self._campaign.queries[0], self._campaign
        limits = campaign.service
        ledger = Ledger.create(
            MemoryStore(),
            filter=EpsilonDeltaFilter.parse(epsilon=limits.epsilon, delta=limits.delta),
            terms=ledger_terms(),
            signer=Signer.generate(self._bits.child("signer")),
            clock=self._clock,
            bits=self._bits.child("ledger"),
        )
        engine = LocalEngine(
            ledger=ledger, opener=InlineOpener(self._keys), clock=self._clock, bits=self._bits.child("noise")
        )
        asked = JobParameters(attribution_report_to=campaign.reporting_origin, epsilon=query.epsilon)
        buckets = [one.bucket for one in report.contributions] or [0]
        summary = EngineRunner(engine=engine).aggregate("follow", asked, batch, domain=buckets)
        unit = report_units(parse_shared_info_batch(batch.shared_infos), [0]).reshape(-1, 20)[0].tobytes()
        spent = ledger.balances(unit).of(0)
        self._add(
            "The charge",
            f"The service opened the report and charged its unit ε = {query.epsilon} before it released anything.",
            "budget.md",
            unit=unit.hex(),
            spent=spent.loss_micro / 1e6,
            limit=limits.epsilon,
        )
        self._sum(report, buckets, summary)

    def _sum(self, report: AggregatableAttributionReport, buckets: list[int], summary: Summary) -> None:
        sent, truth = self._truth.reports, self._truth
        in_batch = np.repeat(truth.collected.batch >= 0, np.diff(sent.offset))
        noisy = dict(zip(summary.low.tolist(), summary.metrics.tolist(), strict=True))
        values = {one.bucket: one.value for one in report.contributions}
        rows = []
        for bucket in buckets:
            low = bucket & ((1 << 64) - 1)
            same = in_batch & (sent.key_high == np.uint64(bucket >> 64)) & (sent.key_low == np.uint64(low))
            rows.append(
                {
                    **self._names(bucket),
                    "this report": values.get(bucket, 0),
                    "sum of the campaign": int(sent.value[same].sum()),
                    "reports in it": int(same.sum()),
                    "released for this report alone": noisy.get(low),
                    "noise": None if low not in noisy else noisy[low] - values.get(bucket, 0),
                }
            )
        self._add(
            "The sum and its noise",
            "Exact discrete Laplace noise of one scale covers a single report and the whole campaign alike.",
            "mechanisms.md",
            rows=rows,
        )


def _days(campaign: Campaign, time_ms: int) -> float:
    return (time_ms - campaign.population.start_ms) / DAY_MS


def _source(campaign: Campaign, events: Events, row: int) -> dict[str, Any]:
    """Return the registration of an ad, with the same key piece for each measure."""
    ads = events.impressions
    high, low = campaign.keys.keys({name: column[row : row + 1] for name, column in ads.codes.items()}, 1)
    piece = hex(int(high[0]) << 64 | int(low[0]))
    found: dict[str, Any] = {
        "source_event_id": str(row),
        "destination": campaign.population.destinations[int(ads.destination[row])],
        "expiry": str(int(campaign.client.expiry_days * DAY_MS) // 1000),
        "priority": str(int(ads.click[row]) * campaign.client.click_priority),
        "aggregation_keys": {measure.name: piece for measure in campaign.measures},
    }
    if campaign.filters is not None:
        found["filter_data"] = {campaign.filters.field: list(campaign.filters.accepts)}
    return found


def _trigger(campaign: Campaign, events: Events, row: int) -> dict[str, Any]:
    """Return the registration of a conversion: a key piece and a value per measure."""
    buys = events.conversions
    codes = {name: column[row : row + 1] for name, column in buys.codes.items()}
    _, _, amount = contribution_units(campaign, events.conversions)
    data, values = [], {}
    for place, measure in enumerate(campaign.measures):
        high, low = campaign.keys.keys(codes, 1)
        for field in campaign.keys.fields:
            if field.origin == "measure":
                above, below = field.encode(np.array([place]))
                high, low = high | above, low | below
        data.append({"key_piece": hex(int(high[0]) << 64 | int(low[0])), "source_keys": [measure.name]})
        if amount[row, place] > 0:
            values[measure.name] = int(amount[row, place])
    found: dict[str, Any] = {"aggregatable_trigger_data": data, "aggregatable_values": values}
    if campaign.filters is not None:
        field = campaign.keys.field(campaign.filters.field)
        found["filters"] = {field.name: [field.value_of(int(codes[field.name][0]))]}
    if int(buys.dedup_key[row]) >= 0:
        found["aggregatable_deduplication_keys"] = [{"deduplication_key": str(int(buys.dedup_key[row]))}]
    return found
