"""RequeryScenario files: steps of requerying and their expected outcomes. docs/requerying.md lists every field.

Names are resolved here, so that a run never meets an unknown one: while a file is read, ``known.names`` has those that
exist so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal

from aggservice.campaign.errors import CampaignFileError
from aggservice.files.settings import (
    REQUIRED,
    Known,
    amount,
    choice,
    choices,
    number,
    read_settings,
    setting,
    table,
    text,
    whole,
)
from aggservice.files.toml import Section, read_text, read_toml
from budget import AmountError, Delta, Epsilon

RELEASED = "released"
REPEATED = "repeated"
REFUSED = "refused"
RETURN_CODES = ("PRIVACY_BUDGET_EXHAUSTED", "INVALID_JOB", "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD", "PERMISSION_ERROR")
_EXPECTED = (RELEASED, REPEATED, REFUSED, *RETURN_CODES)
_MAX_REPORTS = 100_000
_MAX_KEY = (1 << 63) - 1
_MAX_L1 = 1 << 32
_ANALYST = "analyst"
_CALLER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


@dataclass(slots=True, kw_only=True)
class _Names:
    """The keys, groups of reports, queries, choices and analysts of a file that exist so far, and its bounds."""

    keys: Mapping[str, int]
    l1: int
    l0: int
    groups: dict[str, ReportGroup] = field(default_factory=dict)
    queries: dict[str, QueryStep] = field(default_factory=dict)
    choices: set[str] = field(default_factory=set)
    analysts: list[str] = field(default_factory=list)


def _counts(section: Section, key: str, known: Known) -> dict[str, int]:
    inner = section.section(key)
    for name in inner.values:
        if name not in known.names.keys:
            section.refuse(key, f"names the key {name!r}", f"Write keys of [keys]: {', '.join(known.names.keys)}")
    return {name: inner.whole(name, None, least=0, most=_MAX_REPORTS) for name in inner.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """Reports that clients send: the number per key, the value of each, and the number per source."""

    name: str = text("the group's name", example="monday")
    counts: Mapping[str, int] = setting(
        "how many reports each key has, such as `{ shoes = 150 }`",
        read=_counts,
        default=lambda known: {},
        allowed="table of numbers",
    )
    value: int = whole("the value of each report", least=1, most=lambda known: known.names.l1)
    per_source: int = whole("reports a source makes, at most Λ₀", default=1, least=1, most=_MAX_REPORTS)
    nulls: int = whole("null reports", default=0, least=0, most=_MAX_REPORTS)

    @property
    def size(self) -> int:
        """How many reports there are."""
        return sum(self.counts.values()) + self.nulls

    def check(self, section: Section, known: Known) -> None:
        """Refuse a group that no client sends, or that is too large."""
        if self.value * self.per_source > known.names.l1:
            section.refuse(
                "per_source" if "per_source" in section else "value",
                f"gives a source {self.per_source} reports of {self.value}, more than Λ₁ = {known.names.l1}",
                f"Write a value of at most {known.names.l1 // self.per_source}: a client sends no more",
            )
        if self.per_source > known.names.l0:
            section.refuse(
                "per_source",
                f"gives a source {self.per_source} contributions, more than Λ₀ = {known.names.l0}",
                f"Write at most {known.names.l0}: a client sends no more",
            )
        if not 1 <= self.size <= _MAX_REPORTS:
            section.refuse("counts", f"makes {self.size} reports", f"Write 1 to {_MAX_REPORTS:,} reports in all")


def _add_group(section: Section, group: ReportGroup, known: Known) -> None:
    if group.name in known.names.groups:
        section.refuse("name", f"is {group.name!r} again", "Give each group of reports a name of its own")
    known.names.groups[group.name] = group


def _job_amount(says: str, of: type[Epsilon] | type[Delta], **more: Any) -> Any:
    """Declare an amount that a job may ask for, in whole steps and in range."""

    def read(section: Section, key: str, known: Known) -> str:
        given = section.amount(key)
        try:
            of.parse(given)
        except AmountError as problem:
            section.refuse(key, f"is {given!r}: {problem}", f'Write {key} as whole steps of its grid, such as "0.5"')
        return given

    return setting(says, read=read, allowed="decimal text", **more)


def _query_name(section: Section, key: str, known: Known) -> str:
    name = section.text(key, example="first")
    if name not in known.names.queries:
        named = ", ".join(map(repr, known.names.queries)) or "nothing yet: ask first"
        section.refuse(key, f"names the query {name!r}", f"Queries so far: {named}")
    return name


def _query(says: str, **more: Any) -> Any:
    return setting(says, read=_query_name, allowed="name of a query", **more)


def _groups(says: str, **more: Any) -> Any:
    return choices(says, lambda known: list(known.names.groups), allowed="names of groups", **more)


def _expect(says: str = "the outcome, else the step fails") -> Any:
    return choice(says, _EXPECTED, default=None, shown="any")


def _like(name: str, otherwise: Any) -> Any:
    """Return the default of a query's field: what the earlier query has that this one is like."""
    return lambda known: getattr(known.like, name) if known.like else otherwise


