"""Campaigns: example ad campaigns from the first ad to a number with its interval, and the truth beside it.

The names below are imported when they are first used, so that a worker process imports only what it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of

if TYPE_CHECKING:
    from aggservice.campaign.assess.slices import Assessment
    from aggservice.campaign.errors import CampaignError, CampaignFileError, RunError
    from aggservice.campaign.file.campaign import load_campaign, parse_campaign, thanksgiving
    from aggservice.campaign.plan import BudgetPlan, load_plan, make_plan
    from aggservice.campaign.requery.file import load_scenario
    from aggservice.campaign.requery.run import RequeryResult, run_scenario
    from aggservice.campaign.run import RemoteService, RunResult, run_campaign
    from aggservice.campaign.settings.campaign import Campaign
    from aggservice.campaign.sweep.grid import parse_field
    from aggservice.campaign.sweep.run import run_sweep
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "Assessment",
    "BudgetPlan",
    "Campaign",
    "CampaignError",
    "CampaignFileError",
    "RemoteService",
    "RequeryResult",
    "RunError",
    "RunResult",
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
