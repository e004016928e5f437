"""Histories: short lists of calls that are drawn choice by choice, and run in two worlds that must look the same.

A history is data: its ``repr`` is its reproduction. ``Choices`` is where choices come from, hypothesis (which shrinks
them) or a seeded generator (which is fast), so that both draw from the same space.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from aggservice.engine import PrivacyUnit
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2

from .in_process import Cut
from .sealed_pairs import BUCKETS, DOMAINS, GROUP, ORIGIN, RIVAL, SITE, Reports, key
from .worlds import JOBS, Brief, Setup

T = TypeVar("T")

AGGREGATION, BUDGET = "/aggservice.v1.AggregationService/", "/aggservice.v1.BudgetService/"
_JUNK_LENGTH = 15
#: A public key that nobody needs the private key of: these tests open nothing.
OUTPUT_KEY = "09" + "00" * 31
#: SQLite's shared index has 32 KiB; below that it cannot even open a ledger. A page of its log takes a frame more.
_SQLITE_BYTES, _FRAME_BYTES = 33_000, 4_120


class Choices(Protocol):
    """Where choices come from."""

    def below(self, count: int) -> int:
        """Return a whole number from 0 to ``count`` - 1; smaller ones make simpler histories."""


class Seeded:
    """Choices of a seeded generator, for many histories in little time."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)


@dataclass(frozen=True, slots=True, repr=False)
class Asks(Brief):
    """The parameters of a job, as text."""

    epsilon: str = "64"
    rho: str = ""
    delta: str = ""
    mask: int | None = None
    others: str = ""
    threshold: str = "100"
    count: int = 0
    minimum: int = 0
    filtering_ids: str = ""
    debug_run: bool = False
    scope: str = "origin"
    output_key: str = ""

    def message(self, job: str) -> aggregation_pb2.JobParameters:
        """Return the message of a job of this id."""
        message = aggregation_pb2.JobParameters(
            job_request_id=job,
            report_error_threshold_percentage=self.threshold,
            input_report_count=self.count,
            minimum_report_count=self.minimum,
            filtering_ids=self.filtering_ids,
            debug_run=self.debug_run,
            output_public_key=bytes.fromhex(self.output_key),
        )
        if self.scope == "site":
            message.reporting_site = SITE
        else:
            message.attribution_report_to = ORIGIN if self.scope == "origin" else RIVAL
        if self.rho:
            message.privacy_params.gaussian_dp_params.job_rho = self.rho
        elif self.epsilon:
            message.privacy_params.laplace_dp_params.job_epsilon = self.epsilon
        if self.delta:
            message.key_discovery.delta = self.delta
            if self.mask is not None:
                message.key_discovery.key_mask = key(self.mask)
        if self.others:
            message.others.epsilon = self.others
        return message


@dataclass(frozen=True, slots=True, repr=False)
class Part(Brief):
    """One message of a stream: parameters, domain, reports, end, or nothing."""

    kind: str
    chosen: tuple[int, ...] = ()
    junk: bool = False

    def message(self, job: str, asks: Asks, reports: Reports, side: int) -> aggregation_pb2.AggregateRequest:
        """Return the message in one world. Only the payloads of reports differ between worlds."""
        request = aggregation_pb2.AggregateRequest()
        if self.kind == "parameters":
            request.job_parameters.CopyFrom(asks.message(job))
        elif self.kind == "domain":
            raw = b"".join(key(BUCKETS[number]) for number in self.chosen)
            request.domain = raw + bytes(_JUNK_LENGTH) if self.junk else raw
        elif self.kind == "reports":
            pairs = [reports.pairs[number] for number in self.chosen]
            batch = request.reports
            batch.payloads.extend(pair.payloads[side] for pair in pairs)
            batch.key_ids.extend(pair.key_id for pair in pairs)
            batch.shared_infos.extend(pair.shared_info for pair in pairs[1 if self.junk else 0 :])
            batch.SetInParent()
        elif self.kind == "end":
            request.end.report_count = self.chosen[0]
        return request


