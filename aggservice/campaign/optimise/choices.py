"""What ``optimise`` may choose: the scale and clipping bound of each measure, the cap of a device, ε per query, and
whether rolling windows have jobs of their own or add up those of their batches. If the user allows it, also what is
asked: the length of batches, and values of key fields that are merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, TypeVar

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.settings.key_layout import KeyField, KeyLayout

Groups = tuple[tuple[int, ...], ...]
"""Groups of a field's codes, each of which becomes one value."""

T = TypeVar("T")

_EPSILON_STEP = Fraction(1, 1000)
MOST_EPSILON = Fraction(64)
"""The most that a job may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Values of everything that may be chosen. ``scales`` and ``most`` are per measure, ``epsilons``, ``job_per`` and
    ``windows`` per query, ``merges`` per key field.
    """

    scales: tuple[Fraction, ...]
    most: tuple[int, ...]
    cap: int
    epsilons: tuple[str, ...]
    job_per: tuple[Literal["window", "batch"], ...]
    batch_hours: int
    windows: tuple[int, ...]
    merges: tuple[Groups, ...]

    @classmethod
    def of(cls, campaign: Campaign) -> Choice:
        """Return what the campaign's file has chosen."""
        return cls(
            scales=tuple(one.scale for one in campaign.measures),
            most=tuple(one.most for one in campaign.measures),
            cap=campaign.client.cap,
            epsilons=tuple(query.epsilon for query in campaign.queries),
            job_per=tuple(query.job_per for query in campaign.queries),
            batch_hours=campaign.collection.batch_hours,
            windows=tuple(query.window for query in campaign.queries),
            merges=((),) * len(campaign.keys.fields),
        )

    def fits(self, campaign: Campaign) -> bool:
        """Whether every contribution fits into the budget of a source, and all queries into the file's total ε."""
        l1 = campaign.client.l1
        return (
            1 <= self.cap <= l1
            and all(
                scale > 0 and most >= 1 and scale * most <= l1
                for scale, most in zip(self.scales, self.most, strict=True)
            )
            and total_epsilon(self.apply(campaign)) <= total_epsilon(campaign)
        )

    def changes(self, campaign: Campaign) -> dict[tuple[str, ...], Any]:
        """Return the fields of the campaign file that differ from it, by their path; arrays by index."""
        now, found = Choice.of(campaign), dict[tuple[str, ...], Any]()
        if not campaign.client.sums_conversions:
            if self.cap != now.cap:
                found["client", "cap"] = self.cap
        else:
            for place, measure in enumerate(campaign.measures):
                if self.scales[place] != measure.scale:
                    found["measures", str(place), "scale"] = file_number(self.scales[place])
                if self.most[place] != measure.most:
                    found["measures", str(place), "most"] = self.most[place]
        for place, query in enumerate(campaign.queries):
            if Fraction(self.epsilons[place]) != Fraction(query.epsilon):
                found["queries", str(place), "epsilon"] = self.epsilons[place]
            if self.job_per[place] != query.job_per:
                found["queries", str(place), "job_per"] = self.job_per[place]
            if self.windows[place] != query.window:
                found["queries", str(place), "window"] = self.windows[place]
        if self.batch_hours != now.batch_hours:
            found["collection", "batch_hours"] = self.batch_hours
        for place, (field, groups) in enumerate(zip(campaign.keys.fields, self.merges, strict=True)):
            if groups:
                merged = field.grouped(named_groups(field, groups)).groups
                found["keys", "fields", str(place), "groups"] = {name: list(one) for name, one in merged.items()}
        return found

    def without_each_knob(self, campaign: Campaign) -> dict[str, Choice]:
        """Return, for each knob in which this choice differs from the file, this choice with that knob as in the file.

        Fields that belong together are one knob: the scale and clipping of a measure, and ε with the jobs it pays.
        """
        file, found = Choice.of(campaign), dict[str, Choice]()
        for place, measure in enumerate(campaign.measures):
            back = replace(self, scales=with_value(self.scales, place, file.scales[place]))
            back = replace(back, most=with_value(self.most, place, file.most[place]))
            found[f"scale and clipping of {measure.name}"] = back
        found["cap of a device"] = replace(self, cap=file.cap)
        paid = with_batch_hours(campaign, file, self.batch_hours)
        found["ε and jobs of queries"] = replace(self, epsilons=paid.epsilons, job_per=paid.job_per)
        found["length of batches"] = with_batch_hours(campaign, self, file.batch_hours)
        found["merged values"] = replace(self, merges=file.merges)
        return {name: one for name, one in found.items() if one != self and one.fits(campaign)}

    def apply(self, campaign: Campaign) -> Campaign:
        """Return the campaign with these choices; its document stays as it is."""
        client = campaign.client.with_cap(self.cap)
        measures = tuple(
            replace(one, scale=scale, most=most)
            for one, scale, most in zip(campaign.measures, self.scales, self.most, strict=True)
        )
        if not client.sums_conversions:
            measures = (replace(campaign.measures[0], scale=Fraction(client.l1 // self.cap)),)
        queries = tuple(
            replace(query, epsilon=epsilon, job_per=job_per, window=window)
            for query, epsilon, job_per, window in zip(
                campaign.queries, self.epsilons, self.job_per, self.windows, strict=True
            )
        )
        collection = replace(campaign.collection, batch_hours=self.batch_hours)
        keys = campaign.keys
        if any(self.merges):
            fields = zip(keys.fields, self.merges, strict=True)
            keys = KeyLayout(fields=tuple(field.grouped(named_groups(field, groups)) for field, groups in fields))
        return replace(campaign, client=client, measures=measures, queries=queries, collection=collection, keys=keys)


def named_groups(field: KeyField, groups: Groups) -> dict[str, tuple[str, ...]]:
    """Return the values of each group by a new name: "all", "other", or "other 1", "other 2", …"""
    named = {}
    for number, codes in enumerate(groups, 1):
        name = "all" if len(codes) == len(field.values) else "other" if len(groups) == 1 else f"other {number}"
        while name in field.values:
            name += " values"
        named[name] = tuple(field.values[code] for code in codes)
    return named


def with_batch_hours(campaign: Campaign, choice: Choice, hours: int) -> Choice:
    """Return the choice with batches of another length; rolling windows keep their hours, reports their total ε."""
    epsilons, windows = list(choice.epsilons), list(choice.windows)
    for place, query in enumerate(choice.apply(campaign).queries):
        span = query.window * choice.batch_hours
        if query.over != "rolling" or hours == choice.batch_hours:
            continue
        if span % hours:
            raise CampaignError(
                f"windows of query {query.name!r} have {span} hours, which batches of {hours} hours do not divide: "
                "choose lengths that do"
            )
        made = replace(query, window=span // hours)
        total = Fraction(query.epsilon) * jobs_per_batch(query)
        windows[place], epsilons[place] = made.window, decimal_epsilon(total / jobs_per_batch(made))
    return replace(choice, batch_hours=hours, windows=tuple(windows), epsilons=tuple(epsilons))


def with_value(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    """Return the values with the one at a place replaced."""
    return (*values[:place], value, *values[place + 1 :])


def round_scale(scale: Fraction) -> Fraction:
    """Return a scale rounded down to four significant digits, or to a whole number if it has as many digits."""
    unit = Fraction(1)
    while scale / unit < 1000:
        unit /= 10
    return scale // unit * unit


def file_number(scale: Fraction) -> int | str:
    """Return a scale as a campaign file has it: a whole number, or exact decimal text."""
    if scale.denominator == 1:
        return int(scale)
    return format(Decimal(scale.numerator) / Decimal(scale.denominator), "f")


def set_field(document: Any, campaign: Campaign, path: tuple[str, ...], value: Any) -> None:
    """Set a field of a campaign's document; measures that the file leaves to their default are written out."""
    if path[0] == "measures" and "measures" not in document:
        one = campaign.measures[0]
        document["measures"] = [{"name": one.name, "of": one.of, "scale": file_number(one.scale)}]
    table = document
    for part in path[:-1]:
        table = table[int(part)] if part.isdigit() else table.setdefault(part, {})
    table[path[-1]] = value


def jobs_per_batch(query: Query) -> int:
    """Return how many jobs of a query charge a report, at most."""
    return query.repeat * (query.window if query.over == "rolling" and query.job_per == "window" else 1)


def windows_from_batches(campaign: Campaign, query: Query) -> Query | None:
    """Return a rolling query that asks each batch once, at the same total ε per report; None if that cannot be.

    A window of w batches then has the noise of w jobs, each at w times the ε: its variance is a w-th of what it was.
    """
    if query.over != "rolling" or query.job_per == "batch" or query.discovery or campaign.client.task_jobs:
        return None
    made = replace(query, job_per="batch")
    total = Fraction(query.epsilon) * jobs_per_batch(query) / jobs_per_batch(made)
    return replace(made, epsilon=decimal_epsilon(total))


def total_epsilon(campaign: Campaign) -> Fraction:
    """Return what all queries of a campaign charge a report in all."""
    return sum((jobs_per_batch(query) * Fraction(query.epsilon) for query in campaign.queries), Fraction(0))


def decimal_epsilon(epsilon: Fraction) -> str:
    """Return an ε as decimal text, rounded down to the step; at least one step, at most what a job may use."""
    rounded = min(max(epsilon // _EPSILON_STEP * _EPSILON_STEP, _EPSILON_STEP), MOST_EPSILON)
    return f"{float(rounded):.3f}".rstrip("0").rstrip(".")


def split_epsilon(campaign: Campaign, noise: Mapping[str, float]) -> tuple[str, ...]:
    """Return ε per query that minimises the sum of ``noise``, at the same total ε per report.

    ``noise`` is the part of the squared error due to each query's noise, at the campaign's own ε. It is proportional to
    1/ε², so the best ε is proportional to the cube root of noise · ε² / jobs (Lagrange). A query without noise, such
    as one that cannot be paid for, keeps its ε.
    """
    chosen = [query for query in campaign.queries if noise.get(query.name, 0.0) > 0]
    total = sum(jobs_per_batch(query) * Fraction(query.epsilon) for query in chosen)
    weight = {
        query.name: (noise[query.name] * float(Fraction(query.epsilon)) ** 2 / jobs_per_batch(query)) ** (1 / 3)
        for query in chosen
    }
    whole = sum(jobs_per_batch(query) * weight[query.name] for query in chosen)
    found = []
    for query in campaign.queries:
        if query.name not in weight:
            found.append(query.epsilon)
            continue
        found.append(decimal_epsilon(Fraction(weight[query.name] / whole) * total))
    return tuple(found)
