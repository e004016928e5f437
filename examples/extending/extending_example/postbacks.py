"""A device API: postbacks with tiers of crowd anonymity, as Apple documents SKAdNetwork 4 and AdAttributionKit.

A device's first conversion in an app is its install, which the last live ad wins. Each of three windows after it sends
one postback, with the last conversion of the window, after a random delay. A postback's tier says what it shows. The
tier follows from the crowd: how many installs the ad's source identifier has won so far. Left out: postbacks of ads
that did not win, locked windows, re-engagement, countries, and order numbers (``dedup_key``), which Apple has not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from aggservice.campaign.columns import Events, Fate, Flags, Ints, MeasuredConversions, ReportColumns, report_ids
from aggservice.campaign.devices.amounts import accepted, contribution_units
from aggservice.campaign.devices.browsers import BrowserFleet
from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS, Campaign
from aggservice.campaign.settings.device import DeviceApi
from aggservice.campaign.settings.distributions import uniform
from aggservice.campaign.settings.key_layout import KeyField
from aggservice.files.settings import Known, number, setting, text, whole
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits
from aggservice.wire import Api

WINDOWS, WINDOW_ENDS_MS = 3, np.array([2, 7, 35]) * DAY_MS
"""Windows count from the install: days 0 to 2, 3 to 7 and 8 to 35."""
LEAST_DELAY_HOURS, FURTHER_DELAY_HOURS = 24, np.array([24, 120, 120])
"""A postback leaves 24 to 48 hours after the first window, and 24 to 144 hours after the others."""
COARSE, FINE, PUBLISHER, NEVER = 1, 2, 3, 4
"""The least tiers that show a coarse value, a fine value and all digits, and the publisher."""
_SHOWN_FROM = {"impression": (0, FINE), "conversion": (COARSE, FINE), "site": (NEVER, PUBLISHER)}
"""The least tier that shows the first field of an origin in every postback; and the others, in the first postback."""


def _crowds(section: Section, key: str, known: Known) -> tuple[int, ...]:
    found = section.take(key)
    good = isinstance(found, list) and len(found) == 3 and all(type(one) is int and one >= 1 for one in found)
    if not good or sorted(found) != found:
        section.refuse(key, f"is {found!r}", "Write three whole numbers that do not decrease, such as [10, 50, 200]")
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Postbacks(DeviceApi):
    """Postbacks that the aggregation service sums: its noise and budget protect what an install contributes.

    Tiers alone are not differential privacy. An install also counts in the crowd of others and may lift up to three of
    them into a higher tier; ε does not cover that. The first field of impressions stands for two digits of the source
    identifier, the first of conversions for the coarse value; further fields, and measures of values, are the details.
    What a tier hides is sent as the field's value ``hidden``, or not sent if the field has no such value.
    """

    api = "postbacks"
    title = "Postbacks with crowd anonymity"
    short = "postbacks"
    colour = "#6b46c1"
    wire_api = Api.ATTRIBUTION_REPORTING

    click_priority: int = whole("above 0, clicks are attributed before views", default=1, least=0, most=1 << 31)
    view_days: float = number(
        "postbacks: how long a view lives; clicks live `expiry_days`", default=1.0, least=0, most=30, above=True
    )
    crowds: tuple[int, ...] = setting(
        "postbacks: how many installs a source identifier must have won for tiers 1, 2 and 3 (Apple publishes none)",
        read=_crowds,
        default=(10, 50, 200),
        allowed="three whole numbers",
    )
    hidden: str = text("postbacks: the value of a key field that stands for what a tier hides", default="hidden")

    def check_keys(self, section: Section, found: Sequence[KeyField]) -> None:
        """Refuse keys that say more than a source identifier or a conversion value can."""
        for origin, least, most in (("impression", 100, 10_000), ("conversion", 3, 64)):
            sizes = [len({*one.values} - {self.hidden}) for one in found if one.origin == origin]
            if sizes and (sizes[0] > least or prod(sizes) > most):
                section.refuse(
                    "fields",
                    f"have {sizes[0]} values of the first field from the {origin}, and {prod(sizes):,} combinations",
                    f"A postback has room for {least} and {most:,}: give the fields fewer values",
                )

    @property
    def caps_move(self) -> bool:
        """A tier moves a conversion to a slice of hidden values."""
        return True

    def unit_name(self, unit: int) -> str:
        """Return the name of an install by its conversion."""
        return f"install {unit}"

    def lifetime_ms(self, click: bool) -> int:
        """Return how long an ad can win."""
        return int((self.expiry_days if click else self.view_days) * DAY_MS)

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        """Run every device; return a report per postback and the ground truth."""
        bought = events.conversions
        natural, asked, amount = contribution_units(campaign, bought)
        count, measures = amount.shape
        known = (in_devices if self.uses_browsers(events) else in_columns)(self, campaign, events)
        sent = known.final & ((known.window == 0) | (known.tier >= COARSE))
        # An item is a conversion and a measure.
        of, measure = np.repeat(np.arange(count), measures), np.tile(np.arange(measures), count)
        flat, tier, later = amount.reshape(-1), known.tier[of], known.window[of] > 0
        codes = {name: column[of] for name, column in bought.codes.items()}
        for name, column in events.impressions.codes.items():
            codes[name] = column[np.maximum(known.winner[of], 0)] if column.size else np.zeros_like(of)
        codes |= {one.name: measure for one in campaign.keys.fields if one.origin == "measure"}
        true_high, true_low = campaign.keys.keys(codes, of.size)
        fine_only = np.array([one.of == "value" for one in campaign.measures])[measure]
        shown = sent[of] & ~(fine_only & (tier < np.where(later, NEVER, FINE)))
        for one, (first, then) in zip(campaign.keys.fields, _least_tiers(campaign.keys.fields), strict=True):
            lacks = tier < np.where(later, then, first)
            if self.hidden in one.values:
                codes[one.name] = np.where(lacks, one.values.index(self.hidden), codes[one.name])
            else:
                shown &= ~lacks
        key_high, key_low = campaign.keys.keys(codes, of.size)
        paid = self._within_budget(known, np.where(shown, flat, 0).reshape(count, measures).sum(axis=1))
        attributable = known.winner[of] >= 0
        fate = np.select(
            [flat == 0, ~attributable, ~known.final[of], ~shown, ~paid[of]],
            [Fate.NO_VALUE, Fate.NOT_ATTRIBUTED, Fate.DEDUPLICATED, Fate.BELOW_THRESHOLD, Fate.CAPPED_L1],
            Fate.ON_THE_WAY,
        ).astype(np.int8)
        kept = fate == Fate.ON_THE_WAY
        # A postback with nothing in it is a null report.
        row = np.flatnonzero(sent)
        sizes = kept.reshape(count, measures).sum(axis=1)[row]
        window, install = known.window[row], known.install[row]
        hours = LEAST_DELAY_HOURS + FURTHER_DELAY_HOURS[window] * uniform(bits.child("delays"), row.size)
        reports = ReportColumns(
            scheduled_ms=bought.time_ms[install] + WINDOW_ENDS_MS[window] + (hours * HOUR_MS).astype(np.int64),
            report_id=report_ids(bits.child("ids of postbacks"), row.size),
            destination=bought.destination[row],
            offset=np.cumsum([0, *sizes]),
            key_high=key_high[kept],
            key_low=key_low[kept],
            value=flat[kept],
            filtering_id=np.zeros(int(kept.sum()), dtype=np.uint64),
            null=sizes == 0,
            unit=np.where(sizes > 0, install, -1),
        )
        return reports, MeasuredConversions(
            conversion=of,
            measure=measure,
            time_ms=bought.time_ms[of],
            natural=natural.reshape(-1),
            asked=asked.reshape(-1),
            amount=flat,
            attributable=attributable & (natural.reshape(-1) > 0),
            true_high=true_high,
            true_low=true_low,
            key_high=key_high,
            key_low=key_low,
            report=np.where(kept, (np.cumsum(sent) - 1)[of], -1),
            fate=fate,
        )

    def _within_budget(self, known: Attributed, total: Ints) -> Flags:
        """Return which postbacks fit into what their install has left of Λ₁, window by window, whole or not at all."""
        left, fits = np.full(total.size, self.l1), np.zeros(total.size, dtype=np.bool_)
        for window in range(WINDOWS):
            row = np.flatnonzero(known.final & (known.window == window))  # at most one per install
            fits[row] = total[row] <= left[known.install[row]]
            left[known.install[row]] -= np.where(fits[row], total[row], 0)
        return fits


def _least_tiers(fields: Sequence[KeyField]) -> list[tuple[int, int]]:
    """Return the least tier that shows each field, in the first postback and in later ones."""
    first = {one.origin: one.name for one in reversed(fields)}
    shown = [(_SHOWN_FROM.get(one.origin, (0, 0)), one.name == first[one.origin]) for one in fields]
    return [(always, always) if leads and always < NEVER else (more, NEVER) for (always, more), leads in shown]


def _sources(campaign: Campaign, events: Events) -> Ints:
    """Return a number per ad: the same for ads of one app with the same source identifier."""
    shown, parts = events.impressions, [one.name for one in campaign.keys.fields if one.origin == "impression"]
    high, low = campaign.keys.keys(shown.codes, len(shown), names=parts)
    rows = np.stack((shown.destination.astype(np.uint64), high, low), axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """What devices know of conversions: rows of ad and install, −1 if there is none; the last of a window is final."""

    winner: Ints
    install: Ints
    window: Ints
    tier: Ints
    final: Flags

    @classmethod
    def none(cls, count: int) -> Attributed:
        """Return columns in which nothing is attributed."""
        return cls(**{name: np.full(count, -1) for name in cls.__slots__[:4]}, final=np.zeros(count, dtype=np.bool_))


@dataclass(slots=True, kw_only=True)
class Install:
    """An install on one device: the ad that won it, its tier, and the last conversion of each window so far."""

    conversion: int
    time_ms: int
    winner: int = -1
    tier: int = 0
    last: dict[int, int] = field(default_factory=dict)


class Device:
    """One device. ``crowd`` is the platform's count of installs that each source identifier has won, on all devices."""

    def __init__(self, api: Postbacks, crowd: Counter[int]) -> None:
        self._api, self._crowd = api, crowd
        self._ads: dict[int, list[tuple[int, int, bool, int]]] = {}
        self._installs: dict[int, Install] = {}

    def show(self, app: int, time_ms: int, ad: int, *, click: bool, source: int) -> None:
        """Keep an ad."""
        self._ads.setdefault(app, []).append((time_ms, ad, click, source))

    def convert(self, app: int, time_ms: int, conversion: int) -> tuple[Install, int, int]:
        """Return the install of a conversion, its window, and which conversion it replaces there (itself if none)."""
        install = self._installs.get(app)
        if install is None:
            install = self._installs[app] = Install(conversion=conversion, time_ms=time_ms)
            api = self._api
            live = [one for one in self._ads.get(app, ()) if time_ms - one[0] < api.lifetime_ms(one[2])]
            if live:
                _, install.winner, _, source = max(live, key=lambda one: (one[2] and api.click_priority > 0, one[1]))
                self._crowd[source] += 1
                install.tier = bisect_right(api.crowds, self._crowd[source])
        window = bisect_right(WINDOW_ENDS_MS.tolist(), time_ms - install.time_ms)
        replaced, install.last[window] = install.last.get(window, conversion), conversion
        return install, window, replaced


