"""Requerying over gRPC: budgets run out exactly, refusals say which units, and nothing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.engine import PrivacyUnit
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import SharedInfo
from aggservice.wire.report.units import report_unit, shared_id_unit
from budget import EpsilonDeltaFilter

ORIGIN = "https://adtech.example"


def asks(epsilon: str, **more: Any) -> JobParameters:
    return JobParameters(attribution_report_to=ORIGIN, epsilon=epsilon, **more)


def config(state: Path, unit: PrivacyUnit, filter: EpsilonDeltaFilter) -> ServiceConfig:
    made = ServiceConfig(state=state, listen="127.0.0.1:0", ledger="sqlite", unit=unit, filter=filter)
    return replace(made, limits=replace(made.limits, processes=0))


@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_epsilon_is_spent_exactly_and_a_refusal_lists_every_unit(maker: Any, tmp_path: Path, unit: PrivacyUnit) -> None:
    setting = config(tmp_path / "state", unit, EpsilonDeltaFilter())
    reports = [maker.report({1: 100}, attribution_destination=f"https://shop{index}.example") for index in range(45)]
    with embedded(setting, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        for job, epsilon, left in (("a", "16", "48"), ("b", "32", "16"), ("c", "16", "0")):
            summary = client.aggregate(job, asks(epsilon), reports, domain=[1, 2])
            assert len(summary) == 2
            assert summary.statement.remaining["epsilon"] == left
        before = client.verify_ledger()
        with pytest.raises(ClientError) as caught:
            client.aggregate("d", asks("0.01"), reports, domain=[1, 2])
        assert caught.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"
        assert (caught.value.count, len(caught.value.units)) == (45, 20)
        of = report_unit if unit == PrivacyUnit.REPORT else shared_id_unit
        expected = sorted(of(SharedInfo.parse(report.shared_info)) for report in reports)
        listed = list(client.unpaid_units("d", page_size=7))
        assert [one.unit for one in listed] == expected
        assert all(list(one.job_request_ids) == ["a", "b", "c"] for one in listed)
        assert all(one.spent.epsilon == "64" for one in listed)
        after = client.verify_ledger()
        assert after.ok and after == before
        # Not a single unit changed, and what was paid for is still there.
        balances = client.balances([report.shared_info for report in reports])
        assert {balance.spent.epsilon for balance in balances} == {"64"}
        assert client.summary("b").job_request_id == "b"


@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_a_slice_in_which_one_report_is_spent_aborts_whole(maker: Any, tmp_path: Path, unit: PrivacyUnit) -> None:
    count = 1000  # the soak form of this test has 10,000
    _one_spent(maker, tmp_path, unit, count)


@pytest.mark.soak
@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_a_slice_of_10000_in_which_one_report_is_spent_aborts_whole(
    maker: Any, tmp_path: Path, unit: PrivacyUnit
) -> None:
    _one_spent(maker, tmp_path, unit, 10_000)


def _one_spent(maker: Any, tmp_path: Path, unit: PrivacyUnit, count: int) -> None:
    setting = config(tmp_path / "state", unit, EpsilonDeltaFilter())
    reports = [maker.report({1: 1}, attribution_destination=f"https://shop{index}.example") for index in range(count)]
    with embedded(setting, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        client.aggregate("one", asks("60"), reports[count // 2 : count // 2 + 1], domain=[1])
        with pytest.raises(ClientError) as caught:
            client.aggregate("all", asks("5"), reports, domain=[1])
        assert (caught.value.return_code, caught.value.count) == ("PRIVACY_BUDGET_EXHAUSTED", 1)
        spent = {balance.spent.epsilon for balance in client.balances([report.shared_info for report in reports[:500]])}
        assert spent <= {"0", "60"}
        others = reports[: count // 2] + reports[count // 2 + 1 :]
        assert client.aggregate("others", asks("5"), others, domain=[1]).return_code == "SUCCESS"


@pytest.mark.parametrize("unit", list(PrivacyUnit))
def test_deltas_and_uses_run_out_as_well(maker: Any, tmp_path: Path, unit: PrivacyUnit) -> None:
    limits = EpsilonDeltaFilter.parse(epsilon="64", delta="0.00001", uses=4)
    reports = [maker.report({1: 100})]
    with (
        embedded(config(tmp_path / "state", unit, limits), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        client.aggregate("a", asks("1", discovery_delta="0.000004"), reports)
        client.aggregate("b", asks("1", discovery_delta="0.000006"), reports)
        with pytest.raises(ClientError) as caught:
            client.aggregate("c", asks("1", discovery_delta="0.000000000000000001"), reports)
        assert caught.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"
        client.aggregate("d", asks("1"), reports, domain=[1])
        summary = client.aggregate("e", asks("1"), reports, domain=[1])
        assert summary.statement.remaining == {"epsilon": "60", "delta": "0"}
        with pytest.raises(ClientError) as caught:
            client.aggregate("f", asks("1"), reports, domain=[1])
        assert caught.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"


def test_a_dry_run_says_what_would_happen_and_charges_nothing(maker: Any, client: Client) -> None:
    reports = [maker.report({1: 1}) for _ in range(5)]
    infos = [report.shared_info for report in reports]
    assert client.check_budget(asks("64"), infos).sufficient
    client.aggregate("a", asks("64"), reports[:2], domain=[1])
    answer = client.check_budget(asks("1"), infos)
    assert not answer.sufficient
    assert (answer.unit_count, answer.unpaid_count, len(answer.unpaid)) == (5, 2, 2)
    assert client.verify_ledger().entry_count == 2


def test_the_same_stream_gives_the_same_summary_and_another_is_refused(maker: Any, client: Client) -> None:
    reports = [maker.report({1: 1}) for _ in range(5)]
    first = client.aggregate("a", asks("10"), reports, domain=[1])
    again = client.aggregate("a", asks("10"), reports, domain=[1])
    assert again.repeated and again.to_dict() == first.to_dict() and again.receipt == first.receipt
    assert again.result_digest() == first.result_digest()
    assert again.statement.remaining == client.summary("a").statement.remaining == {"epsilon": "54", "delta": "0.00001"}
    for parameters, others, domain in (
        (asks("9"), reports, [1]),
        (asks("10"), reports[:4], [1]),
        (asks("10"), reports, [1, 2]),
    ):
        with pytest.raises(ClientError) as caught:
            client.aggregate("a", parameters, others, domain=domain)
        assert "another request" in caught.value.message
    assert client.verify_ledger([first.receipt]).ok