def _caller(section: Section, key: str, known: Known) -> str:
    by = section.text(key)
    if _CALLER.fullmatch(by) is None or by == "auditor":
        section.refuse(key, f"is {by!r}", 'Write a name of lower-case letters and digits, such as "ada"')
    return by


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStep:
    """A job: its caller, groups of reports, keys (or names of earlier choices) and price."""

    line: int
    name: str = text("the job id", example="first")
    by: str = setting(
        "who asks", read=_caller, allowed="a caller's name", default=_like("by", _ANALYST), shown=f"`{_ANALYST}`"
    )
    reports: tuple[str, ...] = _groups("the groups it is over", default=_like("reports", REQUIRED))
    keys: tuple[str, ...] = choices(
        "the keys it declares, or names of choices",
        lambda known: [*known.names.keys, *sorted(known.names.choices)],
        default=_like("keys", ()),
        shown="none",
        allowed="names of keys",
    )
    epsilon: str = _job_amount("ε of the job", Epsilon, default=_like("epsilon", REQUIRED))
    delta: str = _job_amount("δ of key discovery", Delta, default=_like("delta", ""), shown="none")
    others_epsilon: str = _job_amount("ε of the others total", Epsilon, default="", shown="none")
    expect: str | None = _expect()
    left: Fraction | None = amount("the ε that must be left", default=None, shown="any", zero=True, convert=Fraction)

    def check(self, section: Section, known: Known) -> None:
        """Refuse a query without keys, or with the name of another; later steps know it by its name."""
        if self.name in known.names.queries:
            remedy = "Give each query a name, its job id; to ask it again, retry"
            section.refuse("name", f"is {self.name!r} again", remedy)
        if not self.keys and not self.delta:
            section.refuse("", "declares no keys and discovers none", 'Write keys = ["shoes"], or a delta to discover')
        known.names.queries[self.name] = self
        if self.by not in known.names.analysts:
            known.names.analysts.append(self.by)


