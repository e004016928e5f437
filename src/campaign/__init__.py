"""Campaigns: example ad campaigns from the first ad to a number with its interval, and the truth beside it."""

from campaign.adversary import Adversary, Mechanism, Move, play
from campaign.asking import Answer, Job
from campaign.assessment import Assessment, Discovery, Figures, Slice
from campaign.errors import CampaignError, CampaignFileError, MissingExtraError, RunError
from campaign.fates import Fate
from campaign.interactive import SummaryReports
from campaign.losses import Bounds, Comparison, Loss, Price, Sent, query_losses, total_losses
from campaign.parse import campaign_of, load_campaign, parse_campaign
from campaign.plan_file import load_plan, parse_plan
from campaign.planner import Plan, QueryLine, Resources, Target, make_plan
from campaign.random_adversary import RandomAdversary
from campaign.run import OtherService, RunResult, Truth, happen, run_campaign
from campaign.scenario import ScenarioResult, run_scenario
from campaign.scenario_file import Scenario, load_scenario, parse_scenario
from campaign.settings import Campaign, Query
from campaign.sweep import SweepField, parse_field, run_sweep
from campaign.transcript import Recorder
from campaign.waterfall import Waterfall

__all__ = [
    "Adversary",
    "Answer",
    "Assessment",
    "Bounds",
    "Campaign",
    "CampaignError",
    "CampaignFileError",
    "Comparison",
    "Discovery",
    "Fate",
    "Figures",
    "Job",
    "Loss",
    "Mechanism",
    "MissingExtraError",
    "Move",
    "OtherService",
    "Plan",
    "Price",
    "Query",
    "QueryLine",
    "RandomAdversary",
    "Recorder",
    "Resources",
    "RunError",
    "RunResult",
    "Scenario",
    "ScenarioResult",
    "Sent",
    "Slice",
    "SummaryReports",
    "SweepField",
    "Target",
    "Truth",
    "Waterfall",
    "campaign_of",
    "happen",
    "load_campaign",
    "load_plan",
    "load_scenario",
    "make_plan",
    "parse_campaign",
    "parse_field",
    "parse_plan",
    "parse_scenario",
    "play",
    "query_losses",
    "run_campaign",
    "run_scenario",
    "run_sweep",
    "total_losses",
]
