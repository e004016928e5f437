"""``aggservice estimate``: the numbers of the library, from a summary file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.campaign.estimates.ratios import NoisySum, lift, people_needed, quantile, ratio
from aggservice.commands import app
from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire import BucketRows, write_buckets

HIGH = 1 << 100
METRICS = {1: 61_000, 2: 1_000, 3: 400, 4: 900, HIGH: 1_300}
VARIANCE = float(DiscreteLaplace(epsilon="10", sensitivity=100).variance())
NOISE = ["--epsilon", "10", "--l1", "100"]


@pytest.fixture
def summary(tmp_path: Path) -> Path:
    path = tmp_path / "summary.avro"
    high = np.array([key >> 64 for key in METRICS], dtype=np.uint64)
    low = np.array([key & (1 << 64) - 1 for key in METRICS], dtype=np.uint64)
    write_buckets(path, BucketRows.summary(high, low, np.array(list(METRICS.values()), dtype=np.int64)))
    return path


def asked(*arguments: object) -> dict[str, float]:
    shown = CliRunner().invoke(app, ["estimate", *map(str, arguments), "--json"])
    assert shown.exit_code == 0, shown.output
    found: dict[str, float] = json.loads(shown.stdout)
    return found


def noisy(value: float, *, keys: int = 1, scale: float = 1.0) -> NoisySum:
    return NoisySum(value=value / scale, variance=keys * VARIANCE / scale**2)


def test_a_ratio_and_a_sum_of_buckets(summary: Path) -> None:
    plain = asked("ratio", summary, "--above", 1, "--below", f"2,{HIGH:#x}", "--above-scale", 10, *NOISE)
    expected = ratio(noisy(61_000, scale=10), noisy(2_300, keys=2))
    assert (plain["estimate"], plain["low"], plain["high"]) == (expected.estimate, expected.low, expected.high)
    words = CliRunner().invoke(app, ["estimate", "ratio", str(summary), "--above", "1", "--below", "2", *NOISE])
    assert words.exit_code == 0 and words.output.startswith("ratio 61, 95% interval ")


def test_lift(summary: Path) -> None:
    people = ["--treated-people", 5_000, "--control-people", 4_000]
    plain = asked("lift", summary, "--treated", HIGH, "--control", 2, *people, *NOISE)
    expected = lift(noisy(1_300), noisy(1_000), treated_people=5_000, control_people=4_000)
    assert (plain["estimate"], plain["low"], plain["high"]) == (expected.estimate, expected.low, expected.high)


def test_a_quantile(summary: Path) -> None:
    plain = asked("quantile", summary, "--buckets", "2,3,4", "--p", 0.6, *NOISE)
    expected = quantile(np.array([1_000.0, 400.0, 900.0]), np.full(3, VARIANCE), 0.6)
    assert (plain["estimate"], plain["low"], plain["high"]) == (expected.estimate, expected.low, expected.high)


def test_people() -> None:
    plain = asked("people", "--rate", 0.02, "--lift", 0.1, *NOISE)
    assert plain["people_per_group"] == people_needed(rate=0.02, lift=0.1, noise_variance=VARIANCE)


def test_noise_that_hides_everything_is_said(summary: Path) -> None:
    given = ["estimate", "ratio", str(summary), "--above", "1", "--below", "3", "--epsilon", "0.01", "--l1", "65536"]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0 and "too large for an interval" in shown.output
    assert asked(*given[1:])["low"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--above", "9", "--below", "2"], "bucket 0x9 is not in"),
        (["--above", "one", "--below", "2"], "is not a list of buckets"),
        (["--above", "1,1", "--below", "2"], "names a bucket twice"),
        (["--above", "1", "--below", "2", "--above-scale", "0"], "what one counted unit contributes"),
    ],
)
def test_bad_questions_are_refused(summary: Path, given: list[str], message: str) -> None:
    shown = CliRunner().invoke(app, ["estimate", "ratio", str(summary), *given])
    assert shown.exit_code == 2 and message in shown.output
