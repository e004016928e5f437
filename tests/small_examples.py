"""The campaigns of examples/, by name, with fewer people."""

from __future__ import annotations

from pathlib import Path

from aggservice.campaign import Campaign, load_campaign
from aggservice.campaign.file.campaign import campaign_of

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/campaign.toml"))


def smaller(name: str, size: int) -> Campaign:
    """Return the campaign of an example with this many people."""
    campaign = load_campaign(EXAMPLES / name / "campaign.toml")
    document = {**campaign.document, "population": {**campaign.document["population"], "size": size}}
    return campaign_of(document, folder=campaign.folder)
