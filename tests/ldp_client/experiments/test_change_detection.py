"""Table 2 of the LOLOHA paper for one sampled bit: exact chances against enumeration, runs and the printed cells."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from ldp_client import bit_flip
from ldp_client.enumeration import distribution
from ldp_client.errors import FigureError, LdpParameterError
from ldp_client.experiments.datasets import Dataset, load_dataset
from ldp_client.experiments.figures import FigureRequest, find_figure
from ldp_client.experiments.loloha import EPSILONS_MICRO, one_bit, printed_hits
from ldp_client.experiments.run import caught_users, detection_chances, hits_law, two_sided
from ldp_client.sampling import ExactDraws

EXACT_PERCENT = (".00476", ".00455", ".00422", ".00382", ".00337", ".00291", ".00247", ".00206", ".00170", ".00140")
MEMOS: tuple[Any, ...] = ("pattern", "bucket")


@pytest.fixture(scope="module")
def montana(shared: Path) -> Dataset:
    return load_dataset("DB_MT", SeededBits(1), shared / "data" / "loloha")


def walks(rows: list[tuple[int, ...]], buckets: int) -> Dataset:
    return Dataset(name="walks", labels=np.arange(buckets), buckets=buckets, values=np.array(rows))


@pytest.mark.parametrize("memo", MEMOS)
@pytest.mark.parametrize("micro", [500_000, 3_000_000])
def test_the_chances_are_those_of_the_client_itself(memo: Any, micro: int) -> None:
    """Every walk of five steps over three buckets, and some over four: the client's own code on every branch."""
    some = [(0, 1, 2, 3, 0), (0, 1, 0, 2, 0), (0, 1, 2, 1, 3), (3, 3, 3, 3, 1)]
    for buckets, rows in ((3, list(itertools.product(range(3), repeat=5))), (4, some)):
        data = walks(rows, buckets)
        protocol = bit_flip(k=buckets, buckets=buckets, sampled=1, epsilon_permanent_micro=micro, memo=memo)
        found = iter(detection_chances(data, protocol))
        for row in rows:
            if len(set(row)) == 1:
                continue

            def shown(draws: ExactDraws, row: tuple[int, ...] = row, protocol: Any = protocol) -> bool:
                client = protocol.client(draws)
                sent = [client.report(value).bits for value in row]
                return all(sent[i] != sent[i + 1] for i in range(4) if row[i] != row[i + 1])

            assert next(found) == pytest.approx(float(distribution(shown).get(True, 0)), abs=1e-12)
        assert next(found, None) is None


def test_a_fleet_is_caught_as_often_as_the_chances_say() -> None:
    """60,000 users of three walks, both memos: six standard deviations, 4e-9 in all; the memos are 30 apart."""
    data = walks([(0, 1, 0, 1), (0, 1, 2, 1), (0, 1, 2, 0)] * 20_000, 6)
    means = {}
    for each in MEMOS:
        protocol = bit_flip(k=6, buckets=6, sampled=1, epsilon_permanent_micro=1_000_000, memo=each)
        chances = detection_chances(data, protocol)
        means[each], spread = chances.sum(), float(np.sqrt(np.sum(chances * (1 - chances))))
        assert abs(caught_users(data, protocol, SecureBits()) - means[each]) < 6 * spread
    assert means["bucket"] - means["pattern"] > 30 * np.sqrt(60_000 / 4)


def test_the_ten_cells_of_table_2_are_exact(montana: Dataset) -> None:
    found = []
    for micro in EPSILONS_MICRO:
        chances = detection_chances(montana, one_bit(montana, micro, "bucket"))
        assert chances.size == montana.users  # everybody changes bucket
        found.append(f"{100 * chances.mean():.5f}"[1:])
    assert tuple(found) == EXACT_PERCENT


def test_the_printed_cells_have_an_answer_per_bucket(montana: Dataset) -> None:
    """All ten together: usual if answers are per bucket; once in 10^60 if they were per pattern, as Table 1 says."""
    hits = [printed_hits(micro, montana) for micro in EPSILONS_MICRO]
    assert hits == [10, 9, 10, 8, 5, 5, 5, 4, 2, 2]
    likely: dict[str, list[float]] = {memo: [] for memo in MEMOS}
    for micro, found in zip(EPSILONS_MICRO, hits, strict=True):
        for memo in MEMOS:
            law = hits_law(detection_chances(montana, one_bit(montana, micro, memo)), 20)
            likely[memo].append(two_sided(law, found))
    assert min(likely["bucket"]) > 0.4
    assert np.prod(likely["pattern"]) < 1e-60


@pytest.mark.parametrize("runs", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_runs_agree_with_the_exact_cells(runs: int, montana: Dataset, shared: Path, tmp_path: Path) -> None:
    """Secure draws. Each cell at 10^-8, and all hits together at 10^-8: 1.1e-7 false alarms in all.

    With 20 runs the sum is 64.6 on average; 0, which answers per pattern give, has probability 10^-38.
    """
    total, law = 0, np.ones(1)
    for micro in EPSILONS_MICRO:
        protocol = one_bit(montana, micro, "bucket")
        cell = hits_law(detection_chances(montana, protocol), runs)
        hits = sum(caught_users(montana, protocol, SecureBits()) for _ in range(runs))
        print(f"ε∞ = {micro / 1e6}: {hits} hits in {runs} runs, two-sided {two_sided(cell, hits):.4f}")
        assert two_sided(cell, hits) > 1e-8
        total, law = total + hits, np.convolve(law, cell)
    print(f"all: {total} hits, expected {law @ np.arange(law.size):.1f}, two-sided {two_sided(law, total):.4f}")
    assert two_sided(law, total) > 1e-8


def test_the_figure_writes_the_cells(shared: Path, tmp_path: Path) -> None:
    figure = find_figure("loloha-table-2-exact")
    request = FigureRequest(
        out=tmp_path, clock=ManualClock(0), data=shared / "data" / "loloha", runs=1, epsilons_micro=(5_000_000,)
    )
    with figure.make(request).files[0].open() as file:
        (row,) = csv.DictReader(file)
    assert (row["exact_bucket_percent"], row["printed_percent"], row["printed_hits"]) == ("0.00140", "0.001", "2")
    for more in ({"users": 5}, {"datasets": ("Syn",)}, {"epsilons_micro": (700_000,)}):
        with pytest.raises(FigureError):
            figure.make(FigureRequest(out=tmp_path, clock=ManualClock(0), data=request.data, **more))  # type: ignore[arg-type]


def test_laws_of_hits_are_binomial_for_one_user() -> None:
    law = hits_law(np.array([0.0, 0.3]), 20)
    assert law == pytest.approx(binom.pmf(np.arange(21), 20, 0.3), abs=1e-14)
    for hits in (0, 3, 6, 14, 20):
        assert two_sided(law, hits) == pytest.approx(binomtest(hits, 20, 0.3).pvalue, rel=1e-9)
    assert two_sided(law, 21) == 0


def test_what_has_no_exact_chances_is_refused() -> None:
    data = walks([(0, 1, 2)], 3)
    with pytest.raises(LdpParameterError, match="one sampled bit, d = 1, not d = 2"):
        detection_chances(data, bit_flip(k=3, buckets=3, sampled=2, epsilon_permanent_micro=1))
    with pytest.raises(LdpParameterError, match="runs must be"):
        hits_law(np.ones(1), 0)
    with pytest.raises(LdpParameterError, match="hits must be"):
        two_sided(np.ones(1), -1)
