"""The figures of Big Bird and Cookie Monster, made on our population: data as CSV, and a plot.

Shapes and orders can be compared with the papers, percentages cannot: theirs come from a log of Criteo's.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from math import ceil, log
from pathlib import Path
from typing import Any

import numpy as np

from aggservice.campaign.attacks.run import run_attack
from aggservice.campaign.attacks.settings import AttackScenario, with_fields
from aggservice.campaign.columns import Ints
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.output.plots import BLUE, GREEN, GREY, ORANGE, RED, pyplot, save
from aggservice.campaign.settings.campaign import DAY_MS
from aggservice.campaign.stages import Progress, no_progress
from aggservice.mechanisms import Bits, ManualClock, SeededBits, uniform_below_batch
from w3c_client import DEFAULT_SERVICE, Browser, Config, ConversionOptions, ImpressionOptions, design_config
from w3c_client.budgets import BudgetStores, epsilon_micro
from w3c_client.randomness import RandomW3cChoices
from w3c_client.rules import EpochUse

START_MS = 1_704_067_200_000
"""2024-01-01, a whole hour."""

SHOP, BLOG = "shop.example", "blog.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbenchmark:
    """The parameters of the artifact; ``participation`` is its first knob and ``impressions_per_day`` its second."""

    participation: float = 0.1
    impressions_per_day: float = 0.1
    query_types: int = 10
    schedules: int = 2
    batch: int = 2_000
    days: int = 120
    epoch_days: int = 7
    window_days: int = 30
    cap: int = 5
    relative_error: float = 0.05
    failure: float = 0.01
    budget_micro: int = 1_000_000

    @property
    def users(self) -> int:
        """How many devices there are."""
        return ceil(self.batch / Fraction(str(self.participation)))

    @property
    def epsilon(self) -> float:
        """The ε of every conversion: cap · ln(1/failure) / (error · expected result), the expected result being 5
        per conversion; in whole micro-epsilon.
        """
        exact = self.cap * log(1 / self.failure) / (self.relative_error * self.batch * 5)
        return ceil(exact * 1_000_000) / 1_000_000

    @property
    def device_epochs(self) -> int:
        """How many device-epochs there are: the denominator of an average."""
        return self.users * -(-self.days // self.epoch_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpend:
    """What one way of budgeting spent of a device-epoch's budget: on average over all of them, and at most."""

    method: str
    average: float
    largest: float
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversions:
    """Conversions in columns, in order of time within each batch."""

    user: Ints
    time_ms: Ints
    batch: Ints


def run_microbenchmark(settings: Microbenchmark, *, seed: str, progress: Progress = no_progress) -> list[MethodSpend]:
    """Return what ``cookie-monster``, ``base`` and ``ipa`` spend on the same events."""
    bits = SeededBits(f"microbenchmark {seed}")
    made = _conversions(settings, bits)
    return [
        _cookie_monster(settings, made, bits, progress),
        _base(settings, made),
        _central(settings, made),
    ]


def _conversions(settings: Microbenchmark, bits: Bits) -> _Conversions:
    """Draw the conversions: from day 30 on, every batch of a query type has distinct devices."""
    users, times, batches = [], [], []
    for kind in range(settings.query_types):
        own = bits.child(f"query {kind}")
        count = settings.batch * settings.schedules
        span = (settings.days - 31) * DAY_MS
        times.append(np.sort(START_MS + 30 * DAY_MS + uniform_below_batch(own.child("times"), span, count)))
        for schedule in range(settings.schedules):
            users.append(_distinct(own.child(f"users {schedule}"), settings.users, settings.batch))
            batches.append(np.full(settings.batch, kind * settings.schedules + schedule, dtype=np.int64))
    return _Conversions(user=np.concatenate(users), time_ms=np.concatenate(times), batch=np.concatenate(batches))


