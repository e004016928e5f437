"""The audit against our own service: it sees most of ε where it can, raises no alarm, and finds seeded faults.

A correct service raises an alarm with probability at most 10⁻⁴ per run by the audit's own bound. The tests here play
few games, with an α of 10⁻⁹ per bound; all of them together fail by chance less than once in 10⁶ runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggservice.audit.bounds import LowerBound
from aggservice.audit.games import w3c
from aggservice.audit.games.devices import null_reports
from aggservice.audit.output import draw, table, to_plain
from aggservice.audit.run import GAMES, GamesReport, PathResult, chosen_games, play_game, run_audit
from aggservice.audit.target import RemoteTarget, Target
from aggservice.commands import app
from aggservice.engine import ReleasePlan
from aggservice.mechanisms import DiscreteLaplace, SecureBits, SystemClock
from aggservice.service import embedded
from budget import EpsilonDeltaFilter, Spend
from w3c_client.budgets import BudgetStores

ALPHA = 1e-9


def play(name: str) -> dict[str, PathResult]:
    return {one.part: one for one in play_game(name, 1, ALPHA, None)}


def test_every_game_says_what_it_exposes_and_how_many_bounds_it_has() -> None:
    assert len({game.name for game in GAMES}) == len(GAMES) >= 20
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert f"({sum(game.parts for game in GAMES)} in a whole run)" in page
    assert f"one of the {len(GAMES)} games" in page
    assert all(game.exposes for game in GAMES)


@pytest.mark.parametrize(
    "name", ["event-level response", "local reports, once", "contributions beyond Λ₀", "null reports"]
)
def test_devices_keep_within_what_they_promise(name: str) -> None:
    results = play(name)
    assert len(results) == next(game.parts for game in GAMES if game.name == name)
    assert not any(one.alarm for one in results.values())
    if name == "null reports":
        assert results[""].bound.trials == (125, 125)
        (played,) = null_reports(Target(bits=SecureBits(), clock=SystemClock()), 1)
        assert {int(one) for one in played.first["reports"]} == {1} == {int(one) for one in played.second["reports"]}
    if name == "event-level response":
        assert results["fleet"].bound.epsilon >= 0.8


def test_declared_keys_show_most_of_their_epsilon() -> None:
    result = play("declared keys")[""]
    assert 0.75 <= result.bound.epsilon <= result.charged == 1.0


@pytest.mark.parametrize("name", ["retries", "two callers", "filtering IDs"])
def test_budgets_hold(name: str) -> None:
    assert not any(one.alarm for one in play(name).values())


def broken(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Break something, and return the game that must notice."""
    if name == "half the noise":
        wrong = property(
            lambda plan: DiscreteLaplace(epsilon_micro=2 * plan.mechanism.pure_micro, sensitivity=plan.sensitivity.l1)
        )
        monkeypatch.setattr(ReleasePlan, "declared_noise", wrong)
        return "late reports"
    if name == "no charge":
        monkeypatch.setattr(EpsilonDeltaFilter, "cost", lambda *_: Spend(loss_micro=1, delta_atto=0, uses=1))
        return "requerying until exhaustion"
    from ara_client.storage import sources

    right = sources.StoredSource.__init__

    def rich(self: Any, **fields: Any) -> None:
        right(self, **fields)
        self.remaining_budget *= 3

    monkeypatch.setattr(sources.StoredSource, "__init__", rich)
    return "Attribution Reporting caps"


@pytest.mark.parametrize("name", ["half the noise", "no charge", "three times Λ₁"])
def test_a_broken_service_or_browser_raises_an_alarm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(one.alarm for one in play(broken(name, monkeypatch)).values())


def test_a_service_elsewhere_is_played_without_games_that_need_their_own() -> None:
    with embedded() as service:
        remote = RemoteTarget(address=service.address, origin="https://adtech.example")
        games, skipped = chosen_games(remote=True)
        assert {"declared keys", "retries", "shuffle"} <= {game.name for game in games}
        assert {"Gaussian noise", "local reports, once"} <= set(skipped)
        report = run_audit(["retries", "Gaussian"], remote=remote, workers=1)
    assert [one.game for one in report.results] == ["retries"] and report.skipped == ("Gaussian noise",)
    assert not report.alarms


@pytest.mark.parametrize("skipped", [None, "impression-site-quota"])
def test_limits_on_the_device_hold_or_raise_an_alarm(skipped: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w3c, "PLANS", {"quota": w3c.PLANS["a publisher's quota"]})
    if skipped is not None:
        right = BudgetStores.pay

        def unlimited(self: BudgetStores, *args: Any) -> Any:
            self._left[skipped].clear()
            right(self, *args)
            self._left[skipped] = dict.fromkeys(self._left[skipped], 0)  # so that the limit seems to be spent

        monkeypatch.setattr(BudgetStores, "pay", unlimited)
    (result,) = play_game("W3C Attribution limits", 1, ALPHA if skipped is None else 1e-5, None)
    assert result.alarm == (skipped is not None)
    assert result.charged == 2.0


@pytest.mark.parametrize(("bound", "charged", "alarm"), [(1.000001, 1.0, True), (1.0, 1.0, False), (0.01, 0.0, True)])
def test_any_bound_above_the_charge_is_an_alarm(bound: float, charged: float, alarm: bool) -> None:
    found = LowerBound(epsilon=bound, feature="metric", hits=(1, 1), trials=(2, 2))
    result = PathResult(game="g", part="", exposes="x", bound=found, charged=charged, delta=0.0, seconds=0.0)
    assert result.alarm == alarm


def some_report(tmp_path: Path) -> GamesReport:
    return run_audit(["beyond"], workers=1)


def test_a_report_is_a_table_values_and_a_plot(tmp_path: Path) -> None:
    report = some_report(tmp_path)
    lines = table(report)
    assert lines[-1] == "2 bounds within what was charged, 0 above"
    assert any("Cannot see: time" in line for line in lines)
    plain = json.loads(json.dumps(to_plain(report)))
    assert [one["part"] for one in plain["paths"]] == ["Attribution Reporting", "Private Aggregation"]
    assert plain["confidence_of_a_bound"] >= 0.999 and plain["false_alarm_rate_of_a_run"] == 1e-4
    assert report.confidence == pytest.approx(1 - 1e-4 / 2, abs=1e-12)  # both bounds share the rate of the run
    assert draw(report, tmp_path / "plot").stat().st_size > 1000


def test_the_command_lists_plays_and_refuses() -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["audit", "--names"])
    assert listed.exit_code == 0 and len(listed.output.splitlines()) == len(GAMES)
    played = runner.invoke(app, ["audit", "--path", "beyond", "--workers", "1", "--json"])
    assert played.exit_code == 0 and json.loads(played.output)["alarms"] == 0
    assert runner.invoke(app, ["audit", "--path", "no such game"]).exit_code == 2
    assert runner.invoke(app, ["audit", "--quick", "--thorough"]).exit_code == 2


@pytest.mark.soak
def test_a_hundred_runs_raise_no_alarm() -> None:
    """False alarms: at most 10⁻⁴ per run by construction, so at most 1 % for all of these."""
    for number in range(100):
        report = run_audit()
        worst = max(report.results, key=lambda one: one.bound.epsilon - one.charged)
        print(
            f"run {number + 1}: {len(report.results)} bounds, {len(report.alarms)} alarms, {report.seconds:.0f} s,",
            end=" ",
        )
        print(f"nearest {worst.game} {worst.part} {worst.bound.epsilon:.3f} of {worst.charged:.3f}", flush=True)
        assert not report.alarms
