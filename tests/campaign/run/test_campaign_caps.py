"""Which cap stopped a conversion: the columns against Algorithm 2 itself, asked at each refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.campaign import Campaign, parse_campaign, run_campaign
from aggservice.campaign.columns import Events, Fate
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_reports
from aggservice.mechanisms import SeededBits
from ara_client.model import Source, SummaryClient


def by_algorithm_2(campaign: Campaign, events: Events) -> list[Fate]:
    """Return the fate of each item, in order: every device runs the paper's client, and is asked why it sent none."""
    views, bought = events.impressions, events.conversions
    life = int(campaign.client.expiry_days * 86_400_000)
    clients: dict[int, SummaryClient] = {}
    fates = []
    waiting = list(range(len(views)))
    for row in range(len(bought)):
        now = int(bought.time_ms[row])
        while waiting and views.time_ms[waiting[0]] <= now:
            ad = waiting.pop(0)
            client = clients.setdefault(int(views.device[ad]), _client(campaign))
            shown = int(views.time_ms[ad])
            source = Source(src_id=ad, dest="d", exp_date=shown + life, src_filt=frozenset({"x"}), src_key=0)
            client.register_source(source)
        product = campaign.keys.field("product").value_of(int(bought.codes["product"][row]))
        for measure in campaign.measures:
            value = 1 if measure.of == "count" else int(bought.value[row])
            amount = int(min(value, measure.most) * measure.scale)
            client = clients.setdefault(int(bought.device[row]), _client(campaign))
            books = {source: (client.l0[source], client.l1[source]) for source in client.sources}
            report = client.register_trigger(
                now, dest="d", trig_id=row, trig_filt=frozenset({product}), trig_key=1, trig_value=amount
            )
            fitting = [source for source in reversed(client.sources) if product == "x" and source.exp_date > now]
            if amount == 0:
                fates.append(Fate.NO_VALUE)
            elif report.key is not None:
                fates.append(Fate.ON_THE_WAY)
            elif not fitting:
                fates.append(Fate.NOT_ATTRIBUTED)
            else:
                spent = books[fitting[0]][1]
                fates.append(Fate.CAPPED_L1 if spent + amount > campaign.client.l1 else Fate.CAPPED_L0)
    return fates


def _client(campaign: Campaign) -> SummaryClient:
    return SummaryClient(
        contribution_budget=campaign.client.l1, sparsity_budget=campaign.client.l0, bits=SeededBits("ids")
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_columns_name_the_cap_that_algorithm_2_met(data: st.DataObject) -> None:
    def pick(*options: Any) -> Any:
        return data.draw(st.sampled_from(options))

    document = {
        "name": "caps",
        "population": {
            "size": data.draw(st.integers(1, 12)),
            "days": 3,
            "impressions": {"name": "poisson", "mean": pick(0.7, 2.0)},
            "conversion_rate": 1.0,
            "conversions": {"name": "geometric", "mean": pick(1.0, 4.0)},
            "delay_days": {"name": "exponential", "mean": 0.5},
            "value": {"name": "uniform", "low": 0, "high": pick(3, 60)},
        },
        "keys": {
            "fields": [
                {"name": "ad", "values": ["a", "b"]},
                {"name": "product", "from": "conversion", "values": ["x", "y"], "weights": [4, 1]},
            ]
        },
        "filters": {"field": "product", "accepts": ["x"]},
        "measures": [{"name": "n", "of": "count", "scale": 20}, {"name": "v", "of": "value", "most": 50}],
        "client": {"form": "paper", "l1": pick(60, 200), "l0": pick(1, 3, 50), "expiry_days": pick(0.5, 3.0)},
        "queries": [{"name": "q"}],
    }
    campaign = campaign_of(document, folder=Path())
    truth = simulate_reports(campaign, RunChain(SeededBits(data.draw(st.integers(0, 1 << 40)))))
    assert [Fate(int(one)) for one in truth.items.fate] == by_algorithm_2(campaign, truth.events)


def test_a_cap_that_moves_conversions_to_another_key_costs_precision(tmp_path: Path) -> None:
    """Every second purchase finds the newer ad full (Λ₀ = 1) and goes to the older one, which has none in truth."""
    start, people = 1_790_000_000, 40
    shown = [f"{start + offset + one},d{one},{ad}" for offset, ad in ((0, "a"), (1000, "b")) for one in range(people)]
    bought = [f"{start + offset + one},d{one}" for offset in (2000, 3000) for one in range(people)]
    (tmp_path / "s.csv").write_text("time,device,ad\n" + "\n".join(shown))
    (tmp_path / "t.csv").write_text("time,device\n" + "\n".join(bought))
    text = """
name = "moved"
[population.log]
sources = "s.csv"
triggers = "t.csv"
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
of = "count"
scale = 65536
[client]
form = "paper"
l0 = 1
[[queries]]
discovery = true
epsilon = "10"
delta = "0.00001"
"""
    result = run_campaign(parse_campaign(text, folder=tmp_path), tmp_path / "out", seed="m", workers=1, draw=False)
    (found,) = result.assessments
    assert {row.label: (row.truth, row.sent) for row in found.slices} == {
        "b": (2 * people, people * 65_536),
        "a": (0, people * 65_536),
    }
    assert found.discovery is not None and (found.discovery.precision, found.discovery.recall) == (0.5, 1.0)
    assert found.waterfalls[0].adds_up


@pytest.mark.parametrize("form", ["deployed", "paper"])
def test_the_truth_does_not_depend_on_the_scale(form: str) -> None:
    """Values from 0 to 20: at a scale of a tenth, those below 5 round to 0, and they happened all the same."""
    text = f"""
name = "scales"
[population]
size = 300
days = 5
impressions = {{ name = "poisson", mean = 2 }}
conversion_rate = 0.5
value = {{ name = "uniform", low = 0, high = 20 }}
[[keys.fields]]
name = "ad"
count = 3
[[measures]]
name = "money"
of = "value"
most = 20
scale = SCALE
[client]
form = "{form}"
[[queries]]
epsilon = "8"
"""
    totals = []
    for scale in ("10", "0.1"):
        campaign = parse_campaign(text.replace("SCALE", scale), folder=Path())
        items = simulate_reports(campaign, RunChain.seeded("one")).items
        totals.append(int(items.natural[items.attributable].sum()))
        rounded = (items.fate == Fate.NO_VALUE) & items.attributable
    assert totals[0] == totals[1] > 0 and rounded.any()
