"""One's own log in: CSV, Parquet and measurement-simulation's JSON give the same campaign, reports come out in Avro."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aggservice.campaign import CampaignFileError, parse_campaign, run_campaign
from aggservice.campaign.columns import Fate
from aggservice.campaign.world.logs import read_table
from aggservice.mechanisms import ForbiddenBits

CAMPAIGN = """
name = "logged"
reporting_origin = "https://ad-tech.example"
[population.log]
sources = "sources{ending}"
triggers = "triggers{ending}"
{columns}
[[keys.fields]]
name = "campaign"
{source_column}
[[keys.fields]]
name = "product"
from = "conversion"
{trigger_column}
[[measures]]
of = "value"
scale = 100
[[queries]]
epsilon = "10"
"""

SOURCES = [  # device, time, campaign
    ("U1", 1_642_218_050_000, "autumn"),
    ("U2", 1_642_235_602_000, "winter"),
    ("U3", 1_642_249_235_000, "autumn"),
]
TRIGGERS = [  # device, time, product, value, dedup key
    ("U1", 1_642_271_444_000, "shoes", 70, 1),
    ("U1", 1_642_273_950_000, "shoes", 70, 1),
    ("U2", 1_642_288_930_000, "hats", 20, ""),
    ("U9", 1_642_290_000_000, "hats", 5, ""),
]
SITE = "https://shop.example"


def write_csv(folder: Path) -> None:
    lines = [f"{device},{time},{SITE},{campaign}" for device, time, campaign in SOURCES]
    (folder / "sources.csv").write_text("device,when,destination,campaign\n" + "\n".join(lines))
    lines = [",".join(map(str, (*row[:2], SITE, *row[2:]))) for row in TRIGGERS]
    (folder / "triggers.csv").write_text("device,when,destination,product,value,dedup_key\n" + "\n".join(lines))


def write_parquet(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ["device", "when", "campaign"]
    table = {name: [row[place] for row in SOURCES] for place, name in enumerate(names)}
    parquet.write_table(arrow.table(table | {"destination": [SITE] * 3}), folder / "sources.parquet")
    names = ["device", "when", "product", "value", "dedup_key"]
    table = {name: [row[place] for row in TRIGGERS] for place, name in enumerate(names)}
    table["dedup_key"] = [one or None for one in table["dedup_key"]]
    parquet.write_table(arrow.table(table | {"destination": [SITE] * 4}), folder / "triggers.parquet")


def write_json(folder: Path) -> None:
    """As measurement-simulation's OVERVIEW has it: one object after the other, keys inside lists."""
    sources = [
        {
            "user_id": device, "timestamp": time, "web_destination": SITE, "source_type": "EVENT",
            "aggregation_keys": [{"campaign": campaign}], "filter_data": {"ctid": ["id"]}, "dedup_keys": [],
        }
        for device, time, campaign in SOURCES
    ]  # fmt: skip
    triggers = []
    for device, time, product, value, key in TRIGGERS:
        data = {"trigger_data": 7, "priority": 100} | ({"deduplication_key": key} if key else {})
        triggers.append(
            {
                "user_id": device, "timestamp": time, "attribution_destination": SITE, "destination_type": "WEB",
                "event_trigger_data": [data], "aggregatable_trigger_data": [{"key_piece": product}],
                "aggregatable_values": {"total": value},
            }
        )  # fmt: skip
    (folder / "sources.json").write_text("\n".join(json.dumps(row, indent=1) for row in sources))
    (folder / "triggers.json").write_text("\n".join(json.dumps(row) for row in triggers))


def text_for(kind: str) -> str:
    if kind == ".json":
        return CAMPAIGN.format(
            ending=kind,
            columns='[population.log.columns]\nvalue = "aggregatable_values.total"',
            source_column='column = "aggregation_keys.campaign"',
            trigger_column='column = "aggregatable_trigger_data.key_piece"',
        )
    columns = '[population.log.columns]\ntime = "when"'
    return CAMPAIGN.format(ending=kind, columns=columns, source_column="", trigger_column="")


