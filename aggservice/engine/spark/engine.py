"""The Spark engine: jobs over many files on a cluster, and every other job on this machine."""

from __future__ import annotations

from aggservice.engine.jobs.session import Scope, Session
from aggservice.engine.local import LocalEngine
from aggservice.engine.release.output import AvroShards, Destination
from aggservice.engine.spark.cluster import Cluster
from aggservice.engine.spark.session import ClusterSession
from aggservice.engine.spark.settings import SparkSettings
from aggservice.job.request import JobRequest, SumRequest


class SparkEngine(LocalEngine):
    """Runs histograms over files on a cluster, from the operator's input size on, and every other job with ``local``.

    Except for the noise, what a job releases does not depend on where it ran. Safe for several threads. The
    ledger needs a staging folder that all executors can write to. Engines of one process share a ``cluster``.
    """

    def __init__(self, local: LocalEngine, settings: SparkSettings, cluster: Cluster | None = None) -> None:
        self.parts = local.parts
        self._settings = settings
        self._cluster = cluster or Cluster(settings)

    def begin(
        self,
        scope: Scope,
        request: JobRequest,
        *,
        destination: Destination | None = None,
        expected_keys: int = 0,
        cleartext: bool = False,
        debug_only: bool | None = None,
        input_bytes: int | None = None,
    ) -> Session:
        """Begin a job (see ``Engine.begin``): on the cluster if it is a large histogram job from files to files."""
        large = input_bytes is not None and input_bytes >= self._settings.least_input_bytes
        if not large or not isinstance(request, SumRequest) or not isinstance(destination, AvroShards):
            return super().begin(
                scope,
                request,
                destination=destination,
                expected_keys=expected_keys,
                cleartext=cleartext,
                debug_only=debug_only,
            )
        return ClusterSession(
            self.parts,
            self._cluster,
            self._settings,
            scope,
            request,
            destination=destination,
            cleartext=cleartext,
            debug_only=request.debug_run if debug_only is None else debug_only,
        )

    def start(self) -> None:
        """Join the cluster now; otherwise the first job does so."""
        self._cluster.context()

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()