def _read_query(section: Section, known: Known) -> QueryStep:
    return read_settings(section, QueryStep, known, line=section.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookStep:
    """Check that an answer is within some standard deviations of the truth, or check what reports have spent."""

    line: int
    at: str | None = _query("the answer to look at", default=None)
    deviations: float = number(
        "how many standard deviations of noise it may be off", default=20.0, least=0, most=1000, above=True
    )
    reports: tuple[str, ...] = _groups("or groups of reports, to look at the ledger", default=())
    spent: Fraction | None = amount(
        "the ε that each of them must have spent", default=None, shown="any", zero=True, convert=Fraction
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse a step that looks at nothing, or at both."""
        if (self.at is None) == (not self.reports):
            section.refuse("", "needs exactly one of at and reports", 'Write at = "a query", or reports = ["a group"]')


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseStep:
    """Choose keys of an answer by their noisy values and give the choice a name."""

    line: int
    name: str = text("the choice's name, for `keys` of later queries", example="favourites")
    at: str = _query("the answer to choose from")
    take: Literal["largest", "smallest", "above"] = choice(
        "which keys", ("largest", "smallest", "above"), default="largest"
    )
    count: int = whole("how many", default=1, least=1, most=lambda known: len(known.names.keys))
    above: int = whole("the noisy value from which a key is chosen", default=0, least=-_MAX_KEY, most=_MAX_KEY)
    expect: tuple[str, ...] | None = choices(
        "the keys, else the step fails",
        lambda known: list(known.names.keys),
        default=None,
        shown="any",
        allowed="names of keys",
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse a name that is taken, and a limit that is missing."""
        if self.name in known.names.keys or self.name in known.names.choices:
            section.refuse("name", f"is {self.name!r}, which is taken", "Give the choice a name that no key has")
        if self.take == "above" and "above" not in section:
            section.refuse("above", "is missing", "Write above = 10000, the noisy value from which a key is chosen")
        known.names.choices.add(self.name)


def _earlier_group(says: str) -> Any:
    return choice(
        says,
        lambda known: ["", *known.names.groups],
        default=None,
        convert=lambda name: name or None,
        allowed="name of a group",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LateStep:
    """Reports that arrive after queries were answered: a new group, optionally also added to an older one."""

    line: int
    group: ReportGroup
    into: str | None = _earlier_group("an older group that they are added to as well")

    def check(self, section: Section, known: Known) -> None:
        """Refuse the name of another group; later steps know this one."""
        _add_group(section, self.group, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCase:
    """A case of an ``EventsStep``: it happens if a noisy value exceeds ``above``; with None, in every other case."""

    name: str = text("the case's name", key="case", example="a lower price")
    above: int | None = whole(
        "it happens if the noisy value is above this; the last case has none",
        default=None,
        least=-_MAX_KEY,
        most=_MAX_KEY,
    )
    group: ReportGroup


def _cases(section: Section, key: str, known: Known) -> tuple[EventCase, ...]:
    cases = []
    for one in section.sections(key):
        group = read_settings(one, ReportGroup, known, name=known.name, done=False)
        cases.append(read_settings(one, EventCase, known, group=group))
    limits = [one.above for one in cases]
    good = len(cases) >= 2 and limits[-1] is None and None not in limits[:-1]
    if not good or sorted(limits[:-1], key=lambda x: -(x or 0)) != limits[:-1]:
        section.refuse(
            key,
            "are not two or more with descending values of above and a last one without it",
            "Write [[steps.cases]] with case, above and counts, and a last one without above for all other values",
        )
    return tuple(cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsStep:
    """Events that depend on an earlier answer: the first case whose ``above`` is below the noisy value of ``key``.

    With ``sources`` the conversions belong to the sources of an earlier group, within what is left of their Λ₁ and Λ₀.
    """

    line: int
    name: str = text("the name of the group that they make", example="tuesday")
    at: str = _query("the answer they depend on")
    key: str = choice("the key they depend on", lambda known: list(known.names.keys), allowed="name of a key")
    cases: tuple[EventCase, ...] = setting(
        "what may happen: `case`, `above`, and what `[[reports]]` has but a name",
        read=_cases,
        default=lambda known: _cases(known.section, "cases", known),
        allowed="tables",
    )
    sources: str | None = _earlier_group("a group whose sources convert")
    expect: str | None = choice(
        "the case, else the step fails",
        lambda known: [one.name for one in known.cases],
        default=None,
        shown="any",
        allowed="name of a case",
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse the name of another group; later steps know this one."""
        _add_group(section, self.cases[-1].group, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStep:
    """The same job id again, with the same request or with another ε."""

    line: int
    of: str = _query("the query")
    times: int = whole("how often", default=1, least=1, most=1000)
    epsilon: str = _job_amount("another ε, which makes it another request", Epsilon, default="", shown="the same")
    expect: str | None = _expect()


def _queries(section: Section, key: str, known: Known) -> tuple[QueryStep, ...]:
    found = section.sections(key)
    if len(found) < 2:
        section.refuse(key, "are fewer than two", "Write [[steps.queries]] twice, with the fields of a query")
    return tuple(_read_query(one, known) for one in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnceStep:
    """Queries at the same time, of which ``released`` should get an answer."""

    line: int
    queries: tuple[QueryStep, ...] = setting(
        "queries, at least two",
        read=_queries,
        default=lambda known: _queries(known.section, "queries", known),
        allowed="tables",
    )
    released: int | None = whole(
        "how many must be answered", default=None, shown="any", least=0, most=lambda known: len(known.queries)
    )


def _during(section: Section, key: str, known: Known) -> QueryStep:
    return _read_query(section.section(key), known)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashStep:
    """Kill the service like a power cut and start it again, optionally while it works on a query.

    ``when`` is after half of the reports were sent, at the first progress (or answer, if that comes first), or just
    after the answer.
    """

    line: int
    during: QueryStep | None = setting("a query that is running", read=_during, default=None, allowed="table")
    when: Literal["sending", "working", "answered"] = choice(
        "half of the reports sent; at the first progress; just after the answer",
        ("sending", "working", "answered"),
        default="sending",
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse a moment without a query."""
        if self.during is None and "when" in section:
            section.refuse("when", "needs a query that is running", "Write [steps.during] with the fields of a query")


ScenarioStep = QueryStep | LookStep | ChooseStep | LateStep | EventsStep | RetryStep | AtOnceStep | CrashStep
STEPS: Final[Mapping[str, type[ScenarioStep]]] = {
    "query": QueryStep,
    "query again": QueryStep,
    "look": LookStep,
    "choose": ChooseStep,
    "late reports": LateStep,
    "events": EventsStep,
    "retry": RetryStep,
    "at once": AtOnceStep,
    "crash": CrashStep,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """``[service]`` of a scenario: the totals of its ledger, the privacy unit and the bounds."""

    epsilon: str = amount("total ε of a privacy unit", default="64")
    delta: str = amount("total δ of a privacy unit", default="0.00001", zero=True)
    unit: Literal["report", "shared-id"] = choice("the privacy unit", ("report", "shared-id"), default="report")
    l1: int = whole("Λ₁", default=65_536, least=1, most=_MAX_L1)
    l0: int = whole("Λ₀", default=lambda known: known.l1, shown="`l1`", least=1, most=lambda known: known.l1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeryScenario:
    """A whole scenario. ``analysts`` are the callers its steps name."""

    title: str = text("as it prints", example="Ask, look, ask again")
    about: str = text("what it shows", default="")
    service: LedgerSettings = table("", LedgerSettings)
    keys: Mapping[str, int]
    groups: tuple[ReportGroup, ...]
    steps: tuple[ScenarioStep, ...]
    analysts: tuple[str, ...]

    @property
    def needs_process(self) -> bool:
        """Whether the service must run in a process of its own, so that it can be killed."""
        return any(isinstance(step, CrashStep) for step in self.steps)


def load_scenario(path: Path) -> RequeryScenario:
    """Read a scenario file; refuse a bad one with its line and what to write instead."""
    text = read_text(path, remedy="examples/requerying/ has some", error=CampaignFileError)
    return parse_scenario(text, file=str(path))


def parse_scenario(text: str, *, file: str = "scenario") -> RequeryScenario:
    """Read a scenario from its text."""
    top = read_toml(text, file=file, error=CampaignFileError)
    inner, reports, steps = top.section("keys"), top.sections("reports"), top.sections("steps")
    empty = read_settings(top, RequeryScenario, keys={}, groups=(), steps=(), analysts=())
    keys = {name: inner.whole(name, None, least=0, most=_MAX_KEY) for name in inner.values}
    if not keys or len(set(keys.values())) != len(keys):
        top.refuse("keys", "must give each name its own key", "Write [keys], then shoes = 1, hats = 2, …")
    names = _Names(keys=keys, l1=empty.service.l1, l0=empty.service.l0)
    known = Known(names=names, like=None)
    for section in reports:
        _add_group(section, read_settings(section, ReportGroup, known), known)
    if not names.groups:
        top.refuse("reports", "is missing", "Write [[reports]] with name, counts = { shoes = 9 } and value = 1000")
    first = tuple(names.groups.values())
    found = tuple(_step(section, known) for section in steps)
    if not found:
        top.refuse("steps", "is missing", 'Write [[steps]] with do = "query"')
    return replace(empty, keys=keys, groups=first, steps=found, analysts=tuple(names.analysts) or (_ANALYST,))


def _step(section: Section, known: Known) -> ScenarioStep:
    do = section.choice("do", tuple(STEPS))
    given: dict[str, Any] = {"line": section.line}
    if do == "query again":
        given["like"] = known.names.queries[_query_name(section, "like", known)]
    if do == "late reports":
        given["group"] = read_settings(section, ReportGroup, known, done=False)
    return read_settings(section, STEPS[do], known, **given)
