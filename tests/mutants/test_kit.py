"""The kit of seeded faults is true to the code as it is; two faults show that it tells killed from survived."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from .kit import ROOT, Mutant, StaleMutantError, copy_project, mutants, run

SURVIVORS = (
    "noise from the public job id",
    "order of a shuffle from the public job id",
    "secure bits from the time",
    "the others total has noise for a sensitivity of 1",
    "discovered keys have noise of twice the ε",
    "only the first 65,536 units pay",
    "a sibling origin of another caller is taken",
    "PAA fleet: a window that is a minute short",
    "ARA: a debug report does not reduce its source's budget",
    "ARA: a named budget escapes Λ₁",
    "a staging folder that its group can read is taken",
    "a pickled copy of secure bits has a fixed seed",
)
"""Faults that no test was about when they were first tried."""


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_code_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.mutated(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.why.endswith(".")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name or 'test_'}", text, re.MULTILINE), test


def test_there_are_many_and_those_that_once_survived_are_among_them() -> None:
    names = {mutant.name for mutant in mutants()}
    assert len(names) >= 300
    assert set(SURVIVORS) <= names


def test_a_stale_mutant_is_an_error_with_its_name() -> None:
    gone = replace(mutants()[0], name="gone", old="text that no file has")
    with pytest.raises(StaleMutantError, match="gone is stale"):
        gone.mutated(ROOT)


def test_a_fault_is_killed_and_a_change_that_is_none_survives(tmp_path: Path) -> None:
    pristine = copy_project(tmp_path / "pristine")
    fault = next(mutant for mutant in mutants() if mutant.name == "the zCDP price of ε is rounded down")
    harmless = replace(fault, name="harmless", new=f"{fault.old}  # the same")
    assert run(fault, pristine, tmp_path / "first").killed
    assert run(harmless, pristine, tmp_path / "second").word == "SURVIVED"
    slow = run(fault, pristine, tmp_path / "third", limit_s=0.01)
    assert (slow.word, slow.killed) == ("TIMED OUT", False)
