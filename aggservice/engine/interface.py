"""The interface of every engine: jobs over columns or files, with the same errors and counters on each engine."""

from __future__ import annotations

from typing import Protocol

from aggservice.engine.jobs.session import EngineSettings, Scope, Session
from aggservice.engine.opening.coverage import PrivacyUnit
from aggservice.engine.release.charging import Receipted
from aggservice.engine.release.output import Destination
from aggservice.engine.request import JobRequest
from budget import Ledger


class Engine(Protocol):
    """Runs jobs: ``LocalEngine`` on this machine, ``SparkEngine`` on a cluster. Safe for several threads."""

    @property
    def ledger(self) -> Ledger:
        """The ledger that jobs are charged to."""

    @property
    def settings(self) -> EngineSettings:
        """The operator's settings for every job."""

    @property
    def unit(self) -> PrivacyUnit:
        """The privacy unit that pays for histograms."""

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
        """Begin a job whose result goes to ``destination`` (by default, the ledger).

        ``input_bytes`` is the size of a job over files, and None for a stream. ``cleartext`` reads payloads that are
        not sealed, for local tests. ``debug_only`` reads only reports that were marked for debugging; by default,
        only a debug run does so.
        """

    def find(self, scope: Scope, request: JobRequest, content: bytes = b"") -> Receipted | None:
        """Return the result that this request has already paid for; None if it has not been paid for.

        Raises ``JobIdTakenError`` if the caller used the job id for another request.
        """

    def close(self) -> None:
        """Stop the processes and connections that the engine started."""
