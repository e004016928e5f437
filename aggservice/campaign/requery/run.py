"""Runs a scenario against a real service over gRPC; checks every step, and at the end the losses.

A run also fails if the ledger does not verify, if a unit lost more than (ε*, δ*), or if the ledger charged the reports
of a unit less than the unit lost; ``aggservice.campaign.assess.losses`` computes the losses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from aggservice.campaign.assess.losses import (
    ContributionBounds,
    LossComparison,
    PrivacyLoss,
    QueryPrice,
    Round,
    TranscriptRecorder,
    transcript_to_plain,
)
from aggservice.campaign.requery.file import (
    REFUSED,
    RELEASED,
    REPEATED,
    AtOnceStep,
    ChooseStep,
    CrashStep,
    EventsStep,
    LateStep,
    LookStep,
    QueryStep,
    ReportGroup,
    RequeryScenario,
    RetryStep,
    ScenarioStep,
)
from aggservice.campaign.requery.interactive import ORIGIN, ReportSender
from aggservice.campaign.requery.server import AUDITOR, ScenarioServer
from aggservice.client import Client, ClientError, JobParameters, Summary
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import AggregatableReport, Api, Contribution
from budget import Delta, Epsilon, EpsilonDeltaFilter, Spend

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did, as a sentence, and its problems; none if it went as expected."""

    number: int
    line: int
    did: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the step went as expected."""
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeryResult:
    """The result of a run: its steps, its rounds with their losses, and what the ledger charged."""

    title: str
    steps: tuple[StepResult, ...]
    rounds: tuple[Round, ...]
    comparisons: tuple[LossComparison, ...]
    bounds: ContributionBounds
    limit: PrivacyLoss
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every step went as expected and the truth agrees."""
        return not self.problems and all(step.ok for step in self.steps)

    def to_plain(self) -> dict[str, Any]:
        transcript = transcript_to_plain(self.rounds, self.comparisons, bounds=self.bounds, limit=self.limit)
        steps = [
            {"step": one.number, "line": one.line, "did": one.did, "problems": list(one.problems)} for one in self.steps
        ]
        return {"title": self.title, "ok": self.ok, "problems": list(self.problems), "steps": steps, **transcript}


class _Sent(Sequence[AggregatableReport]):
    """Reports that call ``halfway`` when half of them have been read; they can be read again."""

    def __init__(self, reports: list[AggregatableReport], halfway: Callable[[], None] | None) -> None:
        self._reports, self._halfway = reports, halfway

    def __len__(self) -> int:
        return len(self._reports)

    def __getitem__(self, index: Any) -> Any:
        return self._reports[index]

    def __iter__(self) -> Iterator[AggregatableReport]:
        for index, report in enumerate(self._reports):
            if self._halfway is not None and index == len(self._reports) // 2:
                self._halfway()
            yield report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """The result of one job: a summary, or the service's refusal."""

    summary: Summary | None
    outcome: str
    message: str = ""


def run_scenario(
    scenario: RequeryScenario,
    folder: Path,
    *,
    bits: Bits,
    clock: Clock,
    on_step: Callable[[StepResult], None] | None = None,
) -> RequeryResult:
    """Run a scenario with its own service and ledger in ``folder``; ``on_step`` is called after each step."""
    with ScenarioServer(scenario, folder, bits=bits) as server:
        run = _Run(scenario, server, bits, clock)
        try:
            steps = []
            for number, step in enumerate(scenario.steps, 1):
                did, problems = run.take(step)
                steps.append(StepResult(number=number, line=step.line, did=did, problems=tuple(problems)))
                if on_step is not None:
                    on_step(steps[-1])
            comparisons, problems = run.judge()
        finally:
            run.close()
    return RequeryResult(
        title=scenario.title,
        steps=tuple(steps),
        rounds=tuple(run.recorder.rounds),
        comparisons=tuple(comparisons),
        bounds=run.recorder.bounds,
        limit=run.limit,
        problems=tuple(problems),
    )


