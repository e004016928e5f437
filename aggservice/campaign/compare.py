"""Runs one campaign on several APIs: the same people, ads and purchases, the same queries, one service, one ledger."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aggservice.campaign.assess.job_truth import job_truth
from aggservice.campaign.assess.slices import assess
from aggservice.campaign.errors import CampaignError, RunError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.metrics import RMSE, Metric, shown_in
from aggservice.campaign.output.metrics import MeasureMetrics, QueryMetrics, metrics_of
from aggservice.campaign.output.page import (
    TOTAL_HEADS,
    error_cells,
    escaped,
    guarantee,
    html_page,
    inline_svg,
    not_private,
    number,
    scrolling,
    table,
)
from aggservice.campaign.output.plots import pyplot, save
from aggservice.campaign.run import RunResult, run_jobs, seal_reports, write_json, write_outputs
from aggservice.campaign.service.config import drop_queue, service_config
from aggservice.campaign.service.jobs import add_up, windows_of, write_domains
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.device import DEVICES, comparable
from aggservice.campaign.stages import Progress, RunChain, Stopwatch, no_progress
from aggservice.campaign.world.truth import simulate_reports
from aggservice.client import Client
from aggservice.mechanisms import ManualClock
from aggservice.service import embedded
from aggservice.wire import KeySet
from budget import write_log

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
    known = comparable()
    unknown = [api for api in apis if api not in known]
    if unknown or len(set(apis)) != len(apis) or len(apis) < 2:
        raise CampaignError(f"--compare {text!r} is not a list of APIs. Write two or three of {','.join(known)}")
    return apis


def variant(campaign: Campaign, api: str) -> Campaign:
    """Return the campaign on another API, read and checked like a file."""
    if not campaign.client.sums_conversions:
        raise CampaignError(f"{campaign.client.kind} has one API: compare a campaign of kind 'attribution'")
    client = {**campaign.document.get("client", {}), "api": api}
    document = {**campaign.document, "client": client}
    return replace(
        campaign_of(document, folder=campaign.folder, files=campaign.files, file=campaign.file), seed=campaign.seed
    )


def run_comparison(
    campaign: Campaign,
    out: Path,
    apis: Sequence[str] = ("ara", "paa", "w3c"),
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
    chain = RunChain.seeded(seed, watch=watch)
    clock = ManualClock(campaign.population.start_ms)
    keys = KeySet.create(chain.bits.child("service keys"), clock)
    first = next(iter(variants.values()))
    bounds = {api: bound for one in variants.values() for api, bound in one.client.bounds.items()}
    config = replace(service_config(first, out), sensitivities=bounds)
    runs = {}
    with (
        embedded(config, clock=clock, bits=chain.bits.child("service"), keys=keys) as running,
        Client(running.address) as client,
    ):
        public = keys.public(clock).serialise()
        for api, one in variants.items():
            runs[api] = _run_one(one, api, out / api, seed, chain, client, public, clock, workers=workers, draw=draw)
        write_log(running.ledger.store, out / "ledger" / "ledger.log")
    drop_queue(out)
    compared = ApiComparison(campaign=campaign, out=out, seed=seed, runs=runs)
    write_json(out / _MARKER, compared.to_plain())
    return compared


def _run_one(
    campaign: Campaign,
    api: str,
    out: Path,
    seed: str | None,
    chain: RunChain,
    client: Client,
    public_keys: str,
    clock: ManualClock,
    *,
    workers: int,
    draw: bool,
) -> RunResult:
    out.mkdir(parents=True)
    truth = simulate_reports(campaign, chain)
    write_domains(campaign, out / "domains")
    submitter = seal_reports(
        campaign, out, chain, truth, client, public_keys, workers=workers, clock=clock, files=False, prefix=f"{api}-"
    )
    answers = run_jobs(campaign, truth, submitter, chain.watch, f"query {api}")
    shown = add_up(windows_of(campaign, truth.collected.closes_ms), answers)
    with chain.watch.stage(f"assess {api}", len(shown)):
        found = tuple(assess(campaign, one, job_truth(campaign, chain, truth, one.job)) for one in shown)
        metrics = metrics_of(campaign, seed, chain.bits.private, truth, found)
    return write_outputs(campaign, out, seed, truth, answers, found, metrics, chain.watch, draw=draw)


def _prepare(out: Path, campaign: Campaign) -> None:
    """Make the folder; an earlier comparison in it is replaced, and anything else is refused."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / _MARKER).is_file())):
        raise RunError(f"{out} is not empty and holds no earlier comparison: name another folder with --out")
    for path in campaign.population.model.files:
        if out.exists() and path.resolve().is_relative_to(out.resolve()):
            raise RunError(f"{path} is in {out}, which this run would replace: name another folder with --out")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)


Found = dict[str, tuple[QueryMetrics, MeasureMetrics]]
"""By API: the query and its measure."""


def measures_of(compared: ApiComparison) -> Iterator[tuple[str, str, Found]]:
    """Yield each query and measure with what every API found."""
    first = next(iter(compared.runs.values()))
    for place, query in enumerate(first.metrics.queries):
        for index, measure in enumerate(query.measures):
            asked = {api: run.metrics.queries[place] for api, run in compared.runs.items()}
            yield query.name, measure.measure, {api: (mine, mine.measures[index]) for api, mine in asked.items()}