def in_devices(api: Postbacks, campaign: Campaign, events: Events) -> Attributed:
    """Run each device by itself, all events in order of time."""
    shown, bought, found = events.impressions, events.conversions, Attributed.none(len(events.conversions))
    source, asks, crowd = _sources(campaign, events).tolist(), accepted(campaign, bought), Counter[int]()
    devices = BrowserFleet(lambda device, clock: Device(api, crowd))
    for place, row in BrowserFleet.in_order(shown.time_ms.tolist(), bought.time_ms.tolist()):
        columns = (shown, bought)[place]
        app, time_ms = int(columns.destination[row]), int(columns.time_ms[row])
        device = devices.at(int(columns.device[row]), time_ms)
        if place == 0:
            device.show(app, time_ms, row, click=bool(shown.click[row]), source=source[row])
        elif asks[row]:
            install, window, replaced = device.convert(app, time_ms, row)
            if install.winner >= 0 and window < WINDOWS:
                found.winner[row], found.install[row] = install.winner, install.conversion
                found.window[row], found.tier[row] = window, install.tier
                found.final[replaced], found.final[row] = False, True
    return found


def in_columns(api: Postbacks, campaign: Campaign, events: Events) -> Attributed:
    """Return the same in columns. Of values that are assigned to one place, the last one stays."""
    shown, bought, found = events.impressions, events.conversions, Attributed.none(len(events.conversions))
    row = np.flatnonzero(accepted(campaign, bought))
    if not row.size:
        return found
    pair, own = (one.destination * events.devices + one.device for one in (shown, bought))
    pairs, first, of = np.unique(own[row], return_index=True, return_inverse=True)
    install = row[first]  # rows are in order of time
    place = np.minimum(np.searchsorted(pairs, pair), pairs.size - 1)
    age = bought.time_ms[install[place]] - shown.time_ms
    lifetime_ms = np.where(shown.click, api.lifetime_ms(True), api.lifetime_ms(False))
    live = np.flatnonzero((pairs[place] == pair) & (age >= 0) & (age < lifetime_ms))
    live = live[np.lexsort((live, shown.click[live] & (api.click_priority > 0)))]
    winner, tier = np.full(install.size, -1), np.zeros(install.size, dtype=np.int64)
    winner[place[live]] = live
    won = np.flatnonzero(winner >= 0)
    source = _sources(campaign, events)[winner[won]]
    won, source = (column[np.lexsort((install[won], source))] for column in (won, source))
    crowd = np.arange(won.size) - np.searchsorted(source, source) + 1
    tier[won] = np.searchsorted(api.crowds, crowd, side="right")
    window = np.searchsorted(WINDOW_ENDS_MS, bought.time_ms[row] - bought.time_ms[install[of]], side="right")
    inside = (winner[of] >= 0) & (window < WINDOWS)
    row, of, window = row[inside], of[inside], window[inside]
    found.winner[row], found.install[row], found.window[row], found.tier[row] = (
        winner[of],
        install[of],
        window,
        tier[of],
    )
    last = np.zeros(install.size * WINDOWS, dtype=np.int64)
    last[of * WINDOWS + window] = row
    found.final[row] = last[of * WINDOWS + window] == row
    return found