def _distinct(bits: Bits, total: int, count: int) -> Ints:
    """Return ``count`` different numbers below ``total``, in random order."""
    if count * 2 > total:
        return np.argsort(bits.words(total), kind="stable")[:count].astype(np.int64)
    found: dict[int, None] = {}
    while len(found) < count:
        found.update(dict.fromkeys(uniform_below_batch(bits, total, count - len(found)).tolist()))
    return np.array(list(found), dtype=np.int64)


class _CommonEpochs(RandomW3cChoices):
    """Makes the epochs of all devices begin at the same times, as in the artifact."""

    def __init__(self, bits: Bits, clock: ManualClock) -> None:
        super().__init__(bits)
        self._clock = clock

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        """Return the time since the last common beginning."""
        return (self._clock.now_ms() - START_MS) % epoch_ms


def _config(settings: Microbenchmark) -> Config:
    return design_config("cookie-monster", epoch_days=settings.epoch_days, site_budget_micro=settings.budget_micro)


def _cookie_monster(settings: Microbenchmark, made: _Conversions, bits: Bits, progress: Progress) -> MethodSpend:
    config = _config(settings)
    options = ConversionOptions(
        aggregation_service=DEFAULT_SERVICE,
        histogram_size=1,
        epsilon=settings.epsilon,
        value=settings.cap,
        max_value=settings.cap,
        lookback_days=settings.window_days,
    )
    shown = ImpressionOptions(histogram_index=0, conversion_sites=(SHOP,))
    order = np.lexsort((made.time_ms, made.user))
    user, when = made.user[order], made.time_ms[order]
    starts = np.flatnonzero(np.concatenate(([True], user[1:] != user[:-1])))
    bounds = np.append(starts, user.size)
    each = ceil(settings.impressions_per_day * settings.days)
    # Devices that never convert pay nothing, so only those that do are simulated.
    seen = START_MS + uniform_below_batch(
        bits.child("impressions"), (settings.days - 1) * DAY_MS, starts.size * each
    ).reshape(starts.size, each)
    seen.sort(axis=1)
    spent, largest, refused = 0, 0, 0
    for place in range(starts.size):
        clock = ManualClock(START_MS)
        own = bits.child("devices")
        browser = Browser(clock=clock, bits=own, config=config, draws=_CommonEpochs(own, clock))
        ads, next_ad = seen[place].tolist(), 0
        for moment in when[bounds[place] : bounds[place + 1]].tolist():
            while next_ad < each and ads[next_ad] <= moment:
                clock.advance_to(ads[next_ad])
                browser.save_impression(BLOG, shown)
                next_ad += 1
            clock.advance_to(max(moment, clock.now_ms()))
            refused += bool(browser.measure_conversion(SHOP, options).refused_by)
        paid = [settings.budget_micro - entry.left_micro for entry in browser.budgets]
        spent, largest = spent + sum(paid), max([largest, *paid])
        progress("devices", place + 1, starts.size)
    return _spend("cookie-monster", spent, largest, refused, settings.device_epochs)


def _base(settings: Microbenchmark, made: _Conversions) -> MethodSpend:
    first, last = _windows(settings, made)
    devices: defaultdict[int, BudgetStores] = defaultdict(lambda: BudgetStores(_config(settings)))
    cost = epsilon_micro(settings.epsilon)
    refused = 0
    for row in np.argsort(made.time_ms, kind="stable").tolist():
        stores = devices[int(made.user[row])]
        refused += not _pay_all(settings, stores, range(int(first[row]), int(last[row]) + 1), cost)
    paid = [settings.budget_micro - left for stores in devices.values() for left in _left(settings, stores)]
    return _spend("base", sum(paid), max(paid), refused, settings.device_epochs)