@pytest.mark.parametrize(
    ("kind", "write"),
    [(".csv", write_csv), (".parquet", write_parquet), (".json", write_json)],
    ids=["csv", "parquet", "json"],
)
def test_a_log_in_any_form_gives_the_same_campaign(tmp_path: Path, kind: str, write: object) -> None:
    assert callable(write)
    write(tmp_path)
    campaign = parse_campaign(text_for(kind), folder=tmp_path)
    assert campaign.population.size == 4 and campaign.population.days == 1
    assert campaign.keys.field("campaign").values == ("autumn", "winter")
    result = run_campaign(campaign, tmp_path / "out", seed="log", draw=False, workers=1)
    (found,) = result.assessments
    truth = {row.label: row.truth for row in found.slices}
    assert truth == {"autumn · shoes": 70, "winter · hats": 20, "autumn · hats": 0, "winter · shoes": 0}
    (waterfall,) = found.waterfalls
    assert waterfall.conversions[Fate.COUNTED] == 2
    assert waterfall.conversions[Fate.DEDUPLICATED] == waterfall.conversions[Fate.NOT_ATTRIBUTED] == 1
    assert waterfall.adds_up
    assert (result.out / "batches/000/reports-1-of-1.avro").stat().st_size > 1000


def test_a_missing_column_is_refused_with_its_line(tmp_path: Path) -> None:
    write_csv(tmp_path)
    text = text_for(".csv")
    with pytest.raises(CampaignFileError, match=r"line 4: .*sources.csv has no column 'time'; it has 'device', 'when'"):
        parse_campaign(text.replace('time = "when"', ""), folder=tmp_path)
    with pytest.raises(CampaignFileError, match=r"line 13: .*triggers.csv has no column 'item'") as caught:
        parse_campaign(text.replace('name = "product"', 'name = "item"'), folder=tmp_path)
    assert "Name one of these" in caught.value.remedy
    (tmp_path / "triggers.csv").write_text("device,when,product\nU1,soon,shoes\n")
    with pytest.raises(CampaignFileError, match=r"row 1: the time is 'soon'"):
        parse_campaign(text, folder=tmp_path)


def test_a_log_moves_with_the_campaign_when_time_is_now(tmp_path: Path) -> None:
    """With a ledger of one's own the campaign ends now; its log must not be left behind in the past."""
    write_csv(tmp_path)
    campaign = parse_campaign(text_for(".csv"), folder=tmp_path)
    before = run_campaign(campaign, tmp_path / "out", seed="log", draw=False, workers=1)
    ledger = tmp_path / "own.sqlite"
    after = run_campaign(campaign, tmp_path / "now", seed="log", draw=False, workers=1, ledger=ledger)
    assert after.metrics.events == before.metrics.events
    assert after.metrics.reports.in_batches == before.metrics.reports.in_batches > 0
    moved = after.truth.events.conversions.time_ms - before.truth.events.conversions.time_ms
    assert set(moved.tolist()) == {after.campaign.population.start_ms - campaign.population.start_ms} != {0}


def test_dedup_keys_are_told_apart_to_the_last_bit(tmp_path: Path) -> None:
    """Keys are unsigned numbers of 64 bits: neighbours beyond 2⁵³ are one and the same float."""
    write_csv(tmp_path)
    keys = [2**53, 2**53 + 1, 2**64 - 1, 2**64 - 2, "order-7", "", "", 2**53]
    rows = [f"U1,{1_642_271_444_000 + place},shoes,1,{key}" for place, key in enumerate(keys)]
    (tmp_path / "triggers.csv").write_text("device,when,product,value,dedup_key\n" + "\n".join(rows))
    (tmp_path / "sources.csv").write_text(f"device,when,campaign\nU1,{SOURCES[0][1]},autumn\n")
    result = run_campaign(
        parse_campaign(text_for(".csv"), folder=tmp_path), tmp_path / "out", seed="log", draw=False, workers=1
    )
    (waterfall,) = result.assessments[0].waterfalls
    assert waterfall.conversions[Fate.DEDUPLICATED] == 1 and waterfall.conversions[Fate.COUNTED] == 7


