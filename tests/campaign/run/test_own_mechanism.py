"""A mechanism of one's own in a campaign: named in the file, charged, logged, audited, and in the intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggservice.campaign import CampaignFileError, parse_campaign, run_campaign
from aggservice.files.below import Below
from budget import MECHANISMS, Sensitivity, SqliteStore, verify_store

_MODULE = '''
from dataclasses import dataclass
from budget import LaplaceNoise, Sensitivity

@dataclass(frozen=True, slots=True, kw_only=True)
class Wide(LaplaceNoise):
    """Laplace noise of three times the scale that its price needs."""

    name = "wide_for_test"

    def noise(self, bounds):
        return LaplaceNoise.noise(self, Sensitivity(l1=3 * bounds.l1, l0=bounds.l0))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module, which the process forgets afterwards."""
    (tmp_path / "own_mechanism_for_test.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.setattr(MECHANISMS, "_added", dict(MECHANISMS._added))
    return tmp_path


_TEXT = """
name = "own"
[population]
size = 60
days = 3
conversion_rate = 0.9
[[keys.fields]]
name = "campaign"
values = ["a", "b"]
[[queries]]
name = "sums"
epsilon = "8"
mechanism = "MECHANISM"
MORE
"""


def asked(mechanism: str, more: str = "") -> str:
    return _TEXT.replace("MECHANISM", mechanism).replace("MORE", more)


@pytest.mark.parametrize("unsealed", [False, True])
def test_a_campaign_runs_with_a_mechanism_beside_its_file(folder: Path, unsealed: bool) -> None:
    campaign = parse_campaign(asked("own_mechanism_for_test:Wide"), folder=folder)
    result = run_campaign(campaign, folder / "out", seed="own", workers=1, draw=False, unsealed=unsealed)
    (found,) = result.assessments
    wide = MECHANISMS["wide_for_test"].parse(epsilon="8")
    stated = result.answers[0].statement
    assert stated is not None and stated.mechanism == "wide_for_test" and stated.epsilon == "8"
    assert "wide for test" in stated.text
    noise = wide.noise(Sensitivity(l1=65_536, l0=65_536))
    assert stated.interval_half_width == noise.half_width() > 20_000
    assert found.figures[0].half_width == pytest.approx(noise.half_width() / float(campaign.measures[0].scale))
    store = SqliteStore(folder / "out" / "ledger" / "ledger.sqlite")
    assert verify_store(store).ok
    store.close()


def test_a_text_of_somebody_else_names_no_module(folder: Path) -> None:
    with pytest.raises(CampaignFileError, match="mechanism"):
        parse_campaign(asked("own_mechanism_for_test:Wide"), folder=folder, files=Below(folder=folder))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("discrete_laplce", "did you mean 'discrete_laplace'|Did you mean 'discrete_laplace'"),
        ("discrete_gaussian", "only parameter is epsilon"),
        ("local_response", "these jobs have Laplace noise"),
    ],
)
def test_a_mechanism_that_a_query_cannot_have_is_refused(folder: Path, name: str, why: str) -> None:
    with pytest.raises(CampaignFileError, match=why):
        parse_campaign(asked(name), folder=folder)


def test_discovery_needs_a_rule_that_fits(folder: Path) -> None:
    with pytest.raises(CampaignFileError, match="key discovery uses truncated Laplace noise"):
        parse_campaign(asked("own_mechanism_for_test:Wide", "discovery = true"), folder=folder)
