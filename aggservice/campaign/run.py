"""Runs a campaign: simulate, attribute, collect, seal, query the service, assess, draw.

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

from aggservice.campaign.assess.run_losses import Balances, run_transcript
from aggservice.campaign.assess.slices import Assessment, assess
from aggservice.campaign.errors import RunError
from aggservice.campaign.event_run import run_event_level
from aggservice.campaign.output.metrics import Metrics, metrics_of
from aggservice.campaign.output.page import write_report
from aggservice.campaign.output.plots import draw_plots
from aggservice.campaign.service.jobs import JobResult, JobSubmitter, jobs_of, write_domains
from aggservice.campaign.service.sealing import (
    POOL_FROM_REPORTS,
    SealingSettings,
    seal_all,
    sealing_tasks,
    start_fork_server,
)
from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS, Campaign
from aggservice.campaign.stages import Progress, Stopwatch, no_progress
from aggservice.campaign.world.truth import Truth, simulate_reports, truth_without_reports
from aggservice.client import Client, Credentials
from aggservice.engine import PrivacyUnit
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits, Clock, ManualClock, SecureBits, SeededBits, SystemClock
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import Api, KeySet
from budget import EpsilonDeltaFilter, Sensitivity, write_log

ARA_SLOTS = 20
_MARKER = "metrics.json"
_RUN_FILES = (
    "batches", "domains", "summaries", "ledger", "plots", "metrics.json", "timings.json", "report.html", "log",
    "transcript.json", "losses.csv", "reports.csv", "labels.csv",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run: the service's answers, their comparison with the truth, and the output folder."""

    campaign: Campaign
    out: Path
    seed: str | None
    truth: Truth
    answers: tuple[JobResult, ...]
    assessments: tuple[Assessment, ...]
    metrics: Metrics
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
) -> RunResult:
    """Run a campaign into the folder ``out`` and return what it found.

    ``seed`` replaces the seed of the file. ``service`` names a remote service; ``ledger`` names a SQLite ledger for
    the embedded service to charge. With either, simulated time is shifted so that it ends now.
    """
    seed = campaign.seed if seed is None else seed
    bits: Bits = SecureBits() if seed is None else SeededBits(f"campaign {seed}")
    workers = min(2, os.cpu_count() or 1) if workers is None else workers
    if not workers >= 1:
        raise RunError(f"workers is {workers}: choose 1 or more")
    prepare_output_folder(out, keeping=[*([ledger] if ledger is not None else []), *log_files(campaign)])
    if service is not None or ledger is not None:
        campaign = shift_to_end_now(campaign, SystemClock().now_ms())
    watch = Stopwatch(progress)
    if campaign.client.kind == "event-level":
        events, assessment, metrics = run_event_level(campaign, out, seed, bits, watch)
        truth = truth_without_reports(events)
        return write_outputs(campaign, out, seed, truth, [], (assessment,), metrics, watch, draw=draw)
    if workers > 1 and campaign.population.size >= POOL_FROM_REPORTS:
        start_fork_server()
    truth = simulate_reports(campaign, bits, watch)
    with _open_service(campaign, out, bits, truth, workers, service, ledger) as (client, keys, clock, files):
        count = truth.collected.received
        with watch.stage("seal", count) as sealed:
            pieces = sealing_tasks(truth.reports, truth.collected.rows, out / "batches", bits.child("sealing"))
            seal_all(pieces, sealing_settings(campaign, keys), workers=workers, progress=sealed)
            write_domains(campaign, out / "domains")
        jobs = jobs_of(campaign, truth.collected.closes_ms)
        # A ledger that outlives the run may know the job ids of an earlier run with the same seed, so ids are new.
        prefix = "" if service is None and ledger is None else f"{SecureBits().read(8).hex()}-"
        submitter = JobSubmitter(campaign, client, out, clock=clock, files=files, prefix=prefix)
        answers = []
        with watch.stage("query", len(jobs)) as asked:
            for number, job in enumerate(jobs):
                answers.append(submitter.run(job))
                asked(number + 1)
    with watch.stage("losses"):
        path = None if service is not None else ledger or out / "ledger" / "ledger.sqlite"
        write_losses(campaign, out, truth, answers, path, fresh=ledger is None)
    with watch.stage("assess", len(answers)):
        found = tuple(assess(campaign, one, truth.items, truth.reports, truth.collected) for one in answers)
        metrics = metrics_of(campaign, seed, bits.private, truth, found)
    return write_outputs(campaign, out, seed, truth, answers, found, metrics, watch, draw=draw)


