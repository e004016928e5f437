"""Logs of measurement-simulation through real browsers: the events' own keys and values come out of the reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggservice.campaign import CampaignError, parse_campaign
from aggservice.campaign.replay import replay_log
from aggservice.commands import app
from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits, SeededBits
from aggservice.wire import KeySet, decode_batch, open_batch, read_domain, read_reports

DAY = 1_642_204_800_000  # 2022-01-15
HOUR = 3_600_000


def source(user: str, hour: int, keys: Any, **more: Any) -> dict[str, Any]:
    return {
        "user_id": user, "source_event_id": 7, "source_type": "NAVIGATION", "publisher": "https://news.example/page",
        "web_destination": "https://shop.example/d", "enrollment_id": "https://adtech.example/r", "dedup_keys": [],
        "timestamp": DAY + hour * HOUR, "expiry": 2_592_000, "priority": 100, "aggregation_keys": keys, **more,
    }  # fmt: skip


def trigger(user: str, hour: int, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "user_id": user, "attribution_destination": "https://shop.example/d", "destination_type": "WEB",
        "enrollment_id": "https://adtech.example/r", "timestamp": str(DAY + hour * HOUR),
        "event_trigger_data": [{"trigger_data": 5, "priority": 100, "deduplication_key": 1}],
        "aggregatable_trigger_data": [{"key_piece": "0x400", "source_keys": ["campaignCounts"]}],
        "aggregatable_values": values, **more,
    }  # fmt: skip


SOURCES = [
    source("U1", 1, [{"campaignCounts": "0x159"}, {"geoValue": "0x5"}]),
    source("U2", 2, {"campaignCounts": "0x160"}, source_type="EVENT", filter_data={"product": ["1"]}),
    source("U2", 3, {"campaignCounts": "0x161"}, web_destination="", destination="android-app://com.shop"),
]
TRIGGERS = [
    trigger("U1", 30, {"campaignCounts": "32768", "geoValue": "1664"}),
    trigger("U2", 31, {"campaignCounts": 100}, filters={"product": ["2"]}),
    trigger("U2", 32, {"campaignCounts": 50}, filters={"product": ["1"]}),
    trigger("U9", 33, {"campaignCounts": 70}),
    trigger("U2", 34, {"campaignCounts": 70_000}),
]
TRUTH = {0x559: 32768, 0x5: 1664, 0x560: 50}
"""By hand: 0x159 | 0x400 and 0x5; of U2's triggers the first is filtered, the last has a value above 65536."""


def write_log(folder: Path, sources: list[Any] = SOURCES, triggers: list[Any] = TRIGGERS) -> Path:
    """As the library's own test data lie: a folder per year, month and day, one object per line."""
    for name, rows in (("attribution_source", sources), ("trigger", triggers)):
        for row in rows:
            day = "15" if name == "attribution_source" else "16"
            path = folder / "2022" / "01" / day / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return folder


