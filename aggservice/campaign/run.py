"""Runs a campaign: simulate, attribute, collect, seal (or not), query the service, assess, draw.

The service is embedded unless a remote one is given; both use the same gRPC. A seed makes every output except
``timings.json`` the same to the byte for any number of workers, and such a run is not private.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aggservice.campaign.assess.hierarchies import HEADINGS, HierarchyErrors, combine
from aggservice.campaign.assess.job_truth import job_truth
from aggservice.campaign.assess.run_losses import Balances, run_transcript
from aggservice.campaign.assess.slices import Assessment, assess
from aggservice.campaign.errors import RunError
from aggservice.campaign.output.metrics import RunMetrics, SourceLosses, metrics_of
from aggservice.campaign.output.page import write_report
from aggservice.campaign.output.plots import draw_plots
from aggservice.campaign.service.config import drop_queue, local_engine, service_config
from aggservice.campaign.service.jobs import Jobs, JobSubmitter, QueryAnswer, add_up, jobs_of, windows_of, write_domains
from aggservice.campaign.service.sealing import (
    POOL_FROM_REPORTS,
    seal_all,
    sealing_settings,
    sealing_tasks,
    start_fork_server,
)
from aggservice.campaign.service.unsealed import UnsealedJobs, tally_job
from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS, Campaign
from aggservice.campaign.stages import Progress, RunChain, StageStore, Stopwatch, no_progress
from aggservice.campaign.world.truth import Truth, simulate_reports, truth_without_reports
from aggservice.client import Client, Credentials
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits, Clock, ManualClock, SecureBits, SystemClock
from aggservice.service import embedded
from aggservice.service.config.settings import Limits
from aggservice.service.server import open_ledger
from aggservice.wire import KeySet
from budget import Ledger, write_log

_FORK_SERVER_FROM_PEOPLE = 2 * POOL_FROM_REPORTS
"""With so many people there are probably enough reports for workers, so their fork server starts early."""
_MARKER = "metrics.json"
_RUN_FILES = (
    "batches", "domains", "summaries", "ledger", "plots", "metrics.json", "timings.json", "report.html", "log",
    "transcript.json", "losses.csv", "hierarchies.csv", "reports.csv", "labels.csv",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run: the service's answers, their comparison with the truth, and the output folder."""

    campaign: Campaign
    out: Path
    seed: str | None
    truth: Truth
    answers: tuple[QueryAnswer, ...]
    assessments: tuple[Assessment, ...]
    metrics: RunMetrics
    timings: dict[str, Any]

    @property
    def report(self) -> Path:
        """The path of the report to open in a browser."""
        return self.out / "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteService:
    """A service that already runs, and the credentials to call it with."""

    address: str
    credentials: Credentials = field(default_factory=Credentials)


def run_campaign(
    campaign: Campaign,
    out: Path,
    *,
    seed: str | None = None,
    workers: int | None = None,
    service: RemoteService | None = None,
    ledger: Path | None = None,
    progress: Progress = no_progress,
    draw: bool = True,
    unsealed: bool = False,
    store: StageStore | None = None,
) -> RunResult:
    """Run a campaign into the folder ``out`` and return what it found.

    ``seed`` replaces the seed of the file. ``service`` names a remote service; ``ledger`` names a SQLite ledger for
    the embedded service to charge. With either, simulated time is shifted so that it ends now. ``unsealed`` skips
    encryption and gRPC; with a seed it releases the same rows. ``store`` keeps finished stages for other runs.
    """
    seed = campaign.seed if seed is None else seed
    workers = min(2, os.cpu_count() or 1) if workers is None else workers
    if not workers >= 1:
        raise RunError(f"workers is {workers}: choose 1 or more")
    if unsealed and service is not None:
        raise RunError("a remote service takes sealed reports only: leave --unsealed out")
    if unsealed and campaign.client.task_jobs:
        raise RunError(f"a run with {campaign.client.short} reports seals them: leave --unsealed out")
    prepare_output_folder(out, keeping=[*([ledger] if ledger is not None else []), *campaign.population.model.files])
    if service is not None or ledger is not None:
        campaign = shift_to_end_now(campaign, SystemClock().now_ms())
    watch = Stopwatch(progress)
    chain = RunChain.seeded(seed, store=store, watch=watch)
    if not campaign.client.aggregatable:
        from aggservice.campaign.event_run import run_event_level  # other campaigns do without its modules

        events, assessment, metrics = run_event_level(campaign, out, seed, chain)
        truth = truth_without_reports(events)
        return write_outputs(campaign, out, seed, truth, [], (assessment,), metrics, watch, draw=draw)
    if workers > 1 and not unsealed and campaign.population.size >= _FORK_SERVER_FROM_PEOPLE:
        start_fork_server()
    truth = simulate_reports(campaign, chain)
    write_domains(campaign, out / "domains")
    with (
        _unsealed_jobs(campaign, out, chain, truth, ledger)
        if unsealed
        else _sealed_jobs(campaign, out, chain, truth, workers, service, ledger)
    ) as submitter:
        answers = run_jobs(campaign, truth, submitter, watch, "query")
    with watch.stage("losses"):
        path = None if service is not None else ledger or out / "ledger" / "ledger.sqlite"
        transcript = write_losses(campaign, out, truth, answers, path, fresh=ledger is None)
    shown = add_up(windows_of(campaign, truth.collected.closes_ms), answers)
    with watch.stage("assess", len(shown)):
        found = tuple(assess(campaign, one, job_truth(campaign, chain, truth, one.job)) for one in shown)
        metrics = metrics_of(campaign, seed, chain.bits.private, truth, found)
        if campaign.client.event_level is not None:
            from aggservice.campaign.event_run import add_event_level

            metrics = add_event_level(campaign, out, metrics, truth.events, chain.bits)
            metrics = replace(metrics, losses=SourceLosses.of(transcript))
        metrics = replace(metrics, hierarchies=_hierarchies(campaign, out, chain, truth, shown))
    return write_outputs(campaign, out, seed, truth, answers, found, metrics, watch, draw=draw)