def write_outputs(
    campaign: Campaign,
    out: Path,
    seed: str | None,
    truth: Truth,
    answers: list[JobResult],
    found: tuple[Assessment, ...],
    metrics: Metrics,
    watch: Stopwatch,
    *,
    draw: bool,
) -> RunResult:
    """Write metrics, plots, report and timings."""
    write_json(out / "metrics.json", metrics.to_plain())
    if draw:
        with watch.stage("draw"):
            plots = draw_plots(campaign, metrics, out / "plots")
            write_report(campaign, metrics, plots, out / "report.html")
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
    campaign: Campaign, out: Path, truth: Truth, answers: list[JobResult], ledger: Path | None, *, fresh: bool
) -> None:
    """Write ``transcript.json`` and ``losses.csv``: true losses, and what the ledger charged if it can be read."""
    balances = None
    if ledger is not None:
        balances = Balances.read(ledger, campaign, truth, api_of(campaign), SystemClock(), fresh=fresh)
    transcript = run_transcript(campaign, truth, answers, balances, out / "losses.csv")
    if transcript is not None:
        write_json(out / "transcript.json", transcript)


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


def log_files(campaign: Campaign) -> list[Path]:
    """Return the files of the campaign's log, if it has one."""
    log = campaign.population.log
    return [] if log is None else [table.file for table in log.tables.both]


def shift_to_end_now(campaign: Campaign, now_ms: int) -> Campaign:
    """Return the campaign and its log, if any, shifted in time so that the last batch closes now."""
    population, late = campaign.population, int(campaign.collection.close_after_hours * HOUR_MS)
    start = (now_ms - late - population.days * DAY_MS - HOUR_MS) // HOUR_MS * HOUR_MS
    log = population.log
    if log is not None:
        log = replace(log, shift_ms=log.shift_ms + start - population.start_ms)
    return replace(campaign, population=replace(population, start_ms=start, log=log))


def api_of(campaign: Campaign) -> Api:
    """Return the API whose reports the campaign sends."""
    return Api.ATTRIBUTION_REPORTING if campaign.client.kind == "attribution" else Api.SHARED_STORAGE


def sealing_settings(campaign: Campaign, public_keys: str) -> SealingSettings:
    """Return what all reports of the campaign have in common."""
    return SealingSettings(
        api=api_of(campaign),
        reporting_origin=campaign.reporting_origin,
        destinations=campaign.population.destinations,
        slots=ARA_SLOTS,
        public_keys=public_keys,
        through_json=campaign.collection.through == "json",
    )


def service_config(campaign: Campaign, out: Path, *, processes: int, ledger: Path | None = None) -> ServiceConfig:
    """Return the configuration of a campaign's embedded service: its files, ledger and caps."""
    client, limits = campaign.client, campaign.service
    config = ServiceConfig(
        # The signing key of a ledger is in the same folder.
        state=out / "ledger" if ledger is None else ledger.resolve().parent,
        listen="127.0.0.1:0",
        ledger="sqlite",
        ledger_path=ledger,
        filter=EpsilonDeltaFilter.parse(epsilon=limits.epsilon, delta=limits.delta),
        unit=PrivacyUnit.REPORT if limits.unit == "report" else PrivacyUnit.SHARED_ID,
        sensitivities={api_of(campaign): Sensitivity(l1=client.l1, l0=client.l0)},
        input_folder=out,
        output_folder=out,
    )
    return replace(config, limits=replace(config.limits, processes=processes, jobs=1))


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
    manual = ManualClock(campaign.population.start_ms) if ledger is None else None
    clock: Clock = manual or SystemClock()
    keys = KeySet.create(bits.child("service keys"), clock)
    processes = workers if truth.collected.received >= POOL_FROM_REPORTS and workers > 1 else 0
    config = service_config(campaign, out, processes=processes, ledger=ledger)
    with (
        embedded(config, clock=clock, bits=bits.child("service"), keys=keys) as running,
        Client(running.address) as client,
    ):
        yield client, keys.public(clock).serialise(), manual, True
        (out / "ledger").mkdir(exist_ok=True)
        write_log(running.ledger.store, out / "ledger" / "ledger.log")


def write_json(path: Path, value: Any) -> None:
    """Write plain values as readable JSON, with sorted keys so that it is reproducible."""
    with whole_file(path) as staged:
        staged.write_text(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
