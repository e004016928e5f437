"""The service of a campaign: its privacy unit, its ledger and its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aggservice.campaign.settings.campaign import Campaign
from aggservice.engine import InlineOpener, LocalEngine, PrivacyUnit
from aggservice.mechanisms import Bits, Clock
from aggservice.service import ServiceConfig
from aggservice.wire import KeySet
from budget import EpsilonDeltaFilter, Filter, Ledger, MemoryStore, Signer, Terms


def unit_of(campaign: Campaign) -> PrivacyUnit:
    """Return what pays for the campaign's jobs."""
    return PrivacyUnit.REPORT if campaign.service.unit == "report" else PrivacyUnit.SHARED_ID


def service_config(campaign: Campaign, out: Path, *, processes: int = 0, ledger: Path | None = None) -> ServiceConfig:
    """Return the configuration of a campaign's embedded service: its files, ledger and caps."""
    limits = campaign.service
    config = ServiceConfig(
        # The signing key of a ledger is in the same folder.
        state=out / "ledger" if ledger is None else ledger.resolve().parent,
        listen="127.0.0.1:0",
        ledger="sqlite",
        ledger_path=ledger,
        filter=EpsilonDeltaFilter.parse(epsilon=limits.epsilon, delta=limits.delta),
        unit=unit_of(campaign),
        sensitivities=campaign.client.bounds,
        input_folder=out,
        output_folder=out,
    )
    return replace(config, limits=replace(config.limits, processes=processes, jobs=1))


def memory_ledger(filter: Filter, terms: Terms, *, clock: Clock, bits: Bits, kind: type[Ledger] = Ledger) -> Ledger:
    """Return a new ledger in memory."""
    return kind.create(MemoryStore(), filter=filter, terms=terms, signer=Signer.generate(bits), clock=clock, bits=bits)


def local_engine(ledger: Ledger, *, clock: Clock, bits: Bits) -> LocalEngine:
    """Return the engine of a campaign's embedded service, without keys and without the service."""
    return LocalEngine(ledger=ledger, opener=InlineOpener(KeySet(())), clock=clock, bits=bits)


def drop_queue(out: Path) -> None:
    """Remove the job queue of a run's own service: it ended with the run, and it holds times of the real clock."""
    for path in (out / "ledger").glob("jobs.*"):
        path.unlink()