class _Run:
    def __init__(self, scenario: RequeryScenario, server: ScenarioServer, bits: Bits, clock: Clock) -> None:
        self.scenario, self.server, self._bits = scenario, server, bits
        self.clients = {name: server.client(name) for name in (*scenario.analysts, AUDITOR)}
        self.recorder = TranscriptRecorder(bounds=ContributionBounds(l1=scenario.service.l1, l0=scenario.service.l0))
        limits = EpsilonDeltaFilter.parse(epsilon=scenario.service.epsilon, delta=scenario.service.delta)
        self.limit = PrivacyLoss.of(limits.limit)
        self._lock = threading.Lock()
        self._names = {bucket: name for name, bucket in scenario.keys.items()}
        self._groups: dict[str, list[str]] = {}
        self._reports: dict[str, AggregatableReport] = {}
        self._truth: dict[str, tuple[int, int]] = {}
        self._queries: dict[str, QueryStep] = {}
        self._asked: dict[str, list[str]] = {}
        self._answers: dict[str, Summary] = {}
        self._choices: dict[str, tuple[str, ...]] = {}
        self._sources: dict[str, dict[str, None]] = {}
        self._used: dict[str, tuple[int, int]] = {}
        self._sender = ReportSender(
            api=Api.ATTRIBUTION_REPORTING,
            keys=self.clients[AUDITOR].public_keys(),
            clock=clock,
            bits=bits,
            recorder=self.recorder,
        )
        for group in scenario.groups:
            self._make(group)

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def take(self, step: ScenarioStep) -> tuple[str, list[str]]:
        """Run one step; return what it did and its problems."""
        run: dict[type[ScenarioStep], Callable[[Any], tuple[str, list[str]]]] = {
            QueryStep: self._take_query,
            LookStep: self._look,
            ChooseStep: self._choose,
            LateStep: self._late,
            EventsStep: self._events,
            RetryStep: self._retry,
            AtOnceStep: self._at_once,
            CrashStep: self._crash,
        }
        return run[type(step)](step)

    def _make(self, group: ReportGroup, sources: str | None = None) -> None:
        """Seal the reports of a group, for sources of their own or those of an earlier group, in turn.

        Only the recorder gets their truth. A source that has no room left for a contribution sends a null report
        (Algorithm 2 of the Privacy Sandbox paper, without a second choice).
        """
        buckets: list[int | None] = [
            self.scenario.keys[name] for name, count in group.counts.items() for _ in range(count)
        ]
        buckets += [None] * group.nulls
        units = list(self._sources[sources]) if sources else []
        self._groups[group.name], self._sources[group.name] = [], {}
        for number, bucket in enumerate(buckets):
            at = number // group.per_source
            unit = units[at % len(units)] if units else f"{group.name}, source {at + 1}"
            l1, l0 = self._used.get(unit, (0, 0))
            if l1 + group.value > self.scenario.service.l1 or l0 + 1 > self.scenario.service.l0:
                bucket = None
            contributions = [] if bucket is None else [Contribution(bucket=bucket, value=group.value)]
            report_id, self._reports[report_id] = self._sender.send(unit, self._bits.read(16), contributions)
            if bucket is not None:
                self._truth[report_id] = (bucket, group.value)
                self._used[unit] = (l1 + group.value, l0 + 1)
            self._groups[group.name].append(report_id)
            self._sources[group.name][unit] = None

    def _keys_of(self, query: QueryStep) -> list[str]:
        found: dict[str, None] = {}
        for name in query.keys:
            found |= dict.fromkeys(self._choices.get(name, (name,)))
        return list(found)

    def _ask(
        self,
        query: QueryStep,
        reports: Sequence[str],
        progress: Callable[[int, str], None] | None = None,
        halfway: Callable[[], None] | None = None,
    ) -> _Reply:
        """Run the job and record the outcome. ``halfway`` is called when half of the reports have been sent."""
        parameters = JobParameters(
            attribution_report_to=ORIGIN,
            epsilon=query.epsilon,
            discovery_delta=query.delta,
            others_epsilon=query.others_epsilon,
        )
        price = QueryPrice.of(
            Epsilon.parse(query.epsilon),
            Delta.parse(query.delta) if query.delta else None,
            Epsilon.parse(query.others_epsilon) if query.others_epsilon else None,
        )
        summary, message, return_code = None, "", ""
        try:
            summary = self.clients[query.by].aggregate(
                query.name,
                parameters,
                _Sent([self._reports[one] for one in reports], halfway),
                domain=[self.scenario.keys[name] for name in self._keys_of(query)],
                progress=progress,
            )
        except ClientError as problem:
            message, return_code = problem.message, problem.return_code
        with self._lock:
            made = self.recorder.record(
                caller=query.by,
                job_id=query.name,
                price=price,
                reports=reports,
                digest=None if summary is None else summary.result_digest(),
                return_code=return_code,
            )
        return _Reply(summary=summary, outcome=made.outcome, message=message)

    def _first(
        self,
        query: QueryStep,
        progress: Callable[[int, str], None] | None = None,
        halfway: Callable[[], None] | None = None,
    ) -> _Reply:
        """Ask a query for the first time, over its groups as they are now."""
        reports = [one for name in query.reports for one in self._groups[name]]
        self._queries[query.name], self._asked[query.name] = query, reports
        reply = self._ask(query, reports, progress, halfway)
        if reply.summary is not None:
            self._answers[query.name] = reply.summary
        return reply

    def _take_query(self, query: QueryStep) -> tuple[str, list[str]]:
        reply = self._first(query)
        return self._describe(query, reply), _unexpected(query, reply)

    def _describe(self, query: QueryStep, reply: _Reply) -> str:
        over = f"{len(self._asked[query.name])} reports of {', '.join(query.reports)}"
        asked = f"{query.by} asked {query.name!r} over {over} at ε = {query.epsilon}: {reply.outcome}"
        if reply.summary is None:
            return f"{asked}, {reply.message}"
        return f"{asked}, ε left {reply.summary.statement.remaining.get('epsilon', '?')}"

    def _rows(self, name: str) -> dict[str, int]:
        return {self._names.get(bucket, str(bucket)): value for bucket, value in self._answers[name].to_dict().items()}

    def _answered(self, name: str) -> list[str]:
        return [] if name in self._answers else [f"{name!r} has no answer: it was refused"]

    def _look(self, step: LookStep) -> tuple[str, list[str]]:
        if step.at is None:
            return self._look_at_ledger(step)
        if problems := self._answered(step.at):
            return f"looked at {step.at!r}", problems
        allowed = step.deviations * float(self._answers[step.at].statement.noise_standard_deviation)
        truth: dict[str, int] = {}
        for report in self._asked[step.at]:
            if report in self._truth:
                bucket, value = self._truth[report]
                truth[self._names[bucket]] = truth.get(self._names[bucket], 0) + value
        rows = self._rows(step.at)
        problems = [
            f"{name} is {value}, more than {step.deviations:g} standard deviations from the truth"
            for name, value in rows.items()
            if not abs(value - truth.get(name, 0)) <= allowed
        ]
        return f"looked at {step.at!r}: " + ", ".join(f"{name} {value}" for name, value in rows.items()), problems

    def _look_at_ledger(self, step: LookStep) -> tuple[str, list[str]]:
        reports = [one for name in step.reports for one in self._groups[name]]
        spent = sorted({Fraction(one.epsilon) for one, _ in self._spent(reports)})
        said = " and ".join(str(float(one)) for one in spent)
        problems = []
        if step.spent is not None and spent != [step.spent]:
            problems.append(f"expected every report to have spent {float(step.spent)}, they have spent {said}")
        return f"looked at the ledger: reports of {', '.join(step.reports)} have spent ε = {said}", problems

    def _spent(self, reports: Sequence[str]) -> list[tuple[Any, str]]:
        """Return what the ledger says each report has spent, asked as an analyst."""
        client: Client = self.clients[self.scenario.analysts[0]]
        found: list[tuple[Any, str]] = []
        for start in range(0, len(reports), _PAGE):
            page = reports[start : start + _PAGE]
            balances = client.balances([self._reports[one].shared_info for one in page])
            found += [(balance.spent, report) for balance, report in zip(balances, page, strict=True)]
        return found

    def _choose(self, step: ChooseStep) -> tuple[str, list[str]]:
        if problems := self._answered(step.at):
            self._choices[step.name] = tuple(self.scenario.keys)[:1]
            return f"could not choose {step.name!r}", problems
        rows = self._rows(step.at)
        if step.take == "above":
            chosen = tuple(name for name, value in rows.items() if value > step.above)
        else:
            ordered = sorted(rows, key=lambda name: rows[name], reverse=step.take == "largest")
            chosen = tuple(ordered[: step.count])
        self._choices[step.name] = chosen
        problems = []
        if step.expect is not None and set(chosen) != set(step.expect):
            problems.append(f"expected {', '.join(step.expect)}, chose {', '.join(chosen) or 'nothing'}")
        return f"chose {', '.join(chosen) or 'nothing'} from {step.at!r} as {step.name!r}", problems

    def _late(self, step: LateStep) -> tuple[str, list[str]]:
        self._make(step.group)
        if step.into is not None:
            self._groups[step.into] = [*self._groups[step.into], *self._groups[step.group.name]]
        where = f", into {step.into!r}" if step.into else ""
        return f"{step.group.size} late reports arrived as {step.group.name!r}{where}", []

    def _events(self, step: EventsStep) -> tuple[str, list[str]]:
        """Let the answer to a query decide what happens next: the adaptive database of Algorithm 5."""
        problems = self._answered(step.at)
        value = None if problems else self._rows(step.at).get(step.key)
        chosen = next(one for one in step.cases if one.above is None or (value is not None and value > one.above))
        self._make(chosen.group, step.sources)
        if step.expect is not None and chosen.name != step.expect:
            problems.append(f"expected {step.expect!r}, was {chosen.name!r}")
        of = f" of the sources of {step.sources!r}" if step.sources else ""
        seen = "was not shown" if value is None else f"was {value}"
        return (
            f"{step.key} in {step.at!r} {seen}: {chosen.name}; {chosen.group.size} reports{of} as {step.name!r}",
            problems,
        )

    def _retry(self, step: RetryStep) -> tuple[str, list[str]]:
        if step.of not in self._asked:
            return f"could not retry {step.of!r}", [f"{step.of!r} has not been asked"]
        first = self._queries[step.of]
        query = first if not step.epsilon else replace(first, epsilon=step.epsilon)
        problems: list[str] = []
        outcomes: dict[str, int] = {}
        for _ in range(step.times):
            reply = self._ask(query, self._asked[step.of])
            outcomes[reply.outcome] = outcomes.get(reply.outcome, 0) + 1
            if step.expect is not None and not _as_expected(step.expect, reply.outcome):
                problems.append(f"expected {step.expect}, was {reply.outcome}")
        counts = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.items())
        changed = f" with ε = {step.epsilon}" if step.epsilon else ""
        return f"retried {step.of!r}{changed}, {step.times} times: {counts}", problems[:3]

    def _at_once(self, step: AtOnceStep) -> tuple[str, list[str]]:
        """Start every query at the same moment, each in its own thread."""
        barrier = threading.Barrier(len(step.queries))

        def ask(query: QueryStep) -> _Reply:
            barrier.wait()
            return self._first(query)

        with ThreadPoolExecutor(len(step.queries)) as pool:
            replies = list(zip(step.queries, pool.map(ask, step.queries), strict=True))
        released = sum(reply.summary is not None for _, reply in replies)
        problems = [f"{query.name}: {one}" for query, reply in replies for one in _unexpected(query, reply)]
        if step.released is not None and released != step.released:
            problems.append(f"expected {step.released} of the queries to be released, {released} were")
        described = "; ".join(self._describe(query, reply) for query, reply in replies)
        return f"at once: {described}", problems

    def _crash(self, step: CrashStep) -> tuple[str, list[str]]:
        if step.during is None:
            self.server.kill()
            self.server.start()
            return "killed the service and started it again", []
        query = step.during
        killed = threading.Event()

        def kill() -> None:
            if not killed.is_set():
                self.server.kill()
                killed.set()

        on_progress = (lambda reports, stage: kill()) if step.when == "working" else None
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self._first, query, on_progress, kill if step.when == "sending" else None)
            while not asking.done() and not killed.wait(0.05):
                continue
            when = "after it had answered"
            if killed.is_set():
                when = "with half of the reports sent" if step.when == "sending" else "while it worked"
            kill()
            self.server.start()
        reply = asking.result()
        problems = _unexpected(query, reply)
        if reply.summary is not None:
            again = self._ask(query, self._asked[query.name])
            if again.outcome != REPEATED:
                problems.append(f"asked once more after the crash, the service gave another answer: {again.outcome}")
        paid = sum(1 for one in self.clients[AUDITOR].entries(caller=query.by) if one.job_request_id == query.name)
        if paid > 1:
            problems.append(f"the ledger charged {query.name!r} {paid} times")
        return f"killed the service {when}, and started it again: {self._describe(query, reply)}", problems

    def judge(self) -> tuple[list[LossComparison], list[str]]:
        """Compare losses with charges and verify the ledger."""
        with_contributions = [one.report_id for one in self.recorder.sent.values() if one.contributions]
        balances = {
            (report, 0): Spend(
                loss_micro=int(Fraction(spent.epsilon or "0") * 10**6),
                delta_atto=int(Fraction(spent.delta or "0") * 10**18),
                uses=0,
            )
            for spent, report in self._spent(with_contributions)
        }
        comparisons = self.recorder.compare(balances)
        problems = []
        if past := self.recorder.units_over_limit(self.limit):
            problems.append(f"{len(past)} units lost more than (ε*, δ*); the first is {next(iter(past))}")
        if under := [one.unit for one in comparisons if one.undercharged]:
            problems.append(f"{len(under)} units lost more than their reports paid; the first is {under[0]}")
        if self.scenario.service.unit == "report" and any(one.lost != one.charged for one in comparisons):
            problems.append("the ledger charged other amounts than the truth gives")
        verified = self.clients[AUDITOR].verify_ledger()
        if not verified.ok:
            problems.append(f"the ledger does not verify: {verified.problem}")
        return comparisons, problems


def _as_expected(expected: str, outcome: str) -> bool:
    if expected == REFUSED:
        return outcome not in (RELEASED, REPEATED)
    return expected == outcome


def _unexpected(query: QueryStep, reply: _Reply) -> list[str]:
    problems = []
    if query.expect is not None and not _as_expected(query.expect, reply.outcome):
        problems.append(f"expected {query.expect}, was {reply.outcome}")
    if query.left is not None:
        if reply.summary is None:
            problems.append(f"expected ε = {float(query.left)} to be left, but the query was refused")
        else:
            left = Fraction(reply.summary.statement.remaining["epsilon"])
            if left != query.left:
                problems.append(f"expected ε = {float(query.left)} to be left, it is {float(left)}")
    return problems
