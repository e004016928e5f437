"""``optimise --batch-hours`` and ``--merge``: the finest question that is good enough, beside exhaustive search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.campaign import Campaign, CampaignError, load_campaign, parse_campaign
from aggservice.campaign.optimise.choices import Choice, Groups, jobs_per_batch, with_batch_hours
from aggservice.campaign.optimise.errors import expected, target_of, total_of
from aggservice.campaign.optimise.output import write_proposal
from aggservice.campaign.optimise.proposal import Proposal, optimise
from aggservice.campaign.optimise.question import fields_to_merge, least_merged, smallest_merged, value_sizes
from aggservice.campaign.optimise.search import Search
from aggservice.campaign.stages import RunChain
from aggservice.commands import app
from small_examples import smaller

TEXT = """name = "questions"
[population]
size = 1500
days = 4
conversion_rate = 0.5
delay_days = { name = "exponential", mean = 0.5 }
[[keys.fields]]
name = "ad"
count = 6
zipf = 1.5
[[keys.fields]]
name = "product"
from = "conversion"
count = 3
[[measures]]
name = "orders"
of = "count"
scale = 8192
[[queries]]
name = "daily"
over = "each"
epsilon = "2"
by = ["ad"]
[collection]
batch_hours = 24
"""
TENTH = Fraction("0.1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "campaign.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def written(found: Proposal, file: Path) -> Campaign:
    """Return the campaign file with the proposal; the error to expect of what it says is what the proposal says."""
    write_proposal(found, file, out := file.with_name("better.toml"))
    made = load_campaign(out)
    chains = [RunChain.seeded(f"optimise judge {number}") for number in range(12)]
    again = total_of((expected(made, chain, found.target) for chain in chains), 12)
    assert found.target.error_of(again) == pytest.approx(found.proposed.expected, rel=1e-9)
    assert again.slices == found.proposed.slices
    return made


def test_the_shortest_batches_that_are_good_enough(file: Path) -> None:
    """Each length's best share is known from a run without a choice; the rule takes the shortest that reaches."""
    campaign = load_campaign(file)
    found = optimise(campaign, within=TENTH, hours=[12, 48, 96], reach=0.7, repetitions=0)
    lengths = [one.choice.batch_hours for one in found.frontier]
    shares = [1 - one.chosen_on for one in found.frontier]
    assert lengths == [12, 24, 48, 96] and shares == sorted(shares) and shares[0] < 0.7 <= shares[-1]
    reaching = min(hours for hours, share in zip(lengths, shares, strict=True) if share >= 0.7)
    assert found.proposed.choice.batch_hours == reaching
    assert [one.slices for one in found.frontier] == [6 * 96 / hours for hours in lengths]
    made = written(found, file)
    assert made.collection.batch_hours == reaching
    alone = optimise(
        replace(campaign, collection=replace(campaign.collection, batch_hours=48)), within=TENTH, repetitions=0
    )
    assert alone.proposed.chosen_on == pytest.approx(found.frontier[2].chosen_on, abs=0.01)
    # Nothing is good enough: the largest share.
    most = optimise(campaign, within=TENTH, hours=[12, 48], reach=0.999, repetitions=0)
    assert most.proposed.choice.batch_hours == 48 and most.limit is not None
    assert most.proposed.chosen_on == min(one.chosen_on for one in most.frontier) > most.limit


def test_an_error_can_be_reached_as_well(file: Path) -> None:
    campaign = load_campaign(file)
    found = optimise(campaign, hours=[48, 96], reach=0.12, repetitions=0)
    errors = {one.choice.batch_hours: one.chosen_on for one in found.frontier}
    assert errors[24] > errors[48] > errors[96]
    assert found.proposed.choice.batch_hours == min((one for one in errors if errors[one] <= 0.12), default=96)


def test_rolling_windows_keep_their_hours_and_reports_their_epsilon() -> None:
    campaign = smaller("rolling_window", 100)
    choice = with_batch_hours(campaign, Choice.of(campaign), 12)
    made = choice.apply(campaign)
    assert made.queries[0].window == 14 and made.collection.batch_hours == 12 and made.batches == 42
    spent = [[jobs_per_batch(query) * Fraction(query.epsilon) for query in one.queries] for one in (made, campaign)]
    assert spent[0] == spent[1]
    assert with_batch_hours(campaign, choice, 24) == Choice.of(campaign)
    with pytest.raises(CampaignError, match="168 hours, which batches of 36 hours do not divide"):
        with_batch_hours(campaign, choice, 36)


