"""What a stage may read of a campaign: the parts that it declares, and nothing else."""

from __future__ import annotations

from typing import Any, cast

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import Campaign


class CampaignView:
    """A campaign of which only the parts in ``reads`` can be read; properties work if they read no other part."""

    def __init__(self, campaign: Campaign, stage: str, reads: tuple[str, ...]) -> None:
        self._campaign = campaign
        self._stage = stage
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        if name in self._reads:
            return getattr(self._campaign, name)
        derived = getattr(Campaign, name, None)
        if isinstance(derived, property) and derived.fget is not None:
            return derived.fget(self)
        raise CampaignError(f"the stage {self._stage} read {name} of the campaign: declare it")


def view_of(campaign: Campaign, stage: str, reads: tuple[str, ...]) -> Campaign:
    """Return the campaign as a stage sees it. A part that the stage does not declare raises ``CampaignError``."""
    return cast(Campaign, CampaignView(campaign, stage, reads))
