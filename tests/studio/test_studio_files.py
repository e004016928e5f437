"""Files that a request or a posted text names: those below the studio's folders, and nothing through a link."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from aggservice.files.below import Below, OutsideError

from .conftest import Answer, RunningStudio, serve

SECRET = "hunter2-the-password"
LOG = "[population.log]\nsources = {sources}\ntriggers = {triggers}\n"


@pytest.fixture(scope="module")
def attacked(shelf_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStudio]:
    """A studio over a copy of the shelf, with private files beside it and links to them inside."""
    top = tmp_path_factory.mktemp("attacked")
    folder, private = top / "shelf", top / "private"
    shutil.copytree(shelf_folder, folder)
    private.mkdir()
    (private / "log.csv").write_text(f"when,who,password\n1,{SECRET},{SECRET}\n")
    (private / "metrics.json").write_text(json.dumps({"jobs": [{"job": SECRET, "refusal": SECRET, "paid": False}]}))
    shutil.copy(private / "metrics.json", top / "metrics.json")
    (private / "CONFIG.json").write_text(json.dumps({SECRET: SECRET}))
    (folder / "log.csv").symlink_to(private / "log.csv")
    (folder / "linked").symlink_to(private, target_is_directory=True)
    shutil.copytree(folder / "small-run", folder / "linked-run")
    for name in ("transcript.json", "timings.json"):
        (folder / "linked-run" / name).unlink(missing_ok=True)
        (folder / "linked-run" / name).symlink_to(private / "metrics.json")
    (folder / "fake-run").mkdir()
    (folder / "fake-run" / "metrics.json").symlink_to(private / "metrics.json")
    shutil.copytree(folder / "small-run" / "ledger", private / "ledger")
    (folder / "fake-run" / "ledger").symlink_to(private / "ledger", target_is_directory=True)
    shutil.copy(folder / "small-run" / "ledger" / "ledger.sqlite", folder / "ledger.sqlite")
    (folder / "beside").mkdir()
    shutil.copy(folder / "small-run" / "ledger" / "ledger.sqlite", folder / "beside" / "ledger.sqlite")
    (folder / "beside" / "ledger.sqlite-wal").symlink_to(private / "log.csv")
    (folder / "stolen").mkdir()
    scenario = json.loads((folder / "scenarios" / "cost-rounds-up.json").read_text())
    scenario.pop("config", None)
    (folder / "stolen" / "scenario.json").write_text(json.dumps(scenario))
    (folder / "stolen" / "CONFIG.json").symlink_to(private / "CONFIG.json")
    yield from serve(folder)


def get(studio: RunningStudio, path: str, **query: str) -> Answer:
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    return studio.request("GET", f"/api/{path}?{asked}")


def outside(studio: RunningStudio) -> list[str]:
    """Ways to name the private log: absolutely, by ``..``, through a linked file and through a linked folder."""
    private = studio.folder.parent / "private"
    return [str(private / "log.csv"), "../private/log.csv", "log.csv", "linked/log.csv", f"{studio.folder}/log.csv"]


def texts(studio: RunningStudio) -> Iterator[str]:
    """Campaigns that name the private log as a log, as a folder of logs, and as a column to draw values from."""
    campaign = (studio.folder / "small.toml").read_text(encoding="utf-8")
    head, _, _ = campaign.partition("[population]")
    for name in [*outside(studio), "../private", "linked"]:
        yield (
            head
            + "[population]\nsize = 10\ndays = 2\n"
            + LOG.format(sources=json.dumps(name), triggers=json.dumps(name))
        )
        value = f'value = {{ name = "column", file = {json.dumps(name)}, column = "password" }}\n'
        yield f"{head}[population]\nsize = 10\ndays = 2\n{value}"


def test_a_posted_text_reads_no_file_outside_the_folders(attacked: RunningStudio) -> None:
    """Each endpoint that takes a campaign, with each way to name a private file: refused, and nothing of it shown."""
    posts: list[tuple[str, dict[str, Any]]] = [
        ("tune", {}),
        ("tune", {"campaign": "0/small.toml"}),
        ("tune/edit", {"path": "population.size", "value": "20"}),
        ("tune/save", {"name": "stolen.toml"}),
        ("runs", {}),
        ("runs", {"compare": True, "campaign": "0/small.toml"}),
        ("follow", {}),
    ]
    asked = 0
    for text in texts(attacked):
        for path, members in posts:
            answer = attacked.try_post(path, toml=text, **members)
            assert answer.status == 400, (path, text, answer.body)
            assert SECRET.encode() not in answer.body
            assert b"outside the folders that this file may name, or behind a link" in answer.body, answer.body
            asked += 1
    assert asked == 98
    assert not (attacked.folder / "stolen.toml").exists()


def test_a_campaign_on_the_shelf_reads_no_file_outside_the_folders(attacked: RunningStudio) -> None:
    for number, text in enumerate(texts(attacked)):
        (attacked.folder / f"bad-{number}.toml").write_text(text)
        answer = get(attacked, "campaign", campaign=f"0/bad-{number}.toml")
        assert answer.status == 400 and b"may name, or behind a link" in answer.body
        assert SECRET.encode() not in answer.body


def test_a_log_inside_the_folders_is_read(attacked: RunningStudio) -> None:
    """The guard must not keep out what it is there for: the same campaign as the example's, by its own paths."""
    path = attacked.folder / "late_reports"
    (name,) = path.glob("*.toml")
    assert get(attacked, "campaign", campaign=f"0/late_reports/{name.name}").status == 200
    inside = attacked.folder / "inside"
    inside.mkdir(exist_ok=True)
    rows = "time,device,value\n2026-11-18T01:00:00,a,1\n2026-11-19T01:00:00,b,2\n"
    for file in ("sources.csv", "triggers.csv"):
        (inside / file).write_text(rows)
    head = (attacked.folder / "small.toml").read_text(encoding="utf-8").partition("[population]")[0]
    for sources in ("inside/sources.csv", "inside/../inside/sources.csv", str(inside / "sources.csv")):
        text = f"{head}[population]\n" + LOG.format(sources=json.dumps(sources), triggers='"inside/triggers.csv"')
        answer = attacked.try_post("tune/edit", toml=text, path="name", value='"other"')
        assert b"may name" not in answer.body and b"cannot be read" not in answer.body, answer.body


