"""Tables of kinds: built in, installed, and named by module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggservice.kinds import KindError, Kinds


class Shape:
    """What the tables of these tests hold."""

    sides = 0


class Triangle(Shape):
    sides = 3


class Square(Shape):
    sides = 4


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[None]:
    """An installed package that adds a pentagon, and a shape that is none."""
    (tmp_path / "outside_shapes.py").write_text(
        "from test_kinds import Shape\nclass Pentagon(Shape):\n    sides = 5\nclass Word: pass\n"
    )
    info = tmp_path / "outside_shapes-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-shapes\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(
        "[aggservice.flat_shapes]\npentagon = outside_shapes:Pentagon\nword = outside_shapes:Word\n"
        "square = outside_shapes:Pentagon\n"
    )
    before = list(sys.path)
    sys.modules["test_kinds"] = sys.modules[__name__]
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path[:] = before
    sys.modules.pop("outside_shapes", None)


def shapes() -> Kinds[type[Shape]]:
    return Kinds("flat shape", base=Shape, builtin={"triangle": Triangle, "square": Square, "path": "pathlib:Path"})


def test_built_in_entries_are_found_by_name() -> None:
    table = shapes()
    assert table["triangle"] is Triangle and table["square"] is Square
    assert list(table) == ["triangle", "square", "path"] and "square" in table and "circle" not in table
    assert table.origin("square") == "built in"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(KindError, match=r"no flat shape 'sqare': did you mean 'square'\? choose one of triangle, squ"):
        shapes()["sqare"]


def test_installed_entries_come_after_built_in_ones_and_do_not_replace_them(installed: None) -> None:
    table = shapes()
    assert table.names == ("triangle", "square", "path", "pentagon", "word")
    assert table["pentagon"].sides == 5 and table["square"] is Square
    assert table.origin("pentagon") == "outside-shapes 2.1"
    with pytest.raises(
        KindError, match=r"word, which outside-shapes installs, is not a flat shape: make it a subclass"
    ):
        table["word"]


def test_a_module_is_named_only_where_texts_may_run_code(tmp_path: Path, installed: None) -> None:
    table = shapes()
    assert table.find("outside_shapes:Pentagon").sides == 5 and table.find("square") is Square
    with pytest.raises(KindError, match="there is no flat shape 'outside_shapes:Pentagon'"):
        table["outside_shapes:Pentagon"]


def test_a_module_may_lie_beside_the_file_that_names_it(tmp_path: Path, installed: None) -> None:
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "own_shape_for_test.py").write_text(
        "from test_kinds import Shape\nclass Hexagon(Shape):\n    sides = 6\n"
    )
    assert shapes().find("own_shape_for_test:Hexagon", folder=folder).sides == 6


@pytest.mark.parametrize("text", ["no_such_module:Name", "pathlib:NoSuchName", ":", "pathlib:"])
def test_what_cannot_be_imported_is_named(text: str) -> None:
    with pytest.raises(KindError, match="cannot be imported"):
        shapes().find(text)


def test_a_lazy_entry_is_checked_when_it_is_used() -> None:
    with pytest.raises(KindError, match="'pathlib:Path' is not a flat shape"):
        shapes()["path"]


def test_an_entry_is_added_for_a_process_but_never_in_place_of_another() -> None:
    table = shapes()
    assert table.add("square", Square) is Square and table.add("hexagon", Triangle) is Triangle
    assert table["hexagon"] is Triangle and table.names[-1] == "hexagon"
    assert table.origin("hexagon") == "added by this process"
    for name in ("square", "hexagon"):
        with pytest.raises(KindError, match=f"the flat shape '{name}' exists"):
            table.add(name, type("Other", (Shape,), {}))
    with pytest.raises(KindError, match="is not a flat shape"):
        table.add("word", str)  # type: ignore[arg-type]


def test_a_module_s_entry_is_added_under_its_own_name(tmp_path: Path, installed: None) -> None:
    (tmp_path / "named_shape_for_test.py").write_text(
        "from test_kinds import Shape\nclass Star(Shape):\n    name = 'star'\n"
    )
    table = shapes()
    found = table.find("named_shape_for_test:Star", folder=tmp_path)
    assert table["star"] is found and "star" in table
