"""Sends reports to a service under test, and keeps the truth of each for the experimenter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from aggservice.campaign.assess.losses import ReportTruth
from aggservice.campaign.assess.transcript import TranscriptRecorder
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import AggregatableReport, Api, Contribution, PublicKeySet, SharedInfo, make_report

ORIGIN = "https://adtech.example"
DESTINATION = "https://shop.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSender:
    """Seals reports of one API to the keys of a service; only ``recorder`` gets their truth."""

    api: Api
    keys: PublicKeySet
    clock: Clock
    bits: Bits
    recorder: TranscriptRecorder

    def send(self, unit: str, raw_id: bytes, contributions: Sequence[Contribution]) -> tuple[str, AggregatableReport]:
        """Return the id and the sealed report of a privacy unit; without contributions it is a null report."""
        report_id = str(UUID(bytes=raw_id, version=4))
        report = make_report(
            contributions,
            shared_info=SharedInfo(
                api=self.api,
                report_id=report_id,
                reporting_origin=ORIGIN,
                scheduled_report_time_s=self.clock.now_ms() // 1000,
                attribution_destination=DESTINATION if self.api.has_destination else None,
            ),
            keys=self.keys,
            bits=self.bits,
            maximum=1,
        )
        sent = tuple((one.filtering_id, one.value) for one in contributions)
        self.recorder.add_report(ReportTruth(report_id=report_id, unit=unit, contributions=sent))
        return report_id, report
