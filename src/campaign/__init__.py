"""Campaigns: example ad campaigns from the first ad to a number with its interval, and the truth beside it."""

from campaign.asking import Answer, Job
from campaign.assessment import Assessment, Discovery, Figures, Slice
from campaign.errors import CampaignError, CampaignFileError, MissingExtraError, RunError
from campaign.fates import Fate
from campaign.parse import campaign_of, load_campaign, parse_campaign
from campaign.run import OtherService, RunResult, Truth, happen, run_campaign
from campaign.settings import Campaign, Query
from campaign.waterfall import Waterfall

__all__ = [
    "Answer",
    "Assessment",
    "Campaign",
    "CampaignError",
    "CampaignFileError",
    "Discovery",
    "Fate",
    "Figures",
    "Job",
    "MissingExtraError",
    "OtherService",
    "Query",
    "RunError",
    "RunResult",
    "Slice",
    "Truth",
    "Waterfall",
    "campaign_of",
    "happen",
    "load_campaign",
    "parse_campaign",
    "run_campaign",
]