def partitions(codes: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Yield every partition of codes into groups."""
    if not codes:
        yield []
        return
    first, *others = codes
    for groups in partitions(others):
        yield [(first,), *groups]
        for place, group in enumerate(groups):
            yield [*groups[:place], (first, *group), *groups[place + 1 :]]


@pytest.mark.parametrize("reach", [0.4, 0.55, 0.7, 0.85])
def test_merging_the_smallest_beside_every_partition(file: Path, reach: float) -> None:
    """All 203 partitions of six values at the same scale: the greedy order keeps at most one value fewer."""
    campaign, chain = load_campaign(file), RunChain.seeded("merge")
    search = Search(campaign, [chain], target_of(campaign, campaign, TENTH))
    choice = Choice.of(campaign)
    sizes = {"ad": value_sizes(campaign, [chain], "ad")}
    left = least_merged(search, choice, sizes, 1 - reach)["ad"]

    def share(groups: list[tuple[int, ...]]) -> float:
        merged: Groups = tuple(one for one in groups if len(one) > 1)
        return 1 - search.error(replace(choice, merges=(merged, ())))

    every = list(partitions(list(range(6))))
    assert len(every) == 203
    most = max((len(groups) for groups in every if share(groups) >= reach), default=1)
    assert most - 1 <= left <= most and share([(code,) for code in range(6)]) < reach
    chosen = smallest_merged(sizes["ad"], left)
    assert 1 - search.error(replace(choice, merges=(chosen, ()))) >= reach or most == 1


def test_the_two_smallest_are_merged_first() -> None:
    sizes = np.array([8.0, 3.0, 1.0, 2.0, 5.0])
    assert [smallest_merged(sizes, left) for left in (5, 4, 3, 2, 1)] == [
        (),
        ((2, 3),),
        ((1, 2, 3),),  # 1 + 2 = 3, and the other 3
        ((1, 2, 3, 4),),
        ((0, 1, 2, 3, 4),),
    ]
    assert [len(codes) for codes in smallest_merged(np.zeros(50_000), 2)] == [49_999]  # in less than a second


def test_values_are_merged_and_written(file: Path) -> None:
    campaign = load_campaign(file)
    found = optimise(campaign, within=TENTH, merge=["ad"], reach=0.75, repetitions=0)
    groups, product = found.proposed.choice.merges
    assert groups and not product and found.proposed.slices < found.as_is.slices == 6 * 4
    assert found.limit is not None and found.proposed.chosen_on <= found.limit < found.as_is.chosen_on
    made = written(found, file)
    merged = made.keys.field("ad")
    assert len(merged.values) == found.proposed.slices / 4 and merged.occurring == campaign.keys.field("ad").values
    assert found.without["merged values"] > found.proposed.expected
    # What has groups can be merged again: the groups of the new file name the values that occur.
    again = optimise(made, within=TENTH, merge=["ad"], reach=0.97, repetitions=0)
    assert len(written(again, file.with_name("better.toml")).keys.field("ad").values) < len(merged.values)


def test_a_field_that_no_query_shows_is_merged_whole(file: Path) -> None:
    """The same slices with a third of the draws of noise; the slices stay as they are, because 30 % is reached."""
    campaign = load_campaign(file)
    found = optimise(campaign, within=TENTH, merge=["auto"], reach=0.3, repetitions=0)
    assert found.proposed.choice.merges == ((), ((0, 1, 2),)) and found.proposed.slices == found.as_is.slices
    assert found.without["merged values"] > found.proposed.expected + 0.02
    assert written(found, file).keys.field("product").values == ("all",)


def test_what_cannot_be_merged_or_reached(file: Path) -> None:
    campaign = load_campaign(file)
    filtered = parse_campaign(TEXT + '[filters]\nfield = "product"\naccepts = ["product 0"]\n', folder=file.parent)
    assert fields_to_merge(filtered, ["auto"]) == ("ad",)
    for names, problem in (["color"], "no key field 'color'"), (["product"], "the filters name its values"):
        with pytest.raises(CampaignError, match=problem):
            fields_to_merge(filtered, names)

    with pytest.raises(CampaignError, match="discovers its keys"):
        fields_to_merge(smaller("key_discovery", 10), ["auto"])

    def refused(problem: str, **asked: object) -> None:
        with pytest.raises(CampaignError, match=problem):
            optimise(campaign, repetitions=0, **asked)  # type: ignore[arg-type]

    refused("which error is good enough: give --reach", hours=[48])
    refused("give --batch-hours or --merge", within=TENTH, reach=0.9)
    refused("above 0 and below 1", within=TENTH, merge=["ad"], reach=1.5)
    refused("give an error above 0", merge=["ad"], reach=0.0)
    refused("choose 1 to 96", within=TENTH, hours=[97])


def test_the_command_shows_the_frontier_and_writes_the_file(file: Path, tmp_path: Path) -> None:
    out, asked = tmp_path / "out.toml", ["optimise", str(file), "--target", "within=10%", "--repetitions", "2"]
    asked += ["--batch-hours", "48,96", "--merge", "auto", "--reach", "0.9", "--out", str(out)]
    shown = CliRunner().invoke(app, [*asked, "--report", str(tmp_path / "page")])
    assert shown.exit_code == 0, shown.output
    for words in ("Lengths of batches", "share within 10 %", "keys.product", "1 of 3 values", "percentage points"):
        assert words in shown.output
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "share within 10 %" in page and "merged values" in page
    plain = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert plain["target"] == "share within 10 % over all slices" and plain["reach"] == pytest.approx(0.9)
    assert len(plain["frontier"]) == 3 and plain["upper_bound"] >= plain["proposed"]["expected"] - 1e-12
    made = load_campaign(out)
    assert str(made.collection.batch_hours) == plain["proposed"]["values"]["collection.batch_hours"]
    for bad, problem in (("within=10", "--target is"), ("within=0%", "--target is"), ("share=5%", "--target is")):
        shown = CliRunner().invoke(app, ["optimise", str(file), "--target", bad])
        assert shown.exit_code != 0 and problem in shown.output
    shown = CliRunner().invoke(app, ["optimise", str(file), "--batch-hours", "6h"])
    assert shown.exit_code != 0 and "--batch-hours is" in shown.output


def test_no_choice_takes_more_than_the_files_total_epsilon() -> None:
    """An ε is at least 0.001, so that a query which gives nearly all of its ε away could get some for free."""
    campaign = smaller("late_reports", 10)
    now = Choice.of(campaign)
    assert now.fits(campaign)
    first = Fraction(now.epsilons[0])
    for change, fits in ((Fraction(1, 1000), False), (Fraction(-1, 1000), True)):
        more = (f"{float(first + change):.3f}", *now.epsilons[1:])
        assert replace(now, epsilons=more).fits(campaign) is fits
