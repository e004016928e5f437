"""``optimise``: less error than Noise Lab's rule on people who did not choose; expected errors hold; a true bound."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.campaign import Campaign, CampaignError, load_campaign, parse_campaign
from aggservice.campaign.optimise.bound import lower_bound, noise_lab
from aggservice.campaign.optimise.choices import Choice, jobs_per_batch, split_epsilon
from aggservice.campaign.optimise.errors import expected, target_of
from aggservice.campaign.optimise.output import write_proposal
from aggservice.campaign.optimise.proposal import Proposal, halves, optimise
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_events
from aggservice.commands import app
from small_examples import EXAMPLES, NAMES, smaller
from unseen_populations import TEXTS, unseen


def line_of(name: str, found: Proposal) -> str:
    """Return the figures of a proposal as a line of docs/soak/optimise.txt."""
    figures = " ".join(
        f"{title} {one.judged:.4f} (expected {one.expected:.4f})"
        for title, one in (("proposed", found.proposed), ("Noise Lab", found.noise_lab), ("as it is", found.as_is))
        if one.judged is not None
    )
    bound = "no bound" if found.bound is None else f"bound {found.bound:.4f}, gap {found.gap:.0%}"
    return f"{name:20} {figures}; gain over Noise Lab {found.gain_over(found.noise_lab):6.1%}; {bound}"


def check(found: Proposal, tolerance: float) -> None:
    """Assert what every proposal must show."""
    for one in (found.proposed, found.noise_lab, found.as_is):
        assert one.judged is not None and abs(one.expected / one.judged - 1) <= tolerance
        assert found.bound is None or found.bound <= one.expected
    assert found.proposed.chosen_on <= found.noise_lab.chosen_on
    assert found.proposed.judged is not None and found.noise_lab.judged is not None
    assert found.proposed.judged <= found.noise_lab.judged * (1 + 1e-9)


def test_unlike_measures() -> None:
    """Expected and shown errors agree within 40 % over 30 releases: squares of Laplace noise have a relative standard
    deviation of √5 each, so over 30 × 144 of them with unequal weights that of the root is below 4 %.
    """
    found = optimise(unseen("unlike measures", 3000), repetitions=30)
    check(found, 0.4)
    assert found.gain_over(found.noise_lab) > 0.25 and found.gap is not None and found.gap > 0


def test_rolling_windows_are_added_up_from_batches() -> None:
    """A job per batch at seven times the ε, and the same total ε per report. 15 releases of 48 slices: the root of the
    mean of 720 squares of Laplace noise has a relative deviation of 4.2 %.
    """
    campaign = smaller("rolling_window", 800)
    found = optimise(campaign, repetitions=15)
    check(found, 0.4)
    choice = found.proposed.choice
    assert choice.job_per == ("batch", "window", "window") and float(choice.epsilons[0]) > 5 * 8
    spent = [jobs_per_batch(query) * Fraction(query.epsilon) for query in choice.apply(campaign).queries[:2]]
    assert sum(spent) <= 64 and found.gain_over(found.noise_lab) > 0.4


def test_measures_trade_their_parts_of_the_budget() -> None:
    """Zero slices of two measures: one coordinate at a time stops at Noise Lab's even split of Λ₁."""
    found = optimise(smaller("thanksgiving", 3000), repetitions=0)
    count, value = (a * b for a, b in zip(found.proposed.choice.scales, found.proposed.choice.most, strict=True))
    assert count > 1.2 * value and count + value <= 65536 * 1.1
    assert found.gain_over(found.noise_lab) > 0.25


def test_values_above_the_budget_get_a_scale_below_one(tmp_path: Path) -> None:
    """Cents of which most are above Λ₁: with whole scales, half of the money would be clipped away."""
    text = TEXTS["unlike measures"].format(name="cents", size=1500).replace("median = 4000", "median = 400_000")
    file = tmp_path / "campaign.toml"
    file.write_text(text, encoding="utf-8")
    found = optimise(load_campaign(file), repetitions=0)
    assert found.proposed.expected < 0.2 and found.gain_over(found.noise_lab) > 0.25
    write_proposal(found, file, tmp_path / "better.toml")
    made = load_campaign(tmp_path / "better.toml")
    assert tuple(one.scale for one in made.measures) == found.proposed.choice.scales and made.measures[1].scale < 1


def test_the_bound_knows_what_was_lost() -> None:
    """In a month with late reports most of the error is what came too late, which no choice brings back."""
    campaign, chain = smaller("late_reports", 8000), RunChain.seeded("late")
    target = target_of(campaign, noise_lab(campaign, chain).apply(campaign), None)
    bound = lower_bound(campaign, [chain], target, campaign.queries)
    assert bound is not None and bound <= expected(campaign, chain, target).rmsre <= 1.5 * bound