def test_own_keys_and_values_are_replayed_and_summed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log")
    shown = CliRunner().invoke(app, ["replay", str(log), "--out", str(tmp_path / "out"), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert (found["users"], found["sources"], found["triggers"]) == (3, 2, 5)
    assert found["left_out"] == {"of an app": 1, "refused by the browser": 1}
    assert found["problems"][1].startswith("2022/01/16/trigger.json, row 5: ")
    sums: dict[int, int] = {}
    for file in sorted((tmp_path / "out" / "aggregatable").glob("2022-01-*.avro")):
        given = ["--input_data_avro_file", str(file), "--domain_avro_file", str(tmp_path / "out" / "domain.avro")]
        out = tmp_path / "summed" / file.stem
        done = CliRunner().invoke(
            app, ["aggregate", *given, "--output_directory", str(out), "--no_noising", "--json_output"]
        )
        assert done.exit_code == 0, done.output
        for row in json.loads((out / "output.json").read_text()):
            bucket = int.from_bytes(row["bucket"].encode("latin-1"), "big")
            sums[bucket] = sums.get(bucket, 0) + row["metric"]
    assert sums == TRUTH


def test_sealed_reports_open_with_the_keys_and_a_seed_repeats(tmp_path: Path) -> None:
    """U1's source is a click: its event-level report is the truth except with probability 0.0024 (noise, seeded)."""
    log = write_log(tmp_path / "log")
    clock = ManualClock(DAY)
    keys = KeySet.create(SecureBits(), clock)
    replayed = replay_log(log, tmp_path / "one", bits=SeededBits("s"), keys=keys.public(clock))
    sums: dict[int, int] = {}
    reports = 0
    for file in (tmp_path / "one" / "aggregatable").iterdir():
        for batch in read_reports(file):
            reports += len(batch)
            columns, status = decode_batch(open_batch(batch, keys.by_id))
            assert set(status.tolist()) == {0}
            for one in columns.contributions():
                if one.value:
                    sums[one.bucket] = sums.get(one.bucket, 0) + one.value
    assert sums == TRUTH and reports == replayed.reports["report-aggregate-attribution"]
    (rows,) = read_domain(tmp_path / "one" / "domain.avro")
    assert rows.key_low.tolist() == sorted(TRUTH)
    lines = [json.loads(line) for line in (tmp_path / "one" / "event-level.jsonl").read_text().splitlines()]
    assert {"source_event_id": "7", "trigger_data": "5", "source_type": "navigation"}.items() <= lines[0].items()
    again = replay_log(log, tmp_path / "two", bits=SeededBits("s"), keys=keys.public(clock))
    assert again == replayed
    one, two = ((tmp_path / name / "event-level.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"timestamp": "soon"}, r"attribution_source.json, row 1: the timestamp is 'soon'"),
        ({"user_id": ""}, r"row 1: it has no user_id"),
        ({"publisher": None}, r"row 1: it has no publisher"),
        ({"source_type": "SEEN"}, r"row 1: source_type is 'seen': write EVENT or NAVIGATION"),
        ({"enrollment_id": "E1"}, r"enrollment_id is 'E1', which is not a URL: give .* --reporting-origin"),
    ],
)
def test_a_row_that_cannot_be_understood_is_named_and_nothing_is_written(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    log = write_log(tmp_path / "log", [SOURCES[0] | change])
    with pytest.raises(CampaignError, match=words):
        replay_log(log, tmp_path / "out", bits=SeededBits("s"))
    assert not (tmp_path / "out").exists()


def test_names_of_the_first_release_are_understood(tmp_path: Path) -> None:
    old_source = {("event_time" if name == "timestamp" else name): one for name, one in SOURCES[1].items()}
    old_trigger = {("trigger_time" if name == "timestamp" else name): one for name, one in TRIGGERS[2].items()}
    old_source["aggregation_keys"] = [{"id": "campaignCounts", "key_piece": "0x160"}]
    old_trigger["filters"] = json.dumps(old_trigger["filters"])
    found = replay_log(write_log(tmp_path / "log", [old_source], [old_trigger]), tmp_path / "out", bits=SeededBits("s"))
    assert not found.left_out and found.reports["report-aggregate-attribution"] == 1
    (rows,) = read_domain(tmp_path / "out" / "domain.avro")
    assert rows.key_low.tolist() == [0x560]


def test_an_enrollment_that_is_no_url_needs_an_origin(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log",
        [SOURCES[0] | {"enrollment_id": "E1"}],
        [TRIGGERS[0] | {"enrollment_id": "E1"}],
    )
    found = replay_log(log, tmp_path / "out", bits=SeededBits("s"), reporting_origin="https://adtech.example")
    assert found.reports["report-aggregate-attribution"] == 1


def test_a_folder_by_day_is_the_log_of_a_campaign_too(tmp_path: Path) -> None:
    write_log(tmp_path / "log", SOURCES[:2])
    text = """
    name = "logged"
    [population.log]
    sources = "log"
    triggers = "log"
    [population.log.columns]
    value = "aggregatable_values.campaignCounts"
    [[keys.fields]]
    name = "campaign"
    column = "aggregation_keys.campaignCounts"
    [[measures]]
    of = "value"
    [[queries]]
    epsilon = "10"
    """
    campaign = parse_campaign(text, folder=tmp_path)
    events = campaign.population.model.events(campaign, ForbiddenBits())
    assert len(events.impressions) == 2 and events.conversions.value.tolist() == [32768, 100, 50, 70, 70_000]
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        CampaignError, match=r"triggers is a folder without such files. Put files named \*trigger\*.json"
    ):
        parse_campaign(text.replace('triggers = "log"', 'triggers = "empty"'), folder=tmp_path)