@dataclass(frozen=True, slots=True, repr=False)
class Stream(Brief):
    """A job over a stream; ``between`` are calls made before the message of that index is read."""

    job: str
    asks: Asks
    parts: tuple[Part, ...]
    cut: Cut = Cut.CLOSE
    between: tuple[tuple[int, Step], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class FileJob(Brief):
    """A job over files; ``wait`` watches it to its end before the next step."""

    job: str
    asks: Asks
    inputs: tuple[str, ...]
    domain: str = ""
    wait: bool = True

    def message(self) -> aggregation_pb2.CreateJobRequest:
        """Return the request; each job has an output prefix of its own."""
        request = aggregation_pb2.CreateJobRequest(
            job_request_id=self.job,
            output_data_blob_prefix=f"to/{self.job}",
            output_domain_blob_prefix=self.domain,
            job_parameters=self.asks.message(self.job),
        )
        if len(self.inputs) == 1:
            request.input_data_blob_prefix = self.inputs[0]
        else:
            request.input_data_blob_prefixes.extend(self.inputs)
        return request


@dataclass(frozen=True, slots=True, repr=False)
class Ask(Brief):
    """A question about a job or the ledger."""

    method: str
    job: str = JOBS[0]
    asks: Asks = field(default_factory=Asks)
    chosen: tuple[int, ...] = ()

    def call(self, reports: Reports) -> tuple[str, bytes]:
        """Return the method's path and the request, which is the same in both worlds."""
        infos = [reports.pairs[number].shared_info for number in self.chosen]
        request: Any
        if self.method in ("GetJob", "WatchJob", "CancelJob"):
            request = aggregation_pb2.GetJobRequest(job_request_id=self.job)
        elif self.method == "GetSummary":
            request = aggregation_pb2.GetSummaryRequest(job_request_id=self.job)
        elif self.method == "ListUnpaidUnits":
            request = budget_pb2.ListUnpaidUnitsRequest(job_request_id=self.job)
        elif self.method == "CheckBudget":
            request = budget_pb2.CheckBudgetRequest(job_parameters=self.asks.message(self.job), shared_infos=infos)
        elif self.method == "GetBalance":
            request = budget_pb2.GetBalanceRequest(shared_infos=infos)
        elif self.method == "ListEntries":
            request = budget_pb2.ListEntriesRequest()
        else:
            request = budget_pb2.VerifyLedgerRequest()
        folder = AGGREGATION if self.method in _ABOUT_JOBS else BUDGET
        return folder + self.method, request.SerializeToString()


_TIGHT_ROOM = ("disk", "quota")
_ABOUT_JOBS = ("GetJob", "WatchJob", "CancelJob", "GetSummary")
_ABOUT_LEDGER = ("ListUnpaidUnits", "CheckBudget", "GetBalance", "ListEntries", "VerifyLedger")


@dataclass(frozen=True, slots=True, repr=False)
class Again(Brief):
    """A step of this history once more."""

    step: int


@dataclass(frozen=True, slots=True, repr=False)
class Restart(Brief):
    """The service stops and starts again on the same ledger."""


Step = Stream | FileJob | Ask | Again | Restart


@dataclass(frozen=True, slots=True, repr=False)
class History(Brief):
    """A setup and the steps that are taken in both worlds."""

    setup: Setup
    steps: tuple[Step, ...]


class Drawing:
    """Draws a history. Rare cases have high numbers, so that a shrunk history has none of them."""

    def __init__(self, choices: Choices, reports: Reports, inputs: Sequence[str]) -> None:
        self._choices = choices
        self._reports = reports
        self._inputs = inputs

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self._choices.below(len(options))]

    def rarely(self, count: int) -> bool:
        """Return True once in ``count`` times."""
        return self._choices.below(count) == count - 1

    def history(
        self,
        *,
        files: bool = False,
        faults: bool = False,
        pool: bool = False,
        calm: bool = False,
        spied: bool = False,
        spark: bool = False,
        tight: str = "",
    ) -> History:
        """Return a history. ``calm`` leaves out what two transports may do at different times.

        ``tight`` "rows" lets the ledger keep so few rows that whether a result fits often depends on discovered keys,
        "keys" lets a job discover about as many keys as its payloads have room for, and "disk" and "quota" leave about
        as much room for staged files as one result takes. ``spied`` adds a second caller, for jobs over files, some of
        which run in the stages of a cluster; with ``spark`` all of them do.
        """
        self._calm = calm
        self._tight = tight
        self._first = GROUP * self._choices.below(len(self._reports.pairs) // GROUP)
        setup = self._setup(files or spied, faults, pool)
        if spied:
            setup = replace(setup, spied=True, spark=spark or self.rarely(4))
            setup = replace(setup, **self._room(setup.spark))
        self._setup_drawn = setup
        steps: list[Step] = []
        for number in range(1 + self._choices.below(4)):
            steps.append(self._step(number))
        return History(setup, tuple(steps))

    def _setup(self, files: bool, faults: bool, pool: bool) -> Setup:
        changes: dict[str, Any] = {"files": files, "pool": pool}
        if self.rarely(3):
            changes["unit"] = PrivacyUnit.SHARED_ID
        if self.rarely(5):
            changes["zcdp"] = True
        changes["epsilon"] = (
            self.pick(("64", "1000", "65", "10", "1"))
            if changes.get("zcdp")
            else self.pick(("64", "65", "128", "10", "1"))
        )
        limit = {"rows": 4, "keys": 10}.get(self._tight, self._choices.below(12))
        if limit in (4, 8):
            changes["rows_in_ledger"] = 2 if self._tight else self._choices.below(6)
        elif limit in (5, 9):
            changes["result_bytes"] = 830 + self._choices.below(900)
        elif limit == 6:
            changes["largest_sum"] = 60_000 + 20_000 * self._choices.below(8)
        elif limit == 7:
            changes["domain_keys"] = self._choices.below(6)
        elif limit == 11:
            changes["units"] = 1 + self._choices.below(20)
        elif limit == 10:
            changes["most_keys"] = 10 + self._choices.below(40)
        if files and self.rarely(2):
            changes["rows_per_shard"] = 1 + self._choices.below(3)
        if self.rarely(12):
            changes["message_bytes"] = 500 + self._choices.below(1_000)
        if self.rarely(6):
            changes["jobs"] = 1
            changes["waiting"] = 0 if self._calm else self._choices.below(2)
        if faults:
            changes["sqlite"] = self.rarely(3)
            if changes["sqlite"]:
                changes["file_bytes"] = _SQLITE_BYTES + _FRAME_BYTES * self._choices.below(24) + self._choices.below(3)
            elif files and not self.rarely(4):
                # What is staged: a note of the job, shards of 169 bytes and more, a statement of 900 and more.
                first, count = self.pick(((160, 120), (890, 900), (0, 60)))
                changes["file_bytes"] = first + self._choices.below(count)
            else:
                changes["room"] = 2_900 + self._choices.below(1_600)
        return Setup(**changes)

    def _room(self, spark: bool) -> dict[str, Any]:
        """Return how much room there is to stage results: about as much as one to five of them need, or plenty.

        A cluster's room is counted and not allocated, so its disk is never the limit unless a break makes it one.
        """
        if self._tight == "disk":
            return {"disk": 2_000 + self._choices.below(3_000 if spark else 1_000)}
        which = 1 if self._tight == "quota" else self._choices.below(2 if spark else 3)
        if not which:
            return {}
        return {"quota" if which == 1 else "disk": 60_000 + 8_000 * self._choices.below(40)}

    def _asks(self) -> Asks:
        if self._tight in _TIGHT_ROOM:
            return Asks(delta="0.00001")
        zcdp = self._setup_drawn.zcdp
        changes: dict[str, Any] = {}
        changes["epsilon"] = self.pick(("64", "64", "1", "10", "0.000001", ""))
        if self.rarely(40):
            changes["epsilon"] = "65"
        if zcdp and not self.rarely(3):
            changes["rho"] = self.pick(("1", "64", "0.5", "0.000001"))
        elif not self.rarely(2):
            changes["delta"] = self.pick(("0.000001", "0.00001", "0.000001", "0.000000000000000001"))
            if self.rarely(20):
                changes["delta"] = "1"
            if self.rarely(4):
                changes["mask"] = self.pick(((1 << 128) - 1, 3, 0))
        if not changes.get("rho") and self.rarely(3):
            changes["others"] = self.pick(("1", "64", "0.000001"))
        changes["threshold"] = self.pick(("100", "100", "100", "50", "", "0"))
        if self.rarely(5):
            changes["count"] = self.pick((1, 3, 100))
        changes["filtering_ids"] = self.pick(("", "0,1", "0", "1", "0,1,2"))
        if self.rarely(40):
            changes.update(self.pick(({"threshold": "101"}, {"filtering_ids": "x"}, {"count": -1}, {"minimum": 2})))
        changes["debug_run"] = self.rarely(12)
        changes["scope"] = "rival" if self.rarely(30) else self.pick(("origin", "origin", "site"))
        if self.rarely(8):
            changes["output_key"] = self.pick((OUTPUT_KEY, OUTPUT_KEY, OUTPUT_KEY[2:], "00" * 32))
        return Asks(**changes)

    def _report(self) -> int:
        return (self._first + self._choices.below(GROUP + 2)) % len(self._reports.pairs)

    def _domain(self) -> Part:
        count = self._choices.below(5)
        chosen = tuple(self._choices.below(len(BUCKETS)) for _ in range(count))
        return Part("domain", chosen, self.rarely(40))

    def _batch(self) -> Part:
        size = 1 + self._choices.below(3)
        if self.rarely(15):
            size = 0
        return Part("reports", tuple(self._report() for _ in range(size)), self.rarely(50))

    def _parts(self) -> tuple[Part, ...]:
        """Return mostly a whole stream: parameters, domain, reports, end; then something put in, left out or moved."""
        parts = [Part("parameters")]
        parts += [self._domain() for _ in range(self.pick((1, 1, 1, 2, 2, 0)))]
        pooled = self._setup_drawn.pool
        parts += [self._batch() for _ in range(self.pick((1, 2, 3, 4 if pooled else 0)) + (3 if pooled else 0))]
        if self.rarely(2 if pooled else 5):
            parts.append(self._domain())
            if self.rarely(2):
                parts.append(self._batch())
        if self.rarely(20):
            odd = self.pick((Part("nothing"), Part("parameters"), Part("end", (0,))))
            parts.insert(self._choices.below(len(parts) + 1), odd)
        count = sum(len(part.chosen) for part in parts if part.kind == "reports")
        parts.append(Part("end", (count + (1 if self.rarely(20) else 0),)))
        if self.rarely(20):
            del parts[self._choices.below(len(parts))]
        if self.rarely(30):
            parts.append(self.pick((Part("end", (count,)), self._batch(), self._domain())))
        return tuple(parts)

    def _stream(self, nested: bool = False) -> Stream:
        job, asks, parts = self.pick(JOBS), self._asks(), self._parts()
        if self._calm:
            return Stream(job, asks, parts)
        cut = Cut.CLOSE if not self.rarely(8) else self.pick((Cut.CANCEL, Cut.STALL))
        if cut is not Cut.CLOSE or self.rarely(16):
            parts = parts[: 1 + self._choices.below(len(parts))]
        between: list[tuple[int, Step]] = []
        if not nested and self.rarely(3):
            for _ in range(1 + self._choices.below(2)):
                between.append((self._choices.below(len(parts)), self._inner()))
        return Stream(job, asks, parts, cut, tuple(between))

    def _inner(self) -> Step:
        """Return a step that can be taken while a stream is open: it waits for nothing that the stream holds."""
        setup = self._setup_drawn
        kind = self._choices.below(6)
        if kind == 4 and (setup.jobs > 1 or setup.waiting == 0):
            return self._stream(nested=True)
        if kind == 5 and setup.files:
            return self._file_job(wait=False)
        return self._ask(("GetJob", "CancelJob", "GetSummary", *_ABOUT_LEDGER))

    def _file_job(self, wait: bool) -> FileJob:
        first = self._first // GROUP
        inputs = [self._inputs[(first + self._choices.below(2)) % len(self._inputs)]]
        if self.rarely(3):
            inputs.append(self.pick(self._inputs))
        if self.rarely(15):
            inputs.append(self.pick(("cut-reports", "missing", "../reports")))
        domain = self.pick(("", *(f"domain-{number}" for number in range(len(DOMAINS))), "domain-", "junk-domain"))
        return FileJob(self.pick(JOBS), self._asks(), tuple(inputs), domain, wait)

    def _ask(self, methods: Sequence[str]) -> Ask:
        method = self.pick(methods)
        if method in ("CheckBudget", "GetBalance"):
            asks = self._asks() if method == "CheckBudget" else Asks()
            return Ask(method, self.pick(JOBS), asks, tuple(self._report() for _ in range(self._choices.below(3))))
        return Ask(method, self.pick(JOBS))

    def _step(self, number: int) -> Step:
        kind = 0 if self._tight in _TIGHT_ROOM else self._choices.below(10)
        if kind == 6 and number:
            return Again(self._choices.below(number))
        if kind in (7, 8):
            return self._ask((*_ABOUT_JOBS[: 1 if self._calm else 4], "GetSummary", *_ABOUT_LEDGER))
        if kind == 9 and not self._calm:
            return Restart()
        if self._setup_drawn.files and kind < 5:
            return self._file_job(wait=self._calm or not self.rarely(4))
        return self._stream()
