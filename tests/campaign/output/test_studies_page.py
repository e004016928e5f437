"""What docs/studies.md and docs/hierarchies.md show is run; the table of stages is that of the code."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from aggservice.campaign.assess.job_truth import TRUTH
from aggservice.campaign.service.unsealed import SUMS
from aggservice.campaign.sweep.draws import RELEASE
from aggservice.campaign.world.truth import ATTRIBUTE, COLLECT, SIMULATE

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(("page", "least"), [("studies.md", 5), ("hierarchies.md", 4)])
def test_the_page_runs(page: str, least: int) -> None:
    failed, ran = doctest.testfile(str(DOCS / page), module_relative=False)
    assert ran >= least and failed == 0


def test_the_page_names_every_stage_and_what_it_reads() -> None:
    rows = [line for line in (DOCS / "studies.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for stage in (SIMULATE, ATTRIBUTE, COLLECT, SUMS, TRUTH, RELEASE):
        (row,) = [one for one in rows if one.startswith(f"| `{stage.name}`")]
        if stage in (SIMULATE, ATTRIBUTE, COLLECT):
            assert all(part.replace("_", " ") in row for part in stage.reads)
        assert all(f"`{before.name}`" in row for before in stage.after)
