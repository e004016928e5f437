"""Bad campaign files: refused with the line and what to write instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aggservice.campaign import CampaignFileError, load_campaign, load_plan, load_scenario, parse_campaign
from aggservice.campaign.devices.w3c import W3cAttribution
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.world.logs import read_table
from aggservice.files.below import Below
from aggservice.files.toml import Lines
from w3c_client import ATTRIBUTION_RULES, RULES

GOOD = """name = "n"
[population]
size = 10
days = 2
value = { name = "poisson", mean = 5 }
[[keys.fields]]
name = "ad"
values = ["a", "b"]
offset = 0
bits = 8
[[keys.fields]]
name = "kind"
from = "conversion"
values = ["x", "y"]
offset = 8
bits = 8
[[measures]]
of = "value"
scale = 2
[collection]
lost = 0.5
[[queries]]
name = "one"
epsilon = "10"
[[queries]]
name = "two"
epsilon = "1.5"
"""

POISSON = '{ name = "poisson", mean = 5 }'

#: What is changed, the line that must be named, and words of the message and of the remedy.
BAD = [
    ('name = "one"', 'name = "a b"\n[[queries]]\nname = "a-b"', 22, "two of the same name", "its own name"),
    ("size = 10", "sise = 10", 3, "sise is not a field", "Did you mean 'size'?"),
    ("size = 10", "size = -10", 3, "population.size is -10", "from 1 to"),
    ("size = 10", "size = 1.5", 3, "is 1.5", "a whole number"),
    ("offset = 8\n", "offset = 7\n", 15, "overlaps field 'ad', which has bits 0 to 7", "offset = 8"),
    ('epsilon = "10"', 'epsilon = "0"', 24, "queries[0].epsilon is '0'", "above 0"),
    ('epsilon = "1.5"', "epsilon = 0.1", 27, "is the float 0.1", 'epsilon = "0.1"'),
    ('epsilon = "1.5"', 'epsilon = "nan"', 27, "is 'nan'", "decimal number"),
    ('epsilon = "1.5"', 'epsilon = "-1"', 27, "is '-1'", "above 0"),
    ('epsilon = "1.5"', 'epsilon = "65"', 27, "is 65", "at most 64"),
    ('epsilon = "1.5"', 'epsilon = "1"\ndelta = "0.1"', 28, "delta is 0.1", "discover"),
    ('values = ["a", "b"]', "count = 1_000_000\nzipf = 1", 23, "a domain of 2,000,000,000 keys", "discovery"),
    (POISSON, '{ name = "poison", mean = 5 }', 5, "is 'poison'", "'poisson'"),
    (POISSON, '{ name = "poisson", mean = -5 }', 5, "not possible", "mean = 2"),
    (POISSON, '{ name = "column", file = "log.csv", column = "cost" }', 5, "it has 'when', 'price'", "column"),
    (POISSON, '{ name = "column", file = "no.csv", column = "x" }', 5, "not a file", "name another"),
    ("lost = 0.5", "lost = 1.5", 21, "is 1.5", "from 0 to 1"),
    ("lost = 0.5", "lost = nan", 21, "is nan", "from 0 to 1"),
    ("scale = 2", "scale = 100\nmost = 1000", 19, "would contribute 100000", "scale = 65"),
    ("bits = 8\n[[keys", "bits = 0\n[[keys", 10, "is 0", "from 1 to 63"),
    ('name = "two"', 'name = "one"', 22, "two of the same name", "own name"),
    ('name = "two"', 'name = "two"\nover = "rolling"', 25, "window", "fewer"),
    ("[collection]", "[client]\nl1 = 5\n[collection]", 21, "l1", "paper"),
    ("days = 2", "days = 2\nstart = 2026-11-18T00:00:00", 5, "no offset from UTC", "Z"),
    ("days = 2", "days = 120", 4, "the first reports are 120 days old", "rolling"),
    ("days = 2", "days = 2\ndays = 3", 5, "not TOML", "toml.io"),
]


@pytest.mark.parametrize(("before", "after", "line", "problem", "remedy"), BAD)
def test_a_bad_file_is_refused_with_its_line(
    tmp_path: Path, before: str, after: str, line: int, problem: str, remedy: str
) -> None:
    (tmp_path / "log.csv").write_text("when,price\n1,20\n2,30\n")
    parse_campaign(GOOD, folder=tmp_path)
    assert before in GOOD
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(before, after, 1))
    text = path.read_text()
    if "1_000_000" in text:
        text = text.replace('values = ["x", "y"]', "count = 2000").replace("bits = 8", "bits = 30")
        path.write_text(text.replace("offset = 8", "offset = 32"))
    with pytest.raises(CampaignFileError) as caught:
        load_campaign(path)
    assert problem in str(caught.value)
    assert remedy in caught.value.remedy
    assert caught.value.line == line
    assert f"bad.toml, line {line}: " in str(caught.value)


def test_a_missing_field_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match=r"name is missing. Write name ="):
        parse_campaign(GOOD.replace('name = "n"\n', "", 1), folder=tmp_path)
    with pytest.raises(CampaignFileError, match=r"nowhere.toml: cannot be read"):
        load_campaign(tmp_path / "nowhere.toml")
    with pytest.raises(CampaignFileError, match=r"population.size is missing"):
        parse_campaign(GOOD.replace("size = 10\n", "", 1), folder=tmp_path)


def test_a_document_can_be_changed_and_read_again(tmp_path: Path) -> None:
    campaign = parse_campaign(GOOD, folder=tmp_path)
    document = {**campaign.document, "population": {**campaign.document["population"], "size": 99}}
    assert campaign_of(document, folder=tmp_path).population.size == 99


def test_lines_of_nested_tables() -> None:
    text = 'a = """\nb = 1\n"""\n[t]\n"x y" = 1\n[[t.u]]\nv.w = 2\n[[t.u]]\n[t.u.z]\nq = [\n  1,\n]\n'
    lines = Lines.read(text)
    assert lines.of(("a",)) == 1
    assert lines.of(("b",)) == 0
    assert lines.of(("t", "x y")) == 5
    assert lines.of(("t", "u", 0, "v", "w")) == 7
    assert lines.of(("t", "u", 1, "z", "q")) == 10
    assert lines.of(("t", "u", 1, "nowhere")) == 8


@pytest.mark.parametrize("load", [load_campaign, load_plan, load_scenario, read_table])
def test_a_file_that_is_not_there_or_not_utf_8_is_refused(load: Callable[[Path], object], tmp_path: Path) -> None:
    place = tmp_path / "file.json"
    with pytest.raises(CampaignFileError, match="cannot be read: No such file"):
        load(place)
    place.write_bytes(b'title = "caf\xe9"')
    with pytest.raises(CampaignFileError, match="Save it as UTF-8"):
        load(place)


def test_columns_of_every_distribution_lie_beside_the_campaign_file(tmp_path: Path) -> None:
    (tmp_path / "days.csv").write_text("late,worth\n3,5\n4,6\n")
    text = GOOD.replace(POISSON, '{ name = "column", file = "days.csv", column = "worth" }').replace(
        "lost = 0.5", 'late = 0.5\nlate_days = { name = "column", file = "days.csv", column = "late" }'
    )
    campaign = parse_campaign(text, folder=tmp_path)
    assert campaign.population.value.rows == (5, 6) and campaign.collection.late_days.rows == (3, 4)


OWN_RULES = """
from fractions import Fraction
from w3c_client import AttributionRule
from w3c_client.rules import DelegatedBudget

