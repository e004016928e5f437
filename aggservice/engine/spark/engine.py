"""The Spark engine: jobs over many files on a cluster, and every other job on this machine."""

from __future__ import annotations

from aggservice.engine.jobs.session import EngineSettings, Scope, Session
from aggservice.engine.local import LocalEngine
from aggservice.engine.opening.coverage import PrivacyUnit
from aggservice.engine.release.charging import Receipted
from aggservice.engine.release.output import AvroShards, Destination
from aggservice.engine.request import JobRequest
from aggservice.engine.spark.cluster import Cluster
from aggservice.engine.spark.session import ClusterSession
from aggservice.engine.spark.settings import SparkSettings
from budget import Ledger


class SparkEngine:
    """Runs histograms over files on a cluster, from the operator's input size on; ``local`` runs everything else.

    What a job releases does not depend on where it ran, but for the noise itself. Safe for several threads. The
    ledger needs a staging folder that all executors can write to. Engines of one process share a ``cluster``.
    """

    def __init__(self, local: LocalEngine, settings: SparkSettings, cluster: Cluster | None = None) -> None:
        self._local = local
        self._settings = settings
        self._cluster = cluster or Cluster(settings)

    @property
    def ledger(self) -> Ledger:
        """The ledger that jobs are charged to."""
        return self._local.ledger

    @property
    def settings(self) -> EngineSettings:
        """What the operator decided for every job."""
        return self._local.settings

    @property
    def unit(self) -> PrivacyUnit:
        """What pays for histograms."""
        return self._local.unit

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
        """Begin a job, as ``Engine.begin`` says: on the cluster if it is a histogram from files to files and large."""
        large = input_bytes is not None and input_bytes >= self._settings.least_input_bytes
        if not large or request.shuffle is not None or not isinstance(destination, AvroShards):
            return self._local.begin(
                scope,
                request,
                destination=destination,
                expected_keys=expected_keys,
                cleartext=cleartext,
                debug_only=debug_only,
            )
        return ClusterSession(
            self._local.parts,
            self._cluster,
            self._settings,
            scope,
            request,
            destination=destination,
            cleartext=cleartext,
            debug_only=request.debug_run if debug_only is None else debug_only,
        )

    def find(self, scope: Scope, request: JobRequest, content: bytes = b"") -> Receipted | None:
        """Return what this very request has paid for already; None if it has not been paid for."""
        return self._local.find(scope, request, content)

    def start(self) -> None:
        """Join the cluster now; otherwise the first job does so."""
        self._cluster.context()

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()