def test_links_in_a_run_folder_are_not_followed(attacked: RunningStudio) -> None:
    items = {one["id"] for one in attacked.get("shelf")["items"]}
    assert "0/linked-run" in items and not items & {"0/fake-run", "0/log.csv"}
    assert not any(one.startswith(("0/linked/", "0/fake-run/")) for one in items)
    found = get(attacked, "result", run="0/linked-run")
    assert found.status == 200 and SECRET.encode() not in found.body
    assert found.json["transcript"] is None and found.json["timings"] is None and found.json["metrics"]
    for name in ("0/fake-run", "0/linked"):
        assert get(attacked, "result", run=name).status == 404
        assert get(attacked, "comparison", comparison=name).status == 404


@pytest.mark.parametrize(
    "ledger",
    [
        "0/fake-run/ledger/ledger.sqlite",
        "0/linked/ledger/ledger.sqlite",
        "0/fake-run/ledger/ledger.log",
        "0/beside/ledger.sqlite",
        "0/../private/ledger/ledger.sqlite",
    ],
)
def test_ledgers_behind_links_are_unknown(attacked: RunningStudio, ledger: str) -> None:
    """Also one whose write-ahead log is a link: SQLite would open it by its name."""
    for path in ("ledger", "ledger/entries", "ledger/unit", "ledger/receipt"):
        assert get(attacked, path, ledger=ledger, unit="00" * 20, caller="a", job="b").status == 404
    for path, members in (("ledger/verify", {}), ("ledger/tamper", {"how": "entry"})):
        assert attacked.try_post(path, ledger=ledger, **members).status == 404


def test_a_ledger_at_the_top_shows_nothing_of_the_folder_above(attacked: RunningStudio) -> None:
    """The refused jobs of a run stand two folders above its ledger."""
    answer = get(attacked, "ledger", ledger="0/ledger.sqlite")
    assert answer.status == 200 and answer.json["refused"] == [] and SECRET.encode() not in answer.body


def test_the_configuration_of_a_scenario_is_not_read_through_a_link(attacked: RunningStudio) -> None:
    answer = attacked.try_post("device/scenario", scenario="0/stolen/scenario.json")
    assert answer.status == 400 and SECRET.encode() not in answer.body


def test_a_linked_shelf_is_allowed_and_a_folder_that_becomes_a_link_is_not(tmp_path: Path) -> None:
    real, alias = tmp_path / "real", tmp_path / "alias"
    (real / "sub").mkdir(parents=True)
    (real / "sub" / "file").write_bytes(b"inside")
    alias.symlink_to(real, target_is_directory=True)
    below = Below(folder=alias)
    assert below.read("sub/file", 10) == b"inside" and below.path("sub/new") == real.resolve() / "sub" / "new"
    with pytest.raises(OSError, match="more than 5 bytes"):
        below.read("sub/file", 5)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "file").write_bytes(b"outside")
    path = below.path("sub/file")
    (real / "sub").rename(tmp_path / "moved")
    (real / "sub").symlink_to(tmp_path / "private", target_is_directory=True)
    assert path.read_bytes() == b"outside"  # why a path that was checked is not enough
    for name in ("sub/file", path, "sub"):
        with pytest.raises(OSError):
            below.open(name)
        with pytest.raises(OutsideError):
            below.path(name)
        assert not below.is_file(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../real-other/file", "/etc/passwd", "a\0b", "sub/../../private", "/"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    """Also a sibling whose name begins like the folder's."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real-other").mkdir()
    (tmp_path / "real-other" / "file").write_bytes(b"outside")
    below = Below(folder=tmp_path / "real")
    for ask in (below.open, below.path):
        with pytest.raises(OutsideError):
            ask(name)


def test_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    """Opening a pipe without a writer must not wait for one."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    below = Below(folder=tmp_path)
    for name in ("pipe", "folder", "missing"):
        with pytest.raises(OSError):
            below.open(name)