def write_comparison(compared: ApiComparison) -> Path:
    """Draw the picture and write the page; return its path."""
    parts = [
        f"<h1>{escaped(compared.campaign.name)}</h1>",
        f'<p class="lead">{escaped(compared.campaign.description)} The same people, ads and purchases on '
        f"{escaped(', '.join(DEVICES[api].title for api in compared.runs))}, through one service.</p>",
    ]
    if not all(run.metrics.private for run in compared.runs.values()):
        parts.append(not_private("whoever knows the seed can remove the noise."))
    for query, measure, found in measures_of(compared):
        parts.append(f"<h2>{escaped(query)}: {escaped(measure)}</h2>")
        parts.append(_errors(found, f"{query}: {measure}", compared.campaign.metrics))
        parts.append(_losses({api: one for api, (_, one) in found.items()}))
    drawn, caption = inline_svg(draw_comparison(compared)), "Error, and losses on the way."
    parts.append(f"<h2>Picture</h2><figure>{scrolling(drawn, caption)}<figcaption>{caption}</figcaption></figure>")
    parts.append("<h2>What each promises</h2>")
    for api, run in compared.runs.items():
        texts = dict.fromkeys(query.statement for query in run.metrics.queries if query.statement)
        named = f"<b>{DEVICES[api].title}.</b> "
        parts += [guarantee(text, private=run.metrics.private, before=named) for text in texts]
    links = ", ".join(f'<a href="{api}/report.html">{DEVICES[api].title}</a>' for api in compared.runs)
    parts.append(f"<p>A report of each: {links}.</p>")
    compared.report.write_text(html_page(compared.campaign.name, "".join(parts)), encoding="utf-8")
    return compared.report


def _errors(found: Found, label: str, metrics: Iterable[Metric]) -> str:
    shown = shown_in("comparison", metrics)
    rows = [
        [DEVICES[api].title, f"{query.paid} of {query.jobs}", *error_cells(one, shown)]
        for api, (query, one) in found.items()
    ]
    heads = ["API", "jobs paid", *TOTAL_HEADS, *(metric.title for metric in shown)]
    return table(heads, rows, label)


def _losses(found: dict[str, MeasureMetrics]) -> str:
    """Return the waterfalls side by side, with the steps at which any of them lost something."""
    falls = {api: one.waterfall for api, one in found.items() if one.waterfall is not None}
    names = [step.step for step in next(iter(falls.values())).steps]
    lost = {api: {step.step: step for step in fall.steps} for api, fall in falls.items()}
    rows = [["happened", *(number(fall.happened) for fall in falls.values())]]
    for name in names:
        if any(steps[name].conversions or steps[name].amount for steps in lost.values()):
            rows.append([escaped(name), *(number(steps[name].conversions) for steps in lost.values())])
    rows.append(["counted", *(number(fall.counted) for fall in falls.values())])
    return table(["Conversions", *(DEVICES[api].title for api in falls)], rows, "Where conversions went")


def draw_comparison(compared: ApiComparison) -> Path:
    """Draw the error of every measure and the conversions that each API lost; return the SVG."""
    plt = pyplot()
    found = list(measures_of(compared))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    apis = list(compared.runs)
    wide = 0.8 / len(apis)
    for place, api in enumerate(apis):
        mine = [one[api][1] for _, _, one in found]
        errors = [(one[RMSE] or 0.0) / max(one.truth / max(one.slices, 1), 1e-9) for one in mine]
        at = [number + (place - (len(apis) - 1) / 2) * wide for number in range(len(found))]
        left.bar(at, errors, width=wide * 0.92, color=DEVICES[api].colour, label=DEVICES[api].title)
    left.set_xticks(range(len(found)), [f"{query}\n{measure}" for query, measure, _ in found])
    left.set(ylabel="RMSE over the mean truth of a slice", yscale="log")
    left.set_title("Error", loc="left", fontweight="bold")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    _draw_losses(right, {DEVICES[api].title: found[0][2][api][1] for api in apis}, plt)
    right.set_title(f"Conversions: {found[0][0]}, {found[0][1]}", loc="left", fontweight="bold")
    return save(plt, figure, compared.out / "comparison")


def _draw_losses(axis: Any, found: dict[str, MeasureMetrics], plt: Any) -> None:
    names = [step.step for step in next(iter(found.values())).waterfall.steps]  # type: ignore[union-attr]
    colours = plt.get_cmap("tab20").colors
    left = [0.0] * len(found)
    for place, name in enumerate(["counted", *names]):
        widths = []
        for one in found.values():
            assert one.waterfall is not None
            steps = {step.step: step.conversions for step in one.waterfall.steps}
            widths.append(float(one.waterfall.counted if name == "counted" else steps[name]))
        if any(widths):
            axis.barh(
                list(found),
                widths,
                left=left,
                color="#cbd5e0" if name == "counted" else colours[place % 20],
                label=name,
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.set_xlabel("conversions")
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
