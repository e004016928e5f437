"""Populations that nothing was tuned on, for ``optimise``: heavy tails, many small slices, measures of unlike size."""

from __future__ import annotations

from pathlib import Path

from aggservice.campaign import Campaign, parse_campaign

_HEAD = """
name = "{name}"
[population]
size = {size}
days = 10
impressions = {{ name = "poisson", mean = 2 }}
conversion_rate = 0.2
organic = {{ name = "poisson", mean = 0.05 }}
delay_days = {{ name = "exponential", mean = 1.0 }}
"""

TEXTS = {
    "heavy tails": _HEAD
    + """
value = {{ name = "pareto", least = 20, alpha = 1.3 }}
[[keys.fields]]
name = "campaign"
count = 40
zipf = 0.7
[[measures]]
name = "revenue"
of = "value"
most = 20_000
scale = 3
[[queries]]
epsilon = "4"
""",
    "many small slices": _HEAD
    + """
value = {{ name = "lognormal", median = 40, sigma = 0.8 }}
[[keys.fields]]
name = "campaign"
count = 60
zipf = 0.9
[[keys.fields]]
name = "product"
from = "conversion"
count = 20
zipf = 0.5
[[measures]]
name = "purchases"
of = "count"
scale = 4096
[[measures]]
name = "money"
of = "value"
most = 500
scale = 100
[[queries]]
epsilon = "12"
""",
    "unlike measures": _HEAD
    + """
value = {{ name = "lognormal", median = 4000, sigma = 1.0 }}
[[keys.fields]]
name = "campaign"
count = 12
[[measures]]
name = "orders"
of = "count"
scale = 2048
[[measures]]
name = "cents"
of = "value"
most = 20_000
scale = 1
[[queries]]
name = "each day"
over = "each"
epsilon = "6"
by = ["campaign"]
[[queries]]
name = "total"
epsilon = "6"
[collection]
batch_hours = 48
""",
}


def unseen(name: str, size: int) -> Campaign:
    """Return one of the campaigns with this many people."""
    return parse_campaign(TEXTS[name].format(name=name, size=size), folder=Path())
