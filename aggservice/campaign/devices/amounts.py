"""What conversions contribute to each measure, and which of them the ads accept."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from aggservice.campaign.columns import Conversions, Flags, Ints
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import Campaign, FilterSettings

KEY_COLUMNS = ("true_high", "true_low", "key_high", "key_low")
_LARGEST_SUM = 1 << 62


def contribution_units(campaign: Campaign, conversions: Conversions) -> tuple[Ints, Ints, Ints]:
    """Return natural, asked and clipped amounts by (conversion, measure): value × scale, rounded half up."""
    shape = (len(conversions), len(campaign.measures))
    natural, asked, amount = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for place, measure in enumerate(campaign.measures):
        given = np.ones(shape[0], dtype=np.int64) if measure.of == "count" else conversions.value
        natural[:, place] = given
        asked[:, place] = _scaled(given, measure.scale)
        clipped = np.minimum(given, measure.most)
        amount[:, place] = np.minimum(_scaled(clipped, measure.scale), campaign.client.l1)
    for column, what in ((natural, "values"), (asked, "contributions, before they are clipped,")):
        if not (total := float(column.sum(dtype=np.float64))) < _LARGEST_SUM:
            raise RunError(f"the {what} come to {total:.3g}: make the values or the scale smaller")
    return natural, asked, amount


def item_columns(conversions: Conversions, natural: Ints, asked: Ints, amount: Ints) -> dict[str, Any]:
    """Return the columns of ``MeasuredConversions`` that no device changes, from amounts by (conversion, measure)."""
    count, measures = amount.shape
    conversion = np.repeat(np.arange(count), measures)
    return {
        "conversion": conversion,
        "measure": np.tile(np.arange(measures), count),
        "time_ms": conversions.time_ms[conversion],
        "natural": natural.reshape(-1),
        "asked": asked.reshape(-1),
        "amount": amount.reshape(-1),
    }


def accepted_values(campaign: Campaign, filters: FilterSettings) -> Flags:
    """Return which values of the filters' field ads accept, by code."""
    return np.array([value in filters.accepts for value in campaign.keys.field(filters.field).values], dtype=np.bool_)


def accepted(campaign: Campaign, conversions: Conversions) -> Flags:
    """Return which conversions the filters accept."""
    if (filters := campaign.filters) is None:
        return np.ones(len(conversions), dtype=np.bool_)
    return accepted_values(campaign, filters)[conversions.codes[filters.field]]


def _scaled(values: Ints, scale: Fraction) -> Ints:
    """Return values × scale, rounded half up, exactly; above 63 bits with Python integers."""
    up, down = scale.numerator, scale.denominator
    if 2 * int(values.max(initial=0)) * up + down < 1 << 63:
        return (2 * values * up + down) // (2 * down)
    exact = [(2 * value * up + down) // (2 * down) for value in values.tolist()]
    if (most := max(exact)) >= _LARGEST_SUM:
        raise RunError(f"a contribution comes to {most:.3g} before it is clipped: make the values or the scale smaller")
    return np.array(exact, dtype=np.int64)
