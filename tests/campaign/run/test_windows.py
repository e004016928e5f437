"""Rolling windows with jobs of their own, and added up from one job per batch: the same question, another price."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from aggservice.campaign import CampaignFileError, RunResult, parse_campaign, run_campaign
from aggservice.campaign.service.jobs import jobs_of, windows_of

TEXT = """
name = "windows"
[population]
size = 600
days = 6
conversion_rate = 0.5
delay_days = {{ name = "exponential", mean = 0.5 }}
[[keys.fields]]
name = "ad"
values = ["red", "blue", "green"]
[[measures]]
name = "sales"
scale = 4096
[collection]
batch_hours = 24
[service]
epsilon = "{limit}"
[[queries]]
name = "three days"
over = "rolling"
window = 3
epsilon = "9"
job_per = "{job_per}"
repeat = {repeat}
"""


def run(tmp_path: Path, *, limit: str = "64", repeat: int = 1, unsealed: bool = True) -> RunResult:
    campaign = parse_campaign(TEXT.format(limit=limit, job_per="batch", repeat=repeat), folder=tmp_path)
    out = tmp_path / f"{limit}-{repeat}-{unsealed}"
    return run_campaign(campaign, out, seed="windows", workers=1, draw=False, unsealed=unsealed)


@pytest.mark.parametrize("repeat", [1, 2])
def test_a_window_is_the_sum_of_its_batches(tmp_path: Path, repeat: int) -> None:
    found = run(tmp_path, repeat=repeat)
    by_name = {answer.job.name: answer for answer in found.answers}
    assert len(found.answers) == 6 * repeat and len(found.assessments) == 4 * repeat
    for shown in found.assessments:
        again = "-again1" if shown.job.endswith("again1") else ""
        total = sum(by_name[f"three-days-batch-{batch:03d}{again}"].metrics for batch in shown.batches)
        assert sorted(row.estimate for row in shown.slices) == sorted((np.asarray(total) / 4096).tolist())
        assert all(row.covered for row in shown.slices) and "sum of 3 summaries" in shown.statement
        assert all(one.adds_up for one in shown.waterfalls)
    # Each report is in three windows and pays for one job.
    assert Fraction(found.assessments[-1].remaining["epsilon"]) == 64 - 9 * repeat


def test_intervals_have_the_width_of_three_draws(tmp_path: Path) -> None:
    """The noise of a sum of n has √n times the deviation of one: its interval is between √3 and 3 times as wide."""
    found = run(tmp_path)
    row = found.assessments[0].slices[0]
    statement = found.answers[0].statement
    assert statement is not None
    one = statement.interval_half_width / 4096
    assert 3**0.5 * 0.9 * one < (row.high - row.low) / 2 < 3 * one


def test_sealed_windows_are_the_same_to_the_byte(tmp_path: Path) -> None:
    sealed, plain = (run(tmp_path, unsealed=unsealed) for unsealed in (False, True))
    assert [one.to_plain() for one in sealed.assessments] == [one.to_plain() for one in plain.assessments]


def test_a_window_with_a_refused_batch_is_refused(tmp_path: Path) -> None:
    found = run(tmp_path, limit="9", repeat=2)
    assert [one.paid for one in found.answers].count(False) == 6
    assert sum(one.paid for one in found.assessments) == 4
    assert all("could not pay" in one.refusal for one in found.assessments if not one.paid)


def test_windows_of_their_own_are_jobs(tmp_path: Path) -> None:
    campaign = parse_campaign(TEXT.format(limit="64", job_per="window", repeat=1), folder=tmp_path)
    closes = tuple(range(campaign.batches))
    assert jobs_of(campaign, closes) == windows_of(campaign, closes)


@pytest.mark.parametrize("more", ["discovery = true", '[client]\napi = "w3c"'])
def test_what_cannot_be_added_up_is_refused(tmp_path: Path, more: str) -> None:
    text = TEXT.format(limit="64", job_per="batch", repeat=1) + more
    with pytest.raises(CampaignFileError, match=r"job_per is 'batch'.*Write \"window\""):
        parse_campaign(text, folder=tmp_path)
