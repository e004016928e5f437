"""Worlds of an exact game over Attribution Reporting or Private Aggregation, each with its own clients and ledger."""

from __future__ import annotations

from aggservice.audit.exact import Make, Pick, responses
from aggservice.campaign.assess.losses import ContributionBounds
from aggservice.campaign.requery.interactive import SummaryMechanism, Without, bounds_terms
from aggservice.campaign.service.config import memory_ledger
from aggservice.campaign.service.runner import EngineRunner
from aggservice.engine import InlineOpener, LocalEngine
from aggservice.engine.release.noise import NoiseSource
from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import Api, KeySet
from budget import EpsilonDeltaFilter


def summary_world(
    api: Api, bounds: ContributionBounds, *, epsilon: str, delta: str = "0", without: Without | None = None
) -> Make:
    """Return a function that makes a new world with the budgets ε* and δ* per report at each call.

    With ``without`` it is the neighbouring world. The clients, seals, engine and ledger are the real ones.
    """
    limits = EpsilonDeltaFilter.parse(epsilon=epsilon, delta=delta)
    clock = ManualClock(1_700_000_000_000)
    keys = KeySet.create(SecureBits(), clock)

    def make(noise: NoiseSource, pick: Pick) -> SummaryMechanism:
        bits = SecureBits()
        ledger = memory_ledger(limits, bounds_terms(api, bounds), clock=clock, bits=bits)
        engine = LocalEngine(ledger=ledger, opener=InlineOpener(keys), clock=clock, bits=bits, noise_of=lambda _: noise)
        return SummaryMechanism(
            api=api,
            bounds=bounds,
            ledger=ledger,
            keys=keys,
            clock=clock,
            bits=bits,
            runner=EngineRunner(engine=engine),
            without=without,
            respond=responses(pick),
        )

    return make
