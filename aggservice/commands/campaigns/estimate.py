"""``aggservice estimate``: means, ratios, lift and quantiles from noisy sums, with intervals; ``noise``: how much noise
an ε adds, and how large a slice must be for a small error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from aggservice.campaign.estimates.ratios import Interval, NoisySum, people_needed
from aggservice.campaign.estimates.ratios import lift as lift_of
from aggservice.campaign.estimates.ratios import quantile as quantile_of
from aggservice.campaign.estimates.ratios import ratio as ratio_of
from aggservice.commands.console import Json, option, print_json, refuse, show
from aggservice.mechanisms import DiscreteLaplace, discovery_threshold
from aggservice.mechanisms.laplace import micro_of
from aggservice.wire import read_summary

estimate = typer.Typer(help="Compute means, ratios, lift and quantiles from summaries.", no_args_is_help=True)

SummaryFile = Annotated[Path, typer.Argument(help="A summary file (Avro), as the service writes it.")]
Epsilon = Annotated[str, option("ε of the job, as decimal text.")]
L1 = Annotated[int, option("Λ₁, what one privacy unit can contribute.")]
Level = Annotated[float, option("Confidence: the share of intervals that hold the truth.", min=0.5, max=0.9999)]
Scale = Annotated[float, option("What one counted unit contributes (the scale of a measure).")]
Buckets = Annotated[str, option("Buckets to add up, decimal or 0x…, separated by commas.")]


@estimate.command()
def ratio(
    summary: SummaryFile,
    above: Buckets,
    below: Buckets,
    above_scale: Scale = 1.0,
    below_scale: Scale = 1.0,
    epsilon: Epsilon = "10",
    l1: L1 = 65_536,
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Divide one sum by another, for a mean or a return on ad spend.

    The interval is Fieller's. It does not apply if the divisor is not larger than its noise.
    """
    rows = _Rows(summary, epsilon, l1)
    found = ratio_of(rows.total(above, above_scale), rows.total(below, below_scale), level=level)
    _show("ratio", found, as_json)


