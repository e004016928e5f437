"""The blobs of one job on a cluster: made by tasks, sent to their partitions, read by tasks, and removed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from aggservice.engine.spark.cluster import Cluster, guarded

T = TypeVar("T")


def same_partition(target: int) -> int:
    """Return ``target``, the number of a partition. Spark compares divisions by this function, so all must use it."""
    return target


class Exchange:
    """Runs the tasks of one job, which can be cancelled without those of other jobs."""

    def __init__(self, cluster: Cluster, group: str, partitions: int) -> None:
        self._cluster = cluster
        self._group = group
        self._partitions = partitions
        self._context = cluster.context()
        self._sources: list[Any] = []

    def add(self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> None:
        """Add what ``work`` yields for each item, as (partition, blob); tasks run when the blobs are first read."""
        rdd = self._context.parallelize(items, max(1, len(items)))
        blobs = rdd.mapPartitionsWithIndex(guarded(lambda _, mine: (blob for item in mine for blob in work(item))))
        self._sources.append(blobs.partitionBy(self._partitions, same_partition))

    def read(self, work: Callable[[int, Iterable[Any]], Iterator[T]], partitions: range) -> list[T]:
        """Run ``work`` over the blobs of each of some partitions, in the order in which their sources were added."""
        blobs = self._sources[0]
        for source in self._sources[1:]:
            blobs = blobs.union(source)
        assert blobs.getNumPartitions() == self._partitions
        return self._cluster.run(self._group, blobs, work, partitions)

    def each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Run ``work`` for each item, in one task per item; return the results in order."""
        rdd = self._context.parallelize(items, len(items))
        return self._cluster.run(self._group, rdd, lambda _, mine: (work(item) for item in mine), range(len(items)))

    def forget(self) -> None:
        """Remove the blobs of this job, which are cleartext."""
        from py4j.protocol import Py4JError

        for source in self._sources:
            with suppress(Py4JError, OSError):  # a context that stopped has removed it
                source._jrdd.rdd().cleanShuffleDependencies(False)