def test_a_campaign_file_is_written(tmp_path: Path) -> None:
    out = tmp_path / "better.toml"
    file = EXAMPLES / "thanksgiving" / "campaign.toml"
    small = tmp_path / "campaign.toml"
    small.write_text(file.read_text(encoding="utf-8").replace("size = 20_000", "size = 1500"), encoding="utf-8")
    asked = ["optimise", str(small), "--out", str(out), "--repetitions", "0", "--report", str(tmp_path), "--json"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    plain = json.loads(shown.stdout)
    made = load_campaign(out)
    assert [one.scale for one in made.measures] == [
        Fraction(plain["proposed"]["values"][f"measures.{one.name}.scale"]) for one in made.measures
    ]
    assert plain["gain_over_noise_lab"] > 0.1 and plain["lower_bound"] < plain["proposed"]["expected"]
    # Both measures are far from their best in the file: without either knob most of the gain is lost.
    assert set(plain["expected_without"]) == {f"scale and clipping of {name}" for name in ("purchases", "dollars")}
    assert min(plain["expected_without"].values()) > 1.3 * plain["proposed"]["expected"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "what each knob is worth" in page and (tmp_path / "knobs.png").is_file()
    assert "# an order counts for 400 at most" in out.read_text(encoding="utf-8")
    words = CliRunner().invoke(app, ["optimise", str(small), "--repetitions", "2"])
    assert words.exit_code == 0 and "Noise Lab's rule" in words.output and "a gap of" in words.output


def test_event_level_has_nothing_to_choose() -> None:
    with pytest.raises(CampaignError, match="no budget to divide"):
        optimise(smaller("event_level", 100))


def test_the_split_of_epsilon_is_the_best() -> None:
    campaign = smaller("rolling_window", 100)
    noise = {"last seven days": 3.0, "whole period": 0.2}
    chosen = split_epsilon(campaign, noise)
    assert chosen[2] == "1"  # a query that is refused keeps its ε

    def total(epsilons: tuple[str, ...]) -> float:
        return sum(
            noise.get(query.name, 0.0) * float(Fraction(query.epsilon) / Fraction(epsilon)) ** 2
            for query, epsilon in zip(campaign.queries, epsilons, strict=True)
        )

    spent = sum(
        jobs_per_batch(query) * Fraction(epsilon) for query, epsilon in zip(campaign.queries[:2], chosen, strict=False)
    )
    assert Fraction("63.9") < spent <= 64
    best = min(total((f"{first:.3f}", f"{64 - 7 * first:.3f}", "1")) for first in np.linspace(0.1, 9.1, 2000))
    assert total(chosen) <= best * 1.001


LOG = """
name = "log"
[population.log]
sources = "sources.csv"
triggers = "triggers.csv"
[[keys.fields]]
name = "ad"
[[measures]]
name = "money"
of = "value"
scale = 100
most = 500
[[queries]]
epsilon = "4"
"""


@pytest.fixture
def log(tmp_path: Path) -> Campaign:
    draws = np.random.default_rng(3)
    sources, triggers = ["time,device,ad"], ["time,device,value"]
    for device in range(600):
        sources.append(f"{1_700_000_000 + device},d{device},ad {device % 3}")
        triggers.append(f"{1_700_010_000 + device},d{device},{int(draws.lognormal(3, 1)) + 1}")
    (tmp_path / "sources.csv").write_text("\n".join(sources) + "\n")
    (tmp_path / "triggers.csv").write_text("\n".join(triggers) + "\n")
    return parse_campaign(LOG, folder=tmp_path)


def test_the_halves_of_a_log_share_no_device(log: Campaign) -> None:
    chain = RunChain.seeded("halves")
    whole, *both = (simulate_events(one, chain) for one in (log, *halves(log)))
    devices = [set(one.impressions.device.tolist()) | set(one.conversions.device.tolist()) for one in (whole, *both)]
    assert devices[1] | devices[2] == devices[0] and not devices[1] & devices[2]
    assert min(map(len, devices)) > 200
    found = optimise(log, repetitions=0)
    assert found.proposed.chosen_on <= found.noise_lab.chosen_on


def test_the_bound_is_below_every_choice(log: Campaign) -> None:
    chain = RunChain.seeded("bound")
    target = target_of(log, noise_lab(log, chain).apply(log), None)
    bound = lower_bound(log, [chain], target, log.queries)
    assert bound is not None
    errors = []
    for most in (5, 20, 60, 200, 500):
        for share in (0.1, 0.5, 1.0):
            choice = replace(Choice.of(log), most=(most,), scales=(Fraction(int(share * 65536), most),))
            assert choice.fits(log)
            errors.append(expected(choice.apply(log), chain, target).rmsre)
    assert bound <= min(errors) <= 1.3 * bound  # one conversion per source: the bound is nearly reached


@pytest.mark.soak
def test_eleven_campaigns_at_full_size() -> None:
    """The examples and three other populations, judged by 200 releases each; docs/soak/optimise.txt keeps the output.

    Event-level examples have nothing to choose and count as no gain. The error over 200 releases is the root of a mean
    of at least 200 × 9 squares of Laplace noise with a relative deviation of √5 or less: 2.7 % (one standard deviation)
    in the worst case, half of that after the root; 5 % is 3.7 of them. Judged once, from seeds.
    """
    gains = []
    for name in (*NAMES, *TEXTS):
        if name == "paper_figure_2":  # one phone: no population to choose for
            continue
        campaign = unseen(name, 20_000) if name in TEXTS else load_campaign(EXAMPLES / name / "campaign.toml")
        if campaign.client.kind == "event-level":
            gains.append(0.0)
            continue
        found = optimise(campaign, repetitions=200)
        print(line_of(name, found), flush=True)
        check(found, 0.05)
        gains.append(found.gain_over(found.noise_lab))
    print(f"median gain over Noise Lab's rule: {median(gains):.1%}")
    assert median(gains) >= 0.25 and min(gains) >= -1e-9
