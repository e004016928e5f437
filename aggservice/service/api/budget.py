"""The servicer of ``BudgetService``: balances, dry runs, refusals by page, the log and its audit."""

from __future__ import annotations

import grpc
import numpy as np
from numpy.typing import NDArray

from aggservice.engine import Engine, ReleasePlan
from aggservice.engine.opening.coverage import privacy_units
from aggservice.engine.release.charging import Charge
from aggservice.engine.shuffle import ShufflePlan
from aggservice.job.errors import InvalidJobError
from aggservice.job.messages import amount, request_of, timestamp
from aggservice.job.request import JobRequest, ShuffleRequest, SumRequest, parse_filtering_ids
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.rpc.v1 import budget_service_pb2_grpc as budget_grpc
from aggservice.rpc.v1 import common_pb2
from aggservice.service.api.gate import current_caller
from aggservice.service.config.callers import Caller, Role
from aggservice.service.errors import ForbiddenError
from aggservice.service.jobs.dispatch import JobRunner
from aggservice.service.messages import page_size, shared_info_batch
from aggservice.wire import UNIT_BYTES, ReportStatus, parse_shared_info_batch, report_units
from aggservice.wire.batch.shared_infos import SharedInfoColumns
from budget import Check, Receipt, Spend, verify_store
from budget.answers import Shortfall
from budget.errors import FormatError
from budget.log.entries import Genesis, RecoveryEntry, ReleaseEntry
from budget.log.history import EntryQuery, ListedEntry, find_page

_MAX_UNITS = 10_000
_MAX_UNITS_DERIVED = 100_000
_FIRST_SHOWN = 20


