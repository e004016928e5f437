"""Reports, ledgers and engines of small size, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from aggservice.engine import EngineSettings, InlineOpener, LocalEngine, Scope, WorkerPool, ledger_terms
from aggservice.engine.release.noise import NoiseSource
from aggservice.mechanisms import Bits, ManualClock, SecureBits, SeededBits
from aggservice.wire import AggregatableReport, Api, Contribution, KeySet, ReportBatch, SharedInfo, make_report
from budget import EpsilonDeltaFilter, Filter, Ledger, MemoryStore, Signer, Terms

ORIGIN = "https://adtech.example"
NOW_MS = 1_700_000_000_000
SCOPE = Scope(caller="adtech")


class Maker:
    """Makes sealed reports for one key set and one moment."""

    def __init__(self, bits: Bits | None = None) -> None:
        self.bits = bits or SecureBits()
        self.clock = ManualClock(NOW_MS)
        self.keys = KeySet.create(self.bits, self.clock)

    def info(self, **changes: object) -> SharedInfo:
        fields: dict[str, object] = {
            "api": Api.ATTRIBUTION_REPORTING,
            "report_id": str(UUID(bytes=self.bits.read(16), version=4)),
            "reporting_origin": ORIGIN,
            "scheduled_report_time_s": NOW_MS // 1000 - 600,
            "attribution_destination": "https://shop.example",
        }
        return SharedInfo(**{**fields, **changes})  # type: ignore[arg-type]

    def report(
        self, contributions: dict[int, int] | Sequence[Contribution] = (), **changes: object
    ) -> AggregatableReport:
        if isinstance(contributions, dict):
            contributions = [Contribution(bucket=bucket, value=value) for bucket, value in contributions.items()]
        return make_report(
            contributions,
            shared_info=self.info(**changes),
            keys=self.keys.public(self.clock),
            bits=self.bits,
            maximum=max(20, len(contributions)),
        )

    def batch(self, reports: Sequence[AggregatableReport]) -> ReportBatch:
        return ReportBatch.of(reports)


@pytest.fixture
def maker() -> Maker:
    return Maker()


def new_ledger(filter: Filter | None = None, clock: ManualClock | None = None, terms: Terms | None = None) -> Ledger:
    bits = SeededBits("ledger")
    return Ledger.create(
        MemoryStore(),
        filter=filter or EpsilonDeltaFilter(),
        terms=terms or ledger_terms(),
        signer=Signer.generate(bits),
        clock=clock or ManualClock(NOW_MS),
        bits=bits,
    )


@pytest.fixture
def engine_of() -> Callable[..., LocalEngine]:
    def build(
        maker: Maker,
        *,
        ledger: Ledger | None = None,
        terms: Terms | None = None,
        settings: EngineSettings | None = None,
        bits: Bits | None = None,
        noise: NoiseSource | None = None,
    ) -> LocalEngine:
        keywords = {} if noise is None else {"noise_of": lambda _: noise}
        return LocalEngine(
            ledger=ledger or new_ledger(terms=terms),
            opener=InlineOpener(maker.keys),
            clock=maker.clock,
            bits=bits or SecureBits(),
            settings=settings,
            **keywords,
        )

    return build


def process_ids(pool: WorkerPool) -> list[int]:
    """Return the process ids of a pool's workers."""
    return [worker.process.pid for worker in list(pool._workers.values())]
