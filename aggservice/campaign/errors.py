"""The errors of campaigns: a file that is refused, and a run that stopped."""

from __future__ import annotations

from aggservice.files.toml import FileError


class CampaignError(Exception):
    """The base of the errors of a campaign."""


class CampaignFileError(FileError, CampaignError):
    """A campaign, plan or scenario file that is refused."""


class MissingExtraError(CampaignError):
    """An optional library is needed and not installed."""


class RunError(CampaignError):
    """A run that stopped; the message says where and what to do."""
