"""The campaign that ``aggservice demo`` runs: ``examples/thanksgiving``, carried in the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from aggservice.campaign.file.campaign import parse_campaign
from aggservice.campaign.settings.campaign import Campaign


def thanksgiving() -> Campaign:
    """Return the campaign of the paper's Figure 1."""
    text = (files("aggservice.campaign.file") / "thanksgiving.toml").read_text(encoding="utf-8")
    return parse_campaign(text, folder=Path.cwd(), file="thanksgiving.toml")
