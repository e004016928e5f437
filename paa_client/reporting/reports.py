"""Aggregatable reports of Private Aggregation: their fields, their times, and their sealed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from aggservice import wire
from aggservice.mechanisms import Bits, uniform_below
from aggservice.wire.report.body import seal_payload
from paa_client.config import Config, ContextType
from paa_client.reporting.contributions import HistogramContribution
from paa_client.reporting.scopes import NO_DEBUG, BatchingScope, DebugDetails

_WELL_KNOWN = "/.well-known/private-aggregation/"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedReport:
    """A report before it is sealed. ``contributions`` has no padding; times are in milliseconds."""

    reporting_origin: str
    api: ContextType
    contributions: tuple[HistogramContribution, ...]
    report_id: str
    scheduled_report_time_ms: int
    max_contributions: int
    coordinator: str
    debug: DebugDetails = NO_DEBUG
    context_id: str | None = None
    filtering_id_max_bytes: int = 1
    version: str = "1.0"

    @property
    def is_null(self) -> bool:
        """Whether every value is 0."""
        return not any(contribution.value for contribution in self.contributions)

    @property
    def shared_info(self) -> str:
        """The text of ``shared_info`` (obtain a report's shared info), with ``debug_mode`` as Chrome adds it."""
        return self._shared_info().serialise()

    @property
    def cleartext(self) -> bytes:
        """The payload before sealing, padded with nulls (specification: obtain the plaintext payload)."""
        has_ids = self.version != "0.1"
        return wire.encode_payload(
            [
                wire.Contribution(
                    bucket=made.bucket, value=made.value, filtering_id=made.filtering_id if has_ids else 0
                )
                for made in self.contributions
            ],
            filtering_id_bytes=self.filtering_id_max_bytes if has_ids else 0,
            maximum=self.max_contributions,
        )

    def _shared_info(self) -> wire.SharedInfo:
        return wire.SharedInfo(
            api=wire.Api(self.api.value),
            report_id=self.report_id,
            reporting_origin=self.reporting_origin,
            scheduled_report_time_s=self.scheduled_report_time_ms // 1000,
            version=self.version,
            debug_mode=self.debug.enabled,
        )

    def url(self, *, debug: bool = False) -> str:
        """Return where the report (or its debug copy) goes (specification: obtain a reporting endpoint)."""
        return f"{self.reporting_origin}{_WELL_KNOWN}{'debug/' if debug else ''}report-{self.api.value}"

    def seal(self, keys: wire.PublicKeySet, bits: Bits) -> wire.AggregatableReport:
        """Return the report as it is posted, sealed to one of ``keys`` (serialize an aggregatable report)."""
        text, payload = seal_payload(self.cleartext, shared_info=self._shared_info(), keys=keys, bits=bits)
        return wire.AggregatableReport(
            shared_info=text,
            payloads=(payload,),
            aggregation_coordinator_origin=self.coordinator,
            context_id=self.context_id,
            debug_key=self.debug.key,
        )


PendingKey = tuple[str, ContextType, bool]
"""Reports that count together for the limit on pending ones: reporting origin, API, and whether deterministic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedReport:
    """A queued report: its time, the pending reports it counts among, and whether it is the immediate debug copy."""

    time_ms: int
    report: UnsealedReport
    counts_as: PendingKey
    debug_copy: bool = False

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.report.url(debug=self.debug_copy)


def make_report(
    scope: BatchingScope,
    contributions: Sequence[HistogramContribution],
    debug: DebugDetails,
    *,
    config: Config,
    bits: Bits,
    now_ms: int,
) -> UnsealedReport:
    """Return a report of a scope with a fresh id and its time (specification: obtain an aggregatable report)."""
    parameters = scope.parameters
    return UnsealedReport(
        reporting_origin=scope.reporting_origin,
        api=scope.api,
        contributions=tuple(contributions),
        report_id=random_uuid(bits),
        scheduled_report_time_ms=delivery_time_ms(config, bits, now_ms, parameters.timeout_ms),
        max_contributions=parameters.max_contributions,
        coordinator=parameters.coordinator,
        debug=debug,
        context_id=parameters.context_id,
        filtering_id_max_bytes=parameters.filtering_id_max_bytes,
        version=config.report_version,
    )


def random_uuid(bits: Bits) -> str:
    """Return a random UUID (version 4), serialized."""
    return str(UUID(bytes=bits.read(16), version=4))


def delivery_time_ms(config: Config, bits: Bits, now_ms: int, timeout_ms: int | None) -> int:
    """Return when a report is sent: at the timeout if there is one, else after 10 to 60 minutes, uniformly.

    Specification: obtain a report delivery time.
    """
    if timeout_ms is not None:
        return timeout_ms + config.local_processing_ms
    if config.local_testing_mode:
        return now_ms
    delay_ms = config.minimum_delay_ms + uniform_below(bits, config.randomized_delay_ms)
    return now_ms + config.local_processing_ms + delay_ms
