"""Scenarios: every step kind against a real service, expectations that fail, and files that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggservice.campaign import CampaignFileError, RequeryResult, RunError, load_scenario, run_scenario
from aggservice.campaign.assess.losses import QueryPrice
from aggservice.campaign.requery.file import STEPS, parse_scenario
from aggservice.commands import app
from aggservice.mechanisms import SecureBits, SystemClock

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "requerying"
FILES = sorted(EXAMPLES.glob("*.toml"))
BASE = """\
title = "Test"
[service]
epsilon = "10"
[keys]
shoes = 1
hats = 2
[[reports]]
name = "monday"
counts = { shoes = 30, hats = 3 }
value = 1000
"""


def run(text: str, folder: Path) -> RequeryResult:
    return run_scenario(parse_scenario(text), folder, bits=SecureBits(), clock=SystemClock())


def assert_passed(result: RequeryResult) -> None:
    """Raise ``RunError`` with every problem of a run that did not go as expected."""
    problems = [f"line {step.line}: {one}" for step in result.steps for one in step.problems] + list(result.problems)
    if problems:
        raise RunError("; ".join(problems))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_goes_as_it_expects(path: Path, tmp_path: Path) -> None:
    result = run_scenario(load_scenario(path), tmp_path, bits=SecureBits(), clock=SystemClock())
    assert_passed(result)
    assert result.comparisons and all(one.lost == one.charged for one in result.comparisons)
    if path.stem == "crash":
        assert result.steps[0].did.startswith("killed the service with half of the reports sent")
        assert result.steps[1].did.startswith("killed the service after it had answered")


def test_there_is_an_example_of_every_step() -> None:
    assert len(FILES) == len(STEPS) == 9
    used = {str(step["do"]) for path in FILES for step in _document(path)["steps"]}
    assert used == set(STEPS)


def _document(path: Path) -> dict[str, list[dict[str, object]]]:
    import tomllib

    return tomllib.loads(path.read_text())


def test_what_is_not_as_expected_is_said_with_its_line(tmp_path: Path) -> None:
    text = (
        BASE
        + """
[[steps]]
do = "query"
name = "first"
reports = ["monday"]
keys = ["shoes", "hats"]
epsilon = "4"
expect = "refused"
left = "5"
[[steps]]
do = "choose"
name = "best"
at = "first"
expect = ["hats", "shoes"]
[[steps]]
do = "look"
reports = ["monday"]
spent = "5"
[[steps]]
do = "look"
at = "first"
deviations = 0.000001
[[steps]]
do = "retry"
of = "first"
expect = "released"
[[steps]]
do = "at once"
released = 2
[[steps.queries]]
name = "a"
reports = ["monday"]
keys = ["shoes"]
epsilon = "5"
[[steps.queries]]
name = "b"
reports = ["monday"]
keys = ["shoes"]
epsilon = "5"
"""
    )
    result = run(text, tmp_path)
    assert [step.ok for step in result.steps] == [False] * 6 and not result.ok
    # The noise of 60,000/4 and more hides nothing here: the truth is not at fault, only the expectations.
    assert not result.problems
    with pytest.raises(RunError) as caught:
        assert_passed(result)
    for words in (
        "line 12: expected refused, was released",
        "line 12: expected ε = 5.0 to be left, it is 6.0",
        "line 20: expected hats, shoes, chose",
        "line 25: expected every report to have spent 5.0, they have spent 4.0",
        "standard deviations from the truth",
        "line 33: expected released, was repeated",
        "line 37: expected 2 of the queries to be released, 1 were",
    ):
        assert words in str(caught.value)


def test_discovery_and_sources_with_several_reports_lose_by_share(tmp_path: Path) -> None:
    text = (
        BASE.replace("value = 1000", "value = 10000\nper_source = 6")
        + """
[[steps]]
do = "query"
name = "found"
reports = ["monday"]
delta = "0.000001"
others_epsilon = "1"
epsilon = "9"
expect = "released"
left = "0"
"""
    )
    result = run(text, tmp_path)
    assert_passed(result)
    worst = max(result.comparisons, key=lambda one: one.lost.epsilon)
    assert worst.lost.epsilon * 65_536 == 10 * 60_000
    assert worst.lost.delta * 65_536 * 10**6 == 6


@pytest.mark.parametrize(("factor", "past"), [(2, True), (1.5, False), (1, False)])
def test_a_ledger_that_charged_too_little_fails_a_run(
    factor: float, past: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truth says that a query cost more than the service charged, within (ε*, δ*) or beyond it."""
    right = QueryPrice.of

    def of(*asked: Any) -> QueryPrice:
        price = right(*asked)
        return replace(price, epsilon_micro=int(price.epsilon_micro * factor))

    monkeypatch.setattr(QueryPrice, "of", of)
    text = BASE.replace("value = 1000", "value = 65536")
    text += '[[steps]]\ndo = "query"\nname = "one"\nreports = ["monday"]\nkeys = ["shoes"]\nepsilon = "6"\n'
    result = run(text, tmp_path)
    assert result.ok == (factor == 1)
    assert any("lost more than their reports paid" in one for one in result.problems) == (factor > 1)
    assert any("lost more than (ε*, δ*)" in one for one in result.problems) == past


