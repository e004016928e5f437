"""Algorithms 2, 4 and 8 of Ghazi et al. ("the paper") as printed, with its names: a reference for the browser.

As printed, Algorithm 2 tries the next matching source if the budget of one is spent, and Algorithm 4 raises U to a
bucket even if maxRep prevents its report. Algorithms 8 and 9 do not say where i advances: here it does after each
answer. A source is active until its expDate, in the caller's unit of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, product
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from aggservice.mechanisms import Bits, ParameterError, bernoulli, exp, uniform_below

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """s = (srcId, dest, expDate, srcFilt, srcKey) of Algorithm 2. Sources are compared by identity."""

    src_id: int
    dest: str
    exp_date: int
    src_filt: frozenset[str]
    src_key: int


class PaperReport(NamedTuple):
    """An aggregatable report (r, k, v) with its trigId; the null report has neither key nor value."""

    report_id: int
    key: int | None
    value: int | None
    trig_id: int


class SummaryClient:
    """ARA-SR-Client, Algorithm 2."""

    def __init__(self, *, contribution_budget: int, sparsity_budget: int, bits: Bits) -> None:
        self.lambda1, self.lambda0, self._bits = contribution_budget, sparsity_budget, bits
        self.sources: list[Source] = []
        self.l0: dict[Source, int] = {}
        self.l1: dict[Source, int] = {}

    def register_source(self, s: Source) -> None:
        self.sources.append(s)
        self.l0[s] = self.l1[s] = 0

    def register_trigger(
        self, now: int, *, dest: str, trig_id: int, trig_filt: frozenset[str], trig_key: int, trig_value: int
    ) -> PaperReport:
        r = int.from_bytes(self._bits.read(16), "big")
        self.sources = [s for s in self.sources if s.exp_date > now]
        if trig_value > 0:
            for s in reversed(self.sources):
                if dest == s.dest and trig_filt & s.src_filt:  # noqa: SIM102 - as printed
                    if self.l0[s] + 1 <= self.lambda0 and self.l1[s] + trig_value <= self.lambda1:
                        self.l0[s] += 1
                        self.l1[s] += trig_value
                        return PaperReport(r, s.src_key | trig_key, trig_value, trig_id)
        return PaperReport(r, None, None, trig_id)


class TrigSpec(NamedTuple):
    """One entry of trigSpec: windows count from the registration of the source, buckets increase."""

    trig_data: int
    windows: tuple[int, ...]
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventSource:
    """(srcId, dest, expDate, srcFilt, maxRep, trigSpec) of Algorithm 4, and when it was registered."""

    src_id: int
    dest: str
    registered: int
    exp_date: int
    src_filt: frozenset[str]
    max_rep: int
    trig_spec: tuple[TrigSpec, ...]

    def window_ends(self) -> list[tuple[int, TrigSpec]]:
        """Return the ends of this source's windows in order; the i-th is the paper's i."""
        ends = [(self.registered + window, spec) for spec in self.trig_spec for window in spec.windows]
        return sorted(ends, key=itemgetter(0))


class Trigger(NamedTuple):
    """(dest, trigFilt, trigData, trigValue) of Algorithm 4, and when it was registered."""

    time: int
    dest: str
    filt: frozenset[str]
    data: int
    value: int


class EventReport(NamedTuple):
    """(srcId, trigData, bᵢ)."""

    src_id: int
    trig_data: int
    bucket: int


class EventClient:
    """ARA-Event-Client, noiseless, Algorithm 4."""

    def __init__(self) -> None:
        self.sources: list[EventSource] = []
        self.v: dict[tuple[EventSource, int], int] = {}
        self.u: dict[tuple[EventSource, int], int] = {}
        self.n: dict[EventSource, int] = {}

    def register_source(self, s: EventSource) -> None:
        self.sources.append(s)
        self.n[s] = 0
        for spec in s.trig_spec:
            self.v[s, spec.trig_data] = self.u[s, spec.trig_data] = 0

    def register_trigger(self, t: Trigger) -> None:
        """Add the value to the newest active source that matches. Call ``pass_windows`` up to that time first."""
        if t.value > 0:
            for s in reversed(self.sources):
                if s.exp_date > t.time and t.dest == s.dest and t.filt & s.src_filt and (s, t.data) in self.v:
                    self.v[s, t.data] += t.value
                    break

    def pass_window(self, s: EventSource, spec: TrigSpec) -> list[EventReport]:
        """Return the reports sent when a time window for (s, trigData) passes."""
        sent = []
        for b in spec.buckets:
            if self.u[s, spec.trig_data] < b <= self.v[s, spec.trig_data]:
                self.u[s, spec.trig_data] = b
                if self.n[s] < s.max_rep:
                    self.n[s] += 1
                    sent.append(EventReport(s.src_id, spec.trig_data, b))
        return sent

    def pass_windows(self, after: int, until: int) -> list[tuple[int, EventReport]]:
        """Pass every window that ends in (after, until]; return each report with its time."""
        ends = [(end, s, spec) for s in self.sources for end, spec in s.window_ends() if after < end <= until]
        return [(end, sent) for end, s, spec in sorted(ends, key=itemgetter(0)) for sent in self.pass_window(s, spec)]


def outputs_of(s: EventSource) -> list[tuple[tuple[EventReport, ...], ...]]:
    """Return O, every valid combination, as in the paper's Table 1; entry i is for the i-th window end."""
    ends = [spec for _, spec in s.window_ends()]
    found = []
    for counts in product(*(range(len(spec.buckets) + 1) for spec in ends)):
        own = {spec: [n for n, at in zip(counts, ends, strict=True) if at is spec] for spec in s.trig_spec}
        if sum(counts) <= s.max_rep and all(sum(n) <= len(spec.buckets) for spec, n in own.items()):
            crossed = {spec: iter(spec.buckets) for spec in s.trig_spec}
            sent = (
                tuple(EventReport(s.src_id, at.trig_data, b) for b in islice(crossed[at], n))
                for n, at in zip(counts, ends, strict=True)
            )
            found.append(tuple(sent))
    return found


class InteractiveRandomizedResponse(Generic[Answer]):
    """Algorithm 8 with parameters ε and O; its state is i and s*.

    Theorem 5.1 requires that the truthful answers form a combination in O; otherwise the privacy loss is infinite. So
    ``answer`` raises an error if no combination in O begins with the truthful answers so far, even if s* is sent.
    """

    def __init__(self, *, epsilon: Fraction, outputs: Sequence[Sequence[Answer]], bits: Bits) -> None:
        self.epsilon, self.outputs, self._bits = epsilon, outputs, bits
        self.i = 1
        self.s_star: Sequence[Answer] | None = None
        self._truth: list[Answer] = []

    def draw(self) -> Sequence[Answer] | None:
        """Draw s*, or None to answer truthfully."""
        e = exp(self.epsilon)
        truthful = bernoulli(self._bits, (e - 1) / (e + (len(self.outputs) - 1)))
        return None if truthful else self.outputs[uniform_below(self._bits, len(self.outputs))]

    def answer(self, y: Any, q: Callable[[Any], Answer]) -> Answer:
        """Return the answer to the i-th query q about the events y, and advance i."""
        if self.i == 1:
            self.s_star = self.draw()
        self._truth.append(q(y))
        if not any(list(output[: self.i]) == self._truth for output in self.outputs):
            raise ParameterError("the truthful answers are not in O, so nothing would hide them: add them to O")
        self.i += 1
        return self._truth[-1] if self.s_star is None else self.s_star[self.i - 2]
