"""Hierarchies of a campaign: queries whose slices add up to those of a coarser query, combined by least squares.

A level is a query; its slices are nodes. A slice of the next level belongs to the slice with the same values of the
fields that both show, in the job whose batches contain its own. Reference: Dawson et al., "Optimizing Hierarchical
Queries for the Attribution Reporting API" (2023); the arithmetic is in ``estimates.hierarchy``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggservice.campaign.assess.job_truth import JobTruth
from aggservice.campaign.assess.slices import Comparison, noise_of, slice_names
from aggservice.campaign.columns import Flags, Floats, Ints, Words
from aggservice.campaign.estimates.hierarchy import Tree, least_squares
from aggservice.campaign.service.jobs import QueryAnswer
from aggservice.campaign.settings.campaign import Campaign, Hierarchy
from aggservice.campaign.settings.key_layout import KeyTable

HEADINGS = (
    "hierarchy", "query", "job", "slice", "measure", "truth", "before", "before_low", "before_high", "after",
    "after_low", "after_high",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelErrors:
    """The slices of one query and measure before and after least squares, in natural units.

    ``rmse`` is against the truth; ``covered`` counts intervals that hold what was sent; ``half_width`` is their mean.
    ``missing`` slices have no estimate of their own, because their job was refused; ``found`` of them got one.
    """

    query: str
    measure: str
    slices: int
    missing: int
    found: int
    rmse_before: float | None
    rmse_after: float | None
    half_width_before: float | None
    half_width_after: float | None
    covered_before: int
    covered_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyErrors:
    """A hierarchy of one run: its levels, coarsest first."""

    name: str
    levels: tuple[LevelErrors, ...]

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Nodes:
    """The slices of one level in columns, in natural units; a slice of a refused job has an infinite variance."""

    answers: tuple[QueryAnswer, ...]
    job: Ints
    high: Words
    low: Words
    measure: Ints
    truth: Floats
    sent: Floats
    value: Floats
    variance: Floats
    half_width: Floats

    def taken(self, order: Ints) -> _Nodes:
        columns = {name: getattr(self, name)[order] for name in self.__slots__ if name != "answers"}
        return _Nodes(answers=self.answers, **columns)


def combine(
    campaign: Campaign,
    hierarchy: Hierarchy,
    answers: Sequence[QueryAnswer],
    truths: Mapping[str, JobTruth],
    table: Path | None = None,
) -> HierarchyErrors:
    """Return the errors of every level before and after least squares; write every slice into ``table`` as CSV.

    ``truths`` are by the name of a job. Slices of the first level have no parent.
    """
    levels = [
        _nodes(campaign, [one for one in answers if one.job.query.name == name], truths) for name in hierarchy.levels
    ]
    parents = [np.full(levels[0].job.size, -1, dtype=np.int64)]
    start = 0
    for depth in range(1, len(levels)):
        above = _parents(campaign, levels[depth - 1], levels[depth])
        order = np.argsort(above, kind="stable")  # siblings together
        levels[depth] = levels[depth].taken(order)
        parents.append(above[order] + start)
        start += levels[depth - 1].job.size
    tree = Tree.of_parents(np.concatenate(parents))
    values, variances = (np.concatenate([getattr(one, name) for one in levels]) for name in ("value", "variance"))
    after = least_squares(tree, values, variances)
    found, rows, at = [], [], 0
    for name, nodes in zip(hierarchy.levels, levels, strict=True):
        part = slice(at, at + nodes.job.size)
        at += nodes.job.size
        made, width = after.values[part], after.half_widths[part]
        for place, measure in enumerate(campaign.measures):
            found.append(_errors(name, measure.name, nodes, nodes.measure == place, made, width))
        if table is not None:
            rows += _rows(campaign, hierarchy, name, nodes, made, width)
    if table is not None:
        with table.open("a", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
    return HierarchyErrors(name=hierarchy.name, levels=tuple(found))


def _nodes(campaign: Campaign, answers: Sequence[QueryAnswer], truths: Mapping[str, JobTruth]) -> _Nodes:
    scale = np.array([float(one.scale) for one in campaign.measures])
    columns: dict[str, list[Any]] = {name: [] for name in _Nodes.__slots__ if name != "answers"}
    for number, answer in enumerate(answers):
        truth = truths[answer.job.name]
        shown = np.flatnonzero(np.bincount(truth.slice_of[truth.domain], minlength=truth.slice_truth.size))
        measure = truth.slice_measure[shown]
        by = scale[measure]
        none = np.full(shown.size, np.nan)
        sent, value, variance, width = none, none, np.full(shown.size, np.inf), none
        if answer.paid:
            compared = Comparison(campaign, answer, truth)
            noise = np.array([float(noise_of(answer, place).variance()) for place in range(scale.size)])
            sent, value = compared.sent[shown] / by, compared.estimate[shown] / by
            variance, width = compared.terms[shown] * noise[measure] / by**2, compared.width[shown] / by
        for name, column in (
            ("job", np.full(shown.size, number, dtype=np.int64)),
            ("high", truth.slice_high[shown]),
            ("low", truth.slice_low[shown]),
            ("measure", measure),
            ("truth", truth.slice_truth[shown].astype(np.float64)),
            ("sent", sent),
            ("value", value),
            ("variance", variance),
            ("half_width", width),
        ):
            columns[name].append(column)
    return _Nodes(answers=tuple(answers), **{name: np.concatenate(parts) for name, parts in columns.items()})


def _parents(campaign: Campaign, above: _Nodes, below: _Nodes) -> Ints:
    """Return the node of the level above that each node belongs to."""
    high, low = campaign.keys.slices(above.answers[0].job.query.by, below.high, below.low)
    found = np.empty(below.job.size, dtype=np.int64)
    wider = [set(answer.job.batches) for answer in above.answers]
    for number, answer in enumerate(below.answers):
        mine = np.flatnonzero(below.job == number)
        job = next(place for place, batches in enumerate(wider) if batches.issuperset(answer.job.batches))
        theirs = np.flatnonzero(above.job == job)
        table = KeyTable(above.high[theirs], above.low[theirs])
        order = np.argsort(table.find(above.high[theirs], above.low[theirs]), kind="stable")
        found[mine] = theirs[order][table.find(high[mine], low[mine])]
    return found


def _errors(query: str, measure: str, nodes: _Nodes, mine: Flags, made: Floats, width: Floats) -> LevelErrors:
    known = mine & np.isfinite(nodes.variance)
    got = mine & np.isfinite(made)

    def root(values: Floats, chosen: Flags) -> float | None:
        off = (values - nodes.truth)[chosen]
        return float(np.sqrt(np.mean(off**2))) if off.size else None

    def held(values: Floats, widths: Floats) -> int:
        return int(np.count_nonzero(np.abs(values - nodes.sent)[known] <= widths[known]))

    return LevelErrors(
        query=query,
        measure=measure,
        slices=int(mine.sum()),
        missing=int((mine & ~known).sum()),
        found=int((got & ~known).sum()),
        rmse_before=root(nodes.value, known),
        rmse_after=root(made, got),
        half_width_before=float(nodes.half_width[known].mean()) if known.any() else None,
        half_width_after=float(width[got].mean()) if got.any() else None,
        covered_before=held(nodes.value, nodes.half_width),
        covered_after=held(made, width),
    )


def _rows(
    campaign: Campaign, hierarchy: Hierarchy, query: str, nodes: _Nodes, made: Floats, width: Floats
) -> list[list[str]]:
    def number(value: float) -> str:
        return f"{value:.9g}" if np.isfinite(value) else ""

    rows = []
    for at in range(nodes.job.size):
        answer = nodes.answers[int(nodes.job[at])]
        names = slice_names(campaign, answer.job.query.by, nodes.high[at : at + 1], nodes.low[at : at + 1])
        label = " · ".join(value for field, value in names.items() if campaign.keys.field(field).origin != "measure")
        before, half, after, wide = nodes.value[at], nodes.half_width[at], made[at], width[at]
        rows.append(
            [hierarchy.name, query, answer.job.name, label, campaign.measures[int(nodes.measure[at])].name]
            + [number(one) for one in (nodes.truth[at], before, before - half, before + half)]
            + [number(one) for one in (after, after - wide, after + wide)]
        )
    return rows