def test_shared_ids_pay_together(tmp_path: Path) -> None:
    text = (
        BASE.replace('epsilon = "10"', 'epsilon = "10"\nunit = "shared-id"', 1)
        + """
[[steps]]
do = "query"
name = "first"
reports = ["monday"]
keys = ["shoes"]
epsilon = "10"
left = "0"
[[steps]]
do = "late reports"
name = "late"
counts = { shoes = 1 }
value = 1
[[steps]]
do = "query"
name = "second"
reports = ["late"]
keys = ["shoes"]
epsilon = "1"
expect = "PRIVACY_BUDGET_EXHAUSTED"
"""
    )
    assert_passed(run(text, tmp_path))


EVENTS = """
[[steps]]
do = "events"
name = "tuesday"
at = "first"
key = "shoes"
sources = "monday"
[[steps.cases]]
case = "more"
above = ABOVE
counts = { shoes = 60 }
value = 40000
[[steps.cases]]
case = "fewer"
counts = { hats = 10 }
value = 10000
[[steps]]
do = "query"
name = "second"
reports = ["monday", "tuesday"]
keys = ["shoes", "hats"]
epsilon = "4"
expect = "released"
[[steps]]
do = "look"
at = "second"
"""


@pytest.mark.parametrize(("above", "case"), [(-10_000_000, "more"), (10_000_000, "fewer")])
def test_events_depend_on_answers_and_losses_add_up_over_a_source(above: int, case: str, tmp_path: Path) -> None:
    """The noise has a standard deviation of 93,000, so the answer decides otherwise once in 10⁶⁰ runs.

    Each source of monday has 30,000 of its Λ₁ = 65,536: 40,000 do not fit any more and are null, 10,000 are sent.
    """
    ledger = '[[steps]]\ndo = "look"\nreports = ["tuesday"]\nspent = "4"\n'
    base = BASE.replace("value = 1000", "value = 30000") + QUERY
    result = run(base + EVENTS.replace("ABOVE", str(above)) + ledger, tmp_path)
    assert_passed(result)
    assert f": {case}; " in result.steps[1].did and "of the sources of 'monday' as 'tuesday'" in result.steps[1].did
    losses = sorted({one.lost.epsilon for one in result.comparisons})
    of_monday = Fraction(30_000 * 5, 65_536)
    if case == "more":
        assert losses == [of_monday]
    else:
        assert losses == [of_monday, of_monday + Fraction(10_000 * 4, 65_536)]
        assert sum(one.lost.epsilon == losses[1] for one in result.comparisons) == 10
    assert all(one.unit.startswith("monday, source ") for one in result.comparisons)


def test_events_are_sent_within_what_is_left_of_a_sources_sparsity(tmp_path: Path) -> None:
    """Each of three sources has one contribution of Λ₀ = 2 and converts twice more: one is sent, the other is null.

    So each loses 1000 · 1/Λ₁ by the first query, 2000 · 4/Λ₁ by the second, and all of its δ: exactly what is allowed.
    """
    base = BASE.replace("[keys]", "l0 = 2\n[keys]").replace("shoes = 30, hats = 3", "shoes = 2, hats = 1")
    events = EVENTS.replace("ABOVE", "-10_000_000").replace("shoes = 60", "shoes = 6").replace("= 40000", "= 1000")
    discovery = events.replace('epsilon = "4"', 'epsilon = "4"\ndelta = "0.00001"')
    result = run(base + QUERY + discovery, tmp_path)
    assert_passed(result)
    assert [(one.unit, one.lost.epsilon, one.lost.delta) for one in result.comparisons] == [
        (f"monday, source {at}", Fraction(1000 + 2000 * 4, 65_536), Fraction(1, 100_000)) for at in (1, 2, 3)
    ]


def test_events_without_an_answer_are_a_problem(tmp_path: Path) -> None:
    refused = BASE + QUERY.replace('"1"', '"11"') + EVENTS.replace("ABOVE", "5") + "deviations = 20\n"
    result = run(refused, tmp_path)
    assert result.steps[1].problems == ("'first' has no answer: it was refused",)
    assert "shoes in 'first' was not shown: fewer; 10 reports" in result.steps[1].did


