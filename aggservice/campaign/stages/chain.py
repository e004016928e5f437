"""A run as a chain of stages. Each declares what it reads, and is computed once for all campaigns that agree in that.

The digest of a stage covers the seed, the parts of the campaign that it declares, what else it is given, and the
digests of the stages before it. A stage sees only the parts that it declares, so its result depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.view import view_of
from aggservice.campaign.stages.digest import digest_of
from aggservice.campaign.stages.store import StageStore
from aggservice.campaign.stages.watch import Stopwatch
from aggservice.mechanisms import Bits, SecureBits, SeededBits

T = TypeVar("T")

_FORMAT = 2
"""Part of every digest: raise it when a stage computes something else from the same inputs."""

_KNOWN_PARTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a run: the parts of the campaign that it reads, and the stages whose results it takes."""

    name: str
    reads: tuple[str, ...]
    after: tuple[Stage, ...] = ()


class Chain:
    """Runs stages with one source of randomness, ``bits``, that ``identity`` names in digests.

    Without an identity nothing is shared with another chain, because the bits are fresh.
    """

    def __init__(
        self,
        bits: Bits,
        *,
        identity: str | None = None,
        store: StageStore | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self.bits = bits
        self.store = store or StageStore()
        self.watch = watch or Stopwatch()
        self._identity = identity or f"unseeded {SecureBits().read(16).hex()}"
        self._known: dict[int, tuple[Any, str]] = {}

    @classmethod
    def seeded(cls, seed: str | None, *, store: StageStore | None = None, watch: Stopwatch | None = None) -> Chain:
        """Return the chain of a campaign's seed; without one, of the system's entropy."""
        if seed is None:
            return cls(SecureBits(), store=store, watch=watch)
        return cls(SeededBits(f"campaign {seed}"), identity=f"campaign {seed}", store=store, watch=watch)

    def digest(self, stage: Stage, campaign: Campaign, given: Any = None) -> str:
        """Return the digest of everything that the result of a stage depends on."""
        before = [self.digest(one, campaign) for one in stage.after]
        parts = {name: self._part(getattr(campaign, name)) for name in stage.reads}
        return digest_of(_FORMAT, self._identity, stage.name, parts, given, before)

    def _part(self, part: Any) -> str:
        """Return the digest of a part of a campaign; parts are frozen, so each is read once while it is held here."""
        if id(part) not in self._known:
            if len(self._known) >= _KNOWN_PARTS:
                self._known.clear()
            self._known[id(part)] = part, digest_of(part)
        return self._known[id(part)][1]

    def run(
        self, stage: Stage, campaign: Campaign, compute: Callable[[Campaign], T], *, given: Any = None, total: int = 0
    ) -> T:
        """Return the result of a stage; ``compute`` gets the campaign as the stage may see it.

        ``given`` is what the stage takes beside the campaign; ``total`` is for the progress bar.
        """

        def timed() -> T:
            with self.watch.stage(stage.name, total):
                return compute(view_of(campaign, stage.name, stage.reads))

        return self.store.get(stage.name, self.digest(stage, campaign, given), timed)
