"""Settings that are declared once: what is read, what is refused and where, and what the docs say."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest

from aggservice.files.below import Below
from aggservice.files.settings import (
    Known,
    amount,
    choice,
    choices,
    day,
    exact,
    flag,
    kind,
    number,
    path,
    read_settings,
    setting,
    table,
    tables,
    text,
    texts,
    whole,
)
from aggservice.files.toml import FileError, Section, read_toml
from aggservice.kinds import Kinds
from settings_table import settings_table


class Shape:
    sides = 0


class Square(Shape):
    sides = 4


SHAPES: Kinds[type[Shape]] = Kinds("shape", base=Shape, builtin={"square": Square})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    lowest: int = whole("the lowest", default=1, least=0, most=9)
    highest: int = whole(
        "the highest", default=lambda known: known.lowest + 1, least=lambda known: known.lowest, most=9
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    title: str = text("a title", example="mine")
    size: int = whole("how many", least=1, most=100)
    rate: float = number("how often", default=0.5, least=0, most=1)
    share: Fraction = exact("which part", default=Fraction(1, 2), above=0, most=1)
    cost: str = amount("what it costs", default="1")
    mode: str = choice("how", ("slow", "fast"), default="slow")
    loud: bool = flag("whether it speaks")
    places: tuple[str, ...] = texts("where", default=())
    colours: tuple[str, ...] = choices("which", ("red", "blue"), default=("red",))
    start_ms: int = day("when", key="start", default=0, shown="1970-01-01")
    file: Path | None = path("a file")
    shape: type[Shape] = kind("what it looks like", SHAPES, default="square")
    detail: str = text("only if fast", default="none", when=lambda known: known.mode == "fast")
    inner: Inner = table("inside", Inner)
    parts: tuple[Inner, ...] = tables("several", Inner)
    wanted: int = setting(
        "twice its number", read=lambda s, key, _: 2 * s.whole(key, None, least=0, most=9), allowed="0 to 9", default=0
    )
    given: str

    def check(self, section: Section, known: Known) -> None:
        if self.loud and self.mode == "slow":
            section.refuse("loud", "is true", f"Write it only if fast; it is {known.hint}")


def read(content: str, files: Below | None = None, folder: Path = Path()) -> Outer:
    top = read_toml(content, file="f.toml", error=FileError, files=files, folder=folder)
    return read_settings(top, Outer, Known(hint="slow"), given="by the caller")


LEAST = 'title = "a"\nsize = 3\n'


def test_defaults_and_what_the_caller_gives() -> None:
    found = read(LEAST)
    assert (found.title, found.size, found.rate, found.share, found.cost) == ("a", 3, 0.5, Fraction(1, 2), "1")
    assert found.shape is Square and found.file is None and found.given == "by the caller" and found.wanted == 0
    assert found.inner == Inner(lowest=1, highest=2) and found.parts == () and found.colours == ("red",)


def test_values_nested_tables_and_settings_that_depend_on_others() -> None:
    content = LEAST + 'mode = "fast"\ndetail = "x"\nstart = 1970-01-02\nwanted = 4\nfile = "b"\nshare = "0.25"\n'
    found = read(content + "[inner]\nlowest = 5\n[[parts]]\nlowest = 2\nhighest = 2\n[[parts]]\n", folder=Path("/a"))
    assert found.detail == "x" and found.start_ms == 86_400_000 and found.wanted == 8 and found.file == Path("/a/b")
    assert found.inner == Inner(lowest=5, highest=6) and found.share == Fraction(1, 4)
    assert found.parts == (Inner(lowest=2, highest=2), Inner(lowest=1, highest=2))


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("size = 3\n", 0, 'title is missing. Write title = "mine"'),
        ('title = "a"\n', 0, "size is missing. Write size = 1"),
        ('title = "a"\nsiz = 3\n', 2, "siz is not a field. Did you mean 'size'?"),
        ('title = "a"\nsize = 101\n', 2, "size is 101. Write a whole number from 1 to 100"),
        (LEAST + "rte = 1\n", 3, "rte is not a field. Did you mean 'rate'?"),
        (LEAST + "cost = 0.5\n", 3, 'cost is the float 0.5. Write decimal text, cost = "0.5", which is exact'),
        (LEAST + 'mode = "quick"\n', 3, "mode is 'quick'. Write one of 'slow', 'fast'"),
        (LEAST + 'detail = "x"\n', 3, "detail is not a field"),
        (LEAST + "loud = true\n", 3, "loud is true. Write it only if fast; it is slow"),
        (LEAST + "[inner]\nlowest = 5\nhighest = 4\n", 5, "inner.highest is 4. Write a whole number from 5 to 9"),
        (LEAST + "[[parts]]\n[[parts]]\nlowst = 5\n", 5, "parts[1].lowst is not a field. Did you mean 'lowest'?"),
        (LEAST + 'shape = "sqare"\n', 3, "shape is 'sqare'. There is no shape 'sqare': did you mean 'square'?"),
    ],
)
def test_a_refusal_names_the_line_and_what_to_write(content: str, line: int, words: str) -> None:
    with pytest.raises(FileError) as refused:
        read(content)
    assert refused.value.line == line and words in str(refused.value)


def test_a_key_that_exists_is_not_taken_for_a_misspelling_of_a_missing_one() -> None:
    """``size`` is missing and ``file`` is there; only a name that nobody declares can be misspelt."""
    with pytest.raises(FileError, match="size is missing"):
        read('title = "a"\nfile = "x"\nwanted = 3\n')


def test_a_kind_may_be_named_by_its_module_unless_somebody_else_gave_the_text(tmp_path: Path) -> None:
    (tmp_path / "own_shape_of_settings.py").write_text(
        "from aggservice.kinds import Kinds\nimport test_settings\nclass Odd(test_settings.Shape):\n    sides = 5\n"
    )
    import sys

    sys.modules["test_settings"] = sys.modules[__name__]
    content = LEAST + 'shape = "own_shape_of_settings:Odd"\n'
    assert read(content, folder=tmp_path).shape.sides == 5
    with pytest.raises(FileError, match="There is no shape 'own_shape_of_settings:Odd'"):
        read(content, files=Below(folder=tmp_path), folder=tmp_path)


def test_the_table_of_the_docs_has_a_row_per_setting() -> None:
    lines = settings_table([("", "", Outer), ("[inner]", "inside", Inner)]).splitlines()
    assert lines[2] == "| `title` | – | text | a title |"
    assert "| `start` | 1970-01-01 | date | when |" in lines
    assert "| `colours` | red | list of `red`, `blue` | which |" in lines
    assert "| `share` | 0.5 | above 0 to 1 | which part |" in lines
    assert '| `cost` | "1" | decimal text | what it costs |' in lines
    assert "| `shape` | `square` | a shape | what it looks like |" in lines
    assert "| **`[inner]`** | | | inside |" in lines and lines[-1] == "| `highest` | – | up to 9 | the highest |"
    assert len(lines) == 2 + 16 + 1 + 2
