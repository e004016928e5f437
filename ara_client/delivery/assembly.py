"""Sealing aggregatable reports to the keys of their coordinator, with ``aggservice.wire``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aggservice.mechanisms import Bits
from aggservice.wire import Api, Origin, PublicKeySet, SharedInfo, WireError, make_report
from ara_client.constants import DAY_MS, MAX_AGGREGATION_KEYS, MAX_DEBUG_CONTRIBUTIONS, REPORT_VERSION, SECOND_MS
from ara_client.errors import AraClientError
from ara_client.reports import AggregatableAttributionReport, AggregatableDebugReport

Sealable = AggregatableAttributionReport | AggregatableDebugReport


class AssemblyFailure(AraClientError):
    """A report could not be sealed. ``transient`` is true if trying again later can succeed."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class Assembler:
    """Seals reports: one public key set per coordinator, one uniformly drawn key per report."""

    def __init__(self, keys: Mapping[Origin, PublicKeySet], bits: Bits) -> None:
        self._keys = dict(keys)
        self._bits = bits

    def assemble(self, report: Sealable) -> Sealable:
        """Return the report with its sealed body; raise ``AssemblyFailure`` if it cannot be sealed."""
        keys = self._keys.get(report.coordinator)
        if keys is None:
            raise AssemblyFailure(f"no public keys are known for {report.coordinator}", transient=True)
        attribution = report if isinstance(report, AggregatableAttributionReport) else None
        shown = attribution if attribution is not None and attribution.debug_enabled else None
        try:
            sealed = make_report(
                report.contributions,
                shared_info=shared_info(report),
                keys=keys,
                bits=self._bits,
                maximum=MAX_DEBUG_CONTRIBUTIONS if attribution is None else MAX_AGGREGATION_KEYS,
                filtering_id_bytes=None if attribution is None else attribution.filtering_id_max_bytes,
                aggregation_coordinator_origin=str(report.coordinator),
                trigger_context_id=None if attribution is None else attribution.trigger_context_id,
                source_debug_key=None if shown is None else shown.source_debug_key,
                trigger_debug_key=None if shown is None else shown.trigger_debug_key,
            )
        except WireError as error:
            raise AssemblyFailure(str(error), transient=False) from error
        return replace(report, sealed=sealed)


def shared_info(report: Sealable) -> SharedInfo:
    """Return the public part of a report (WICG, "obtain an aggregatable report's shared info")."""
    attribution = report if isinstance(report, AggregatableAttributionReport) else None
    source_time_ms = None if attribution is None else attribution.source_time_ms
    return SharedInfo(
        api=Api.ATTRIBUTION_REPORTING_DEBUG if attribution is None else Api.ATTRIBUTION_REPORTING,
        report_id=report.report_id,
        reporting_origin=str(report.reporting_origin),
        scheduled_report_time_s=report.scheduled_time_ms // SECOND_MS,
        version=REPORT_VERSION,
        attribution_destination=report.destination,
        source_registration_time_s=None if source_time_ms is None else rounded_source_time_s(source_time_ms),
        debug_mode=attribution is not None and attribution.debug_enabled,
    )


def rounded_source_time_s(time_ms: int) -> int:
    """Return a time rounded down to whole days, in seconds (WICG, "obtain rounded source time")."""
    return time_ms // DAY_MS * (DAY_MS // SECOND_MS)