def run_jobs(campaign: Campaign, truth: Truth, jobs: Jobs, watch: Stopwatch, stage: str) -> list[QueryAnswer]:
    """Run every job of a campaign, as a stage that shows how many have an answer."""
    every = jobs_of(campaign, truth.collected.closes_ms)
    answers = []
    with watch.stage(stage, len(every)) as asked:
        for number, job in enumerate(every, 1):
            answers.append(jobs.run(job))
            asked(number)
    return answers


def _hierarchies(
    campaign: Campaign, out: Path, chain: RunChain, truth: Truth, answers: Sequence[QueryAnswer]
) -> tuple[HierarchyErrors, ...]:
    """Combine the levels of every hierarchy, and write all of their slices into ``hierarchies.csv``."""
    if not campaign.hierarchies:
        return ()
    truths = {one.job.name: job_truth(campaign, chain, truth, one.job) for one in answers}
    table = out / "hierarchies.csv"
    table.write_text(",".join(HEADINGS) + "\n", encoding="utf-8")
    return tuple(combine(campaign, one, answers, truths, table) for one in campaign.hierarchies)


def write_outputs(
    campaign: Campaign,
    out: Path,
    seed: str | None,
    truth: Truth,
    answers: list[QueryAnswer],
    found: tuple[Assessment, ...],
    metrics: RunMetrics,
    watch: Stopwatch,
    *,
    draw: bool,
) -> RunResult:
    """Write metrics, plots, report and timings."""
    write_json(out / "metrics.json", metrics.to_plain())
    if draw:
        with watch.stage("draw"):
            plots = draw_plots(campaign, metrics, out / "plots")
            made_ms = SystemClock().now_ms() if seed is None else None
            write_report(campaign, metrics, plots, out / "report.html", made_ms=made_ms)
    timings = watch.to_plain()
    write_json(out / "timings.json", timings)
    return RunResult(
        campaign=campaign,
        out=out,
        seed=seed,
        truth=truth,
        answers=tuple(answers),
        assessments=found,
        metrics=metrics,
        timings=timings,
    )


def write_losses(
    campaign: Campaign, out: Path, truth: Truth, answers: list[QueryAnswer], ledger: Path | None, *, fresh: bool
) -> Any:
    """Write ``transcript.json`` and ``losses.csv``: true losses, and what the ledger charged if it can be read.

    Returns what it wrote, or None if the run did not keep its units.
    """
    balances = None
    if ledger is not None:
        balances = Balances.read(ledger, campaign, truth, campaign.client.wire_api, SystemClock(), fresh=fresh)
    transcript = run_transcript(campaign, truth, answers, balances, out / "losses.csv")
    if transcript is not None:
        write_json(out / "transcript.json", transcript)
    return transcript


def prepare_output_folder(out: Path, *, keeping: Sequence[Path] = ()) -> None:
    """Make the output folder. A former run in it is replaced; a folder with other files is refused, and so is one
    that holds a file which this run reads or charges (``keeping``).
    """
    try:
        if out.exists() and not out.is_dir():
            raise RunError(f"{out} is a file: name a folder with --out")
        if out.exists() and any(out.iterdir()):
            if not _is_former_run(out):
                raise RunError(f"{out} is not empty and is not a former run: name another folder with --out")
            for path in keeping:
                if path.resolve().is_relative_to(out.resolve()):
                    raise RunError(
                        f"{path} is in {out}, where this run would replace a former one: name another folder with --out"
                    )
            for name in _RUN_FILES:
                path = out / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise RunError(f"{out} cannot be used: {problem.strerror}: name another folder with --out") from None


def _is_former_run(out: Path) -> bool:
    """Whether a folder holds only the files of a run, finished or interrupted after its first batch."""
    if any(path.name not in _RUN_FILES for path in out.iterdir()):
        return False
    batches = out / "batches"
    return (out / _MARKER).is_file() or (batches.is_dir() and all(path.name.isdigit() for path in batches.iterdir()))


