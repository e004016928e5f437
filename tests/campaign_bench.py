"""Many small campaigns through one service: each its own events, reports, batches and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggservice.campaign import Assessment, Campaign
from aggservice.campaign.assess.job_truth import job_truth
from aggservice.campaign.assess.slices import assess
from aggservice.campaign.service.config import service_config
from aggservice.campaign.service.jobs import JobSubmitter, QueryAnswer, jobs_of
from aggservice.campaign.service.sealing import seal_all, sealing_settings, sealing_tasks
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import Truth, simulate_reports
from aggservice.client import Client
from aggservice.mechanisms import Bits, ManualClock, SecureBits
from aggservice.service import EmbeddedService, embedded
from aggservice.wire import KeySet


class Bench:
    """A service that stays up, and campaigns of the same caps run against it."""

    def __init__(
        self, service: EmbeddedService, client: Client, keys: KeySet, clock: ManualClock, folder: Path
    ) -> None:
        self.service, self.client, self.keys, self.clock, self.folder = service, client, keys, clock, folder
        self.count = 0

    def run(self, campaign: Campaign, bits: Bits | None = None) -> tuple[Truth, list[QueryAnswer], list[Assessment]]:
        """Run one campaign through sealing, Avro, gRPC, engine and ledger, under job ids of its own."""
        bits = bits or SecureBits()
        self.count += 1
        chain = RunChain(bits)
        truth = simulate_reports(campaign, chain)
        out = self.folder / f"{self.count}"
        pieces = sealing_tasks(truth.reports, truth.collected.rows, out / "batches", bits.child("seal"))
        seal_all(pieces, sealing_settings(campaign, self.keys.public(self.clock).serialise()), workers=1)
        submitter = JobSubmitter(campaign, self.client, out, clock=None, files=False, prefix=f"{self.count}-")
        answers = [submitter.run(job) for job in jobs_of(campaign, truth.collected.closes_ms)]
        found = [assess(campaign, one, job_truth(campaign, chain, truth, one.job)) for one in answers]
        return truth, answers, found


@contextmanager
def bench(campaign: Campaign, folder: Path) -> Iterator[Bench]:
    """Run a service with the caps of ``campaign``, whose clock stands at the campaign's end."""
    clock = ManualClock(campaign.population.start_ms + 86_400_000 * 60)
    keys = KeySet.create(SecureBits(), clock)
    folder.mkdir(parents=True, exist_ok=True)
    config = service_config(campaign, folder, processes=0)
    with embedded(config, clock=clock, keys=keys) as service, Client(service.address) as client:
        yield Bench(service, client, keys, clock, folder)
