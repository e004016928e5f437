"""Sweeps: paths into a campaign file, the grid, figures that move as they must, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.campaign import Campaign, parse_campaign, parse_field, run_sweep
from aggservice.campaign.metrics import METRICS
from aggservice.campaign.sweep.grid import SweepError, SweepField, points_of
from aggservice.campaign.sweep.output import draw_sweep, table_of, write_rows
from aggservice.campaign.sweep.run import SweepRow
from aggservice.commands import app

TEXT = """
name = "sweep"
[population]
size = 200
days = 2
impressions = { name = "poisson", mean = 3 }
conversion_rate = 0.5
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
name = "purchases"
of = "count"
scale = 8192
[collection]
batch_hours = 24
[[queries]]
name = "sales"
over = "each"
epsilon = "10"
[[queries]]
name = "found"
discovery = true
delta = "0.000001"
epsilon = "10"
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return parse_campaign(TEXT, folder=tmp_path)


def test_values_take_the_type_of_their_field(campaign: Campaign) -> None:
    document = campaign.document
    assert parse_field("queries.sales.epsilon=1, 2.5,16", document).values == ("1", "2.5", "16")
    assert parse_field("queries.*.delta=1e-8", document).values == ("1e-8",)
    assert parse_field("collection.batch_hours=12,24", document).values == (12, 24)
    assert parse_field("collection.lost=0,0.25", document).values == (0, 0.25)
    assert parse_field("measures.purchases.scale=1,65_536", document).values == (1, 65536)
    assert parse_field("client.form=paper,deployed", document).values == ("paper", "deployed")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon", "Write a field and its values"),
        ("queries.sales.epsilon=", "Write a field and its values"),
        ("queries.sale.epsilon=1", "Write one of sales, found, or *"),
        ("queries.epsilon=1", "Name an element: sales, found"),
        ("queries.sales.epsilon=1,1", "Write each value once"),
        ("population.size.x=1", "population.size is not a table"),
        ("population.size.x.y=1", "no fields. Write population.size="),
        ("name.x.y=1", "no fields. Write name="),
    ],
)
def test_a_bad_field_is_refused(campaign: Campaign, text: str, words: str) -> None:
    with pytest.raises(SweepError, match=words.replace("*", r"\*")):
        parse_field(text, campaign.document)


def test_the_grid_is_read_before_anything_runs(campaign: Campaign) -> None:
    fields = [
        SweepField(path="queries.*.epsilon", values=("1", "4")),
        SweepField(path="population.size", values=(10, 20, 30)),
    ]
    points = points_of(campaign, fields)
    assert len(points) == 6
    assert [point.campaign.population.size for point in points] == [10, 20, 30] * 2
    assert [{query.epsilon for query in point.campaign.queries} for point in points] == [{"1"}] * 3 + [{"4"}] * 3
    # The campaign itself is as it was.
    assert campaign.document["population"]["size"] == 200
    for path, value, words in (
        ("population.size", -1, "population.size is -1"),
        ("queries.sales.epsilon", "0", "is '0'"),
        ("queries.sales.epsilom", "1", "Did you mean 'epsilon'"),
        ("populations.size", 1, "is not a field"),
    ):
        with pytest.raises(SweepError, match=words):
            points_of(campaign, [SweepField(path=path, values=(value,))])
    with pytest.raises(SweepError, match="each named once"):
        points_of(campaign, [fields[0], fields[0]])
    with pytest.raises(SweepError, match="Write fewer values"):
        points_of(campaign, [SweepField(path="population.size", values=tuple(range(10_001)))])


