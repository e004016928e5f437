"""Named distributions of a simulated population: how files write them, and draws in columns from ``Bits``.

Draws are floats and approximate; privacy noise never comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aggservice.campaign.columns import Flags, Floats, Ints
from aggservice.campaign.errors import CampaignError, RunError
from aggservice.files.settings import Known, setting
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits

#: The parameters of each distribution, with an example of each.
PARAMETERS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "constant": {"value": 1},
        "uniform": {"low": 0, "high": 1},
        "poisson": {"mean": 2},
        "geometric": {"mean": 2},
        "exponential": {"mean": 1},
        "normal": {"mean": 50, "deviation": 10},
        "lognormal": {"median": 60, "sigma": 0.5},
        "pareto": {"least": 10, "alpha": 2},
    }
)
_POISSON_LIMIT = 10_000
_FEW = 100_000
_LARGEST_COUNT = 2.0**53
"""Above this a float cannot hold every whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A named distribution with its parameters, or (``name`` = "column") rows of a log's column, with replacement."""

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.name == "column":
            if not self.rows:
                raise CampaignError("the column to draw from is empty: give it at least one row")
            return
        if self.name not in PARAMETERS or set(self.parameters) != set(PARAMETERS[self.name]):
            raise CampaignError(f"there is no distribution {self.name!r} with parameters {sorted(self.parameters)}")
        if problem := self._problem():
            raise CampaignError(problem)

    def _problem(self) -> str:
        given = self.parameters
        if not all(np.isfinite(value) for value in given.values()):
            return "every parameter must be a finite number"
        if self.name == "uniform" and not given["low"] <= given["high"]:
            return "low must not be above high"
        if self.name in ("poisson", "exponential") and not 0 <= given["mean"] <= _POISSON_LIMIT:
            return f"mean must lie from 0 to {_POISSON_LIMIT}"
        if self.name == "geometric" and not given["mean"] >= 1:
            return "mean must be at least 1: the smallest number is 1"
        if self.name == "lognormal" and not (given["median"] > 0 and given["sigma"] >= 0):
            return "median must be above 0 and sigma not negative"
        if self.name == "normal" and not given["deviation"] >= 0:
            return "deviation must not be negative"
        if self.name == "pareto" and not (given["least"] > 0 and given["alpha"] > 0):
            return "least and alpha must be above 0"
        return ""

    def draw(self, bits: Bits, size: int) -> Floats:
        """Return ``size`` independent draws; a heavy tail may give infinity."""
        with np.errstate(over="ignore"):
            return self._draw(bits, size)

    def _draw(self, bits: Bits, size: int) -> Floats:
        given = self.parameters
        if self.name == "constant":
            return np.full(size, float(given["value"]))
        unit = uniform(bits, size)
        if self.name == "column":
            rows = np.asarray(self.rows, dtype=np.float64)
            return rows[np.minimum((unit * rows.size).astype(np.int64), rows.size - 1)]
        if self.name == "uniform":
            return given["low"] + unit * (given["high"] - given["low"])
        if self.name == "poisson":
            return np.searchsorted(_poisson_table(given["mean"]), unit, side="right").astype(np.float64)
        if self.name == "geometric":
            if given["mean"] == 1:
                return np.ones(size)
            return 1 + np.floor(np.log1p(-unit) / np.log1p(-1 / given["mean"]))
        if self.name == "exponential":
            return -np.log1p(-unit) * given["mean"]
        if self.name == "pareto":
            return given["least"] * (1 - unit) ** (-1 / given["alpha"])
        normal = normal_quantiles(np.maximum(unit, 2.0**-54))
        if self.name == "normal":
            return given["mean"] + given["deviation"] * normal
        return given["median"] * np.exp(given["sigma"] * normal)

    def counts(self, bits: Bits, size: int) -> Ints:
        """Return draws rounded to whole numbers of 0 or more; a draw above 2⁵³ raises ``RunError``."""
        drawn = np.maximum(np.rint(self.draw(bits, size)), 0)
        if not (largest := float(drawn.max(initial=0))) <= _LARGEST_COUNT:
            raise RunError(f"{self.name} with {dict(self.parameters)} drew {largest:.3g}: choose a lighter tail")
        return drawn.astype(np.int64)


def constant(value: float) -> Distribution:
    """Return the distribution of one value."""
    return Distribution(name="constant", parameters={"value": value})


def distribution(says: str, *, default: Any, shown: str = "") -> Any:
    """Declare a setting that is a distribution. ``known.read_column`` reads a column of a log."""
    if isinstance(default, Distribution) and not shown:
        words = [f"{name} {value:g}" for name, value in default.parameters.items()]
        shown = f"{default.parameters['value']:g}" if default.name == "constant" else ", ".join([default.name, *words])
    return setting(says, read=read_distribution, default=default, shown=shown, allowed="distribution")


def read_distribution(section: Section, key: str, known: Known) -> Distribution:
    """Read a distribution: a number (a constant), a table ``{ name = "poisson", mean = 2 }``, or a column of a log."""
    value = section.take(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return constant(float(value))
    if not isinstance(value, dict):
        section.refuse(key, f"is {value!r}", 'Write a number, or a table such as { name = "poisson", mean = 2 }')
    inner = section.section(key)
    name = inner.choice("name", (*PARAMETERS, "column"), "constant")
    if name == "column":
        path = inner.existing_file("file", example="log.csv")
        column = inner.text("column", example="price")
        inner.done()
        try:
            return Distribution(name="column", rows=tuple(known.read_column(path, column, inner.opened)))
        except CampaignError as problem:
            inner.refuse("column", f"cannot be drawn from: {problem}", "Name a column of numbers that the file has")
    given = {parameter: inner.number(parameter, None, least=-1e15, most=1e15) for parameter in PARAMETERS[name]}
    inner.done()
    try:
        return Distribution(name=name, parameters=given)
    except CampaignError as problem:
        example = ", ".join(f"{one} = {value:g}" for one, value in PARAMETERS[name].items())
        inner.refuse("", f"is not possible: {problem}", f'Write for example {{ name = "{name}", {example} }}')


def normal_quantiles(unit: Floats) -> Floats:
    """Return the quantiles of the standard normal law, to 15 digits.

    A few are computed by the standard library, because importing SciPy takes longer than that.
    """
    if unit.size <= _FEW:
        return np.fromiter(map(NormalDist().inv_cdf, unit.tolist()), dtype=np.float64, count=unit.size)
    from scipy.special import ndtri

    return np.asarray(ndtri(unit), dtype=np.float64)


def uniform(bits: Bits, size: int) -> Floats:
    """Return ``size`` numbers in [0, 1) with 53 random bits each."""
    return (bits.words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def weighted_indexes(bits: Bits, weights: Floats, size: int) -> Ints:
    """Return ``size`` indexes into ``weights``, each with probability proportional to its weight."""
    total = np.cumsum(weights)
    return np.minimum(np.searchsorted(total, uniform(bits, size) * total[-1], side="right"), weights.size - 1)


def coins(bits: Bits, probability: float, size: int) -> Flags:
    """Return ``size`` coins, each true with this probability."""
    return uniform(bits, size) < probability


def _poisson_table(mean: float) -> Floats:
    """Return P[X ≤ k] for k = 0, 1, … up to where 53 bits show no difference from 1."""
    last = int(mean + 12 * np.sqrt(mean) + 30)
    k = np.arange(1, last + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(max(mean, 1e-300) / k))))
    return np.cumsum(np.exp(logs - mean))
