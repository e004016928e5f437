"""Cookie Monster's microbenchmark (its Figure 4): what three ways of budgeting charge for the same queries.

``ipa`` keeps one budget for all devices: every epoch that a batch's windows reach pays. ``base`` keeps budgets on
devices, where every epoch of a conversion's window pays, as ARA-like systems count. ``cookie-monster`` is a ``Browser``
with that design: only epochs with a matching impression pay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.settings.campaign import DAY_MS
from aggservice.campaign.stages import Progress, no_progress
from aggservice.mechanisms import Bits, ManualClock, SeededBits, uniform_below_batch
from w3c_client import (
    DEFAULT_SERVICE,
    Browser,
    Charge,
    Config,
    ConversionOptions,
    Filter,
    ImpressionOptions,
    design_config,
    epsilon_micro,
)
from w3c_client.budgets import BudgetStores
from w3c_client.randomness import RandomDraws

Ints = NDArray[np.int64]

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
class Spend:
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


def run_microbenchmark(settings: Microbenchmark, *, seed: str, progress: Progress = no_progress) -> list[Spend]:
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


class _CommonEpochs(RandomDraws):
    """Makes the epochs of all devices begin at the same times, as in the artifact."""

    def __init__(self, bits: Bits, clock: ManualClock) -> None:
        super().__init__(bits)
        self._clock = clock

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        """Return the time since the last common beginning."""
        return (self._clock.now_ms() - START_MS) % epoch_ms


def _config(settings: Microbenchmark) -> Config:
    return design_config("cookie-monster", epoch_days=settings.epoch_days, site_budget_micro=settings.budget_micro)


def _cookie_monster(settings: Microbenchmark, made: _Conversions, bits: Bits, progress: Progress) -> Spend:
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
        paid = [settings.budget_micro - entry.left_micro for entry in browser.budgets if entry.filter is Filter.SITE]
        spent, largest = spent + sum(paid), max([largest, *paid])
        progress("devices", place + 1, starts.size)
    return _spend("cookie-monster", spent, largest, refused, settings.device_epochs)


def _base(settings: Microbenchmark, made: _Conversions) -> Spend:
    first, last = _windows(settings, made)
    devices: defaultdict[int, BudgetStores] = defaultdict(lambda: BudgetStores(_config(settings)))
    cost = epsilon_micro(settings.epsilon)
    refused = 0
    for row in np.argsort(made.time_ms, kind="stable").tolist():
        stores = devices[int(made.user[row])]
        refused += not _pay_all(stores, range(int(first[row]), int(last[row]) + 1), cost)
    paid = [settings.budget_micro - left for stores in devices.values() for _, _, left in stores.entries(Filter.SITE)]
    return _spend("base", sum(paid), max(paid), refused, settings.device_epochs)


def _central(settings: Microbenchmark, made: _Conversions) -> Spend:
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
        refused += not _pay_all(stores, range(int(first[mine].min()), int(last[mine].max()) + 1), cost)
    paid = [settings.budget_micro - left for _, _, left in stores.entries(Filter.SITE)]
    return _spend("ipa", sum(paid) * settings.users, max(paid), refused, settings.device_epochs)


def _windows(settings: Microbenchmark, made: _Conversions) -> tuple[Ints, Ints]:
    """Return the first and the last epoch of every conversion's window."""
    length = settings.epoch_days * DAY_MS
    since = made.time_ms - START_MS
    return (since - settings.window_days * DAY_MS) // length, since // length


def _pay_all(stores: BudgetStores, epochs: Iterable[int], cost: int) -> bool:
    """Charge every epoch, or none if one cannot pay."""
    epochs = list(epochs)
    if any(stores.left(Filter.SITE, epoch, SHOP) < cost for epoch in epochs):
        return False
    for epoch in epochs:
        stores.pay(epoch, SHOP, (), Charge(cost, cost, cost))
    return True


def _spend(method: str, spent: int, largest: int, refused: int, device_epochs: int) -> Spend:
    return Spend(method=method, average=spent / 1_000_000 / device_epochs, largest=largest / 1_000_000, refused=refused)
