"""Event-level reports with randomized response, and the correction that makes their counts unbiased.

No service takes part: the browser adds the noise (Algorithms 4 and 8 and Figure 3 of the Privacy Sandbox paper). An
ad's true state is what Algorithm 4 would send; with probability |O| / (|O| − 1 + e^ε) a uniform state is sent instead.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aggservice.campaign.assess.slices import Slice
from aggservice.campaign.columns import Events, Flags, Floats
from aggservice.campaign.metrics import MeasureErrors, SliceColumns
from aggservice.campaign.settings.campaign import DAY_MS, Campaign, EventLevelSettings
from aggservice.mechanisms import Bits
from ara_client import Corrector, StateSpace, TriggerDataSpec, draw_states, response_rate
from ara_client.event_noise.response import TRUTHFUL
from ara_client.model import EventClient, EventSource, Trigger, TrigSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReports:
    """One row per ad, one column per (kind, amount): ``true`` says whether Algorithm 4 sends a report, ``sent`` whether
    one was sent."""

    columns: tuple[tuple[str, int], ...]
    true: Flags
    sent: Flags
    truthful: Flags
    attributed: int

    def __len__(self) -> int:
        return self.true.shape[0]


def settings_of(campaign: Campaign) -> EventLevelSettings:
    """Return the settings of a campaign whose sources send event-level reports."""
    settings = campaign.client.event_level
    assert settings is not None
    return settings


def spec_of(settings: EventLevelSettings) -> tuple[TrigSpec, ...]:
    """Return the trigger specification in milliseconds."""
    return tuple(
        TrigSpec(place, tuple(int(day * DAY_MS) for day in windows), settings.buckets[kind])
        for place, (kind, windows) in enumerate(settings.windows_days.items())
    )


def space_of(settings: EventLevelSettings) -> StateSpace:
    """Return all combinations of reports that an ad can send."""
    kinds = [
        TriggerDataSpec(trigger_data=place, windows=len(windows), buckets=len(settings.buckets[kind]))
        for place, (kind, windows) in enumerate(settings.windows_days.items())
    ]
    return StateSpace(kinds, settings.max_reports)


def report_events(campaign: Campaign, events: Events, bits: Bits) -> EventReports:
    """Simulate the reports of every ad: Algorithm 4 gives the true ones; a random draw per ad decides what is sent."""
    settings = settings_of(campaign)
    space = space_of(settings)
    columns = [(kind, amount) for kind in settings.windows_days for amount in settings.buckets[kind]]
    place = {column: number for number, column in enumerate(columns)}
    kinds = list(settings.windows_days)
    ads = len(events.impressions)
    true = np.zeros((ads, len(columns)), dtype=np.bool_)
    attributed = 0
    for ad, kind, amount, counted in _true_reports(campaign, events, settings):
        attributed += counted
        if ad >= 0:
            true[ad, place[kinds[kind], amount]] = True
    drawn = draw_states(bits, space.count, settings.epsilon, ads)
    sent = true.copy()
    for ad in np.flatnonzero(drawn != TRUTHFUL).tolist():
        sent[ad] = False
        for data, _, bucket in space.at(int(drawn[ad])):
            chosen = kinds[data]
            sent[ad, place[chosen, settings.buckets[chosen][bucket]]] = True
    return EventReports(columns=tuple(columns), true=true, sent=sent, truthful=drawn == TRUTHFUL, attributed=attributed)


def _true_reports(campaign: Campaign, events: Events, settings: EventLevelSettings) -> list[tuple[int, int, int, int]]:
    """Return (ad, kind, amount, 0) per report that Algorithm 4 sends, and (−1, 0, 0, 1) per purchase it attributes.

    Devices without a purchase have no true report and are left out.
    """
    views, bought = events.impressions, events.conversions
    specs, life = spec_of(settings), int(campaign.client.expiry_days * DAY_MS)
    kinds = list(settings.windows_days)
    names = campaign.keys.field(settings.field).values
    code_of = {names.index(kind): number for number, kind in enumerate(kinds)}
    order = np.argsort(views.device, kind="stable")
    owners = views.device[order]
    by_device = np.argsort(bought.device, kind="stable")
    buyers, starts = np.unique(bought.device[by_device], return_index=True)
    found: list[tuple[int, int, int, int]] = []
    each = np.split(by_device, starts[1:]) if buyers.size else []
    for device, purchases in zip(buyers.tolist(), each, strict=True):
        mine = order[np.searchsorted(owners, device) : np.searchsorted(owners, device, side="right")]
        if not mine.size:
            continue
        client = EventClient()
        waiting = [(int(views.time_ms[ad]), int(ad)) for ad in mine]
        now = -1
        for purchase in purchases.tolist():
            time = int(bought.time_ms[purchase])
            while waiting and waiting[0][0] <= time:
                shown, ad = waiting.pop(0)
                found += [(one.src_id, one.trig_data, one.bucket, 0) for _, one in client.pass_windows(now, shown)]
                now = shown
                client.register_source(_source(ad, shown, life, int(views.destination[ad]), specs, settings))
            found += [(one.src_id, one.trig_data, one.bucket, 0) for _, one in client.pass_windows(now, time)]
            now = time
            data = code_of.get(int(bought.codes[settings.field][purchase]))
            if data is None:
                continue
            before = sum(client.v.values())
            value = int(bought.value[purchase])
            client.register_trigger(Trigger(time, str(bought.destination[purchase]), frozenset({"any"}), data, value))
            found += [(-1, 0, 0, 1)] * (sum(client.v.values()) > before)
        end = campaign.population.start_ms + 2 * campaign.population.days * DAY_MS + life
        found += [(one.src_id, one.trig_data, one.bucket, 0) for _, one in client.pass_windows(now, end)]
    return found


def _source(
    ad: int, shown: int, life: int, destination: int, specs: tuple[TrigSpec, ...], settings: EventLevelSettings
) -> EventSource:
    return EventSource(
        src_id=ad,
        dest=str(destination),
        registered=shown,
        exp_date=shown + life,
        src_filt=frozenset({"any"}),
        max_rep=settings.max_reports,
        trig_spec=specs,
    )


def correct(campaign: Campaign, reports: EventReports) -> tuple[list[Slice], list[MeasureErrors]]:
    """Return the true number of reports, the corrected estimate and its interval, per kind and amount."""
    settings = settings_of(campaign)
    corrector = Corrector(space_of(settings), epsilon=settings.epsilon)
    kinds = list(settings.windows_days)
    rows = []
    for number, (kind, amount) in enumerate(reports.columns):
        observed = int(reports.sent[:, number].sum())
        found = corrector.reports(
            [len(reports) - observed, observed],
            trigger_data=kinds.index(kind),
            bucket=settings.buckets[kind].index(amount),
        )
        low, high = found.interval
        truth = int(reports.true[:, number].sum())
        rows.append(
            Slice(
                names={"kind": kind, "amount": f"{amount} or more", "received": f"{observed:,} received"},
                measure="reports",
                truth=float(truth),
                sent=truth,
                estimate=found.value,
                low=low,
                high=high,
                covered=low <= truth <= high,
                above_noise=truth > high - found.value,
            )
        )
    truths, estimates = (np.array([getattr(row, name) for row in rows]) for name in ("truth", "estimate"))
    slices = SliceColumns(
        truth=truths,
        sent=truths,
        estimate=estimates,
        width=np.array([row.high - row.estimate for row in rows]),
        covered=np.array([row.covered for row in rows], dtype=np.bool_),
        above_noise=np.array([row.above_noise for row in rows], dtype=np.bool_),
        tau=1.0,
    )
    figures = MeasureErrors.over(slices, campaign.metrics, measure="reports", truth=float(truths.sum()), bias=0.0)
    return rows, [figures]


def guarantee(settings: EventLevelSettings) -> str:
    """Return the privacy guarantee as a sentence."""
    space = space_of(settings)
    rate = response_rate(space.count, float(settings.epsilon))
    return (
        f"Each ad's reports are ε = {float(settings.epsilon):g} differentially private: of {space.count:,} possible "
        f"combinations of reports, one drawn at random is sent in place of the true one with probability {rate:.3g}."
    )


def write_labels(campaign: Campaign, events: Events, reports: EventReports, path: Path) -> None:
    """Write the training set that an ad-tech would have: the features of each ad and the reports received for it.

    ``label`` is 1 if any report came. ``corrected`` removes the noise in expectation, so that its averages are
    unbiased.
    """
    label, corrected, _ = labels(settings_of(campaign), reports)
    views = events.impressions
    fields = [field for field in campaign.keys.fields if field.name in views.codes]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["ad", *(field.name for field in fields), "click", "label", "corrected"]
            + [f"{kind} {amount}" for kind, amount in reports.columns]
        )
        for ad in range(len(reports)):
            features = [field.value_of(int(views.codes[field.name][ad])) for field in fields]
            found = reports.sent[ad].astype(int).tolist()
            writer.writerow([ad, *features, int(views.click[ad]), int(label[ad]), f"{corrected[ad]:.6f}", *found])


def labels(settings: EventLevelSettings, reports: EventReports) -> tuple[Floats, Floats, Floats]:
    """Return noisy labels (1 if any report came), corrected labels and true labels."""
    space = space_of(settings)
    rate = response_rate(space.count, float(settings.epsilon))
    by_chance = 1 - 1 / space.count  # every state but the empty one has a report
    noisy: Floats = np.asarray(reports.sent.any(axis=1), dtype=np.float64)
    true: Floats = np.asarray(reports.true.any(axis=1), dtype=np.float64)
    return noisy, (noisy - rate * by_chance) / (1 - rate), true


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionModel:
    """How far models trained on noisy and on corrected labels are from the one trained on the truth.

    Each distance is the root mean square over ads of the difference between predicted conversion rates.
    """

    ads: int
    features: int
    conversion_rate: float = 0.0
    distance_noisy: float = 0.0
    distance_corrected: float = 0.0


def conversion_model(campaign: Campaign, events: Events, reports: EventReports) -> ConversionModel:
    """Fit the same linear model of conversion to noisy, corrected and true labels, and compare the predictions.

    It is a least-squares fit on one-hot features of the ad's fields and of the click.
    """
    views = events.impressions
    if not len(reports):
        return ConversionModel(ads=0, features=0)
    parts = [np.ones((len(reports), 1)), views.click.astype(np.float64)[:, None]]
    for field in campaign.keys.fields:
        if field.name in views.codes and len(field.values) > 1:
            parts.append(np.eye(len(field.values))[views.codes[field.name]][:, 1:])
    features = np.hstack(parts)
    targets = labels(settings_of(campaign), reports)
    noisy, corrected, true = (features @ np.linalg.lstsq(features, one, rcond=None)[0] for one in targets)
    return ConversionModel(
        ads=len(reports),
        features=features.shape[1],
        conversion_rate=float(np.mean(true)),
        distance_noisy=float(np.sqrt(np.mean((noisy - true) ** 2))),
        distance_corrected=float(np.sqrt(np.mean((corrected - true) ** 2))),
    )
