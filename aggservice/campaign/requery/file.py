"""Reads scenario files: steps of requerying and their expected outcomes. docs/requerying.md lists every field.

Names are resolved here, so that a run never meets an unknown one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from aggservice.campaign.errors import CampaignFileError
from aggservice.files.toml import Section, read_text, read_toml
from budget import AmountError, Delta, Epsilon

RELEASED = "released"
REPEATED = "repeated"
REFUSED = "refused"
STEPS = ("query", "query again", "look", "choose", "late reports", "events", "retry", "at once", "crash")
RETURN_CODES = ("PRIVACY_BUDGET_EXHAUSTED", "INVALID_JOB", "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD", "PERMISSION_ERROR")
_EXPECTED = (RELEASED, REPEATED, REFUSED, *RETURN_CODES)
_MAX_REPORTS = 100_000
_MAX_KEY = (1 << 63) - 1
_MAX_L1 = 1 << 32
_ANALYST = "analyst"
_CALLER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """Reports that clients send: the number per key, the value of each, and the number per source."""

    name: str
    counts: Mapping[str, int]
    value: int
    per_source: int
    nulls: int

    @property
    def size(self) -> int:
        """How many reports there are."""
        return sum(self.counts.values()) + self.nulls


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStep:
    """A job: its caller, groups of reports, keys (or names of earlier choices) and price."""

    line: int
    name: str
    by: str
    reports: tuple[str, ...]
    keys: tuple[str, ...]
    epsilon: str
    delta: str
    others_epsilon: str
    expect: str | None
    left: Fraction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookStep:
    """Check that an answer is within some standard deviations of the truth, or check what reports have spent."""

    line: int
    at: str | None
    deviations: float
    reports: tuple[str, ...]
    spent: Fraction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseStep:
    """Choose keys of an answer by their noisy values and give the choice a name."""

    line: int
    name: str
    at: str
    take: Literal["largest", "smallest", "above"]
    count: int
    above: int
    expect: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateStep:
    """Reports that arrive after queries were answered: a new group, optionally also added to an older one."""

    line: int
    group: ReportGroup
    into: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCase:
    """A case of an ``EventsStep``: it happens if a noisy value exceeds ``above``; with None, in every other case."""

    name: str
    above: int | None
    group: ReportGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsStep:
    """Events that depend on an earlier answer: the first case whose ``above`` is below the noisy value of ``key``.

    With ``sources`` the conversions belong to the sources of an earlier group, within what is left of their Λ₁ and Λ₀.
    """

    line: int
    name: str
    at: str
    key: str
    cases: tuple[EventCase, ...]
    sources: str | None
    expect: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStep:
    """The same job id again, with the same request or with another ε."""

    line: int
    of: str
    times: int
    epsilon: str
    expect: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnceStep:
    """Queries at the same time, of which ``released`` should get an answer."""

    line: int
    queries: tuple[QueryStep, ...]
    released: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashStep:
    """Kill the service like a power cut and start it again, optionally while it works on a query.

    ``when`` is after half of the reports were sent, at the first progress (or answer, if that comes first), or just
    after the answer.
    """

    line: int
    during: QueryStep | None
    when: Literal["sending", "working", "answered"] = "sending"


Step = QueryStep | LookStep | ChooseStep | LateStep | EventsStep | RetryStep | AtOnceStep | CrashStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole scenario. ``analysts`` are the callers its steps name."""

    title: str
    about: str
    epsilon: str
    delta: str
    unit: Literal["report", "shared-id"]
    l1: int
    l0: int
    keys: Mapping[str, int]
    groups: tuple[ReportGroup, ...]
    steps: tuple[Step, ...]
    analysts: tuple[str, ...]

    @property
    def needs_process(self) -> bool:
        """Whether the service must run in a process of its own, so that it can be killed."""
        return any(isinstance(step, CrashStep) for step in self.steps)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file; refuse a bad one with its line and what to write instead."""
    text = read_text(path, remedy="examples/requerying/ has some", error=CampaignFileError)
    return parse_scenario(text, file=str(path))


def parse_scenario(text: str, *, file: str = "scenario") -> Scenario:
    """Read a scenario from its text."""
    return _Reader(read_toml(text, file=file, error=CampaignFileError)).scenario()


class _Reader:
    """Reads one file step by step and keeps the names that exist so far."""

    def __init__(self, top: Section) -> None:
        self.top = top
        self.keys: dict[str, int] = {}
        self.groups: dict[str, ReportGroup] = {}
        self.queries: dict[str, QueryStep] = {}
        self.choices: set[str] = set()
        self.analysts: list[str] = []
        self.l1 = self.l0 = 0

    def scenario(self) -> Scenario:
        top = self.top
        title, about = top.text("title", example="Ask, look, ask again"), top.text("about", "")
        service = top.section("service")
        epsilon, delta = service.amount("epsilon", "64"), service.amount("delta", "0.00001", zero=True)
        unit = service.choice("unit", ("report", "shared-id"), "report")
        self.l1 = service.whole("l1", 65_536, least=1, most=_MAX_L1)
        self.l0 = service.whole("l0", self.l1, least=1, most=self.l1)
        service.done()
        names = top.section("keys")
        self.keys = {name: names.whole(name, None, least=0, most=_MAX_KEY) for name in names.values}
        if not self.keys or len(set(self.keys.values())) != len(self.keys):
            top.refuse("keys", "must give each name its own key", "Write [keys], then shoes = 1, hats = 2, …")
        for section in top.sections("reports"):
            self._add_group(section, self._group(section, section.text("name", example="monday")))
        if not self.groups:
            top.refuse("reports", "is missing", "Write [[reports]] with name, counts = { shoes = 9 } and value = 1000")
        found = [self._step(section) for section in top.sections("steps")]
        if not found:
            top.refuse("steps", "is missing", 'Write [[steps]] with do = "query"')
        top.done()
        return Scenario(
            title=title,
            about=about,
            epsilon=epsilon,
            delta=delta,
            unit=unit,  # type: ignore[arg-type]
            l1=self.l1,
            l0=self.l0,
            keys=self.keys,
            groups=tuple(self.groups[name] for name in self._first_groups),
            steps=tuple(found),
            analysts=tuple(self.analysts) or (_ANALYST,),
        )

    @property
    def _first_groups(self) -> list[str]:
        return [str(section.values["name"]) for section in self.top.sections("reports")]

    def _group(self, section: Section, name: str) -> ReportGroup:
        table = section.section("counts")
        for key in table.values:
            if key not in self.keys:
                section.refuse("counts", f"names the key {key!r}", f"Write keys of [keys]: {', '.join(self.keys)}")
        group = ReportGroup(
            name=name,
            counts={key: table.whole(key, None, least=0, most=_MAX_REPORTS) for key in table.values},
            value=section.whole("value", None, least=1, most=self.l1),
            per_source=section.whole("per_source", 1, least=1, most=_MAX_REPORTS),
            nulls=section.whole("nulls", 0, least=0, most=_MAX_REPORTS),
        )
        if group.value * group.per_source > self.l1:
            section.refuse(
                "per_source" if "per_source" in section else "value",
                f"gives a source {group.per_source} reports of {group.value}, more than Λ₁ = {self.l1}",
                f"Write a value of at most {self.l1 // group.per_source}: a client sends no more",
            )
        if group.per_source > self.l0:
            section.refuse(
                "per_source",
                f"gives a source {group.per_source} contributions, more than Λ₀ = {self.l0}",
                f"Write at most {self.l0}: a client sends no more",
            )
        if not 1 <= group.size <= _MAX_REPORTS:
            section.refuse("counts", f"makes {group.size} reports", f"Write 1 to {_MAX_REPORTS:,} reports in all")
        return group

    def _add_group(self, section: Section, group: ReportGroup) -> None:
        if group.name in self.groups:
            section.refuse("name", f"is {group.name!r} again", "Give each group of reports a name of its own")
        section.done()
        self.groups[group.name] = group

    def _step(self, section: Section) -> Step:
        do = section.choice("do", STEPS)
        line = section.line
        readers: dict[str, Callable[[Section, int], Step]] = {
            "query": self._query,
            "query again": self._again,
            "look": self._look,
            "choose": self._choose,
            "late reports": self._late,
            "events": self._events,
            "retry": self._retry,
            "at once": self._at_once,
            "crash": self._crash,
        }
        step = readers[do](section, line)
        section.done()
        return step

    def _query(self, section: Section, line: int, like: QueryStep | None = None) -> QueryStep:
        name = section.text("name", example="first")
        if name in self.queries:
            section.refuse("name", f"is {name!r} again", "Give each query a name, its job id; to ask it again, retry")
        reports = section.choices("reports", list(self.groups), like.reports if like else None)
        keys = section.choices("keys", [*self.keys, *sorted(self.choices)], like.keys if like else ())
        delta = checked_amount(section, "delta", Delta, like.delta if like else "")
        if not keys and not delta:
            section.refuse("", "declares no keys and discovers none", 'Write keys = ["shoes"], or a delta to discover')
        by = section.text("by", like.by if like else _ANALYST)
        if _CALLER.fullmatch(by) is None or by == "auditor":
            section.refuse("by", f"is {by!r}", 'Write a name of lower-case letters and digits, such as "ada"')
        if by not in self.analysts:
            self.analysts.append(by)
        query = QueryStep(
            line=line,
            name=name,
            by=by,
            reports=reports,
            keys=keys,
            epsilon=checked_amount(section, "epsilon", Epsilon, like.epsilon if like else None),
            delta=delta,
            others_epsilon=checked_amount(section, "others_epsilon", Epsilon, ""),
            expect=self._expect(section),
            left=_exact(section, "left"),
        )
        self.queries[name] = query
        return query

    def _again(self, section: Section, line: int) -> QueryStep:
        return self._query(section, line, self._known_query(section, "like"))

    def _known_query(self, section: Section, key: str) -> QueryStep:
        name = section.text(key, example="first")
        if name not in self.queries:
            known = ", ".join(map(repr, self.queries)) or "nothing yet: ask first"
            section.refuse(key, f"names the query {name!r}", f"Queries so far: {known}")
        return self.queries[name]

    @staticmethod
    def _expect(section: Section) -> str | None:
        return None if section.take("expect") is None else section.choice("expect", _EXPECTED, RELEASED)

    def _look(self, section: Section, line: int) -> LookStep:
        at = None if section.take("at") is None else self._known_query(section, "at").name
        reports = section.choices("reports", list(self.groups), ())
        if (at is None) == (not reports):
            section.refuse("", "needs exactly one of at and reports", 'Write at = "a query", or reports = ["a group"]')
        return LookStep(
            line=line,
            at=at,
            deviations=section.number("deviations", 20.0, least=0, most=1000, above=True),
            reports=reports,
            spent=_exact(section, "spent"),
        )

    def _choose(self, section: Section, line: int) -> ChooseStep:
        name = section.text("name", example="favourites")
        if name in self.keys or name in self.choices:
            section.refuse("name", f"is {name!r}, which is taken", "Give the choice a name that no key has")
        take = section.choice("take", ("largest", "smallest", "above"), "largest")
        expect = None if section.take("expect") is None else section.choices("expect", list(self.keys))
        if take == "above" and "above" not in section:
            section.refuse("above", "is missing", "Write above = 10000, the noisy value from which a key is chosen")
        step = ChooseStep(
            line=line,
            name=name,
            at=self._known_query(section, "at").name,
            take=take,  # type: ignore[arg-type]
            count=section.whole("count", 1, least=1, most=len(self.keys)),
            above=section.whole("above", 0, least=-_MAX_KEY, most=_MAX_KEY),
            expect=expect,
        )
        self.choices.add(name)
        return step

    def _late(self, section: Section, line: int) -> LateStep:
        into = section.choice("into", ["", *self.groups], "") or None
        group = self._group(section, section.text("name", example="monday"))
        self._add_group(section, group)
        return LateStep(line=line, group=group, into=into)

    def _events(self, section: Section, line: int) -> EventsStep:
        name = section.text("name", example="tuesday")
        at = self._known_query(section, "at")
        key = section.choice("key", list(self.keys))
        sources = section.choice("sources", ["", *self.groups], "") or None
        cases = []
        for one in section.sections("cases"):
            above = one.whole("above", None, least=-_MAX_KEY, most=_MAX_KEY) if "above" in one else None
            cases.append(
                EventCase(name=one.text("case", example="a lower price"), above=above, group=self._group(one, name))
            )
            one.done()
        limits = [one.above for one in cases]
        good = len(cases) >= 2 and limits[-1] is None and None not in limits[:-1]
        if not good or sorted(limits[:-1], key=lambda x: -(x or 0)) != limits[:-1]:
            section.refuse(
                "cases",
                "are not two or more with descending values of above and a last one without it",
                "Write [[steps.cases]] with case, above and counts, and a last one without above for all other values",
            )
        expect = None if section.take("expect") is None else section.choice("expect", [one.name for one in cases])
        self._add_group(section, cases[-1].group)
        return EventsStep(line=line, name=name, at=at.name, key=key, cases=tuple(cases), sources=sources, expect=expect)

    def _retry(self, section: Section, line: int) -> RetryStep:
        return RetryStep(
            line=line,
            of=self._known_query(section, "of").name,
            times=section.whole("times", 1, least=1, most=1000),
            epsilon=checked_amount(section, "epsilon", Epsilon, ""),
            expect=self._expect(section),
        )

    def _at_once(self, section: Section, line: int) -> AtOnceStep:
        found = section.sections("queries")
        if len(found) < 2:
            section.refuse("queries", "are fewer than two", "Write [[steps.queries]] twice, with the fields of a query")
        queries = []
        for one in found:
            queries.append(self._query(one, one.line))
            one.done()
        released = None
        if section.take("released") is not None:
            released = section.whole("released", None, least=0, most=len(queries))
        return AtOnceStep(line=line, queries=tuple(queries), released=released)

    def _crash(self, section: Section, line: int) -> CrashStep:
        when = section.choice("when", ("sending", "working", "answered"), "sending")
        if section.take("during") is None:
            if "when" in section:
                section.refuse(
                    "when", "needs a query that is running", "Write [steps.during] with the fields of a query"
                )
            return CrashStep(line=line, during=None)
        query = section.section("during")
        step = CrashStep(
            line=line,
            during=self._query(query, query.line),
            when=when,  # type: ignore[arg-type]
        )
        query.done()
        return step


def checked_amount(section: Section, key: str, kind: type[Epsilon] | type[Delta], default: str | None = None) -> str:
    """Return an amount that a job may ask for, in whole steps and in range; or the default, which may be empty."""
    text = section.amount(key, default)
    if text:
        try:
            kind.parse(text)
        except AmountError as problem:
            section.refuse(key, f"is {text!r}: {problem}", f'Write {key} as whole steps of its grid, such as "0.5"')
    return text


def _exact(section: Section, key: str) -> Fraction | None:
    return None if section.take(key) is None else Fraction(section.amount(key, zero=True))