def _central(settings: Microbenchmark, made: _Conversions) -> MethodSpend:
    first, last = _windows(settings, made)
    stores = BudgetStores(_config(settings))
    cost = epsilon_micro(settings.epsilon)
    ends = {
        batch: int(made.time_ms[made.batch == batch].max())
        for batch in range(settings.query_types * settings.schedules)
    }
    refused = 0
    for batch in sorted(ends, key=ends.__getitem__):
        mine = made.batch == batch
        refused += not _pay_all(settings, stores, range(int(first[mine].min()), int(last[mine].max()) + 1), cost)
    paid = [settings.budget_micro - left for left in _left(settings, stores)]
    return _spend("ipa", sum(paid) * settings.users, max(paid), refused, settings.device_epochs)


def _windows(settings: Microbenchmark, made: _Conversions) -> tuple[Ints, Ints]:
    """Return the first and the last epoch of every conversion's window."""
    length = settings.epoch_days * DAY_MS
    since = made.time_ms - START_MS
    return (since - settings.window_days * DAY_MS) // length, since // length


def _pay_all(settings: Microbenchmark, stores: BudgetStores, epochs: Iterable[int], cost: int) -> bool:
    """Charge every epoch, or none if one cannot pay."""
    epochs = list(epochs)
    if any(stores.left(rule, epoch, SHOP) < cost for rule in _config(settings).rules for epoch in epochs):
        return False
    for epoch in epochs:
        stores.pay(EpochUse(epoch=epoch, site=SHOP, caller=SHOP), lambda _: cost)
    return True


def _left(settings: Microbenchmark, stores: BudgetStores) -> list[int]:
    """Return what is left of every budget that was charged."""
    return [left for rule in _config(settings).rules for _, left in stores.entries(rule)]


def _spend(method: str, spent: int, largest: int, refused: int, device_epochs: int) -> MethodSpend:
    return MethodSpend(
        method=method, average=spent / 1_000_000 / device_epochs, largest=largest / 1_000_000, refused=refused
    )


Row = dict[str, Any]

