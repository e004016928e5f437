"""The kit of metrics: ``check_metric`` tests a metric of ``aggservice.campaign.metrics`` on small random jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.metrics import MeasureErrors, Metric, SliceColumns, SliceLaws
from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import Bits, SeededBits

Floats = NDArray[np.float64]
Rows = Sequence[Mapping[str, float]]
"""The slices of a job, one mapping each: ``truth``, ``sent``, ``estimate``, ``width``, ``covered``, ``above_noise``."""

_WORLDS = 40
_COLUMNS = ("truth", "sent", "estimate", "width", "covered", "above_noise")
_NOISE = (-1.0, 0.0, 0.0, 1.0)
"""Equally likely noises of a slice, in steps of its half-width; enumerating them needs no random draws."""


def check_metric(metric: Metric, formula: Callable[[Rows, float], float | None] | None = None) -> None:
    """Check a metric; ``KitFailure`` says what is wrong with it.

    It must read the columns that it states and no others, give the same for any order of slices, expect what the mean
    over all outcomes of a small noise is, and print what can be read again. ``formula`` computes the same from rows and
    τ in plain Python, if you have such a twin. Everything is computed exactly, so the kit raises no false alarms.
    """
    _check_words(metric)
    worlds = [_world(SeededBits(f"metric kit {number}"), 1 + number % 5) for number in range(_WORLDS)]
    if metric.in_job:
        _check_columns(metric, worlds)
        _check_order(metric, worlds)
        for slices in worlds if formula is not None else ():
            assert formula is not None
            rows = [dict(zip(_COLUMNS, map(float, row), strict=True)) for row in zip(*_arrays(slices), strict=True)]
            _same(metric, "the formula given beside it", metric.value(slices), formula(rows, slices.tau))
        _check_expected(metric)
    _check_empty(metric)
    for value in (0.0, 0.123, 1.0, 1234.5):
        _check_text(metric, value)


def _check_words(metric: Metric) -> None:
    name = getattr(metric, "name", "")
    if not name.isidentifier() or not metric.title:
        raise KitFailure(f"{type(metric).__name__} has the name {name!r} and the title {metric.title!r}: give it both")
    if unknown := sorted(set(metric.columns) - {*_COLUMNS, "tau"}):
        raise KitFailure(f"{name} states columns that slices do not have: {', '.join(unknown)}")
    if unknown := sorted(metric.places - Metric.places):
        raise KitFailure(f"{name} is shown in places that do not exist: {', '.join(unknown)}")
    if metric.in_job and not metric.columns:
        raise KitFailure(f"{name} has values in jobs and states no columns: say what it is computed from")


def _uniform(bits: Bits, size: int) -> Floats:
    return (bits.words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _world(bits: Bits, size: int) -> SliceColumns:
    """Return slices of which some have no truth, some lost something and some intervals miss."""
    truth = np.floor(_uniform(bits, size) * 50) * (_uniform(bits, size) < 0.8)
    sent = truth * (0.5 + 0.5 * _uniform(bits, size))
    width = 1 + 5 * _uniform(bits, size)
    estimate = sent + (4 * _uniform(bits, size) - 2) * width
    return SliceColumns(
        truth=truth,
        sent=sent,
        estimate=estimate,
        width=width,
        covered=np.abs(estimate - sent) <= width,
        above_noise=sent > width,
        tau=0.5 + float(_uniform(bits, 1)[0]),
    )


def _arrays(slices: SliceColumns) -> list[NDArray[np.generic]]:
    return [getattr(slices, name) for name in _COLUMNS]


def _with_other(slices: SliceColumns, column: str, bits: Bits) -> SliceColumns:
    """Return the slices with other values in one column."""
    size = slices.truth.size
    if column == "tau":
        return replace(slices, tau=slices.tau * 3 + 7)
    if column in ("covered", "above_noise"):
        return replace(slices, **{column: ~getattr(slices, column)})
    return replace(slices, **{column: getattr(slices, column) * 1.5 + 10 * _uniform(bits, size) + 1})


def _check_columns(metric: Metric, worlds: Sequence[SliceColumns]) -> None:
    moved = {
        column
        for column in (*_COLUMNS, "tau")
        for number, slices in enumerate(worlds)
        if metric.value(slices)
        != metric.value(_with_other(slices, column, SeededBits(f"metric kit {column} {number}")))
    }
    if unstated := sorted(moved - set(metric.columns)):
        raise KitFailure(
            f"{metric.name} changes with the column {unstated[0]}, which it does not state: it states "
            f"{', '.join(metric.columns)}, and is computed from another column"
        )
    if unread := sorted(set(metric.columns) - moved):
        raise KitFailure(f"{metric.name} states the column {unread[0]} and never changes with it")


def _check_order(metric: Metric, worlds: Sequence[SliceColumns]) -> None:
    for slices in worlds:
        turned = replace(slices, **{name: getattr(slices, name)[::-1] for name in _COLUMNS})
        _same(metric, "its value over the same slices in another order", metric.value(slices), metric.value(turned))


def _figures(metric: Metric, value: float | None, slices: int) -> MeasureErrors:
    return MeasureErrors(
        measure="kit", slices=slices, tau=1.0, truth=1.0, estimate=1.0, bias=0.0, values={metric.in_job: value}
    )


def _check_expected(metric: Metric) -> None:
    """Compare the expected value with the mean over all 64 equally likely outcomes of the noise of three slices."""
    for number in range(5):
        start = _world(SeededBits(f"metric kit law {number}"), 3)
        step = start.width * (0.75 if number % 2 else 1.25)  # the outer noises lie inside or outside the interval

        def chance(low: Floats, high: Floats, step: Floats = step) -> Floats:
            return np.mean([(low <= one * step) & (one * step <= high) for one in _NOISE], axis=0)

        laws = SliceLaws(
            truth=start.truth, sent=start.sent, width=start.width, variance=step**2 / 2, tau=start.tau, chance=chance
        )
        expected = metric.expected(laws)
        if expected is None:
            return
        jobs = []
        for noise in product(_NOISE, repeat=3):
            off = np.array(noise) * step
            drawn = replace(start, estimate=start.sent + off, covered=np.abs(off) <= start.width)
            jobs.append(_figures(metric, metric.value(drawn), 3))
        _same(
            metric,
            "its mean over all outcomes of the noise",
            metric.over([_figures(metric, expected, 3)]),
            metric.over(jobs),
        )


def _check_empty(metric: Metric) -> None:
    """A query none of whose jobs was paid has no value; a job without slices must not fail."""
    if metric.in_job:
        none: NDArray[np.float64] = np.zeros(0)
        flags = none.astype(np.bool_)
        empty = metric.value(
            SliceColumns(truth=none, sent=none, estimate=none, width=none, covered=flags, above_noise=flags, tau=1.0)
        )
        if empty is not None and not math.isfinite(empty):
            raise KitFailure(f"{metric.name} is {empty} for a job without slices: return 0 or None")
        if metric.over([]) is not None:
            raise KitFailure(f"{metric.name} is {metric.over([])} without any job: return None")
    if metric.in_sweep:
        metric.over_releases([[]], [])


def _check_text(metric: Metric, value: float) -> None:
    text, unit = metric.text(value), 0.001 if metric.share else 10.0**-metric.digits
    try:
        read = float(text.removesuffix("%").replace(",", "")) / (100 if metric.share else 1)
    except ValueError:
        raise KitFailure(f"{metric.name} prints {value} as {text!r}, which cannot be read as a number again") from None
    if not abs(read - value) <= 0.51 * unit:
        raise KitFailure(f"{metric.name} prints {value} as {text!r}, which reads as {read}")
    if metric.text(None) != "–":
        raise KitFailure(f"{metric.name} prints a missing value as {metric.text(None)!r}: print –")


def _same(metric: Metric, what: str, found: float | None, wanted: float | None) -> None:
    if found is None or wanted is None:
        good = found is wanted
    else:
        good = math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if not good:
        raise KitFailure(f"{metric.name} is {found}, and {what} is {wanted}")