@estimate.command()
def lift(
    summary: SummaryFile,
    treated: Buckets,
    control: Buckets,
    treated_people: Annotated[int, option("People in the treated group.", min=1)],
    control_people: Annotated[int, option("People in the control group.", min=1)],
    scale: Scale = 1.0,
    epsilon: Epsilon = "10",
    l1: L1 = 65_536,
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Say how much more the treated convert: 0.1 is 10 % more.

    The interval allows for chance as well as for noise.
    """
    rows = _Rows(summary, epsilon, l1)
    found = lift_of(
        rows.total(treated, scale),
        rows.total(control, scale),
        treated_people=treated_people,
        control_people=control_people,
        level=level,
    )
    _show("lift", found, as_json)


@estimate.command()
def quantile(
    summary: SummaryFile,
    buckets: Annotated[str, option("The buckets of the histogram in order of value, separated by commas.")],
    p: Annotated[float, option("Which quantile: 0.5 is the median.")] = 0.5,
    scale: Scale = 1.0,
    epsilon: Epsilon = "10",
    l1: L1 = 65_536,
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Say which bucket of a histogram holds a quantile.

    Estimate and interval count buckets from 0, in the order that you name them.
    """
    rows = _Rows(summary, epsilon, l1)
    sums = [rows.total(one, scale) for one in buckets.split(",")]
    counts, variances = (np.array([getattr(one, name) for one in sums]) for name in ("value", "variance"))
    _show("place of the bucket, from 0:", quantile_of(counts, variances, p, level=level), as_json)


@estimate.command()
def people(
    rate: Annotated[float, option("Conversions per person without the treatment.")],
    lift: Annotated[float, option("The lift to be found: 0.1 is 10 % more.")],
    scale: Scale = 1.0,
    epsilon: Epsilon = "10",
    l1: L1 = 65_536,
    level: Level = 0.95,
    power: Annotated[float, option("How often a lift of this size should be found.")] = 0.8,
    as_json: Json = False,
) -> None:
    """Say how many people each of two groups needs."""
    _check_scale(scale)
    variance = float(DiscreteLaplace(epsilon=epsilon, sensitivity=l1).variance()) / scale**2
    found = people_needed(rate=rate, lift=lift, noise_variance=variance, level=level, power=power)
    show({"people_per_group": found}, [f"{found:,} people in each group"], as_json=as_json)


class _Rows:
    """The rows of a summary by bucket, and the distribution of their noise."""

    def __init__(self, path: Path, epsilon: str, l1: int) -> None:
        self._path = path
        self._variance = float(DiscreteLaplace(epsilon=epsilon, sensitivity=l1).variance())
        self._metrics: dict[int, int] = {}
        for rows in read_summary(path):
            columns = (one.tolist() for one in (rows.key_high, rows.key_low, rows.metric))
            self._metrics.update({(high << 64) | low: metric for high, low, metric in zip(*columns, strict=True)})

    def total(self, buckets: str, scale: float) -> NoisySum:
        """Return the sum of some buckets in natural units."""
        _check_scale(scale)
        chosen = _numbers(buckets)
        for bucket in chosen:
            if bucket not in self._metrics:
                refuse(f"bucket {bucket:#x} is not in {self._path}: aggservice convert summary shows its buckets")
        value = sum(self._metrics[bucket] for bucket in chosen) / scale
        return NoisySum(value=value, variance=len(chosen) * self._variance / scale**2)


def _numbers(text: str) -> Sequence[int]:
    try:
        found = [int(part.strip(), 0) for part in text.split(",")]
    except ValueError:
        refuse(f"{text!r} is not a list of buckets: write whole numbers, decimal or 0x…, separated by commas")
    if len(set(found)) != len(found):
        refuse(f"{text!r} names a bucket twice: name each once")
    return found


def _check_scale(scale: float) -> None:
    if not 0 < scale < float("inf"):
        refuse(f"the scale is {scale}: write what one counted unit contributes, such as 60")


def _show(name: str, found: Interval, as_json: bool) -> None:
    if as_json:
        plain = asdict(found)
        print_json(
            {key: value if not isinstance(value, float) or np.isfinite(value) else None for key, value in plain.items()}
        )
    elif not found.applies:
        typer.echo(
            f"{name}: the noise is too large for an interval; ask again with more ε, a larger scale or more people"
        )
    else:
        typer.echo(f"{name} {found.estimate:,.6g}, {found.level:.0%} interval {found.low:,.6g} to {found.high:,.6g}")


def noise(
    epsilon: Epsilon = "10",
    scale: Scale = 1.0,
    l1: L1 = 65_536,
    error: Annotated[float, option("The relative error you want.", min=1e-6, max=1.0)] = 0.05,
    delta: Annotated[str, option("δ of key discovery; 0: keys are declared.")] = "0",
    keys: Annotated[int, option("How many keys one slice adds up.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Say how much noise an ε adds and how large slices must be.

    Noise is exact discrete Laplace of scale Λ₁/ε on every key. Divided by --scale it is in counted units.
    """
    if not scale > 0:
        refuse(f"--scale is {scale}: write what one counted unit contributes, such as 60")
    law = DiscreteLaplace(epsilon=epsilon, sensitivity=l1)
    width = law.half_width(Fraction(95, 100))
    deviation = (keys * float(law.variance())) ** 0.5
    plain: dict[str, object] = {
        "epsilon": epsilon,
        "l1": l1,
        "scale": scale,
        "standard_deviation": deviation,
        "standard_deviation_in_units": deviation / scale,
        "half_width_95_of_a_key_in_units": width / scale,
        "error": error,
        "units_needed": deviation / scale / error,
    }
    lines = [
        f"noise on a slice of {keys} key(s), ε = {epsilon}, Λ₁ = {l1:,}:",
        f"  standard deviation  {deviation:,.1f} contributions = {deviation / scale:,.2f} counted units",
        f"  95 of 100 keys      within ±{width / scale:,.2f} counted units",
        f"  an error of {error:.1%}    needs a slice of about {deviation / scale / error:,.0f} counted units",
    ]
    if Fraction(delta):
        atto = Fraction(delta) * 10**18
        threshold = discovery_threshold(epsilon_micro=micro_of(epsilon), delta_atto=int(atto), l1=l1, l0=l1)
        plain["threshold_in_units"] = threshold / scale
        lines.append(f"  discovery           hides keys below about {threshold / scale:,.1f} counted units")
    lines.append("A larger scale makes the same noise smaller in counted units, until a unit's contributions reach Λ₁.")
    show(plain, lines, as_json=as_json)