def shift_to_end_now(campaign: Campaign, now_ms: int) -> Campaign:
    """Return the campaign and its given events, if any, shifted in time so that the last batch closes now."""
    population, late = campaign.population, int(campaign.collection.close_after_hours * HOUR_MS)
    start = (now_ms - late - population.days * DAY_MS - HOUR_MS) // HOUR_MS * HOUR_MS
    model = population.model.shifted(start - population.start_ms)
    return replace(campaign, population=replace(population, start_ms=start, model=model))


@contextmanager
def _sealed_jobs(
    campaign: Campaign,
    out: Path,
    chain: RunChain,
    truth: Truth,
    workers: int,
    service: RemoteService | None,
    ledger: Path | None,
) -> Iterator[Jobs]:
    """Seal the reports to a service and yield a runner of jobs there, over files if the service can read them."""
    with _open_service(campaign, out, chain.bits, truth, workers, service, ledger) as (client, keys, clock, files):
        prefix = "" if service is None and ledger is None else _new_prefix()
        yield seal_reports(
            campaign, out, chain, truth, client, keys, workers=workers, clock=clock, files=files, prefix=prefix
        )


def seal_reports(
    campaign: Campaign,
    out: Path,
    chain: RunChain,
    truth: Truth,
    client: Client,
    public_keys: str,
    *,
    workers: int,
    clock: ManualClock | None,
    files: bool,
    prefix: str = "",
) -> Jobs:
    """Seal the reports into ``out`` and return a runner of jobs over them."""
    with chain.watch.stage("seal", truth.collected.received) as sealed:
        rows, folder, bits = truth.collected.rows, out / "batches", chain.bits.child("sealing")
        if (layout := campaign.client.tasks(campaign)) is None:
            pieces = sealing_tasks(truth.reports, rows, folder, bits)
            seal_all(pieces, sealing_settings(campaign, public_keys), workers=workers, progress=sealed)
            return JobSubmitter(campaign, client, out, clock=clock, files=files, prefix=prefix)
        from aggservice.campaign.service.task_jobs import TaskJobs, task_sealings

        by_measure, counts = task_sealings(campaign, layout, truth.reports, rows, folder, public_keys, bits)
        for pieces, settings in by_measure:
            seal_all(pieces, settings, workers=workers, progress=sealed)
    least = Limits().w3c_minimum_batch
    return TaskJobs(campaign, client, out, layout, counts, clock=clock, least=least, prefix=prefix)


@contextmanager
def _unsealed_jobs(campaign: Campaign, out: Path, chain: RunChain, truth: Truth, ledger: Path | None) -> Iterator[Jobs]:
    """Yield a runner of jobs over unsealed reports: an engine with the ledger that a service would have."""
    (out / "batches").mkdir()  # marks the folder as that of a run
    manual, clock = _clock(campaign, ledger)
    bits = chain.bits.child("service")
    charged = open_ledger(service_config(campaign, out, ledger=ledger), clock=clock, bits=bits)
    try:
        yield UnsealedJobs(
            campaign,
            local_engine(charged, clock=clock, bits=bits),
            clock=manual,
            tally=lambda job: tally_job(campaign, chain, truth, job),
            out=out,
            prefix="" if ledger is None else _new_prefix(),
        )
        _export_log(charged, out)
    finally:
        charged.store.close()


def _new_prefix() -> str:
    """Return a new prefix for job ids: a ledger that outlives runs may hold the ids of an earlier run of this seed."""
    return f"{SecureBits().read(8).hex()}-"


def _clock(campaign: Campaign, ledger: Path | None) -> tuple[ManualClock | None, Clock]:
    """Return the clock if the run controls it, and the clock of its service."""
    manual = ManualClock(campaign.population.start_ms) if ledger is None else None
    return manual, manual or SystemClock()


def _export_log(ledger: Ledger, out: Path) -> None:
    (out / "ledger").mkdir(exist_ok=True)
    write_log(ledger.store, out / "ledger" / "ledger.log")


@contextmanager
def _open_service(
    campaign: Campaign,
    out: Path,
    bits: Bits,
    truth: Truth,
    workers: int,
    service: RemoteService | None,
    ledger: Path | None,
) -> Iterator[tuple[Client, str, ManualClock | None, bool]]:
    """Yield a client, the public keys, the clock if the run controls it, and whether the service reads our files."""
    if service is not None:
        with Client(service.address, credentials=service.credentials) as client:
            yield client, client.public_keys().serialise(), None, False
        return
    manual, clock = _clock(campaign, ledger)
    keys = KeySet.create(bits.child("service keys"), clock)
    processes = workers if truth.collected.received >= POOL_FROM_REPORTS and workers > 1 else 0
    config = service_config(campaign, out, processes=processes, ledger=ledger)
    with (
        embedded(config, clock=clock, bits=bits.child("service"), keys=keys) as running,
        Client(running.address) as client,
    ):
        yield client, keys.public(clock).serialise(), manual, True
        _export_log(running.ledger, out)
    if ledger is None:
        drop_queue(out)


def write_json(path: Path, value: Any) -> None:
    """Write plain values as readable JSON, with sorted keys so that it is reproducible."""
    with whole_file(path) as staged:
        staged.write_text(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
