"""The Spark engine against the local one: the same answers, and each release exactly once, whatever fails.

One test runs every check, so that a whole run starts one small cluster, in one process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aggservice.engine import EngineError, Outcome
from aggservice.engine.spark.cluster import Cluster

from .spark_jobs import KINDS, missing, random_job, small_cluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_same_answers(cluster: Cluster, folder: Path, seed: int) -> str:
    """Run a random job on both engines and compare all that it shows; return how it ended."""
    job = random_job(folder / "in", seed)
    here, there = job.local(folder / "local"), job.local(folder / "spark")
    ours, theirs = job.run(here, folder / "a"), job.run(job.spark(there, cluster), folder / "b")
    assert type(ours) is type(theirs), (seed, ours, theirs)
    assert list((folder / "spark" / "staging").iterdir()) == []
    if isinstance(ours, EngineError):
        assert str(ours) == str(theirs), seed
        assert here.ledger.checkpoint().entries == there.ledger.checkpoint().entries == 1
        return type(ours).__name__
    assert isinstance(ours, Outcome) and isinstance(theirs, Outcome)
    assert ours.header == theirs.header, seed
    assert files_of(folder / "a") == files_of(folder / "b"), seed
    if ours.rows is not None:
        for name in ("high", "low", "metrics", "unnoised", "annotations"):
            assert getattr(ours.rows, name).tolist() == getattr(theirs.rows, name).tolist(), (seed, name)
    if ours.receipted is not None:
        assert theirs.receipted is not None
        mine, other = ours.receipted.committed.entry, theirs.receipted.committed.entry
        assert (mine.units, mine.cost, mine.release) == (other.units, other.cost, other.release), seed
        assert mine.result.files == other.result.files
        assert ours.receipted.remaining == theirs.receipted.remaining
    return ours.header.return_code.value


def check_many(cluster: Cluster, folder: Path, count: int) -> dict[str, int]:
    endings: dict[str, int] = {}
    for seed in range(count):
        ending = check_same_answers(cluster, folder / str(seed), seed)
        endings[ending] = endings.get(ending, 0) + 1
    return endings


def test_spark_gives_the_answers_of_the_local_engine(tmp_path: Path) -> None:
    with small_cluster(tmp_path) as cluster:
        endings = check_many(cluster, tmp_path, 2 * len(KINDS))
        assert endings.keys() >= {"SUCCESS", "SUCCESS_WITH_ERRORS"}


@pytest.mark.soak
def test_spark_gives_the_answers_of_the_local_engine_for_200_jobs(tmp_path: Path) -> None:
    with small_cluster(tmp_path) as cluster:
        endings = check_many(cluster, tmp_path, 200)
    print(f"200 random jobs, {len(KINDS)} kinds, two executors against the local engine: the same; {endings}")
    assert sum(endings.values()) == 200 and len(endings) >= 4