class BudgetServicer(budget_grpc.BudgetServiceServicer):
    """Answers calls about the ledger that the gate has authenticated and authorised."""

    def __init__(self, *, engine: Engine, runner: JobRunner) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._runner = runner

    def _columns(self, caller: Caller, shared_infos: list[str]) -> SharedInfoColumns:
        """Return shared_infos as columns; refuse those of origins that the caller does not own."""
        if len(shared_infos) > _MAX_UNITS:
            raise InvalidJobError(
                f"the request has {len(shared_infos)} shared_infos: give at most {_MAX_UNITS} per call"
            )
        columns = parse_shared_info_batch(shared_info_batch(shared_infos))
        bad = np.flatnonzero(columns.status != ReportStatus.OK)
        if bad.size:
            name = ReportStatus(int(columns.status[bad[0]])).name
            raise InvalidJobError(f"shared_infos[{bad[0]}] is not a shared_info: {name}")
        for origin in columns.origins:
            if not caller.owns(origin):
                raise ForbiddenError(f"{origin} is not a reporting origin of {caller.name}")
        return columns

    def _units(self, columns: SharedInfoColumns, filtering_ids: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return a unit for each report and filtering ID; refuse more than 100,000 per call."""
        if len(columns.status) * len(filtering_ids) > _MAX_UNITS_DERIVED:
            raise InvalidJobError(
                f"{len(columns.status)} reports and {len(filtering_ids)} filtering IDs make more than "
                f"{_MAX_UNITS_DERIVED} units: ask about fewer per call"
            )
        return privacy_units(self._engine.unit, columns, filtering_ids).reshape(-1, UNIT_BYTES)

    async def GetBalance(
        self, request: budget_pb2.GetBalanceRequest, context: grpc.aio.ServicerContext
    ) -> budget_pb2.GetBalanceResponse:
        """Return what units have spent: an ad-tech asks by shared_info, auditors and operators by unit key."""
        caller = current_caller()
        if request.units and not caller.roles & {Role.AUDITOR, Role.OPERATOR}:
            raise ForbiddenError("only auditors and operators can look up units by key: give shared_infos")
        if request.shared_infos and Role.ADTECH not in caller.roles:
            raise ForbiddenError("only ad-techs can ask by shared_info: give unit keys")
        if len(request.units) > _MAX_UNITS or any(len(unit) != UNIT_BYTES for unit in request.units):
            raise InvalidJobError(f"units: give at most {_MAX_UNITS} per call, each of {UNIT_BYTES} bytes")
        filtering_ids = parse_filtering_ids(request.filtering_ids)
        if len(request.shared_infos) * len(filtering_ids) + len(request.units) > _MAX_UNITS:
            raise InvalidJobError(f"the request names more than {_MAX_UNITS} units: ask about fewer per call")
        columns = self._columns(caller, list(request.shared_infos))
        raw = self._units(columns, filtering_ids).tobytes() + b"".join(request.units)
        asked = [raw[at : at + UNIT_BYTES] for at in range(0, len(raw), UNIT_BYTES)]
        spent = await self._runner.blocking(self._ledger.balances, raw)
        found = {spent.units[index]: spent.of(index) for index in range(len(spent.units))}
        limit = self._ledger.filter.limit
        return budget_pb2.GetBalanceResponse(
            balances=[self._balance(unit, found[unit], limit) for unit in asked],
            total=amount(limit, self._ledger.filter),
            total_uses=self._ledger.filter.uses or 0,
            privacy_unit=self._engine.unit.value,
        )

    def _balance(self, unit: bytes, spent: Spend, limit: Spend) -> budget_pb2.Balance:
        left = Spend(
            loss_micro=limit.loss_micro - spent.loss_micro,
            delta_atto=limit.delta_atto - spent.delta_atto,
            uses=limit.uses - spent.uses,
        )
        chosen = self._ledger.filter
        return budget_pb2.Balance(
            unit=unit, spent=amount(spent, chosen), remaining=amount(left, chosen), uses=spent.uses
        )

    def _unpaid(self, shortfall: Shortfall) -> common_pb2.UnpaidUnit:
        return common_pb2.UnpaidUnit(
            unit=shortfall.unit,
            spent=amount(shortfall.spent, self._ledger.filter),
            uses=shortfall.spent.uses,
            job_request_ids=[use.job_id for use in shortfall.jobs],
        )

    async def CheckBudget(
        self, request: budget_pb2.CheckBudgetRequest, context: grpc.aio.ServicerContext
    ) -> budget_pb2.CheckBudgetResponse:
        """Return whether this job would be paid. Nothing is charged, opened or released.

        A device token is inside a sealed payload. The cost of an amplified shuffle therefore assumes that every report
        has a valid one.
        """
        caller = current_caller()
        asked = request_of(request.job_parameters)
        caller.check_scope(attribution_report_to=asked.attribution_report_to, reporting_site=asked.reporting_site)
        check = await self._runner.blocking(self._check, caller, asked, list(request.shared_infos))
        return budget_pb2.CheckBudgetResponse(
            sufficient=check.payable,
            unit_count=check.total,
            unpaid_count=check.count,
            unpaid=[self._unpaid(one) for one in check.first[:_FIRST_SHOWN]],
            cost=amount(check.asked, self._ledger.filter),
        )

    def _check(self, caller: Caller, asked: JobRequest, shared_infos: list[str]) -> Check:
        columns = self._columns(caller, shared_infos)
        settings = self._engine.settings
        plan: ReleasePlan | ShufflePlan
        if isinstance(asked, SumRequest):
            units = self._units(columns, asked.filtering_ids)
            plan = ReleasePlan.of(asked, self._ledger.terms, {})
        else:
            assert isinstance(asked, ShuffleRequest)
            units = report_units(columns, (0,)).reshape(-1, UNIT_BYTES)
            reports = len(np.unique(units, axis=0))
            plan = ShufflePlan.of(asked, reports, evidence=settings.shuffle.evidence(asked))
        charge = Charge(ledger=self._ledger, caller=caller.name, request=asked, digest=asked.digest(), plan=plan)
        return charge.check(np.unique(units, axis=0))

    async def ListUnpaidUnits(
        self, request: budget_pb2.ListUnpaidUnitsRequest, context: grpc.aio.ServicerContext
    ) -> budget_pb2.ListUnpaidUnitsResponse:
        """Return one page of the units that could not pay for a refused job of this caller."""
        caller = current_caller()
        refusal = self._runner.book.refusal(caller.name, request.job_request_id)
        start, size = page_of(request.page_token, request.page_size)
        page: tuple[Shortfall, ...] = ()
        if start < refusal.count:
            page = await self._runner.blocking(
                self._ledger.explain,
                caller=caller.name,
                release=refusal.release,
                units=refusal.units,
                offset=start,
                limit=size,
            )
        stop = start + len(page)
        return budget_pb2.ListUnpaidUnitsResponse(
            units=[self._unpaid(one) for one in page],
            next_page_token=str(stop) if stop < refusal.count else "",
            total_count=refusal.count,
            asked=amount(self._ledger.filter.cost(refusal.release), self._ledger.filter),
        )

    async def ListEntries(
        self, request: budget_pb2.ListEntriesRequest, context: grpc.aio.ServicerContext
    ) -> budget_pb2.ListEntriesResponse:
        """Return one page of the log, filtered; an ad-tech sees its own entries only."""
        caller = current_caller()
        start, size = page_of(request.page_token, request.page_size)
        if len(request.unit) not in (0, UNIT_BYTES):
            raise InvalidJobError(f"unit has {len(request.unit)} bytes: a unit key has {UNIT_BYTES} bytes")
        everything = bool(caller.roles & {Role.AUDITOR, Role.OPERATOR})
        query = EntryQuery(
            caller=(request.caller or None) if everything else caller.name,
            job_id=request.job_request_id or None,
            unit=request.unit or None,
            since_ms=_time_ms(request, "not_before"),
            until_ms=_time_ms(request, "before"),
        )
        found, following = await self._runner.blocking(find_page, self._ledger.store, query, start=start, size=size)
        return budget_pb2.ListEntriesResponse(
            entries=[self._entry(one) for one in found], next_page_token="" if following is None else str(following)
        )

    def _entry(self, listed: ListedEntry) -> budget_pb2.LedgerEntry:
        entry = listed.entry
        message = budget_pb2.LedgerEntry(
            index=entry.seq,
            kind=entry.type,
            time=timestamp(entry.time_ms),
            entry_hash=listed.entry_hash,
            previous_hash=entry.previous,
        )
        if not isinstance(entry, Genesis):
            message.cost.CopyFrom(amount(entry.cost, self._ledger.filter))
            message.unit_count = entry.units.count
        if isinstance(entry, ReleaseEntry):
            message.caller, message.job_request_id = entry.caller, entry.job_id
            message.result_digest = entry.result.sha256
        if isinstance(entry, RecoveryEntry):
            message.caller = entry.operator
        return message

    async def VerifyLedger(
        self, request: budget_pb2.VerifyLedgerRequest, context: grpc.aio.ServicerContext
    ) -> budget_pb2.VerifyLedgerResponse:
        """Audit the ledger: replay its log from the first entry and compare balances, jobs and ``receipts`` with it."""
        try:
            receipts = [Receipt.from_bytes(raw) for raw in request.receipts]
        except FormatError as problem:
            raise InvalidJobError(f"receipts holds an item that is not a receipt: {problem}") from problem
        report = await self._runner.blocking(verify_store, self._ledger.store, receipts=receipts)
        found = report.disagreement
        return budget_pb2.VerifyLedgerResponse(
            ok=report.ok,
            entry_count=report.entries,
            unit_count=report.units_known,
            head=report.head,
            first_bad_entry=-1 if found is None or found.seq is None else found.seq,
            problem="" if found is None else str(found),
        )


def _time_ms(request: budget_pb2.ListEntriesRequest, name: str) -> int | None:
    """Return a time of the request, or None if it is not set."""
    if not request.HasField(name):
        return None
    try:
        return int(getattr(request, name).ToMilliseconds())
    except ValueError:
        raise InvalidJobError(
            f"{name} is not a time: give the years 1 to 9999 and nanoseconds from 0 to 999,999,999"
        ) from None


def page_of(token: str, size: int) -> tuple[int, int]:
    """Return the start and the size of a page. A page token is the index at which the page begins."""
    if token and not (token.isascii() and token.isdigit() and len(token) <= 18):
        raise InvalidJobError("page_token is wrong: give the next_page_token of the page before")
    return int(token or 0), page_size(size)
