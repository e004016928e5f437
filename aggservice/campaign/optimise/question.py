"""What is asked: how long batches are, and which values of key fields are merged.

Both change the question, so they are chosen only if the user allows it. The least error cannot decide, because coarser
questions nearly always have less of it. The best question is the finest one, with the most slices, whose error is good
enough for the user. If there is none, it is the one with the least error.

Values are merged smallest first: the two smallest values of a field become one, then the two smallest of what is left,
and so on (the order of Huffman's code). So large values stay alone, and groups are of similar size.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from aggservice.campaign.columns import Floats
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.optimise.choices import Choice, Groups, with_batch_hours, with_value
from aggservice.campaign.optimise.search import Search
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_reports

_COMBINATIONS = 64
"""About how many combinations of numbers of values are computed, before the best of them is refined."""


def mergeable(campaign: Campaign) -> dict[str, str]:
    """Return the key fields of a campaign, each with the reason why its values cannot be merged, or ""."""
    named = {name: f"rows of query {query.name!r} name" for query in campaign.queries for name in query.rows}
    if campaign.filters is not None:
        named[campaign.filters.field] = "the filters name"
    if campaign.client.event_level is not None:
        named[campaign.client.event_level.field] = "event-level reports use"
    found = {}
    for field in campaign.keys.fields:
        if field.origin not in ("impression", "conversion", "site"):
            found[field.name] = f"its values come from the {field.origin}"
        elif field.name in named:
            found[field.name] = f"{named[field.name]} its values"
        else:
            found[field.name] = "" if len(field.values) > 1 else "it has one value"
    return found


def fields_to_merge(campaign: Campaign, names: Sequence[str]) -> tuple[str, ...]:
    """Return the fields that may be merged; ``names`` are the user's, or ``auto`` alone for all that can be."""
    known = mergeable(campaign)
    for query in campaign.queries:
        if names and query.discovery:
            raise CampaignError(f"query {query.name!r} discovers its keys: only values of declared keys can be merged")
    if tuple(names) == ("auto",):
        return tuple(name for name, reason in known.items() if not reason)
    for name in names:
        if name not in known:
            raise CampaignError(f"there is no key field {name!r} to merge; fields: {', '.join(known)}")
        if known[name]:
            raise CampaignError(f"field {name!r} cannot be merged, because {known[name]}: leave it out")
    return tuple(dict.fromkeys(names))


def value_sizes(campaign: Campaign, chains: Sequence[RunChain], name: str) -> Floats:
    """Return how much of the truth each value of a field has: the mean of its shares of the measures."""
    field = campaign.keys.field(name)
    sizes = np.zeros((len(campaign.measures), len(field.values)))
    for chain in chains:
        items = simulate_reports(campaign, chain).items
        true = np.flatnonzero(items.attributable)
        codes = field.decode(items.true_high[true], items.true_low[true])
        np.add.at(sizes, (items.measure[true], codes), items.natural[true])
    return np.asarray((sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1)).mean(axis=0), dtype=np.float64)


