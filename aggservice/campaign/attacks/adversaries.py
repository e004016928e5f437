"""Adversaries against the shared limits of one browser (Big Bird's evaluation: Random and Omniscient Sybils).

A visit redirects through the adversary's sites. Each of them saves an impression and measures a conversion on
impressions of the adversary's other sites, at the largest ε that a site can pay. All of them call through one
intermediary, so that conversions of other sites do not match: intermediaries pay nothing, the sites do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from aggservice.campaign.settings.attacks import AdversaryKind, AdversarySettings
from aggservice.mechanisms import Bits, uniform_below
from w3c_client import (
    DEFAULT_SERVICE,
    Browser,
    CallError,
    Conversion,
    ConversionOptions,
    Filter,
    ImpressionOptions,
    Page,
)

CALLER = "sybil-ads.example"
TAB = "sybil"


def sybil(number: int) -> str:
    """Return the name of one of the adversary's sites."""
    return f"sybil-{number}.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An adversary in one browser. With ``tabs`` each visit has one activation, as in the W3C draft."""

    adversary: AdversarySettings
    browser: Browser
    bits: Bits
    tabs: bool = False

    def visit(self, action: int) -> Iterator[Conversion]:
        """Use a visit that the user made; yield the conversions that were measured."""
        if self.tabs:
            self.browser.activate(TAB)
        kind = self.adversary.kind
        if kind is AdversaryKind.NONE:
            return
        if kind is AdversaryKind.RANDOM:
            plan = self._random()
        elif kind is AdversaryKind.OMNISCIENT:
            plan = self._omniscient()
        else:
            plan = ((0, (0,)) for _ in range(self.adversary.redirections))
        for step, (site, targets) in enumerate(plan):
            frame = sybil(step + 1) if kind is AdversaryKind.INTERMEDIARIES else CALLER
            if self.tabs:
                self.browser.navigate(TAB)
            page = Page(top_level=sybil(site), frame=frame, tab=TAB if self.tabs else None, action=action)
            try:
                self.browser.save_impression(page, ImpressionOptions(histogram_index=0, conversion_callers=(frame,)))
                if targets:
                    yield self.browser.measure_conversion(page, self._options(targets))
            except CallError:
                continue  # not activated here
            if kind is AdversaryKind.CLEARING:
                self.browser.clear_impressions_for_site(CALLER)

    def _options(self, targets: Sequence[int]) -> ConversionOptions:
        config = self.browser.config
        return ConversionOptions(
            aggregation_service=DEFAULT_SERVICE,
            histogram_size=1,
            epsilon=config.site_budget_micro / 1_000_000,
            impression_sites=tuple(map(sybil, targets[: config.max_impression_sites])),
        )

    def _random(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Choose sites at random; every conversion names a share of the sites that this visit does not use."""
        every = range(self.adversary.sybils)
        used = self._sample(every, self.adversary.redirections)
        others = [site for site in every if site not in used] or list(every)
        size = max(1, ceil(self.adversary.sybils * self.adversary.share - 0.5))
        fresh: list[int] = []
        for site in used:
            targets: list[int] = []
            while len(targets) < min(size, len(others)):
                if not fresh:
                    fresh = self._sample([one for one in others if one not in targets], len(others))
                targets.append(fresh.pop())
            yield site, targets

    def _omniscient(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Choose sites that have no impression yet, and convert on the one impression site that can still pay."""
        browser, config = self.browser, self.browser.config
        saved = browser.sites_saved()
        fresh = [site for site in range(self.adversary.sybils) if sybil(site) not in saved]
        old = [site for site in range(self.adversary.sybils) if sybil(site) in saved]
        rich = iter(
            [site for site in old if browser.left(Filter.IMPRESSION_QUOTA, sybil(site)) >= config.site_budget_micro]
        )
        for site in [*fresh, *old][: self.adversary.redirections]:
            target = next(rich, None)
            yield site, () if target is None else (target,)

    def _sample(self, sites: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the sites in random order."""
        pool = list(sites)
        for place in range(min(count, len(pool))):
            other = place + uniform_below(self.bits, len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]