class First(AttributionRule):
    name = "first-for-test"
    def shares(self, touches, credit, most):
        return [*[Fraction(0)] * (touches - 1), Fraction(1)]

class Delegated(DelegatedBudget):
    name = "delegated-for-test"
"""


@pytest.fixture
def own_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module beside the campaign file; what it adds to the tables is forgotten after the test."""
    for table in (RULES, ATTRIBUTION_RULES):
        monkeypatch.setattr(table, "_added", {})
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "own_rules_for_test.py").write_text(OWN_RULES)
    yield "own_rules_for_test"
    sys.modules.pop("own_rules_for_test", None)


def w3c_campaign(tmp_path: Path, client: str, files: Below | None = None) -> Campaign:
    text = f"{GOOD}\n[client]\napi = 'w3c'\n{client}\n"
    return parse_campaign(text, folder=tmp_path, file="campaign.toml", files=files)


def test_a_file_of_yours_names_rules_by_their_modules(tmp_path: Path, own_rules: str) -> None:
    campaign = w3c_campaign(tmp_path, f"with = ['{own_rules}:Delegated']\nattribution = '{own_rules}:First'")
    client = campaign.client
    assert isinstance(client, W3cAttribution) and client.design.rules[-1] == "delegated-for-test"
    assert client.attribution is ATTRIBUTION_RULES["first-for-test"]


@pytest.mark.parametrize("line", ["with = ['{}:Delegated']", "attribution = '{}:First'"])
def test_a_file_of_somebody_else_cannot_name_a_module(tmp_path: Path, own_rules: str, line: str) -> None:
    with pytest.raises(CampaignFileError, match=rf"is '{own_rules}:\w+'\. There is no (on-device|attribution) rule"):
        w3c_campaign(tmp_path, line.format(own_rules), Below(folder=tmp_path))
    assert own_rules not in sys.modules


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "attribution = 'position-based'",
            "'position-based', which divides a conversion of 2 touches. A campaign counts",
        ),
        ("attribution = 'last-touch'", "There is no attribution rule 'last-touch': did you mean 'last-n-touch'"),
        ("with = ['site-budget']", "has 'site-budget'. w3c runs it without that: leave it out"),
    ],
)
def test_rules_that_a_campaign_cannot_have_are_refused(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(CampaignFileError, match=re.escape(sentence)):
        w3c_campaign(tmp_path, line)