_NO_LIMITS_FOR_SYBILS = ["conversion-site-quota", "impression-site-quota", "action-cap"]
#: Designs that a figure compares with Big Bird: a label and the fields of the file.
BASELINES: dict[str, dict[str, Any]] = {
    "site and global budgets": {"client.design": "big-bird", "client.without": _NO_LIMITS_FOR_SYBILS},
    "global-only": {"client.design": "global-only"},
    "cookie-monster": {"client.design": "cookie-monster"},
    "w3c": {"client.design": "w3c"},
    "w3c, activation consumed": {"client.design": "w3c", "client.activation": "consumed"},
}
_COLOURS = (BLUE, ORANGE, GREEN, RED, GREY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePoint:
    """One run of a figure: its panel, its line, where on the line it lies, and the fields of the file."""

    panel: str
    line: str
    x: float | None
    fields: dict[str, Any]


def big_bird_5() -> list[FigurePoint]:
    """Return the runs of Figure 5: impression quotas without an attack and against Sybils at random."""
    points = []
    for attack in ("none", "random"):
        for quota in ("0.5", "1", "2", "3", "4", "5", "8"):
            fields = {"client.design": "big-bird", "client.impression_quota": quota, "attack.kind": attack}
            points.append(FigurePoint(panel=attack, line="big-bird", x=float(quota), fields=fields))
        for label, fields in BASELINES.items():
            points.append(FigurePoint(panel=attack, line=label, x=None, fields={**fields, "attack.kind": attack}))
    return points


def big_bird_6() -> list[FigurePoint]:
    """Return the runs of Figure 6: the cap per action, the number of Sybils, and the rank of the attacked sites."""
    points = []
    for attack in ("random", "omniscient"):
        base = {"client.design": "big-bird", "attack.kind": attack}
        for label, field, values in (
            ("sites per action", "client.sites_per_action", (1, 2, 3, 4)),
            ("Sybil sites", "attack.sybils", (2, 5, 10, 25, 50, 100)),
            ("rank of the attacked sites", "attack.first_rank", (1, 2, 3, 6, 11, 21)),
        ):
            for value in values:
                points.append(FigurePoint(panel=label, line=attack, x=float(value), fields={**base, field: value}))
        for label, fields in BASELINES.items():
            line, all_fields = f"{label}, {attack}", {**fields, "attack.kind": attack}
            points.append(FigurePoint(panel="sites per action", line=line, x=None, fields=all_fields))
    return points


def _run_point(given: tuple[AttackScenario, FigurePoint]) -> Row:
    scenario, point = given
    found = run_attack(with_fields(scenario, point.fields))
    return {
        "panel": point.panel,
        "line": point.line,
        "x": "" if point.x is None else point.x,
        "median_error": round(found.median_error, 6),
        "p95_error": round(found.p95_error, 6),
        **{f"refused_{name}": round(found.refused_share(name), 6) for name in found.rules},
        "drained_most": found.drained_micro / 1_000_000,
        "drained_mean": round(found.drained_mean_micro / 1_000_000, 6),
        "bound": "" if found.bound_micro is None else found.bound_micro / 1_000_000,
        "conversions": found.conversions,
        "attack_conversions": found.attack_conversions,
    }


def attack_rows(
    scenario: AttackScenario, points: Sequence[FigurePoint], *, workers: int = 1, progress: Progress = no_progress
) -> list[Row]:
    """Run the points of a figure, several at a time."""
    jobs = [(scenario, point) for point in points]
    rows: list[Row] = []
    with ProcessPoolExecutor(max_workers=max(1, workers)) as pool:  # starts no process until it gets work
        for row in pool.map(_run_point, jobs) if workers > 1 else map(_run_point, jobs):
            rows.append(row)
            progress("runs", len(rows), len(jobs))
    return rows


def cookie_monster_rows(
    *, seed: str, batch: int = 2_000, knobs: Sequence[float] = (0.001, 0.01, 0.1, 1.0), progress: Progress = no_progress
) -> list[Row]:
    """Return the average and largest spend per device-epoch, by participation and by impressions per day.

    With a smaller ``batch``, ε stays that of the artifact's batch of 2,000.
    """
    rows: list[Row] = []
    for name in ("participation", "impressions_per_day"):
        for value in knobs:
            settings = Microbenchmark(**{"batch": batch, "relative_error": 0.05 * 2_000 / batch, name: value})  # type: ignore[arg-type]
            for spend in run_microbenchmark(settings, seed=seed, progress=progress):
                rows.append(
                    {
                        "panel": name,
                        "line": spend.method,
                        "x": value,
                        "average": round(spend.average, 9),
                        "largest": spend.largest,
                        "refused": spend.refused,
                    }
                )
    return rows


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _lines(rows: Sequence[Row], panel: str, value: str) -> dict[str, list[tuple[float | None, float]]]:
    lines: dict[str, list[tuple[float | None, float]]] = {}
    for row in rows:
        if row["panel"] == panel:
            lines.setdefault(row["line"], []).append((None if row["x"] == "" else row["x"], row[value]))
    return lines


def draw_big_bird(rows: Sequence[Row], stem: Path, *, labels: dict[str, str], causes: bool) -> Path:
    """Draw the median and 95th percentile of the error per panel, and with ``causes`` which filters refused."""
    plt = pyplot()
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    high = 2 if causes else 1
    size = (5.2 * len(panels), 4.6 * high)
    figure, axes = plt.subplots(high, len(panels), figsize=size, squeeze=False, layout="constrained")
    for place, panel in enumerate(panels):
        axis = axes[0][place]
        lines = _lines(rows, panel, "median_error")
        swept = [line for line, points in lines.items() if points[0][0] is not None]
        for number, line in enumerate(swept):
            colour = (BLUE, RED)[number % 2]
            xs = [x for x, _ in lines[line]]
            axis.plot(xs, [y for _, y in lines[line]], color=colour, marker="o", label=f"{line}, median")
            upper = [y for _, y in _lines(rows, panel, "p95_error")[line]]
            axis.plot(xs, upper, color=colour, marker=".", lw=0.8, linestyle="--", label=f"{line}, 95 %")
        # Baselines against the strongest adversary of the panel, as flat lines.
        flat = [line for line in lines if line not in swept and line.endswith((swept[-1], *BASELINES))]
        for number, line in enumerate(flat):
            style = ("-", "--", ":", "-.", (0, (6, 2)))[number % 5]
            axis.axhline(
                lines[line][0][1], color=(GREY, ORANGE, GREEN)[number % 3], linestyle=style, lw=1.3, label=line
            )
        axis.set(xlabel=labels[panel], ylabel="error (RMSRE)" if not place else "", ylim=(0, None))
        axis.set_title({"none": "no attack", "random": "Sybils at random"}.get(panel, panel), loc="left")
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        if causes:
            _draw_causes(
                axes[1][place], [row for row in rows if row["panel"] == panel and row["x"] != ""], labels[panel]
            )
    return save(plt, figure, stem)


def _draw_causes(axis: Any, rows: Sequence[Row], label: str) -> None:
    bottom = [0.0] * len(rows)
    names = [name.removeprefix("refused_") for name in rows[0] if name.startswith("refused_")]
    for name, colour in zip(names, cycle(_COLOURS), strict=False):
        shares = [row[f"refused_{name}"] for row in rows]
        axis.bar([str(row["x"]) for row in rows], shares, bottom=bottom, color=colour, label=name)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    axis.set(xlabel=label, ylabel="share of conversions refused")
    axis.legend(fontsize=7)


def draw_cookie_monster(rows: Sequence[Row], stem: Path) -> Path:
    """Draw average and largest spend as groups of bars."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), squeeze=False, layout="constrained")
    titles = {"participation": "share of devices per query", "impressions_per_day": "impressions per device and day"}
    for column, (panel, title) in enumerate(titles.items()):
        for line, value in enumerate(("average", "largest")):
            axis = axes[line][column]
            for number, (method, points) in enumerate(_lines(rows, panel, value).items()):
                places = [place + 0.27 * (number - 1) for place in range(len(points))]
                axis.bar(places, [y for _, y in points], width=0.25, color=_COLOURS[number], label=method)
            axis.set_xticks(range(len(points)), [str(x) for x, _ in points])
            axis.set(
                xlabel=title,
                ylabel=f"{value} ε spent per device-epoch",
                yscale="log" if value == "average" else "linear",
            )
    axes[0][0].legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.02), ncols=3)
    return save(plt, figure, stem)


FIGURES: dict[str, str] = {
    "big-bird-5": "Big Bird's Figure 5: impression quotas, without an attack and against Sybils at random",
    "big-bird-6": "Big Bird's Figure 6: the cap per action, the number of Sybils and the rank of attacked sites",
    "cookie-monster-4": "Cookie Monster's Figure 4: spend per device-epoch of three ways of budgeting",
}
_POINTS: dict[str, Callable[[], list[FigurePoint]]] = {"big-bird-5": big_bird_5, "big-bird-6": big_bird_6}


def make_figure(
    name: str, scenario: AttackScenario, out: Path, *, workers: int = 1, progress: Progress = no_progress
) -> list[Row]:
    """Make one figure in a folder: ``NAME.csv``, ``NAME.png`` and ``NAME.svg``."""
    if name not in FIGURES:
        raise CampaignError(f"there is no figure {name!r}. Write one of {', '.join(FIGURES)}")
    if name == "cookie-monster-4":
        rows = cookie_monster_rows(seed=scenario.seed, progress=progress)
        write_rows(rows, out / f"{name}.csv")
        draw_cookie_monster(rows, out / name)
        return rows
    rows = attack_rows(scenario, _POINTS[name](), workers=workers, progress=progress)
    write_rows(rows, out / f"{name}.csv")
    axis = "impression-site quota (ε)" if name == "big-bird-5" else ""
    labels = {row["panel"]: axis or row["panel"] for row in rows}
    draw_big_bird(rows, out / name, labels=labels, causes=name == "big-bird-5")
    return rows
