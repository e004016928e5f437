"""The games against installed kinds find entries that break their promise.

Entries of a package that keep it are attacked in tests/test_extending.py. False alarms: below 1e-8 a run (three bounds
for correct entries at 1e-9 each; a fault of three times the charge or more goes unseen far less often).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from aggservice.audit.bounds import lower_bound
from aggservice.audit.games import installed
from aggservice.audit.games.game import Played
from aggservice.audit.run import GAMES
from aggservice.audit.target import Target
from aggservice.campaign.columns import Events, MeasuredConversions, ReportColumns
from aggservice.campaign.devices.paa import PrivateConversions
from aggservice.campaign.settings.campaign import Campaign
from aggservice.mechanisms import Bits, DiscreteLaplace, SecureBits, SystemClock
from budget import MECHANISMS, LaplaceNoise, Sensitivity
from w3c_client import Config
from w3c_client.rules import ImpressionQuota, RuleCost


def alarms(played: list[Played]) -> list[bool]:
    return [
        lower_bound(one.first, one.second, delta=one.delta, alpha=1e-9).epsilon > one.epsilon + 1e-9 for one in played
    ]


@pytest.fixture
def target() -> Target:
    return Target(bits=SecureBits(), clock=SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Careless(LaplaceNoise):
    """Laplace noise of a third of the scale that its price is for."""

    name = "careless_laplace"

    def noise(self, bounds: Sensitivity) -> DiscreteLaplace:
        return DiscreteLaplace(epsilon_micro=3 * self.epsilon.micro, sensitivity=bounds.l1)


class Free(ImpressionQuota):
    """A quota that nothing pays for."""

    name = "free-quota"

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        return RuleCost(norm=0, value=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsDevices(PrivateConversions):
    """Caps each ten minutes, and states that the unit is the device."""

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        made, items = PrivateConversions.reports(self, campaign, events, bits)
        assert made.unit is not None
        return replace(made, unit=made.unit >> 32), items


def test_a_mechanism_with_too_little_noise_raises_an_alarm(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS._added, Careless.name, Careless)
    monkeypatch.setattr(installed, "MECHANISMS_PLAYED", [LaplaceNoise.name, Careless.name])
    assert alarms(installed.mechanisms(target, 1)) == [False, True]


def test_a_rule_that_nothing_pays_for_raises_an_alarm(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "RULES_PLAYED", [ImpressionQuota(), Free()])
    played = installed.rules(target, 1)
    assert [one.epsilon for one in played] == [2, 0] and alarms(played) == [False, True]


def test_an_api_that_contributes_more_than_it_states_raises_an_alarm(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_UNITS", 1_000)
    monkeypatch.setattr(installed, "APIS_PLAYED", ["paa", f"{__name__}:{ClaimsDevices.__name__}"])
    assert alarms(installed.apis(target, 1)) == [False, True]


def test_there_are_no_such_games_without_packages() -> None:
    assert installed.GAMES == () and not any(one.name.startswith("installed") for one in GAMES)