BAD_LOGS = [
    ("device,when,product,value\n,1642271444000,shoes,1\n", "row 1, has no device"),
    ("device,when,product,when\nU1,1642271444000,shoes,1\n", "two columns of the same name: 'when'"),
    ("device,when,product,destination\nU1,1642271444000,shoes,\n", "row 1, has no destination"),
    ("device,when,product\nU1,5,shoes\n", "spans 19,008 days"),
]


@pytest.mark.parametrize(("rows", "words"), BAD_LOGS)
def test_a_log_that_would_be_misread_is_refused(tmp_path: Path, rows: str, words: str) -> None:
    write_csv(tmp_path)
    (tmp_path / "triggers.csv").write_text(rows)
    text = text_for(".csv").replace('epsilon = "10"', 'over = "each"')
    with pytest.raises(CampaignFileError, match=words):
        parse_campaign(text, folder=tmp_path)


@pytest.mark.parametrize("time", ["Infinity", "NaN", "[" * 100_000])
def test_a_json_log_without_times_is_refused(tmp_path: Path, time: str) -> None:
    write_json(tmp_path)
    (tmp_path / "triggers.json").write_text(f'{{"user_id": "U1", "timestamp": {time}}}')
    with pytest.raises(CampaignFileError, match=r"triggers.json"):
        parse_campaign(text_for(".json"), folder=tmp_path)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_times_of_any_unit_are_read(tmp_path: Path, unit: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(tmp_path)
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    odd = {"ns": 123}.get(unit, 0)
    times = arrow.array([row[1] // 1000 * scale + odd for row in TRIGGERS], type=arrow.timestamp(unit))
    columns = {"device": [row[0] for row in TRIGGERS], "when": times, "product": [row[2] for row in TRIGGERS]}
    parquet.write_table(arrow.table(columns), tmp_path / "triggers.parquet")
    campaign = parse_campaign(text_for(".parquet"), folder=tmp_path)
    events = campaign.population.model.events(campaign, ForbiddenBits())
    assert events.conversions.time_ms.tolist() == sorted(row[1] for row in TRIGGERS)


@pytest.mark.parametrize("time", [1_642_271_444_000_000, 2**64 - 1])
def test_times_past_the_year_9999_are_refused(tmp_path: Path, time: int) -> None:
    """Microseconds, most likely: read as milliseconds they would be a time 50,000 years from now."""
    write_csv(tmp_path)
    (tmp_path / "triggers.csv").write_text(f"device,when,product\nU1,{time},shoes\n")
    with pytest.raises(CampaignFileError, match="write seconds, milliseconds"):
        parse_campaign(text_for(".csv"), folder=tmp_path)


def test_a_misspelt_column_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    """Without its values, every conversion would be worth 1."""
    write_csv(tmp_path)
    text = text_for(".csv").replace('time = "when"', 'time = "when"\nvlaue = "value"')
    with pytest.raises(
        CampaignFileError, match=r"line 9: population.log.columns.vlaue is not a column of a log"
    ) as caught:
        parse_campaign(text, folder=tmp_path)
    assert "Did you mean 'value'?" in caught.value.remedy
    text = text_for(".csv").replace('time = "when"', 'time = "when"\nproduct = "product"')
    assert parse_campaign(text, folder=tmp_path).keys.field("product").values == ("hats", "shoes")


def test_columns_without_a_name_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,,\n1,,\n")
    assert read_table(tmp_path / "log.csv")["a"] == ["1"]
