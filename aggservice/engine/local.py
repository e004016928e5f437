"""What every engine does, and the local engine: jobs from sealed reports to a committed summary on one machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aggservice.engine.jobs.histogram import HistogramSession
from aggservice.engine.jobs.session import EngineParts, EngineSettings, Scope, Session
from aggservice.engine.jobs.shuffle import ShuffleSession
from aggservice.engine.opening.coverage import PrivacyUnit
from aggservice.engine.opening.pool import BatchOpener
from aggservice.engine.release.charging import Charge
from aggservice.engine.release.noise import ExactNoise, NoiseSource
from aggservice.engine.release.output import Destination, InLedger
from aggservice.job.request import JobRequest, ShuffleRequest, SumRequest
from aggservice.job.result import Outcome
from aggservice.mechanisms import Bits, Clock
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

    def find(self, scope: Scope, request: JobRequest, content: bytes = b"") -> Outcome | None:
        """Return the result that this request has already paid for; None if it has not been paid for.

        Raises ``JobIdTakenError`` if the caller used the job id for another request.
        """

    def close(self) -> None:
        """Stop the processes and connections that the engine started."""


class LocalEngine:
    """Runs jobs on this machine. Safe for several threads; one thread at a time uses a session.

    ``noise_of`` makes a job's source of noise from its bits; tests replace it to try every possible draw.
    ``keys_unreadable`` returns whether the newest private keys could not be read.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        opener: BatchOpener,
        clock: Clock,
        bits: Bits,
        settings: EngineSettings | None = None,
        noise_of: Callable[[Bits], NoiseSource] = ExactNoise,
        keys_unreadable: Callable[[], bool] = lambda: False,
    ) -> None:
        self.parts = EngineParts(
            ledger=ledger,
            opener=opener,
            clock=clock,
            bits=bits,
            settings=settings or EngineSettings(),
            noise_of=noise_of,
            keys_unreadable=keys_unreadable,
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger that jobs are charged to."""
        return self.parts.ledger

    @property
    def settings(self) -> EngineSettings:
        """The operator's settings for every job."""
        return self.parts.settings

    @property
    def unit(self) -> PrivacyUnit:
        """The privacy unit that pays for histograms."""
        return self.parts.unit

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
        """Begin a job (see ``Engine.begin``); ``input_bytes`` is ignored."""
        destination = destination or InLedger()
        if isinstance(request, ShuffleRequest):
            return ShuffleSession(self.parts, scope, request, destination=destination)
        assert isinstance(request, SumRequest)
        return HistogramSession(
            self.parts,
            scope,
            request,
            destination=destination,
            expected_keys=expected_keys,
            cleartext=cleartext,
            debug_only=request.debug_run if debug_only is None else debug_only,
        )

    def find(self, scope: Scope, request: JobRequest, content: bytes = b"") -> Outcome | None:
        """Return the result that this request has already paid for; None if it has not been paid for.

        Raises ``JobIdTakenError`` if the caller used the job id for another request.
        """
        return Charge.find(self.ledger, scope.caller, request, request.digest(content))

    def close(self) -> None:
        """Do nothing: the opener belongs to whoever made it."""
