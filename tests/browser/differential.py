"""Random steps in two browsers: run episodes, compare, and shrink what differs to a reproduction."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aggservice.wire import KeySet
from paa_client import Config

from .attribution import RealBrowser, Step, fake_reports, simulate
from .auctions import AuctionRun, run_real, run_simulated
from .comparison import Comparison, Text, compare
from .devtools import Chromium
from .private_aggregation import RealWorklets, Run, SimulatedWorklets
from .random_registrations import World
from .random_worklets import Worklets
from .site import Site

T = TypeVar("T")
FALSE_ALARM = 1e-8
"""The rate of one test of how often chance struck; a run makes four."""
CLOCKS_MS = (20, -20, 60, -60, 200, -200)
"""What may lie between the moment at which a trigger's response left and that at which the browser read its clock.

A limit of time that falls between them gives different reports: the steps are then tried with other times.
"""
TRIGGER_TIMES = ((0, False), *((late_ms, False) for late_ms in CLOCKS_MS), (0, True))
_REPORT_S = 4.0
_ATTEMPTS = 3
_NULL = "/.well-known/attribution-reporting/report-aggregate-attribution"


@dataclass(slots=True)
class Tally:
    """What episodes came to: equal reports, chance beside its expectation, and reproductions of differences."""

    steps: int = 0
    registered: int = 0
    equal: int = 0
    nulls: int = 0
    expected_nulls: float = 0.0
    noised: int = 0
    expected_noised: float = 0.0
    differences: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what another run came to."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, {self.registered:,} registrations: {self.equal:,} reports equal, "
            f"{len(self.differences)} differences; null reports {self.nulls} (expected {self.expected_nulls:.1f}), "
            f"noised sources {self.noised} (expected {self.expected_noised:.1f})"
        )

    def check_chance(self) -> None:
        """Assert that null reports and noise came about as often as they should; see ``FALSE_ALARM``."""
        assert plausible(self.nulls, self.expected_nulls), str(self)
        assert plausible(self.noised, self.expected_noised), str(self)


def plausible(count: int, mean: float) -> bool:
    """Return whether ``count`` independent events of this expected number are likely.

    Chernoff's bound for sums of Bernoulli variables: P[X ≥ k] and P[X ≤ k] are at most e^(k-μ)(μ/k)^k on their sides
    of μ. The answer is False with probability at most twice ``FALSE_ALARM`` when all is well.
    """
    if mean == 0 or count == 0:
        return math.exp(-mean) > FALSE_ALARM and (count == 0 or mean > 0)
    return count - mean + count * math.log(mean / count) > math.log(FALSE_ALARM)


def is_null(report: Text) -> bool:
    """Return whether a report of the real browser alone is a null report that it drew."""
    return report.null and _NULL in report.text


def play_registrations(browser: Chromium, site: Site, keys: KeySet, steps: Sequence[Step]) -> tuple[Comparison, Tally]:
    """Play steps in a fresh context and in ``ara_client``; return what differs, without null reports, and a tally.

    What DevTools does not show is tried before a difference counts: that one or two noised sources without reports
    drew one for a later window, which was deleted with the source; and other times of triggers (``TRIGGER_TIMES``).
    """
    real = RealBrowser(browser, site)
    for step in steps:
        real.play(step)
    registered, noised = len(real.registered), real.noised
    reports = real.finish(keys)
    site.forget()
    silent = [source for source, seen in fake_reports(noised, reports).items() if not seen]
    gone = [(), *((source,) for source in silent), *itertools.combinations(silent, 2)]
    explanations = [(deleted, late_ms, late) for late_ms, late in TRIGGER_TIMES for deleted in gone]
    for deleted, late_ms, late in explanations:
        predicted, draws = simulate(
            real.played, keys, noised=noised, real=reports, deleted=deleted, trigger_delay_ms=late_ms, late=late
        )
        found = compare(reports, predicted, times=True)
        extra = tuple(one for one in found.only_real if not is_null(one))
        different = replace(found, only_real=extra)
        if different.same:
            break
    tally = Tally(
        steps=len(steps),
        registered=registered,
        equal=found.equal,
        nulls=len(found.only_real) - len(extra),
        expected_nulls=draws.nulls,
        noised=len(noised),
        expected_noised=draws.noised,
    )
    return different, tally


def fuzz_registrations(
    browser: Chromium, site: Site, keys: KeySet, *, seed: str, steps: int, episode: int = 100
) -> Tally:
    """Play random episodes until ``steps`` steps are done; shrink the first differences to reproductions."""
    tally = Tally()
    for number in range(math.ceil(steps / episode)):
        world = World(random.Random(f"{seed} {number}"))
        drawn = list(world.steps(min(episode, steps - number * episode)))
        different, one = play_registrations(browser, site, keys, drawn)
        tally.add(one)
        if not different.same:
            tally.differences.append(
                _reproduction(
                    f"seed {seed!r}, episode {number}",
                    different,
                    drawn,
                    lambda part: not play_registrations(browser, site, keys, part)[0].same,
                )
            )
    return tally


def play_worklets(
    browser: Chromium, site: Site, keys: KeySet, runs: Sequence[Run | AuctionRun], config: Config
) -> Comparison:
    """Run worklets and auctions in a fresh context and in ``paa_client``; return what differs.

    One after another: a site's budget depends on their order. Errors that a page gets are compared as reports are.
    They run again, three times at most, if the browser says that it ended a script for its time.
    """
    for _ in range(_ATTEMPTS):
        found, timed_out = _play_worklets(browser, site, keys, runs, config)
        if not timed_out:
            break
    return found


def _play_worklets(
    browser: Chromium, site: Site, keys: KeySet, runs: Sequence[Run | AuctionRun], config: Config
) -> tuple[Comparison, list[str]]:
    real, simulated = RealWorklets(browser, site), SimulatedWorklets(keys, config)
    errors: tuple[list[Text], list[Text]] = ([], [])
    for run in runs:
        simulated.tick()
        if isinstance(run, AuctionRun):
            answers = (run_real(real, run), run_simulated(simulated, run))
        else:
            answers = (real.run(run), simulated.run(run))
        for side, answer in zip(errors, answers, strict=True):
            if answer not in (None, True, False) or answers[0] != answers[1]:
                side.append(Text(text=f"{answer} for {run}", times_s=()))
        real.wait(simulated.predicted, wait_s=_REPORT_S)
    reports = real.finish(keys, count=simulated.predicted)
    site.forget()
    return compare([*reports, *errors[0]], [*simulated.finish(), *errors[1]]), real.timed_out


def fuzz_worklets(
    browser: Chromium, site: Site, keys: KeySet, *, seed: str, runs: int, config: Config, episode: int = 50
) -> Tally:
    """Run random worklets, one in ten an auction, until ``runs`` are done; shrink what differs."""
    tally = Tally()
    for number in range(math.ceil(runs / episode)):
        rng = random.Random(f"{seed} {number}")
        worklets = Worklets(rng, on_event=config.error_reporting)
        count = min(episode, runs - number * episode)
        drawn = [worklets.auction() if rng.random() < 0.1 else run for run in worklets.runs(count)]
        different = play_worklets(browser, site, keys, drawn, config)
        tally.steps += count
        tally.equal += different.equal
        if not different.same:
            tally.differences.append(
                _reproduction(
                    f"seed {seed!r}, episode {number}",
                    different,
                    drawn,
                    lambda part: not play_worklets(browser, site, keys, part, config).same,
                )
            )
    return tally


def _reproduction(title: str, different: Comparison, drawn: Sequence[T], differs: Callable[[Sequence[T]], bool]) -> str:
    """Return what differed and the fewest steps with which it differs again."""
    smaller = shrunk(drawn, differs)
    if len(smaller) == len(drawn):
        return f"{title}:\n{different}\nthis did not happen again with the same steps"
    return "\n".join([f"{title}:", str(different), "the same with", *(f"    {step!r}," for step in smaller)])


def shrunk(items: Sequence[T], fails: Callable[[Sequence[T]], bool], *, attempts: int = 60) -> list[T]:
    """Return a shorter sequence that still fails, by leaving parts out: halves first, then smaller ones.

    Returns everything if it does not fail a second time.
    """
    kept = list(items)
    if not fails(kept):
        return kept
    size = max(1, len(kept) // 2)
    while attempts > 0:
        before = len(kept)
        start = 0
        while start < len(kept) and attempts > 0:
            without = kept[:start] + kept[start + size :]
            attempts -= 1
            if without and fails(without):
                kept = without
            else:
                start += size
        if size == 1 and len(kept) == before:
            break
        size = max(1, size // 2)
    return kept
