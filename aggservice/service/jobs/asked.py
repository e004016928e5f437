"""A job over files as its caller asked for it: the message checked, then its files read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aggservice.engine import AvroShards, Session
from aggservice.engine.opening.coverage import PrivacyUnit, privacy_units
from aggservice.job.errors import InvalidJobError, UnpaidError
from aggservice.job.messages import request_of, timestamp
from aggservice.job.request import HistogramRequest, JobRequest
from aggservice.job.result import Outcome
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service.config.callers import Caller
from aggservice.service.jobs.places import PlacedFile, Places, Prefix
from aggservice.wire import UNIT_BYTES, ReportStatus, SharedInfo, parse_shared_info_batch, read_reports

MOST_LISTED: Final = 50_000
"""Entries in one file; ListUnpaidUnits lists all units."""


def unpaid_name(received_ms: int) -> str:
    """Return the name of the file for a job that was received at this time."""
    return f"privacy_budget_exhausted_debugging_information_{timestamp(received_ms).ToJsonString()}.json"


def unpaid_document(
    files: Iterable[PlacedFile], request: JobRequest, unit: PrivacyUnit, problem: UnpaidError, most: int = MOST_LISTED
) -> bytes:
    """Return the file: the first report of each unit that cannot pay, ``most`` of them at most, in order of files."""
    entries = [
        {"aggregateable_input_budget_id": {"filtering_id": filtering_id, "relevant_shared_info": _shown(info, unit)}}
        for info, filtering_id in _unpaid(files, request, unit, problem, most)
    ]
    document = {"privacy_budget_exhausted_info": {"aggregatable_input_budget_consumption_info": entries}}
    return json.dumps(document, indent=1).encode()


def _unpaid(
    files: Iterable[PlacedFile], request: JobRequest, unit: PrivacyUnit, problem: UnpaidError, most: int
) -> Iterator[tuple[SharedInfo, int]]:
    lacking = np.ascontiguousarray(problem.units).view(f"S{UNIT_BYTES}").ravel()
    listed: set[bytes] = set()
    for file in files:
        with file.open() as opened:
            for batch in read_reports(opened):
                infos = parse_shared_info_batch(batch.shared_infos)
                units = np.ascontiguousarray(privacy_units(unit, infos, request.filtering_ids))
                keys = units.view(f"S{UNIT_BYTES}")[..., 0]
                places = np.minimum(np.searchsorted(lacking, keys), len(lacking) - 1)
                found = (lacking[places] == keys) & (infos.status == ReportStatus.OK)[:, None]
                for row, column in np.argwhere(found).tolist():
                    key = units[row, column].tobytes()
                    if key in listed:
                        continue
                    listed.add(key)
                    yield infos.row(row), request.filtering_ids[column]
                    if len(listed) == most:
                        return


def _shown(info: SharedInfo, unit: PrivacyUnit) -> dict[str, Any]:
    fields = {
        "api": None if info.api is None else info.api.value,
        "attribution_destination": info.attribution_destination,
        "report_id": info.report_id if unit == PrivacyUnit.REPORT else None,
        "reporting_origin": info.reporting_origin,
        "scheduled_report_time": info.scheduled_report_time_s,
        "source_registration_time": info.source_registration_time_s,
        "version": info.version,
    }
    return {name: value for name, value in fields.items() if value is not None}


_MAX_PREFIXES = 50
_DOMAIN_RECORD_BYTES = 17
"""A record of a domain file: one byte for the length of the bucket, and its 16 bytes."""
_MOST_EXPECTED = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """A valid request for a job over files. The files that it names have not been checked yet."""

    request: JobRequest
    prefixes: tuple[str, ...]
    domain: str | None
    output: str

    @classmethod
    def of(cls, message: aggregation_pb2.CreateJobRequest) -> AskedJob:
        """Return what a message asks for; InvalidJobError naming what is wrong with it."""
        prefixes = tuple(message.input_data_blob_prefixes) or (message.input_data_blob_prefix,)
        if bool(message.input_data_blob_prefix) == bool(message.input_data_blob_prefixes):
            raise InvalidJobError("give exactly one of input_data_blob_prefix and input_data_blob_prefixes")
        if len(prefixes) > _MAX_PREFIXES:
            raise InvalidJobError(f"input_data_blob_prefixes has {len(prefixes)} entries: give at most {_MAX_PREFIXES}")
        parameters = aggregation_pb2.JobParameters()
        parameters.CopyFrom(message.job_parameters)
        parameters.job_request_id = message.job_request_id or parameters.job_request_id
        domain = message.output_domain_blob_prefix or None
        request = request_of(parameters, (*prefixes, "->", message.output_data_blob_prefix, "domain", domain or ""))
        needs_domain = isinstance(request, HistogramRequest) and not (request.discovery or request.debug_run)
        if domain is None and needs_domain:
            raise InvalidJobError("the job names no keys: give output_domain_blob_prefix or key_discovery")
        if domain is not None and not request.has_domain:
            raise InvalidJobError(
                "shuffles and jobs with an attribution_task have no output domain: leave output_domain_blob_prefix out"
            )
        return cls(request=request, prefixes=prefixes, domain=domain, output=message.output_data_blob_prefix)

    def check_scope(self, caller: Caller) -> None:
        """Refuse a job over an origin or a site that the caller does not own."""
        caller.check_scope(
            attribution_report_to=self.request.attribution_report_to, reporting_site=self.request.reporting_site
        )


class FileJob:
    """A job over files that a caller may read and write."""

    def __init__(
        self,
        *,
        prefixes: tuple[Prefix, ...],
        domain: Prefix | None,
        output: AvroShards,
        place: Prefix | None = None,
    ) -> None:
        """``place`` is the output's prefix, which is checked once more before anything is charged."""
        self.output = output
        self._prefixes = prefixes
        self._domain = domain
        self._place = place

    def expected_keys(self) -> int:
        """Estimate how many keys the domain has from the size of its files, so that the table need not grow."""
        size = sum(file.size for file in self.domain_files())
        return min(size // _DOMAIN_RECORD_BYTES, _MOST_EXPECTED)

    def input_bytes(self) -> int:
        """Return how many bytes of reports and keys there are."""
        return sum(file.size for file in (*self.domain_files(), *self.report_files()))

    def domain_files(self) -> list[PlacedFile]:
        """Return the files of the domain, in order."""
        return [] if self._domain is None else self._domain.files()

    def report_files(self) -> list[PlacedFile]:
        """Return the files of reports, in order, each once."""
        found = {(file.folder.root, file.name): file for prefix in self._prefixes for file in prefix.files()}
        return list(found.values())

    def run(self, session: Session) -> Outcome:
        """Read domain and reports, and finish. Runs in a thread."""
        session.declare_files(self.domain_files())
        session.add_files(self.report_files())
        if self._place is not None:
            self._place.prepare()
        return session.finish()

    def list_unpaid(self, problem: UnpaidError, request: JobRequest, unit: PrivacyUnit, received_ms: int) -> str:
        """Write which reports cannot pay below the output prefix; return the file's name. Runs in a thread."""
        name = unpaid_name(received_ms)
        if self._place is not None:
            self._place.write_below(name, unpaid_document(self.report_files(), request, unit, problem))
        return name


def file_job(places: Places, caller: Caller, asked: AskedJob) -> FileJob:
    """Check every path and return the job, so that a caller learns of a wrong path before the job is stored."""
    domain = None if asked.domain is None else places.input(caller, asked.domain)
    prefixes = tuple(places.input(caller, prefix) for prefix in asked.prefixes)
    for prefix in (*prefixes, *((domain,) if domain is not None else ())):
        prefix.files()
    output = places.output(caller, asked.output)
    return FileJob(prefixes=prefixes, domain=domain, output=output.prepare(), place=output)