def smallest_merged(sizes: Floats, left: int) -> Groups:
    """Return the groups of codes after merging the two smallest values until ``left`` values are left.

    >>> smallest_merged(np.array([5.0, 1.0, 9.0, 2.0]), 2)
    ((0, 1, 3),)
    """
    heap = [(size, code) for code, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    into = list(range(sizes.size))
    while len(heap) > left:
        (size, code), (more, other) = heapq.heappop(heap), heapq.heappop(heap)
        into[other] = code
        heapq.heappush(heap, (size + more, code))
    groups: dict[int, list[int]] = {}
    for code in range(sizes.size):
        first = code
        while into[first] != first:
            into[first] = first = into[into[first]]
        groups.setdefault(first, []).append(code)
    return tuple(sorted(tuple(codes) for codes in groups.values() if len(codes) > 1))


def questions(
    search: Search, starts: Sequence[Choice], hours: Sequence[int], fields: Sequence[str], chains: Sequence[RunChain],
    limit: float,
) -> list[Choice]:  # fmt: skip
    """Return the best choice for each length of batches, the shortest first, with values merged if that needs it.

    ``limit`` is the error that is good enough.
    """
    campaign, found = search.campaign, list[Choice]()
    sizes = {name: value_sizes(campaign, chains, name) for name in fields}
    hidden = tuple(name for name in fields if _is_hidden(campaign, name))
    shown = tuple(name for name in fields if name not in hidden)
    starts = [_merged(campaign, one, sizes, dict.fromkeys(hidden, 1)) for one in starts]
    for length in sorted(set(hours)):
        best = search.run([with_batch_hours(campaign, one, length) for one in starts])
        starts = [best]
        if shown and search.error(best) > limit:
            best = _coarser(search, best, {name: sizes[name] for name in shown}, limit)
        found.append(best)
    return found


def finest(search: Search, choices: Sequence[Choice], limit: float) -> Choice:
    """Return the choice with the most slices whose error is at most ``limit``; the one with the least if none is."""
    reached = [one for one in choices if search.error(one) <= limit]
    if not reached:
        return min(choices, key=search.error)
    return max(reached, key=lambda one: (search.errors(one).slices, -search.error(one)))


def _is_hidden(campaign: Campaign, name: str) -> bool:
    """Whether every query sums over the field. Merged whole, its slices are the same with fewer draws of noise.

    Reach and frequency are not sums over values: a device counts once per value.
    """
    return campaign.client.sums_conversions and all(name not in query.by for query in campaign.queries)


def _merged(campaign: Campaign, choice: Choice, sizes: dict[str, Floats], left: dict[str, int]) -> Choice:
    """Return a choice with so many values left of some fields."""
    merges = choice.merges
    for place, field in enumerate(campaign.keys.fields):
        if field.name in left:
            merges = with_value(merges, place, smallest_merged(sizes[field.name], left[field.name]))
    return replace(choice, merges=merges)


def _coarser(search: Search, choice: Choice, sizes: dict[str, Floats], limit: float) -> Choice:
    """Return the choice with as few merges as reach the limit; scales are searched again for the merged values."""
    full = {name: size.size for name, size in sizes.items()}
    best, left = choice, full
    for _ in range(2):  # the second time with the scales that suit merged values
        left = least_merged(search, best, sizes, limit)
        best = search.refine(_merged(search.campaign, best, sizes, left))
    # What the last scales gained may allow more values.
    left = _more_values(search, best, sizes, left, full, limit)
    return _merged(search.campaign, best, sizes, left)


def least_merged(search: Search, choice: Choice, sizes: dict[str, Floats], limit: float) -> dict[str, int]:
    """Return how many values to leave of each field: the first of a grid, by falling number, that reaches the limit.

    Between it and the next finer numbers of the grid, each field is halved in turn.
    """
    names = list(sizes)
    each = max(2, round(_COMBINATIONS ** (1 / len(names))))
    grids = [_numbers(sizes[name].size, each) for name in names]
    least, best = dict[str, int](), np.inf
    for numbers in sorted(product(*grids), key=lambda one: (-prod(one), one)):
        left = dict(zip(names, numbers, strict=True))
        error = search.error(_merged(search.campaign, choice, sizes, left))
        if error <= limit:
            finer = {
                name: min((one for one in grid if one > left[name]), default=left[name])
                for name, grid in zip(names, grids, strict=True)
            }
            return _more_values(search, choice, sizes, left, finer, limit)
        if error < best:
            least, best = left, error
    return least


def _more_values(
    search: Search, choice: Choice, sizes: dict[str, Floats], left: dict[str, int], most: dict[str, int], limit: float
) -> dict[str, int]:
    """Return more values of each field in turn, found by halving, with which the error is still within the limit."""
    if search.error(_merged(search.campaign, choice, sizes, left)) > limit:
        return left
    for name, low in list(left.items()):
        high = most[name] + 1  # the limit is reached at low; at high it is not, or high is too many
        while high - low > 1:
            middle = (low + high) // 2
            reached = search.error(_merged(search.campaign, choice, sizes, {**left, name: middle})) <= limit
            low, high = (middle, high) if reached else (low, middle)
        left = {**left, name: low}
    return left


def _numbers(values: int, count: int) -> list[int]:
    """Return about ``count`` numbers from all values down to 1, evenly spaced in their logarithm."""
    return sorted({round(float(one)) for one in np.geomspace(values, 1, count)}, reverse=True)


def values_left(campaign: Campaign, choice: Choice) -> Iterator[tuple[str, int]]:
    """Yield the key fields that a choice merges, each with the number of values left."""
    for field, groups in zip(campaign.keys.fields, choice.merges, strict=True):
        if groups:
            yield field.name, len(field.values) - sum(map(len, groups)) + len(groups)
