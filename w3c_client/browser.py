"""``Browser``: one user's W3C Attribution, Level 1, with budgets on the device.

>>> from aggservice.mechanisms import ManualClock, SeededBits
>>> clock = ManualClock(1_700_000_000_000)
>>> browser = Browser(clock=clock, bits=SeededBits("docs"))
>>> browser.save_impression("news.example", ImpressionOptions(histogram_index=2))
>>> clock.advance(3_600_000)
>>> wanted = ConversionOptions(aggregation_service=DEFAULT_SERVICE, histogram_size=4, value=3, max_value=10)
>>> browser.measure_conversion("shop.example", wanted).histogram
(0, 0, 3, 0)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final
from uuid import UUID

from aggservice.mechanisms import Bits, Clock
from aggservice.wire import AggregatableReport, Api, Contribution, PublicKeySet, SharedInfo, make_report, parse_origin
from aggservice.wire.device import CallError, SentReport
from w3c_client.attribution import Attributed, Attributor, EpochOutcome
from w3c_client.budgets import BudgetStores, epsilon_micro
from w3c_client.config import DEFAULT_SERVICE, TEE_PROTOCOL, Config
from w3c_client.errors import ErrorName, HeaderError
from w3c_client.headers import (
    CLEAR_HEADER,
    MEASURE_HEADER,
    SAVE_HEADER,
    clears_impressions,
    parse_measure_conversion,
    parse_save_impression,
)
from w3c_client.options import (
    CallSites,
    ConversionOptions,
    ImpressionOptions,
    Page,
    call_sites,
    check_conversion,
    check_impression,
    parse_site,
)
from w3c_client.randomness import RandomW3cChoices, W3cChoices
from w3c_client.rules import EpochUse, OnDeviceRule, rule_of
from w3c_client.storage import (
    Epochs,
    Impression,
    ImpressionStore,
    clear_impressions_for_site,
    exhaust_sites,
    forget_visits,
)

#: The request destinations whose responses may use the headers (specification, "Fetch monkey patches").
_DESTINATIONS: Final = frozenset({"", "audio", "image", "script", "track", "video"})

__all__ = ["DEFAULT_SERVICE", "Browser", "Conversion", "ConversionReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEntry:
    """The remaining amount of one budget of an on-device rule in one epoch; ``scope`` has a value per column."""

    rule: str
    epoch: int
    scope: tuple[int | str, ...]
    left_micro: int

    @property
    def site(self) -> str:
        """The scope as text, which is a site for most rules; empty for the global budget."""
        return " ".join(map(str, self.scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReport:
    """A report that this browser made: its time, the site and caller, and the parameters that the page gave."""

    time_ms: int
    conversion_site: str
    caller: str
    aggregation_service: str
    histogram_size: int
    value: int
    max_value: int
    epsilon_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The result of a conversion. A page receives ``sealed`` alone; everything else is for the simulator.

    ``histogram`` is what the report holds. ``outside`` is the value that no index of the histogram gets; ``epochs``
    says what each epoch with matches paid, or which rule refused it. ``enabled`` is False if the user has turned the
    API off. ``sealed`` is the report for the service; it is None without keys, and for services with the protocol DAP,
    which is not final.
    """

    histogram: tuple[int, ...]
    value: int
    max_value: int
    epsilon_micro: int
    conversion_site: str
    caller: str
    aggregation_service: str
    time_ms: int
    enabled: bool
    outside: int
    single_epoch: bool
    epochs: tuple[EpochOutcome, ...]
    sealed: AggregatableReport | None = None

    @property
    def refused_by(self) -> frozenset[str]:
        """The names of the rules that refused an epoch of this conversion."""
        return frozenset(outcome.refused_by for outcome in self.epochs if outcome.refused_by is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport(SentReport):
    """A report that a ``Measure-Conversion`` header asked for: POSTed to ``url`` without credentials."""

    conversion: Conversion


@dataclass(slots=True)
class _Tab:
    enabled: bool = False
    activated_ms: int = 0  # the Unix epoch


class Activations:
    """Whether the API is enabled in each tab, and its last activation (specification, "Attribution API Activation").

    This state is separate from HTML's transient activation: neither consumes the other.
    """

    def __init__(self, config: Config) -> None:
        self._duration_ms = config.activation_duration_ms
        self._consume = config.consume_activation
        self._tabs: dict[str, _Tab] = {}

    def activate(self, tab: str, now_ms: int) -> None:
        """Record a user's input in a tab, or a navigation that the user began in the browser's own interface."""
        self._tabs.setdefault(tab, _Tab()).activated_ms = now_ms

    def leave_site(self, tab: str) -> None:
        """Record that the tab went to another site: the API must be enabled again."""
        self._tabs.setdefault(tab, _Tab()).enabled = False

    def close(self, tab: str) -> None:
        """Forget a tab."""
        self._tabs.pop(tab, None)

    def check(self, tab: str, now_ms: int) -> None:
        """Enable the API in a tab that was activated recently; raise ``NotAllowedError`` if it is not enabled then."""
        state = self._tabs.get(tab) or _Tab()
        if state.enabled:
            return
        if state.activated_ms + self._duration_ms < now_ms:
            raise CallError(
                ErrorName.NOT_ALLOWED, "no recent user activation in this tab: call soon after a user's input"
            )
        state.enabled = True
        if self._consume:
            state.activated_ms = 0
        self._tabs[tab] = state


class Browser:
    """Saves impressions, measures conversions, and keeps the budgets of one user.

    ``keys`` are the public keys of the aggregation service; without them conversions have no sealed report. ``draws``
    replaces the random choices that come from ``bits``.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        bits: Bits,
        config: Config | None = None,
        keys: PublicKeySet | None = None,
        draws: W3cChoices | None = None,
    ) -> None:
        self.config = Config() if config is None else config
        self.enabled = True
        self._clock = clock
        self._bits = bits
        self._keys = keys
        self._epochs = Epochs(self.config, RandomW3cChoices(bits) if draws is None else draws)
        self._impressions = ImpressionStore(self._epochs, self.config.impressions_per_site)
        self._budgets = BudgetStores(self.config)
        self._attributor = Attributor(self.config, self._epochs.draws, self._epochs, self._impressions, self._budgets)
        self._activations = Activations(self.config)
        self._lock = Lock()
        self._reports: deque[PastReport] = deque(maxlen=self.config.reports_kept)

    # What pages call

    def save_impression(self, page: Page | str, options: ImpressionOptions | Mapping[str, Any]) -> None:
        """Save an impression (``saveImpression``), or raise ``CallError`` and change nothing.

        ``options`` may be a dictionary with the platform's names. The caller does not learn whether the impression was
        stored.
        """
        given = options if isinstance(options, ImpressionOptions) else ImpressionOptions.from_members(options)
        page = Page(top_level=page) if isinstance(page, str) else page
        sites = call_sites(page.top_level, page.frame)
        self._allow(page, page.may_save, "save-impression")
        self._save(given, sites, page)

    def measure_conversion(self, page: Page | str, options: ConversionOptions | Mapping[str, Any]) -> Conversion:
        """Measure a conversion (``measureConversion``), or raise ``CallError`` and change nothing.

        A valid call always has a result. Its histogram is all zeros if nothing matched, no epoch could pay, or the API
        is off.
        """
        given = options if isinstance(options, ConversionOptions) else ConversionOptions.from_members(options)
        page = Page(top_level=page) if isinstance(page, str) else page
        sites = call_sites(page.top_level, page.frame)
        self._allow(page, page.may_measure, "measure-conversion")
        return self._measure(given, sites, page)

    def respond(
        self, page: Page | str, url: str, headers: Mapping[str, str], *, destination: str = ""
    ) -> list[ConversionReport]:
        """Handle the headers of a response that a page received; return the report that is sent, if any.

        The caller is the origin of the response, whoever made the request. A malformed header is ignored, and so is one
        whose call is rejected; the other headers still count. Impressions are saved before conversions are measured.
        ``Clear-Site-Data`` works in every https response, the other two headers only for some request destinations.
        """
        page = Page(top_level=page) if isinstance(page, str) else page
        origin = parse_origin(url)
        if origin is None or origin.scheme != "https":
            return []
        found = {name.lower(): text for name, text in headers.items()}
        if clears_impressions(found.get(CLEAR_HEADER.lower(), "")):
            self.clear_impressions_for_site(origin.host)
        if destination not in _DESTINATIONS:
            return []
        asked = replace(page, frame=origin.host)
        sent = []
        if (text := found.get(SAVE_HEADER.lower())) is not None:
            with suppress(HeaderError, CallError):
                self.save_impression(asked, parse_save_impression(text))
        if (text := found.get(MEASURE_HEADER.lower())) is not None:
            with suppress(HeaderError, CallError):
                options, to = parse_measure_conversion(text, url)
                done = self.measure_conversion(asked, options)
                sent.append(ConversionReport(url=to, time_ms=done.time_ms, sealed=done.sealed, conversion=done))
        return sent

    # What users do

    def activate(self, tab: str) -> None:
        """Record a user's input in a tab, or a navigation begun in the browser's own interface."""
        self._activations.activate(tab, self._clock.now_ms())

    def navigate(self, tab: str, *, same_site: bool = False) -> None:
        """Record a navigation of the tab's top level; one to another site disables the API until a new activation."""
        if not same_site:
            self._activations.leave_site(tab)

    def clear_impressions_for_site(self, site: str) -> None:
        """Remove a site's impressions, and its name from those of others, as its ``Clear-Site-Data`` header does."""
        parsed = parse_site(site)
        if parsed is not None:
            clear_impressions_for_site(self._impressions, parsed)

    def clear_site_data(self, sites: Collection[str]) -> None:
        """Clear data of sites but keep the visits: their budgets become 0 in every epoch that attribution can use."""
        parsed = self._parse(sites)
        if not parsed:
            raise CallError(ErrorName.TYPE, "sites is empty: give at least one site whose data to clear")
        exhaust_sites(self._budgets, self._epochs, parsed, self._clock.now_ms())

    def forget_visits(self, sites: Collection[str] | None = None) -> None:
        """Forget the visits to some sites, or to all if none are given. Attribution resumes with the next epoch.

        Forgetting all visits deletes the global budgets too: every budget is full again, as the specification says.
        """
        parsed = None if sites is None else self._parse(sites)
        forget_visits(self._impressions, self._budgets, self._epochs, parsed or None, self._clock.now_ms())

    # What users may see

    @property
    def impressions(self) -> tuple[Impression, ...]:
        """The stored impressions. Expired ones are still stored, but they do not match."""
        return tuple(self._impressions)

    @property
    def budgets(self) -> tuple[BudgetEntry, ...]:
        """The remaining amount of every budget that was charged, in order of rule, epoch and scope."""
        return tuple(
            BudgetEntry(rule=rule.name, epoch=int(epoch), scope=tuple(scope), left_micro=left)
            for rule in self.config.rules
            for (epoch, *scope), left in sorted(self._budgets.entries(rule))
        )

    @property
    def reports(self) -> tuple[PastReport, ...]:
        """The latest reports that this browser made, oldest first."""
        return tuple(self._reports)

    @property
    def epoch_start_ms(self) -> int | None:
        """When epoch 0 begins, or None before it is needed, which a conversion does. No site may learn it."""
        return self._epochs.start_ms

    # What only a simulation may see

    def left(self, rule: OnDeviceRule | str, *scope: int | str) -> int:
        """Return the remaining amount of a budget in the current epoch, given a value per column of its scope."""
        epoch = 0 if self._epochs.start_ms is None else self._epochs.index(self._clock.now_ms())
        return self._budgets.left(rule_of(rule), epoch, *scope)

    def sites_saved(self) -> frozenset[str]:
        """Return the impression sites that have a stored impression of the current epoch."""
        return self._impressions.sites_of_epoch(self._clock.now_ms())

    def check(self) -> None:
        """Assert every invariant of the stores."""
        self._impressions._check()
        self._budgets._check()

    def _allow(self, page: Page, allowed: bool, feature: str) -> None:
        if not allowed:
            raise CallError(ErrorName.NOT_ALLOWED, f"the permissions policy denies {feature}")
        if page.tab is not None:
            self._activations.check(page.tab, self._clock.now_ms())

    def _save(self, options: ImpressionOptions, sites: CallSites, page: Page) -> None:
        checked = check_impression(options, self.config)
        if not self.enabled:
            return
        now_ms = self._clock.now_ms()
        if self._budgets.counts_sites:
            epoch = self._epochs.index(now_ms)
            use = EpochUse(epoch=epoch, site=sites.top_level, caller=sites.caller, action=page.action)
            if not self._budgets.admit(use):
                return
        self._impressions.save(
            Impression(
                match_value=options.match_value,
                impression_site=sites.top_level,
                intermediary=sites.intermediary,
                conversion_sites=checked.conversion_sites,
                conversion_callers=checked.conversion_callers,
                time_ms=now_ms,
                lifetime_ms=checked.lifetime_ms,
                histogram_index=options.histogram_index,
                priority=options.priority,
            )
        )

    def _measure(self, options: ConversionOptions, sites: CallSites, page: Page) -> Conversion:
        checked = check_conversion(options, self.config)
        now_ms = self._clock.now_ms()
        if self.enabled:
            with self._lock:  # the specification's attribution budget lock
                done = self._attributor.attribute(checked, sites, now_ms, page.action)
        else:
            done = Attributed(histogram=(0,) * options.histogram_size, outside=0, single_epoch=False, epochs=())
        micro = epsilon_micro(options.epsilon)
        self._reports.append(
            PastReport(
                time_ms=now_ms,
                conversion_site=sites.top_level,
                caller=sites.caller,
                aggregation_service=options.aggregation_service,
                histogram_size=options.histogram_size,
                value=options.value,
                max_value=options.max_value,
                epsilon_micro=micro,
            )
        )
        return Conversion(
            histogram=done.histogram,
            value=options.value,
            max_value=options.max_value,
            epsilon_micro=micro,
            conversion_site=sites.top_level,
            caller=sites.caller,
            aggregation_service=options.aggregation_service,
            time_ms=now_ms,
            enabled=self.enabled,
            outside=done.outside,
            single_epoch=done.single_epoch,
            epochs=done.epochs,
            sealed=self._seal(options, done.histogram, sites, now_ms, micro),
        )

    def _seal(
        self, options: ConversionOptions, histogram: tuple[int, ...], sites: CallSites, now_ms: int, micro: int
    ) -> AggregatableReport | None:
        """Return the report that a page receives. A histogram of zeros has the same size as any other."""
        if self._keys is None or self.config.aggregation_services[options.aggregation_service] != TEE_PROTOCOL:
            return None
        info = SharedInfo(
            api=Api.W3C_ATTRIBUTION,
            report_id=str(UUID(bytes=self._bits.read(16), version=4)),
            reporting_origin=f"https://{sites.caller}",
            attribution_destination=f"https://{sites.top_level}",
            scheduled_report_time_s=now_ms // 1000,
            histogram_size=len(histogram),
            max_value=options.max_value,
            epsilon_micro=micro,
        )
        return make_report(
            [Contribution(bucket=index, value=amount) for index, amount in enumerate(histogram) if amount],
            shared_info=info,
            keys=self._keys,
            bits=self._bits,
            maximum=self.config.payload_slots(options.histogram_size),
            aggregation_coordinator_origin=None,
        )

    @staticmethod
    def _parse(sites: Iterable[str]) -> frozenset[str]:
        parsed = set()
        for text in sites:
            site = parse_site(text)
            if site is None:
                raise CallError(ErrorName.SYNTAX, f"{text!r} is not a site: use a host name with a registrable domain")
            parsed.add(site)
        return frozenset(parsed)