LATE = '[[steps]]\ndo = "late reports"\nname = "monday"\ncounts = { shoes = 1 }\nvalue = 1\n'
QUERY = '\n[[steps]]\ndo = "query"\nname = "first"\nreports = ["monday"]\nkeys = ["shoes"]\nepsilon = "1"\n'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("title = =\n", 1, "is not TOML"),
        (BASE, 0, 'Write [[steps]] with do = "query"'),
        (BASE + '[[steps]]\ndo = "guess"\n', 12, "Write one of 'query'"),
        (BASE + QUERY.replace("monday", "friday"), 15, "Write some of 'monday'"),
        (BASE + QUERY.replace("shoes", "boots"), 16, "Write some of 'shoes', 'hats'"),
        (BASE + QUERY.replace('"1"', '"0"'), 17, "Write a decimal number above 0"),
        (BASE + QUERY.replace('"1"', "1.5"), 17, 'Write decimal text, epsilon = "1.5"'),
        (BASE + QUERY.replace('"1"', '"0.0000001"'), 17, "whole steps of its grid"),
        (BASE + QUERY.replace('"1"', '"65"'), 17, "whole steps of its grid"),
        (BASE + QUERY.replace('keys = ["shoes"]\n', ""), 12, "or a delta to discover"),
        (BASE + QUERY + 'expects = "released"\n', 18, "Did you mean 'expect'?"),
        (BASE + QUERY + 'expect = "fine"\n', 18, "Write one of 'released'"),
        (BASE + QUERY + 'by = "Ada Lovelace"\n', 18, 'such as "ada"'),
        (BASE + QUERY + QUERY, 21, "Give each query a name"),
        (BASE + QUERY + '[[steps]]\ndo = "retry"\nof = "second"\n', 20, "Queries so far: 'first'"),
        (BASE + QUERY + '[[steps]]\ndo = "look"\n', 18, 'Write at = "a query"'),
        (BASE + QUERY + '[[steps]]\ndo = "choose"\nname = "shoes"\nat = "first"\n', 20, "a name that no key has"),
        (BASE + QUERY + '[[steps]]\ndo = "choose"\nname = "x"\nat = "first"\ntake = "above"\n', 18, "Write above ="),
        (BASE + '[[steps]]\ndo = "crash"\nwhen = "working"\n', 13, "Write [steps.during]"),
        (BASE + '[[steps]]\ndo = "at once"\n', 11, "Write [[steps.queries]] twice"),
        (BASE + LATE, 13, "of its own"),
        (BASE + QUERY + EVENTS.replace("above = ABOVE\n", ""), 25, "a last one without above"),
        (BASE + QUERY + EVENTS.replace("ABOVE", "5").replace("case = ", "else = "), 25, "case"),
        (BASE + QUERY + EVENTS.replace("ABOVE", "5").replace('key = "shoes"', 'key = "socks"'), 23, "'shoes', 'hats'"),
        (
            BASE + QUERY + EVENTS.replace("ABOVE", "5").replace('sources = "monday"', 'sources = "sunday"'),
            24,
            "'monday'",
        ),
        (BASE + QUERY + EVENTS.replace("ABOVE", "5").replace('at = "first"', 'at = "zeroth"'), 22, "'first'"),
        (BASE.replace("value = 1000", "value = 100000"), 10, "Write a whole number from 1 to 65,536"),
        (BASE.replace("value = 1000", "value = 1000\nper_source = 66"), 11, "Write a value of at most 992"),
        (BASE.replace("[keys]", "l0 = 8\n[keys]").replace("= 1000", "= 9\nper_source = 9"), 12, "Write at most 8"),
        (BASE.replace("hats = 3", "boots = 3"), 9, "Write keys of [keys]: shoes, hats"),
        (BASE.replace("hats = 2", "hats = 1"), 4, "its own key"),
        (BASE.replace("[keys]", "[keyz]"), 4, "Did you mean 'keys'?"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_a_remedy(text: str, line: int, words: str) -> None:
    with pytest.raises(CampaignFileError) as caught:
        parse_scenario(text, file="bad.toml")
    assert words in str(caught.value)
    assert caught.value.line == line


def test_the_command_keeps_a_transcript_and_fails_when_the_scenario_does(tmp_path: Path) -> None:
    out = tmp_path / "out"
    good = CliRunner().invoke(app, ["requery", str(EXAMPLES / "retry.toml"), "--out", str(out), "--json"])
    assert good.exit_code == 0, good.output
    transcript = json.loads((out / "transcript.json").read_text())
    assert transcript == json.loads(good.stdout)
    outcomes = [one["outcome"] for one in transcript["rounds"]]
    assert outcomes == ["released", "repeated", "repeated", "repeated", "INVALID_JOB"]
    assert transcript["units_past_the_limit"] == transcript["units_undercharged"] == 0
    loss = transcript["losses"][0]
    assert loss["lost"] == loss["charged_by_share"] and loss["lost"]["epsilon_exact"] == "125/512"
    again = CliRunner().invoke(app, ["requery", str(EXAMPLES / "retry.toml"), "--out", str(out)])
    assert again.exit_code == 2 and "is not empty" in again.output
    failing = tmp_path / "failing.toml"
    failing.write_text(BASE + QUERY + 'expect = "refused"\n')
    bad = CliRunner().invoke(app, ["requery", str(failing)])
    assert bad.exit_code == 1 and "line 12: expected refused, was released" in bad.output
    assert CliRunner().invoke(app, ["requery", str(tmp_path / "none.toml")]).exit_code == 2
