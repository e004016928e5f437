"""Checks that refuse a histogram job before its release. They use public facts only (docs/design.md, semantics 8)."""

from __future__ import annotations

from aggservice.engine.errors import DomainError, InvalidJobError
from aggservice.engine.release.noise import ReleasePlan
from aggservice.engine.request import JobRequest
from aggservice.engine.tables.sums import MOST_KEYS
from aggservice.wire.batch.payloads import SMALLEST_CONTRIBUTION_BYTES
from budget import Ledger, Release


def check_priced(request: JobRequest, ledger: Ledger) -> None:
    """Refuse a mechanism that the ledger has no price for, before any report arrives."""
    ledger.filter.cost(Release(mechanisms=ReleasePlan.of(request, ledger.terms, {}).mechanisms()))


def check_declarable(request: JobRequest, *, reading: bool) -> None:
    """Refuse keys declared after the first reports, or in a job with an attribution task, which has its own keys."""
    if request.task is not None:
        raise DomainError("the keys of a W3C job are the indexes of its histogram: send no domain")
    if reading:
        raise DomainError("keys were declared after the first reports: send all domain parts first")


def check_declared(keys: int, most: int) -> None:
    """Refuse more declared keys than the operator allows."""
    if keys > most:
        raise DomainError(f"the job declares more than {most:,} keys, the most that this service accepts")


def check_discoverable(declared: int, payload_bytes: int) -> None:
    """Refuse reports that may hold more keys than a job can discover, by the size of all payloads so far.

    ``declared`` must not count discovered keys: a caller could fill up to the limit and learn their number for free.
    """
    if declared + payload_bytes // SMALLEST_CONTRIBUTION_BYTES > MOST_KEYS:
        raise InvalidJobError(
            "these reports may contain more keys than a job can discover: divide them over several jobs"
        )


def check_batch_size(request: JobRequest, used: int, least: int) -> None:
    """Refuse a W3C job with fewer usable reports than the operator's minimum (specification, "aggregation")."""
    if request.task is not None and used < least:
        raise InvalidJobError(
            f"the job has {used} usable reports, and a job over W3C Attribution needs at least {least}; nothing was "
            "charged: send more reports"
        )


def check_releasable(declared: int, *, discovers: bool) -> None:
    """Refuse a job that declares no key and does not discover keys."""
    if not declared and not discovers:
        raise InvalidJobError(
            "the job declares no key and does not ask for discovery, so there is nothing to release: "
            "send a domain or set key discovery"
        )
