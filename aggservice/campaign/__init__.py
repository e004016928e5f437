"""Campaigns: example ad campaigns from the first ad to a number with its interval, and the truth beside it."""

from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.errors import CampaignError, CampaignFileError, RunError
from aggservice.campaign.file.campaign import load_campaign, parse_campaign, thanksgiving
from aggservice.campaign.plan.file import load_plan
from aggservice.campaign.plan.planner import Plan, make_plan
from aggservice.campaign.requery.file import load_scenario
from aggservice.campaign.requery.run import ScenarioResult, run_scenario
from aggservice.campaign.run import RemoteService, RunResult, run_campaign
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.sweep.grid import parse_field
from aggservice.campaign.sweep.run import run_sweep

__all__ = [
    "Assessment",
    "Campaign",
    "CampaignError",
    "CampaignFileError",
    "Plan",
    "RemoteService",
    "RunError",
    "RunResult",
    "ScenarioResult",
    "load_campaign",
    "load_plan",
    "load_scenario",
    "make_plan",
    "parse_campaign",
    "parse_field",
    "run_campaign",
    "run_scenario",
    "run_sweep",
    "thanksgiving",
]
