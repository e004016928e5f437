"""Runs one campaign on several APIs: the same people, ads and purchases, the same queries, one service, one ledger."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aggservice.campaign.assess.job_truth import job_truth
from aggservice.campaign.assess.slices import assess
from aggservice.campaign.errors import CampaignError, RunError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.output.metrics import metrics_of
from aggservice.campaign.run import RunResult, log_files, seal_reports, write_json, write_outputs
from aggservice.campaign.service.config import drop_queue, sensitivities_of, service_config
from aggservice.campaign.service.jobs import add_up, jobs_of, windows_of, write_domains
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.stages.watch import Progress, Stopwatch, no_progress
from aggservice.campaign.world.truth import simulate_reports
from aggservice.client import Client
from aggservice.mechanisms import ManualClock
from aggservice.service import embedded
from aggservice.wire import KeySet
from budget import write_log

APIS = ("ara", "paa", "w3c")
_MARKER = "comparison.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiComparison:
    """The runs of one campaign, by API, in the order that was asked for."""

    campaign: Campaign
    out: Path
    seed: str | None
    runs: dict[str, RunResult]

    @property
    def report(self) -> Path:
        """The path of the report to open in a browser."""
        return self.out / "comparison.html"

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for ``comparison.json``."""
        return {
            "campaign": self.campaign.name,
            "seed": self.seed,
            "private": all(run.metrics.private for run in self.runs.values()),
            "apis": {
                api: {name: run.metrics.to_plain()[name] for name in ("client", "events", "reports", "queries")}
                for api, run in self.runs.items()
            },
        }


def parse_apis(text: str) -> tuple[str, ...]:
    """Read a list such as ``ara,paa,w3c``."""
    apis = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [api for api in apis if api not in APIS]
    if unknown or len(set(apis)) != len(apis) or len(apis) < 2:
        raise CampaignError(f"--compare {text!r} is not a list of APIs. Write two or three of {','.join(APIS)}")
    return apis


def variant(campaign: Campaign, api: str) -> Campaign:
    """Return the campaign on another API, read and checked like a file."""
    if campaign.client.kind != "attribution":
        raise CampaignError(f"{campaign.client.kind} has one API: compare a campaign of kind 'attribution'")
    client = {**campaign.document.get("client", {}), "api": api}
    document = {**campaign.document, "client": client}
    return replace(
        campaign_of(document, folder=campaign.folder, files=campaign.files, file=campaign.file), seed=campaign.seed
    )


def run_comparison(
    campaign: Campaign,
    out: Path,
    apis: Sequence[str] = APIS,
    *,
    seed: str | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
    draw: bool = True,
) -> ApiComparison:
    """Run the campaign on every API into folders of ``out``, with one embedded service and one ledger.

    ``seed`` replaces the seed of the file; a seeded run is reproducible to the byte and not private.
    """
    variants = {api: variant(campaign, api) for api in apis}
    seed = campaign.seed if seed is None else seed
    _prepare(out, campaign)
    watch = Stopwatch(progress)
    chain = Chain.seeded(seed, watch=watch)
    clock = ManualClock(campaign.population.start_ms)
    keys = KeySet.create(chain.bits.child("service keys"), clock)
    first = next(iter(variants.values()))
    bounds = {api: bound for one in variants.values() for api, bound in sensitivities_of(one).items()}
    config = replace(service_config(first, out), sensitivities=bounds)
    runs = {}
    with (
        embedded(config, clock=clock, bits=chain.bits.child("service"), keys=keys) as running,
        Client(running.address) as client,
    ):
        public = keys.public(clock).serialise()
        for api, one in variants.items():
            runs[api] = _run_one(one, out / api, seed, chain, client, public, clock, workers=workers, draw=draw)
        write_log(running.ledger.store, out / "ledger" / "ledger.log")
    drop_queue(out)
    compared = ApiComparison(campaign=campaign, out=out, seed=seed, runs=runs)
    write_json(out / _MARKER, compared.to_plain())
    return compared


def _run_one(
    campaign: Campaign,
    out: Path,
    seed: str | None,
    chain: Chain,
    client: Client,
    public_keys: str,
    clock: ManualClock,
    *,
    workers: int,
    draw: bool,
) -> RunResult:
    api = campaign.client.api
    out.mkdir(parents=True)
    truth = simulate_reports(campaign, chain)
    write_domains(campaign, out / "domains")
    submitter = seal_reports(
        campaign, out, chain, truth, client, public_keys, workers=workers, clock=clock, files=False, prefix=f"{api}-"
    )
    jobs = jobs_of(campaign, truth.collected.closes_ms)
    answers = []
    with chain.watch.stage(f"query {api}", len(jobs)) as asked:
        for number, job in enumerate(jobs):
            answers.append(submitter.run(job))
            asked(number + 1)
    shown = add_up(windows_of(campaign, truth.collected.closes_ms), answers)
    with chain.watch.stage(f"assess {api}", len(shown)):
        found = tuple(assess(campaign, one, job_truth(campaign, chain, truth, one.job)) for one in shown)
        metrics = metrics_of(campaign, seed, chain.bits.private, truth, found)
    return write_outputs(campaign, out, seed, truth, answers, found, metrics, chain.watch, draw=draw)


def _prepare(out: Path, campaign: Campaign) -> None:
    """Make the folder; an earlier comparison in it is replaced, and anything else is refused."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / _MARKER).is_file())):
        raise RunError(f"{out} is not empty and holds no earlier comparison: name another folder with --out")
    for path in log_files(campaign):
        if out.exists() and path.resolve().is_relative_to(out.resolve()):
            raise RunError(f"{path} is in {out}, which this run would replace: name another folder with --out")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
