"""The errors of campaigns: a file that says something wrong, and a run that could not go on."""

from __future__ import annotations


class CampaignError(Exception):
    """What is wrong with a campaign, in words for whoever wrote it."""


class CampaignFileError(CampaignError):
    """A campaign file that is refused: where, why, and what to write instead.

    ``line`` counts from 1; 0 means that no line of the file is to blame (something is missing from it).
    """

    def __init__(self, problem: str, *, remedy: str, line: int = 0, file: str = "") -> None:
        place = f"{file or 'campaign'}, line {line}" if line else (file or "campaign")
        super().__init__(f"{place}: {problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.line = line
        self.file = file


class MissingExtraError(CampaignError):
    """An optional library is needed and not installed."""


class RunError(CampaignError):
    """A run that stopped: the message says at which stage and what to do."""
