"""A connection to a Spark cluster: started when first needed, shared by jobs, each of which can be cancelled alone."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from aggservice.engine.spark.settings import SparkSettings
from aggservice.job.errors import EngineError, WorkerLostError

T = TypeVar("T")

_DEFAULTS = {
    "spark.app.name": "aggservice",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Keys and ids are hashes and cannot be compressed: trying costs time.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.shuffle.sort.bypassMergeThreshold": "2000",
    "spark.driver.maxResultSize": "2g",
}


class TaskError(Exception):
    """A task failed. The message names the kind of error and the line, and nothing that a report contains."""


class Cluster:
    """Spark as this engine uses it. Safe for several threads."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._context: Any = None

    def context(self) -> Any:
        """Return the running context; start one if there is none, or if it has stopped."""
        with self._lock:
            if self._context is None or self._context._jsc is None or self._context._jsc.sc().isStopped():
                self._context = self._start()
            return self._context

    def _start(self) -> Any:
        try:
            from pyspark import SparkConf, SparkContext
        except ImportError as problem:
            raise EngineError("the Spark engine needs pyspark: pip install 'aggservice[spark]'") from problem
        options = {**_DEFAULTS, **self._settings.options}
        os.environ.setdefault("PYSPARK_PYTHON", options.get("spark.pyspark.python", sys.executable))
        if self._settings.master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = SparkConf().setMaster(self._settings.master)
        for name, value in options.items():
            conf.set(name, value)
        try:
            context = SparkContext(conf=conf)
        except Exception as problem:
            raise EngineError(
                f"Spark could not be started at {self._settings.master}: check spark.master, and install Java 17"
            ) from problem
        context.setLogLevel("ERROR")
        return context

    @property
    def slots(self) -> int:
        """How many tasks can run at once."""
        return int(self.context().defaultParallelism)

    def run(
        self, group: str, rdd: Any, work: Callable[[int, Iterable[Any]], Iterator[T]], partitions: range
    ) -> list[T]:
        """Run ``work`` over some partitions of ``rdd`` and return what it yields; WorkerLostError if Spark gives up."""
        context = self.context()
        context.setJobGroup(group, group)
        try:
            return list(context.runJob(rdd.mapPartitionsWithIndex(guarded(work)), _as_it_is, list(partitions)))
        except Exception as problem:
            raise WorkerLostError(
                "the Spark cluster gave up on a step of this job, after it had tried several times"
            ) from problem
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    def cancel(self, group: str) -> None:
        """End the tasks of a job, if it has any now."""
        with self._lock:
            if self._context is not None and self._context._jsc is not None:
                self._context.cancelJobGroup(group)

    def close(self) -> None:
        """Leave the cluster."""
        with self._lock:
            if self._context is not None:
                self._context.stop()
                self._context = None


def _as_it_is(rows: Iterator[T]) -> Iterator[T]:
    return rows


def guarded(work: Callable[[int, Iterable[Any]], Iterator[T]]) -> Callable[[int, Iterable[Any]], Iterator[T]]:
    """Wrap ``work`` so that its errors reveal nothing about reports: Spark sends errors to the service and to logs."""

    def run(partition: int, rows: Iterable[Any]) -> Iterator[T]:
        try:
            yield from work(partition, rows)
        except Exception as problem:
            frame = problem.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            where = "" if frame is None else f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
            raise TaskError(f"{type(problem).__name__}{where}") from None
        finally:
            freeze_modules()

    return run


@cache
def freeze_modules() -> None:
    """Exempt what a Python worker has imported from cycle collection, once per process.

    PySpark collects cycles after every task, which would take 60 ms over all modules that are loaded.
    """
    gc.freeze()
