"""The paper's clients and the fleets under search: Algorithms 2 and 3, and many devices in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import numpy as np

from aggservice.mechanisms import SeededBits
from aggservice.wire import Api
from ara_client import Fleet, FleetRules, SourceColumns, TriggerColumns, match_table
from ara_client.model import Source, SummaryClient
from budget import Sensitivity
from paa_client import Config, PaaSrClient
from paa_client import Fleet as Devices
from paa_client.recipes.frequency import KPlusFrequency

from .climbing import Problem
from .worlds import MARK, MINUTE_MS, Measured, Sent, compare

LAMBDA_1, LAMBDA_0 = 16, 3
_VALUES = (1, 2, 5, 8, 11, 16)
_FILTERS = (1, 2, 3)
_NAMES = {mask: frozenset(name for bit, name in enumerate("xy") if mask >> bit & 1) for mask in _FILTERS}
ARA, SHARED = Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE
PAPER = Sensitivity(l1=LAMBDA_1, l0=LAMBDA_0)
DEPLOYED = Sensitivity(l1=LAMBDA_1, l0=LAMBDA_1)


def _sent(api: Api, contributions: tuple[tuple[int, int, int], ...]) -> Sent:
    return Sent(api=api, time_ms=0, destination=None, contributions=contributions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ad:
    """A source, which lives for some events."""

    dest: int
    mask: int
    life: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale:
    """A trigger."""

    dest: int
    mask: int
    value: int
    context_id: bool


def _draw_shop(rng: Random) -> Ad | Sale:
    dest = rng.choices(range(2), weights=(4, 1))[0]
    if rng.random() < 0.35:
        return Ad(dest=dest, mask=rng.choice(_FILTERS), life=rng.choice((1, 5, 100)))
    return Sale(dest=dest, mask=rng.choice(_FILTERS), value=rng.choice(_VALUES), context_id=rng.random() < 0.5)


def _vary_shop(rng: Random, event: Ad | Sale) -> Ad | Sale:
    other = _draw_shop(rng)
    if type(other) is not type(event):
        return other
    name = rng.choice(type(event).__slots__)
    return replace(event, **{name: getattr(other, name)})


def _algorithm_2(events: tuple[Ad | Sale, ...], unit: int | None) -> list[Sent]:
    client = SummaryClient(contribution_budget=LAMBDA_1, sparsity_budget=LAMBDA_0, bits=SeededBits("algorithm 2"))
    sent = []
    for now, event in enumerate(events):
        if isinstance(event, Ad):
            key = now << 8 | (MARK if now == unit else 0)
            client.register_source(
                Source(
                    src_id=now,
                    dest=str(event.dest),
                    exp_date=now + event.life,
                    src_filt=_NAMES[event.mask],
                    src_key=key,
                )
            )
            continue
        report = client.register_trigger(
            now,
            dest=str(event.dest),
            trig_id=now,
            trig_filt=_NAMES[event.mask],
            trig_key=now + 1,
            trig_value=event.value,
        )
        made = () if report.key is None or report.value is None else ((report.key, 0, report.value),)
        sent.append(_sent(ARA, made))
    return sent


def _fleet(events: tuple[Ad | Sale, ...], unit: int | None, form: Literal["deployed", "paper"]) -> list[Sent]:
    rules = FleetRules(form=form, contribution_budget=LAMBDA_1, max_reports=LAMBDA_0)
    table = match_table(_FILTERS, _FILTERS, lambda source, trigger: bool(source & trigger))
    ads = [(place, event) for place, event in enumerate(events) if isinstance(event, Ad)]
    sales = [(place, event) for place, event in enumerate(events) if isinstance(event, Sale)]
    sources = SourceColumns.of(
        order=[place for place, _ in ads],
        time_ms=[place for place, _ in ads],
        device=0,
        destination=[ad.dest for _, ad in ads],
        priority=0,
        expiry_ms=[place + ad.life for place, ad in ads],
        key_high=np.array([(MARK >> 64) if place == unit else 0 for place, _ in ads], dtype=np.uint64),
        key_low=[place << 8 for place, _ in ads],
        filter=[_FILTERS.index(ad.mask) for _, ad in ads],
    )
    triggers = TriggerColumns.of(
        order=[place for place, _ in sales],
        time_ms=[place for place, _ in sales],
        device=0,
        destination=[sale.dest for _, sale in sales],
        filter=[_FILTERS.index(sale.mask) for _, sale in sales],
        has_context_id=[sale.context_id for _, sale in sales],
        key_high=0,
        key_low=[place + 1 for place, _ in sales],
        value=[sale.value for _, sale in sales],
    )
    reports = Fleet(bits=SeededBits("fleet"), rules=rules, matches=table).register(sources, triggers)
    return [
        _sent(ARA, tuple((key, filtering_id, value) for key, value, filtering_id in reports.contributions(row)))
        for row in range(len(reports))
    ]


Shop = Callable[[tuple[Ad | Sale, ...], int | None], list[Sent]]


def _sources(run: Shop, bounds: Sensitivity) -> Problem[Ad | Sale]:
    def measure(events: tuple[Ad | Sale, ...]) -> Measured:
        unit = next((place for place, event in enumerate(events) if isinstance(event, Ad)), None)
        if unit is None or not any(isinstance(event, Sale) for event in events):
            return Measured()
        return compare(run(events, None), run(events, unit), apis={ARA}, bounds={ARA: bounds})

    return Problem(draw=_draw_shop, vary=_vary_shop, measure=measure)


def algorithm_2() -> Problem[Ad | Sale]:
    """ARA-SR-Client: all pairs of the first source move to a dummy, which has its filters, expiry and budget."""
    return _sources(_algorithm_2, PAPER)


def fleet(form: Literal["deployed", "paper"]) -> Problem[Ad | Sale]:
    """``ara_client.Fleet``: the same; reports with a context ID are not counted as deployed, so that Λ₀ is Λ₁ there."""
    return _sources(lambda events, unit: _fleet(events, unit, form), DEPLOYED if form == "deployed" else PAPER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """An event of a device: where the client counts fixed windows, ``minute`` is the window."""

    device: int
    minute: int
    value: int


def _draw_visit(rng: Random) -> Visit:
    return Visit(device=rng.randrange(2), minute=rng.randrange(12), value=rng.choice((0, *_VALUES)))


def _vary_visit(rng: Random, event: Visit) -> Visit:
    name = rng.choice(Visit.__slots__)
    return replace(event, **{name: getattr(_draw_visit(rng), name)})


def algorithm_3() -> Problem[Visit]:
    """PAA-SR-Client: contributions of one device in one window are disabled; its storage changes as before.

    With fixed windows it does not matter whether disabled contributions are charged: here they are not.
    """

    def run(events: tuple[Visit, ...], unit: tuple[int, int] | None) -> dict[int, Sent]:
        client = PaaSrClient(LAMBDA_1, LAMBDA_0, SeededBits("algorithm 3"))
        sent = {}
        for place, visit in enumerate(events):
            disabled = unit == (visit.device, visit.minute // 4)

            def pi(state: dict[str, int], visit: Visit = visit, disabled: bool = disabled) -> Any:
                seen = state.get("seen", 0) + 1
                return {"seen": seen}, seen << 4 | visit.device, 0 if disabled else visit.value

            report = client.event(visit.device, visit.minute // 4, pi)
            made = () if report.v is None else ((int(report.k or 0), 0, report.v),)
            sent[place] = _sent(SHARED, made)
        return sent

    def measure(events: tuple[Visit, ...]) -> Measured:
        first = run(events, None)
        spent: Counter[tuple[int, int]] = Counter()
        for place, report in first.items():
            window = (events[place].device, events[place].minute // 4)
            spent[window] += sum(value for _, _, value in report.contributions)
        second = run(events, spent.most_common(1)[0][0])
        return compare([*first.values()], [*second.values()], apis={SHARED}, bounds={SHARED: PAPER})

    return Problem(draw=_draw_visit, vary=_vary_visit, measure=measure)


def devices() -> Problem[Visit]:
    """``paa_client.Fleet``: what one device contributed in ten minutes is removed; ``value`` is the slice visited.

    Each contribution is 2 of Λ₁ = 16, so that Λ₀ is 8.
    """
    bounds = Sensitivity(l1=LAMBDA_1, l0=LAMBDA_1 // 2)
    recipe = KPlusFrequency(thresholds=(1, 2), cap=8, budget=LAMBDA_1)
    config = Config(smaller_budget=LAMBDA_1, larger_budget=2 * LAMBDA_1)
    made_by = Devices(recipe=recipe, origin="https://one.r.test", config=config)

    def measure(events: tuple[Visit, ...]) -> Measured:
        columns = made_by.run(
            [visit.device for visit in events],
            [visit.minute * MINUTE_MS for visit in events],
            [visit.value for visit in events],
            devices=2,
            bits=SeededBits("devices"),
        )
        rows = zip(columns.device.tolist(), columns.time_ms.tolist(), columns.bucket.tolist(), strict=True)
        sent = [
            (device, time // MINUTE_MS, _sent(SHARED, ((bucket, 0, columns.value),))) for device, time, bucket in rows
        ]
        spent: Counter[tuple[int, int]] = Counter()
        for device, minute, _ in sent:
            spent.update((device, begin) for begin in range(minute - 9, minute + 1))
        unit, begin = spent.most_common(1)[0][0] if spent else (0, 0)
        kept = [
            replace(report, contributions=()) if device == unit and begin <= minute < begin + 10 else report
            for device, minute, report in sent
        ]
        return compare([report for *_, report in sent], kept, apis={SHARED}, bounds={SHARED: bounds})

    return Problem(draw=_draw_visit, vary=_vary_visit, measure=measure)
