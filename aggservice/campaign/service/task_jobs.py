"""The jobs of reports that belong to tasks: one per task, since a service sums only reports of one task, each once.

Reports go to ``batches/000/TASK/``: the page that called knows the task. The service returns rows by index; this module
returns them by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import ReportColumns
from aggservice.campaign.service.jobs import Columns, Jobs, QueryAnswer, QueryJob, read_batches, write_rows
from aggservice.campaign.service.runner import REFUSED
from aggservice.campaign.service.sealing import SealingSettings, SealingTask, sealing_settings, sealing_tasks
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.settings.tasks import TaskLayout
from aggservice.client import AttributionTask, Client, ClientError, JobParameters, Statement, Summary
from aggservice.job.result import SummaryHeader
from aggservice.mechanisms import Bits

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """How many reports of each task are in each batch: a page counts what it collects."""

    by_batch: Sequence[Mapping[int, int]]

    def within(self, batches: Sequence[int]) -> dict[int, int]:
        """Return the reports of each task in some batches."""
        found: dict[int, int] = {}
        for number in batches:
            for task, count in self.by_batch[number].items():
                found[task] = found.get(task, 0) + count
        return found


def task_sealings(
    campaign: Campaign,
    layout: TaskLayout,
    reports: ReportColumns,
    rows: Sequence[Ints],
    folder: Path,
    public_keys: str,
    bits: Bits,
) -> tuple[list[tuple[list[SealingTask], SealingSettings]], TaskCounts]:
    """Return the pieces to seal for each measure, and how many reports each task has in each batch."""
    assert reports.task is not None
    by_index = replace(
        reports,
        key_high=np.zeros(reports.key_high.size, dtype=np.uint64),
        key_low=layout.indexes(reports.key_high, reports.key_low).astype(np.uint64),
    )
    base = replace(sealing_settings(campaign, public_keys), slots=layout.slots)
    settings = [replace(base, numbers=layout.shared_info(measure)) for measure in range(layout.measures)]
    pieces: list[list[SealingTask]] = [[] for _ in settings]
    counts = []
    for number, members in enumerate(rows):
        tasks = reports.task[members]
        found, sizes = np.unique(tasks, return_counts=True)
        counts.append(dict(zip(found.tolist(), sizes.tolist(), strict=True)))
        for task in found.tolist():
            measure, _ = layout.parts(task)
            mine = [members[tasks == task]]
            made = sealing_tasks(by_index, mine, folder, bits.child(f"batch {number} task {task}"))
            place = folder / f"{number:03d}" / f"{task:06d}"
            pieces[measure] += [replace(piece, path=place / piece.path.name) for piece in made]
    return list(zip(pieces, settings, strict=True)), TaskCounts(by_batch=counts)


@dataclass(eq=False)
class TaskJobs(Jobs):
    """Streams the reports of every task to a service, and puts the rows of all tasks together.

    A combination of conversion fields is left out if some conversion site has fewer reports of it than ``least``,
    which the service would refuse.
    """

    client: Client
    out: Path
    layout: TaskLayout
    counts: TaskCounts
    _: KW_ONLY
    least: int
    _statements: tuple[Statement, ...] = ()
    _draws: Ints | None = None

    def run(self, job: QueryJob) -> QueryAnswer:
        """Run one job at its time; a job whose reports were all used before is refused."""
        result = super().run(job)
        return replace(result, statements=self._statements, draws=self._draws) if result.paid else result

    def _ask(self, job: QueryJob) -> tuple[SummaryHeader, Columns]:
        summaries: list[tuple[int, Summary]] = []
        refusal: ClientError | None = None
        for task in self._askable(job.batches):
            try:
                summaries.append((task, self._summary(job, task)))
            except ClientError as problem:
                if problem.return_code != REFUSED:
                    raise
                refusal = problem
        if refusal is not None:  # reports of several tasks are used together, so the job is refused whole
            raise refusal
        if not summaries:
            raise ClientError(
                f"job {job.name} has no task with {self.least} reports: make batches longer", return_code="INVALID_JOB"
            )
        self._statements = tuple(self._by_measure(summaries))
        rows, self._draws = self._rows(job, summaries)
        write_rows(self.out, job, rows)
        first = summaries[0][1]
        text = " ".join(dict.fromkeys(one.text for one in self._statements))
        return replace(first, statement=replace(first.statement, text=text)), rows

    def _askable(self, batches: tuple[int, ...]) -> Iterator[int]:
        counts, layout = self.counts.within(batches), self.layout
        for task in sorted(counts):
            measure, _ = layout.parts(task)
            kin = (measure * layout.destinations + np.arange(layout.destinations)) * layout.kinds + task % layout.kinds
            if all(counts.get(one, self.least) >= self.least for one in kin.tolist()):
                yield task

    def _summary(self, job: QueryJob, task: int) -> Summary:
        campaign = self.campaign
        measure, destination = self.layout.parts(task)
        layout, asked = self.layout, job.query.epsilon
        parameters = JobParameters(
            attribution_report_to=campaign.reporting_origin,
            epsilon=layout.epsilon if Fraction(asked) >= Fraction(layout.epsilon) else asked,
            attribution_task=AttributionTask(
                conversion_site=campaign.population.destinations[destination],
                histogram_size=layout.histogram_size,
                max_value=layout.max_values[measure],
            ),
        )
        batches = read_batches(self.out, (f"{number:03d}/{task:06d}/" for number in job.batches))
        return self.client.aggregate(f"{self.prefix}{job.name}-{task:06d}", parameters, batches)

    def _by_measure(self, summaries: list[tuple[int, Summary]]) -> Iterator[Statement]:
        """Yield the statement of each measure; a measure without any task gets the first."""
        for place in range(self.layout.measures):
            own = [one.statement for task, one in summaries if self.layout.parts(task)[0] == place]
            yield own[0] if own else summaries[0][1].statement

    def _rows(self, job: QueryJob, summaries: list[tuple[int, Summary]]) -> tuple[Columns, Ints]:
        """Return the rows by key, summed over conversion sites, and how many draws of noise each has."""
        tasks = np.concatenate([np.full(one.low.size, task) for task, one in summaries])
        index = np.concatenate([one.low for _, one in summaries]).astype(np.int64)
        metric = np.concatenate([one.metrics for _, one in summaries])
        inside = index < self.layout.size
        high, low = self.layout.key(tasks[inside], index[inside])
        asked_high, asked_low = self.campaign.keys.domain(job.query.rows)
        domain = KeyTable(asked_high, asked_low)
        place = domain.find(high, low)
        asked = place >= 0
        sums, draws = (np.zeros(len(domain), dtype=np.int64) for _ in range(2))
        np.add.at(sums, place[asked], metric[inside][asked])
        np.add.at(draws, place[asked], 1)
        # Rows are in the order of the domain, as in the summary of any job.
        order = domain.find(asked_high, asked_low)
        order = order[draws[order] > 0]
        return (domain.high[order], domain.low[order], sums[order]), draws[order]
