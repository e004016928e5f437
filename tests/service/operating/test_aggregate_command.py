"""``aggservice aggregate`` against LocalTestingTool's own sample, and its noise against the discrete Laplace law."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.engine import ReleasePlan
from aggservice.engine.release.noise import ExactNoise, release
from aggservice.engine.tables.sums import KeySums
from aggservice.mechanisms import DiscreteLaplace, SecureBits
from aggservice.wire import ReportBatch, read_summary, write_reports
from aggservice.wire.avro.buckets import read_debug_summary
from budget import LaplaceNoise, Sensitivity

from ...engine.conftest import Maker

SAMPLE = "vectors/aggregation-service-sampledata"


@pytest.fixture(scope="module")
def runner() -> CliRunner:
    return CliRunner()


def invoke(runner: CliRunner, shared: Path, folder: Path, *flags: str) -> None:
    sample = shared / SAMPLE
    result = runner.invoke(
        app,
        [
            "aggregate",
            "--input_data_avro_file",
            str(sample / "output_debug_reports.avro"),
            "--domain_avro_file",
            str(sample / "output_domain.avro"),
            "--output_directory",
            str(folder),
            *flags,
        ],
    )
    assert result.exit_code == 0, result.output


def test_the_sample_without_noise_gives_the_published_facts(runner: CliRunner, shared: Path, tmp_path: Path) -> None:
    invoke(runner, shared, tmp_path, "--no_noising", "--json_output")
    found = json.loads((tmp_path / "output.json").read_text(encoding="utf-8"))
    published = json.loads((shared / SAMPLE / "aggregate_result.json").read_text(encoding="utf-8"))
    by_bucket = lambda facts: sorted(facts, key=lambda fact: fact["bucket"])  # noqa: E731
    assert by_bucket(found) == by_bucket(published)
    assert sorted(fact["metric"] for fact in found) == [4400, 32768]


def test_avro_and_debug_outputs(runner: CliRunner, shared: Path, tmp_path: Path) -> None:
    invoke(runner, shared, tmp_path, "--no_noising", "--debug_run")
    rows = list(read_summary(tmp_path / "output.avro"))
    assert sorted(np.concatenate([part.numbers[:, 0] for part in rows]).tolist()) == [4400, 32768]
    debug = list(read_debug_summary(tmp_path / "debug" / "output.avro"))
    assert sorted(np.concatenate([part.numbers[:, 0] for part in debug]).tolist()) == [4400, 32768]
    assert all((part.numbers[:, 1] == 0).all() for part in debug)


def test_with_noise_the_metrics_differ_from_the_sums(runner: CliRunner, shared: Path, tmp_path: Path) -> None:
    invoke(runner, shared, tmp_path, "--epsilon", "10", "--json_output")
    found = json.loads((tmp_path / "output.json").read_text(encoding="utf-8"))
    assert len(found) == 2
    assert sorted(fact["metric"] for fact in found) != [4400, 32768]


def test_a_missing_file_or_domain_is_told_and_not_thrown(runner: CliRunner, tmp_path: Path) -> None:
    flags = ["aggregate", "--output_directory", str(tmp_path), "--input_data_avro_file", str(tmp_path / "none.avro")]
    result = runner.invoke(app, flags)
    assert result.exit_code == 2 and "--domain_avro_file" in result.output
    result = runner.invoke(app, [*flags, "--skip_domain"])
    assert result.exit_code == 2 and "none.avro" in result.output
    for bad in ("0", "65", "nan", "1e-7"):
        result = runner.invoke(app, [*flags, "--skip_domain", "--epsilon", bad])
        assert result.exit_code == 2 and "epsilon" in result.output


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_refusal_shows_its_counters(runner: CliRunner, tmp_path: Path, flags: tuple[str, ...]) -> None:
    maker = Maker()
    write_reports(tmp_path / "reports.avro", [ReportBatch.of([maker.report({1: 1}), maker.report({1: 1})])])
    arguments = ["--input_data_avro_file", str(tmp_path / "reports.avro"), "--output_directory", str(tmp_path / "out")]
    result = runner.invoke(app, ["aggregate", *arguments, "--skip_domain", "--debug_run", *flags])
    assert result.exit_code == 2
    assert "DEBUG_NOT_ENABLED: 2" in result.stderr and '"debug_mode": "enabled"' in result.stderr
    if flags:
        found = json.loads(result.stdout)
        assert found["return_code"] == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
        assert found["error_counts"]["DEBUG_NOT_ENABLED"] == 2
    assert not (tmp_path / "out").exists()


def test_ten_thousand_repetitions_have_the_discrete_laplace_law(shared: Path) -> None:
    """The sample's sums with ε = 10, 10,000 times, against the exact cdf at 24 points a key.

    False-alarm rate: 10⁻⁶ in all, by exact binomial tails with Bonferroni over both keys, points and sides.
    """
    from aggservice.commands.service.aggregate import local_outcome

    sample = shared / SAMPLE
    outcome = local_outcome(sample / "output_debug_reports.avro", sample / "output_domain.avro", noise=False)
    assert outcome.rows is not None
    true = outcome.rows.metrics.copy()
    assert sorted(true.tolist()) == [4400, 32768]
    repetitions = 10_000
    plan = ReleasePlan(
        mechanism=LaplaceNoise.parse(epsilon="10"),
        sensitivity=Sensitivity(),
    )
    noise = ExactNoise(SecureBits())
    drawn = np.empty((repetitions, 2), dtype=np.int64)
    for number in range(repetitions):
        sums = KeySums(salt=1)
        sums.declare(outcome.rows.high, outcome.rows.low)
        sums.sums[:] = true
        drawn[number] = release(sums.columns(), plan, noise).metrics - true
    law = DiscreteLaplace(epsilon_micro=10_000_000, sensitivity=65_536)
    steps = (0, 100, 500, 1000, 2500, 5000, 8000, 12_000, 20_000, 30_000, 45_000, 60_000)
    points = [sign * step for step in steps for sign in (1, -1)]
    level = 1e-6 / (2 * 2 * len(points))
    for key in range(2):
        for point in points:
            count = int((drawn[:, key] <= point).sum())
            chance = float(law.cdf(point))
            assert binom.cdf(count, repetitions, chance) > level
            assert binom.sf(count - 1, repetitions, chance) > level
