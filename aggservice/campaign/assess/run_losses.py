"""``transcript.json`` and ``losses.csv`` of a run: what every job cost each unit, beside what the ledger charged.

Computes the ε_{x,t} and δ_{x,t} of ``aggservice.campaign.assess.losses`` in columns of whole numbers, for millions of
reports. A unit is a source, or for Private Aggregation a device within ten minutes, the window of its browser's budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.losses import ATTO, MICRO, PrivacyLoss, event_level_to_plain, loss_to_plain
from aggservice.campaign.columns import Flags, Ints
from aggservice.campaign.service.jobs import QueryAnswer
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.world.truth import Truth
from aggservice.mechanisms import Clock
from aggservice.wire import UNIT_BYTES, Api, SharedInfo
from aggservice.wire.batch.units import report_unit_keys, with_hours
from aggservice.wire.report.units import shared_id_unit
from budget import Delta, Epsilon, EpsilonDeltaFilter, Ledger, SqliteStore, UnitSet
from budget.amounts import decimal_text

Wide = NDArray[np.object_]
"""Python integers, of any size."""

_SHOWN_UNITS = 1000
"""``transcript.json`` lists this many units, those that lost most; ``losses.csv`` lists all."""
_HEADINGS = "t,job,unit,value,contributions,epsilon,delta,epsilon_charged,delta_charged\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitColumns:
    """The reports with contributions: unit (an index into ``units``), sum and number of contributions."""

    report: Ints
    unit: Ints
    value: Ints
    count: Ints
    units: Ints

    @classmethod
    def of(cls, truth: Truth) -> UnitColumns | None:
        """Return the columns of a run; None if the run did not keep the unit of each report."""
        reports = truth.reports
        if reports.unit is None:
            return None
        counted = (reports.filtering_id == 0) & (reports.value > 0)
        ends = np.concatenate(([0], np.cumsum(np.where(counted, reports.value, 0))))
        places = np.concatenate(([0], np.cumsum(counted.astype(np.int64))))
        value = ends[reports.offset[1:]] - ends[reports.offset[:-1]]
        count = places[reports.offset[1:]] - places[reports.offset[:-1]]
        report = np.flatnonzero((count > 0) & (reports.unit >= 0))
        units, place = np.unique(reports.unit[report], return_inverse=True)
        return cls(report=report, unit=place.reshape(-1), value=value[report], count=count[report], units=units)

    def sums(self, chosen: Flags, column: Ints) -> Wide:
        """Return the sum of a column over the chosen reports of each unit."""
        found = np.zeros(self.units.size, dtype=np.int64)
        np.add.at(found, self.unit[chosen], column[chosen])
        return found.astype(object)


def run_transcript(
    campaign: Campaign, truth: Truth, answers: Sequence[QueryAnswer], balances: Balances | None, table: Path
) -> Any:
    """Return the plain values of ``transcript.json`` and write every unit's losses into ``table``, as CSV.

    Returns None and writes no table if the run did not keep its units. ``balances`` are the ledger's, for
    ``UnitColumns.report``; without them (a remote service) nothing is compared.
    """
    columns = UnitColumns.of(truth)
    if columns is None:
        return None
    with table.open("w", encoding="utf-8", newline="") as stream:
        stream.write(_HEADINGS)
        return _transcript(campaign, truth, answers, balances, columns, stream)


def _transcript(
    campaign: Campaign,
    truth: Truth,
    answers: Sequence[QueryAnswer],
    balances: Balances | None,
    columns: UnitColumns,
    stream: TextIO,
) -> dict[str, Any]:
    names = [campaign.client.unit_name(unit) for unit in columns.units.tolist()]
    l1, l0 = campaign.client.l1, campaign.client.l0
    lost_epsilon, lost_delta = _zeros(columns), _zeros(columns)
    rounds = []
    for number, answer in enumerate(answers, 1):
        query = answer.job.query
        epsilon = Epsilon.parse(query.epsilon).micro
        if query.others_epsilon not in ("", "0"):
            epsilon += Epsilon.parse(query.others_epsilon).micro
        delta = Delta.parse(query.delta).atto if query.discovery else 0
        asked = np.zeros(len(truth.reports), dtype=np.bool_)
        for batch in answer.job.batches:
            asked[truth.collected.rows[batch]] = True
        plain: dict[str, Any] = {
            "t": number,
            "job_id": answer.job.name,
            "epsilon": decimal_text(epsilon, 6),
            "delta": str(Delta(atto=delta)),
            "reports": int(asked.sum()),
            "outcome": "released" if answer.paid else answer.reply.return_code,
            "units_with_a_loss": 0,
            "largest_loss": None,
        }
        if answer.paid:
            chosen = asked[columns.report]
            values, counts = columns.sums(chosen, columns.value), columns.sums(chosen, columns.count)
            lost_epsilon = lost_epsilon + values * epsilon
            lost_delta = lost_delta + counts * delta
            plain["units_with_a_loss"] = int(np.count_nonzero(counts))
            _write_round(stream, plain, names, values, counts, (epsilon, delta), (l1, l0))
            if counts.size:
                worst = int(np.argmax(values))
                loss = PrivacyLoss(
                    Fraction(values[worst] * epsilon, MICRO * l1), Fraction(counts[worst] * delta, ATTO * l0)
                )
                plain["largest_loss"] = {"unit": names[worst], **loss_to_plain(loss)}
        rounds.append(plain)
    limits = EpsilonDeltaFilter.parse(epsilon=campaign.service.epsilon, delta=campaign.service.delta)
    limit = PrivacyLoss.of(limits.limit)
    # Losses in these units are whole numbers, so that the limits may be rounded down: whole numbers compare faster.
    limit_epsilon, limit_delta = math.floor(limit.epsilon * MICRO * l1), math.floor(limit.delta * ATTO * l0)
    charged = None if balances is None else balances.by_share(columns)
    by_events = event_level_loss(campaign)
    _write_totals(stream, names, (lost_epsilon, lost_delta), charged, (l1, l0), by_events)
    order = np.lexsort((np.arange(columns.units.size), -lost_epsilon.astype(np.float64)))[:_SHOWN_UNITS]
    shown = []
    for place in order.tolist():
        lost = _loss(lost_epsilon[place], lost_delta[place], l1, l0)
        entry: dict[str, Any] = {
            "unit": names[place],
            "lost": loss_to_plain(lost),
            **event_level_to_plain(lost, by_events),
        }
        if charged is not None:
            entry["charged_by_share"] = loss_to_plain(_loss(charged[0][place], charged[1][place], l1, l0))
        shown.append(entry)
    found: dict[str, Any] = {
        "l1": l1,
        "l0": l0,
        "limit": loss_to_plain(limit),
        "rounds": rounds,
        "units": int(columns.units.size),
        "units_past_the_limit": int(np.count_nonzero((lost_epsilon > limit_epsilon) | (lost_delta > limit_delta))),
        "units_undercharged": None,
        "largest_losses": shown,
    }
    if campaign.client.event_level is not None:
        # A source without contributions loses by its event-level reports all the same, and no source loses less.
        nothing = {"unit": "source 0", "lost": loss_to_plain(PrivacyLoss())}
        found["event_level"] = {
            "sources": len(truth.events.impressions),
            "each": loss_to_plain(by_events),
            "largest_loss": shown[0] if shown else {**nothing, **event_level_to_plain(PrivacyLoss(), by_events)},
        }
    if charged is not None:
        under = (lost_epsilon > charged[0]) | (lost_delta > charged[1])
        found["units_undercharged"] = int(np.count_nonzero(under))
        if campaign.service.unit == "report" and balances is not None and balances.fresh:
            differ = (lost_epsilon != charged[0]) | (lost_delta != charged[1])
            found["units_charged_otherwise"] = int(np.count_nonzero(differ))
    return found


def _write_round(
    stream: TextIO,
    plain: dict[str, Any],
    names: list[str],
    values: Wide,
    counts: Wide,
    price: tuple[int, int],
    bounds: tuple[int, int],
) -> None:
    """Write ε_{x,t} and δ_{x,t} of every unit that lost something."""
    head = f"{plain['t']},{plain['job_id']},"
    epsilon, delta, unit_epsilon, unit_delta = *price, MICRO * bounds[0], ATTO * bounds[1]
    stream.writelines(
        # Divide last, so that each quotient is rounded only once.
        f'{head}"{name}",{value},{count},{value * epsilon / unit_epsilon:.9g},{count * delta / unit_delta:.9g},,\n'
        for name, value, count in zip(names, values.tolist(), counts.tolist(), strict=True)
        if count
    )


def _write_totals(
    stream: TextIO,
    names: list[str],
    lost: tuple[Wide, Wide],
    charged: tuple[Wide, Wide] | None,
    bounds: tuple[int, int],
    by_events: PrivacyLoss,
) -> None:
    """Write the total loss of every unit and what the ledger charged for it; then its loss with event-level reports."""
    unit_epsilon, unit_delta = MICRO * bounds[0], ATTO * bounds[1]
    columns = (column.tolist() for column in (*lost, *(charged or lost)))
    for name, epsilon, delta, paid_epsilon, paid_delta in zip(names, *columns, strict=True):
        paid = f"{paid_epsilon / unit_epsilon:.9g},{paid_delta / unit_delta:.9g}" if charged else ","
        stream.write(f'all,,"{name}",,,{epsilon / unit_epsilon:.9g},{delta / unit_delta:.9g},{paid}\n')
        if by_events.epsilon:
            both = Fraction(epsilon, unit_epsilon) + by_events.epsilon
            stream.write(f'together,,"{name}",,,{float(both):.9g},{delta / unit_delta:.9g},,\n')


def event_level_loss(campaign: Campaign) -> PrivacyLoss:
    """Return what every source loses by event-level reports, whatever happens (Theorem 5.1); 0 if they send none."""
    chosen = campaign.client.event_level
    return PrivacyLoss() if chosen is None else PrivacyLoss(chosen.epsilon)


def _zeros(columns: UnitColumns) -> Wide:
    return np.zeros(columns.units.size, dtype=np.int64).astype(object)


def _loss(epsilon: int, delta: int, l1: int, l0: int) -> PrivacyLoss:
    return PrivacyLoss(Fraction(int(epsilon), MICRO * l1), Fraction(int(delta), ATTO * l0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Balances:
    """The ledger's balance of each report of ``UnitColumns.report``; ``fresh`` if the ledger began with this run."""

    loss_micro: Ints
    delta_atto: Ints
    fresh: bool

    def by_share(self, columns: UnitColumns) -> tuple[Wide, Wide]:
        """Return Σ_y spent_y · v_y (10⁻⁶ of ε times Λ₁) and Σ_y δ_y · n_y of each unit."""
        epsilon, delta = _zeros(columns), _zeros(columns)
        np.add.at(epsilon, columns.unit, self.loss_micro.astype(object) * columns.value.astype(object))
        np.add.at(delta, columns.unit, self.delta_atto.astype(object) * columns.count.astype(object))
        return epsilon, delta

    @classmethod
    def read(
        cls, path: Path, campaign: Campaign, truth: Truth, api: Api, clock: Clock, *, fresh: bool
    ) -> Balances | None:
        """Read the balances of every report with contributions from a SQLite ledger."""
        columns = UnitColumns.of(truth)
        if columns is None:
            return None
        keys = unit_keys(campaign, truth, columns.report, api)
        # Compared as raw bytes, so the distinct keys are in ascending order.
        distinct, index = np.unique(keys.view(f"V{UNIT_BYTES}")[:, 0], return_inverse=True)
        store = SqliteStore(path)
        try:
            spent = Ledger.open(store, clock=clock).balances(UnitSet(distinct.view(np.uint8).reshape(-1, UNIT_BYTES)))
        finally:
            store.close()
        return cls(loss_micro=spent.loss_micro[index], delta_atto=spent.delta_atto[index], fresh=fresh)


def unit_keys(campaign: Campaign, truth: Truth, rows: Ints, api: Api) -> NDArray[np.uint8]:
    """Return the ledger's key of each report for filtering ID 0: that of the report or of its shared ID."""
    reports = truth.reports
    times_s = reports.scheduled_ms[rows] // 1000
    if campaign.service.unit == "report":
        origin = np.zeros(rows.size, dtype=np.int64)
        return report_unit_keys([campaign.reporting_origin], origin, reports.report_id[rows], times_s)[:, 0]
    by_destination = np.empty((len(campaign.population.destinations), 16), dtype=np.uint8)
    for place, destination in enumerate(campaign.population.destinations):
        info = SharedInfo(
            api=api,
            report_id="00000000-0000-4000-8000-000000000000",
            reporting_origin=campaign.reporting_origin,
            scheduled_report_time_s=0,
            attribution_destination=destination if api.has_destination else None,
        )
        by_destination[place] = np.frombuffer(shared_id_unit(info)[4:], dtype=np.uint8)
    return with_hours(times_s, by_destination[reports.destination[rows], None])[:, 0]
