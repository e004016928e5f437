"""All tables together: the command that lists them, the program that judges them, and the names of entry points."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.kits.__main__ import main
from aggservice.kits.tables import TABLES, judge
from budget import MECHANISMS, LaplaceNoise

ROOT = Path(__file__).parents[2]


def test_every_table_of_the_project_is_listed() -> None:
    """A table that is made anywhere stands in ``TABLES``."""
    made = re.compile(r"^(\w+)(?::[^=\n]*)? = Kinds\(", re.MULTILINE)
    found = {
        name
        for package in ("aggservice", "budget", "w3c_client", "ldp_client", "ara_client", "paa_client")
        for path in (ROOT / package).rglob("*.py")
        for name in made.findall(path.read_text(encoding="utf-8"))
    }
    assert found == {one.place.partition(":")[2] for one in TABLES}


HOMONYMS = {
    ("aggservice/commands/campaigns/optimise.py", "rmsre"),
    ("aggservice/kits/metrics.py", "above_noise"),
    ("aggservice/campaign/service/sealing.py", "json"),
}
"""A target of optimise, a column of slices, and a form of reports, each compared where it is declared."""
#: The lone verifier is written a second time on purpose.
INDEPENDENT = "budget/audit/standalone.py"
#: Where ε alone stands for Laplace noise (tests/budget/test_mechanism_table.py holds them to it).
LAPLACE = {"LaplaceNoise", "LaplaceDiscovery"}


def test_nothing_but_its_own_modules_branches_on_a_kind() -> None:
    """No comparison with an entry's name, and no ``isinstance`` of its class, outside the modules that define them."""
    homes: dict[str, set[str]] = {}
    for table in (one.table for one in TABLES):
        entries = {name: table[name] for name in table}
        classes = {name: one if isinstance(one, type) else type(one) for name, one in entries.items()}
        modules = {one.__module__ for kind in classes.values() for one in kind.__mro__}
        for name, kind in classes.items():
            for known in (name, kind.__name__):
                homes.setdefault(known, set()).update(modules)
    found = set()
    for package in ("aggservice", "budget", "w3c_client", "ldp_client", "ara_client", "paa_client"):
        for path in (ROOT / package).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            module = place.removesuffix(".py").replace("/", ".")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
                if isinstance(node, ast.Compare | ast.MatchValue | ast.MatchClass) or called in (
                    "isinstance",
                    "issubclass",
                ):
                    texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                    texts |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.id[0].isupper()}
                    found |= {(place, text) for text in texts if module not in homes.get(text, {module})}
    assert len(homes) > 80
    assert {one for one in found if one[0] != INDEPENDENT and one[1] not in LAPLACE} == HOMONYMS


def test_groups_of_entry_points_are_plain_words() -> None:
    groups = [one.table.group for one in TABLES]
    assert len(set(groups)) == len(groups)
    assert all(re.fullmatch(r"aggservice\.[a-z_]+", group) for group in groups)


def test_the_command_lists_entries_with_their_origin() -> None:
    found = CliRunner().invoke(app, ["kinds", "--json"])
    rows = json.loads(found.stdout)["kinds"]
    assert len(rows) == sum(len(one.table.names) for one in TABLES)
    assert {
        "kind": "mechanism",
        "name": "discrete_laplace",
        "group": "aggservice.mechanisms",
        "from": "built in",
    } in rows
    shown = CliRunner().invoke(app, ["kinds", "metric"]).stdout
    assert shown.startswith("metric: ") and "rmse" in shown and "discrete_laplace" not in shown


def test_an_unknown_name_is_refused() -> None:
    found = CliRunner().invoke(app, ["kinds", "nonsense"])
    assert found.exit_code != 0 and "there is no kind or entry nonsense" in found.output


def test_the_command_runs_the_kit_on_request() -> None:
    found = CliRunner().invoke(app, ["kinds", "--check", "accounting filter"])
    assert found.exit_code == 0 and found.stdout.count(" ok") == 2


class Cheap(LaplaceNoise):
    """Says that it costs nothing."""

    __slots__ = ()
    name = "nearly_free"

    @property
    def pure_micro(self) -> int:
        return 1


def test_an_entry_that_lies_is_shown_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MECHANISMS, "_added", {})
    MECHANISMS.add("nearly_free", Cheap)
    assert [bool(problem) for _, _, problem in judge(("discrete_laplace", "nearly_free"))] == [False, True]
    assert main(["discrete_laplace", "nearly_free"]) == 1
    shown = capsys.readouterr().out
    assert "its cost is too small" in shown and shown.endswith("1 passed, 1 failed\n")
    assert main(["nothing"]) == 1
