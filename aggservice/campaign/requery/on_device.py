"""W3C Attribution in the interactive game: browsers with budgets, sealed reports that are used once, an engine.

The same game as ``aggservice.campaign.requery.interactive`` (Algorithm 5 of the Privacy Sandbox paper) with another
mechanism: what bounds the loss are the filters of each browser (W3C Attribution Level 1, "Privacy Budget Store"), and
the ledger only ensures that no report is released twice.
"""

from __future__ import annotations

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.requery.adversary import Event, MeasureConversion, MechanismAnswer, Move, SaveImpression
from aggservice.campaign.requery.interactive import Adjacency, Without, ask
from aggservice.campaign.service.runner import EngineRunner, JobEndpoint
from aggservice.client import Summary
from aggservice.engine import EngineSettings, InlineOpener, LocalEngine
from aggservice.mechanisms import Bits, Clock, ManualClock
from aggservice.wire import AggregatableReport, KeySet
from budget import Ledger
from w3c_client import DEFAULT_SERVICE, Browser, Config, ConversionOptions, ImpressionOptions
from w3c_client.config import DAY_MS
from w3c_client.randomness import RandomW3cChoices, W3cChoices


class AttributionMechanism:
    """Browsers with budgets of their own before a service: events make reports and queries make jobs.

    Time starts at that of ``clock`` and advances by the days of each event. Without a ``runner``, jobs run in an
    engine over ``ledger`` that has no minimum batch. With ``without`` it is the neighbouring world: the same moves,
    without the impressions that one device saved in one epoch. ``draws`` are the random choices of all browsers.
    """

    def __init__(
        self,
        *,
        config: Config,
        ledger: Ledger,
        keys: KeySet,
        clock: Clock,
        bits: Bits,
        runner: JobEndpoint | None = None,
        without: Without | None = None,
        draws: W3cChoices | None = None,
    ) -> None:
        if without is not None and without.how is not Adjacency.REMOVED:
            raise CampaignError(f"neighbours of W3C Attribution are '{Adjacency.REMOVED}', not '{without.how}'")
        self._config, self._keys, self._bits = config, keys.public(clock), bits
        self._draws = draws or RandomW3cChoices(bits)
        self._clock = ManualClock(clock.now_ms())
        self._without = without
        self._runner = runner or EngineRunner(
            engine=LocalEngine(
                ledger=ledger,
                opener=InlineOpener(keys),
                clock=clock,
                bits=bits,
                settings=EngineSettings(w3c_minimum_batch=1),
            )
        )
        self.browsers: dict[int, Browser] = {}
        self._reports: list[AggregatableReport] = []
        self._round = 0

    def respond(self, move: Move) -> MechanismAnswer:
        """Process each event, then run the query as a job."""
        self._round += 1
        for event in move.events:
            self._take(event)
        query = move.query
        job_id = query.job_id or f"job {self._round}"
        reply = ask(self._runner, job_id, query, [self._reports[index] for index in query.reports])
        return MechanismAnswer(
            move=move,
            job_id=job_id,
            rows=reply.to_dict() if isinstance(reply, Summary) else None,
            return_code=reply.return_code,
            reports_sent=len(self._reports),
        )

    def _take(self, event: Event) -> None:
        if not isinstance(event, SaveImpression | MeasureConversion):
            raise CampaignError(
                "W3C Attribution has only impressions and conversions: play other events with a SummaryMechanism"
            )
        browser = self._browser(event.device)
        self._clock.advance(event.days * DAY_MS)
        if isinstance(event, MeasureConversion):
            report = browser.measure_conversion(event.site, event.options).sealed
            assert report is not None
            self._reports.append(report)
        elif not self._is_without(event, browser):
            browser.save_impression(
                event.site, ImpressionOptions(histogram_index=event.index, conversion_sites=event.conversion_sites)
            )

    def _browser(self, device: int) -> Browser:
        """Return the browser of a device. Its epochs begin before its first event, whatever kind of event that is."""
        if device not in self.browsers:
            browser = Browser(
                clock=self._clock, bits=self._bits, config=self._config, keys=self._keys, draws=self._draws
            )
            nothing = ConversionOptions(aggregation_service=DEFAULT_SERVICE, histogram_size=1)
            browser.measure_conversion("first.example", nothing)
            self.browsers[device] = browser
        return self.browsers[device]

    def _is_without(self, event: SaveImpression, browser: Browser) -> bool:
        gone = self._without
        if gone is None or event.device != gone.device or (gone.site and event.conversion_sites != (gone.site,)):
            return False
        assert browser.epoch_start_ms is not None
        return (self._clock.now_ms() - browser.epoch_start_ms) // self._config.epoch_ms == gone.epoch