def test_more_epsilon_is_less_error_and_workers_change_nothing(campaign: Campaign, tmp_path: Path) -> None:
    fields = [parse_field("queries.sales.epsilon=0.5,32", campaign.document)]
    rows = run_sweep(campaign, fields, tmp_path / "one", seed="s", populations=2).rows
    sales = [row for row in rows if row.query == "sales"]
    assert [row.values["queries.sales.epsilon"] for row in sales] == ["0.5", "32"]
    low, high = (row["relative_rmse"] for row in sales)
    # 64 times the noise on the same people: the error falls many times over (a slice's two draws cannot hide it).
    assert low is not None and high is not None and low > 8 * high
    assert sales[0].runs == 2 and sales[0].jobs == sales[0].paid == 4
    assert sales[0]["truth"] == sales[1]["truth"] and sales[0]["recall"] is None
    assert all(row["recall"] is not None for row in rows if row.query == "found")
    kept = {path.name for path in (tmp_path / "one" / "points" / "0000-000").iterdir()}
    assert kept == {"metrics.json"}
    assert run_sweep(campaign, fields, tmp_path / "two", seed="s", populations=2, workers=2).rows == rows
    sealed = run_sweep(campaign, fields, tmp_path / "three", seed="s", populations=2, sealed=True)
    assert sealed.rows == rows and not sealed.computed
    for folder in ("0000-000", "0001-001"):
        metrics = [(tmp_path / name / "points" / folder / "metrics.json").read_bytes() for name in ("one", "three")]
        assert metrics[0] == metrics[1]


def test_rows_are_written_and_drawn(tmp_path: Path) -> None:
    fields = [SweepField(path="queries.sales.epsilon", values=("1", "16")), SweepField(path="client.l1", values=(1, 2))]
    rows = [
        SweepRow(
            point=place,
            values={"queries.sales.epsilon": epsilon, "client.l1": l1},
            query="sales",
            measure="purchases",
            runs=1,
            jobs=1,
            paid=1,
            figures={
                **dict.fromkeys(METRICS),
                "rmse": 10 * l1 / float(epsilon),
                "relative_rmse": l1 / float(epsilon),
                "coverage": 0.95,
                "bias": 0.0,
                "truth": 10.0,
            },
        )
        for place, (epsilon, l1) in enumerate((epsilon, l1) for epsilon in ("1", "16") for l1 in (1, 2))
    ]
    write_rows(rows, fields, tmp_path)
    plain = json.loads((tmp_path / "sweep.json").read_text())
    assert plain["fields"] == {"queries.sales.epsilon": ["1", "16"], "client.l1": [1, 2]}
    with (tmp_path / "sweep.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["relative_rmse"]) for row in table] == [1, 2, 1 / 16, 2 / 16] and table[0]["recall"] == ""
    drawn = draw_sweep(rows, fields, tmp_path / "plots")
    assert [path.name for path in drawn] == ["relative-rmse-queries-sales-epsilon.svg", "relative-rmse-client-l1.svg"]
    assert all(path.with_suffix(".png").stat().st_size > 5000 for path in drawn)
    assert table_of(rows, fields).row_count == 4


def test_the_command_runs_a_sweep(tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(TEXT)
    out = tmp_path / "out"
    options = ["--sweep", "queries.sales.epsilon=4,16", "--out", str(out), "--workers", "1", "--no-plots"]
    shown = CliRunner().invoke(app, ["run", str(file), *options, "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == json.loads((out / "sweep.json").read_text())
    bad = CliRunner().invoke(app, ["run", str(file), "--sweep", "queries.sales.epsilon=0", "--out", str(out)])
    assert bad.exit_code == 2 and "queries.sales.epsilon = 0" in bad.output
    both = CliRunner().invoke(app, ["run", str(file), "--sweep", "population.size=1", "--ledger", str(tmp_path / "x")])
    assert both.exit_code == 2 and "leave --service and --ledger out" in both.output


def test_a_sweep_leaves_no_points_of_a_larger_one_before(campaign: Campaign, tmp_path: Path) -> None:
    for epsilons in ("1,2,4", "8"):
        grid = [parse_field(f"queries.*.epsilon={epsilons}", campaign.document)]
        write_rows(run_sweep(campaign, grid, tmp_path / "sweep", seed="s").rows, grid, tmp_path / "sweep")
    assert [path.name for path in (tmp_path / "sweep" / "points").iterdir()] == ["0000-000"]
