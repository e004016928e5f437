"""Individual losses: worked examples, their bounds, and the ledger beside them."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.campaign import CampaignError
from aggservice.campaign.assess.losses import (
    ContributionBounds,
    PrivacyLoss,
    QueryPrice,
    ReportTruth,
    TranscriptRecorder,
    compare_with_ledger,
    query_losses,
    total_losses,
    transcript_to_plain,
    units_over_limit,
)
from budget import Delta, Epsilon, Spend

BOUNDS = ContributionBounds(l1=100, l0=4)


def test_a_query_costs_each_source_its_share_of_the_contribution_budget() -> None:
    reports = [
        ReportTruth(report_id="a", unit="s1", contributions=((0, 30),)),
        ReportTruth(report_id="b", unit="s1", contributions=((0, 20),)),
        ReportTruth(report_id="c", unit="s2", contributions=((0, 100),)),
        ReportTruth(report_id="n", unit="s3"),
    ]
    price = QueryPrice(epsilon_micro=2_000_000, delta_atto=10**12)
    # s1: 2 · (30 + 20)/100 = 1 and δ · 2/4; s2: 2 · 100/100 = 2 and δ/4; a null report costs nothing.
    assert query_losses(price, reports, BOUNDS) == {
        "s1": PrivacyLoss(Fraction(1), Fraction(1, 2 * 10**6)),
        "s2": PrivacyLoss(Fraction(2), Fraction(1, 4 * 10**6)),
    }
    # A report that is named twice counts once, as in the service.
    assert query_losses(price, [*reports, reports[0]], BOUNDS) == query_losses(price, reports, BOUNDS)


def test_a_price_has_the_others_total_and_delta() -> None:
    price = QueryPrice.of(Epsilon.parse("1.5"), Delta.parse("0.000001"), Epsilon.parse("0.25"), (0, 3))
    assert price == QueryPrice(epsilon_micro=1_750_000, delta_atto=10**12, filtering_ids=(0, 3))
    assert QueryPrice.of(Epsilon.parse("1.5"), None, None) == QueryPrice(epsilon_micro=1_500_000)


def test_only_the_filtering_ids_that_were_asked_for_cost() -> None:
    report = ReportTruth(report_id="a", unit="d, w", contributions=((0, 30), (7, 20), (7, 10)))
    losses = [
        query_losses(QueryPrice(epsilon_micro=10**6, delta_atto=4, filtering_ids=ids), [report], BOUNDS)
        for ids in ((0,), (7,), (0, 7), (1,))
    ]
    assert [one.get("d, w", PrivacyLoss()).epsilon for one in losses] == [
        Fraction(3, 10),
        Fraction(3, 10),
        Fraction(6, 10),
        Fraction(0),
    ]
    assert [one.get("d, w", PrivacyLoss()).delta * 10**18 for one in losses] == [1, 2, 3, 0]


def test_nonsense_is_refused() -> None:
    for build in (
        lambda: ReportTruth(report_id="a", unit="x", contributions=((0, 0),)),
        lambda: QueryPrice(epsilon_micro=0),
        lambda: QueryPrice(epsilon_micro=1, delta_atto=10**18 + 1),
        lambda: QueryPrice(epsilon_micro=1, filtering_ids=()),
        lambda: ContributionBounds(l1=3, l0=4),
    ):
        with pytest.raises(CampaignError):
            build()


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=4), min_size=1, max_size=5),
    prices=st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**12)), min_size=1, max_size=6),
    data=st.data(),
)
def test_the_bound_of_theorem_4_3_and_the_ledger_by_share(
    values: list[list[int]], prices: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Within Λ₁ and Λ₀, no unit loses more than its most charged report; and the shares add up to the loss exactly."""
    reports = [
        ReportTruth(report_id=f"{unit}-{place}", unit=str(unit), contributions=((0, value),))
        for unit, own in enumerate(values)
        for place, value in enumerate(own)
    ]
    spent = {(one.report_id, 0): [0, 0] for one in reports}
    rounds = []
    for epsilon, delta in prices:
        asked = data.draw(st.lists(st.sampled_from(reports), unique_by=lambda one: one.report_id))
        rounds.append(query_losses(QueryPrice(epsilon_micro=epsilon, delta_atto=delta), asked, BOUNDS))
        for one in asked:
            spent[one.report_id, 0][0] += epsilon
            spent[one.report_id, 0][1] += delta
    balances = {key: Spend(loss_micro=loss, delta_atto=delta, uses=0) for key, (loss, delta) in spent.items()}
    for one in compare_with_ledger(total_losses(rounds), reports, balances, BOUNDS):
        assert one.lost == one.charged and not one.undercharged
        assert not one.lost.exceeds(one.most)


def test_past_limit_is_strict() -> None:
    limit = PrivacyLoss(Fraction(1), Fraction(1, 10))
    totals = {
        "at": limit,
        "above": PrivacyLoss(Fraction(10**6 + 1, 10**6), Fraction(0)),
        "delta": PrivacyLoss(Fraction(0), Fraction(2, 10)),
    }
    assert set(units_over_limit(totals, limit)) == {"above", "delta"}


def test_the_same_answer_again_costs_nothing_and_a_fresh_one_does() -> None:
    recorder = TranscriptRecorder(bounds=BOUNDS)
    recorder.add_report(ReportTruth(report_id="a", unit="s", contributions=((0, 50),)))
    with pytest.raises(CampaignError, match="two reports"):
        recorder.add_report(ReportTruth(report_id="a", unit="s"))
    price = QueryPrice(epsilon_micro=1_000_000)
    for digest in (b"1", b"1", b"2"):
        recorder.record(caller="c", job_id="j", price=price, reports=["a"], digest=digest, return_code="SUCCESS")
    refusal = "PRIVACY_BUDGET_EXHAUSTED"
    recorder.record(caller="c", job_id="k", price=price, reports=["a"], digest=None, return_code=refusal)
    assert [one.outcome for one in recorder.rounds] == ["released", "repeated", "released", "PRIVACY_BUDGET_EXHAUSTED"]
    assert recorder.totals() == {"s": PrivacyLoss(Fraction(1), Fraction(0))}
    # The ledger was charged once, as it would be by a service that gave fresh noise for a repeated job.
    balances = {("a", 0): Spend(loss_micro=1_000_000, delta_atto=0, uses=1)}
    compared = recorder.compare(balances)
    assert [one.undercharged for one in compared] == [True]
    limit = PrivacyLoss(Fraction(1, 2), Fraction(0))
    written = json.loads(json.dumps(transcript_to_plain(recorder.rounds, compared, bounds=BOUNDS, limit=limit)))
    assert (written["units"], written["units_past_the_limit"], written["units_undercharged"]) == (1, 1, 1)
    assert written["rounds"][0]["largest_loss"]["epsilon_exact"] == "1/2"
    assert [one["losses"] for one in written["rounds"]] == [{"s": ["1/2", "0"]}, {}, {"s": ["1/2", "0"]}, {}]
    assert written["losses"][0]["charged_by_share"]["epsilon"] == "0.5"
