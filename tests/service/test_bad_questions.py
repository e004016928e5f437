"""Questions that make no sense, or too much work for one call, are refused by name and hold nobody up."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.service import EventLog

ORIGIN = "https://adtech.example"
MANY = tuple(range(256))


def test_questions_about_too_many_units_are_refused_before_any_work(maker: Any, client: Client) -> None:
    """10,000 reports with 256 filtering IDs each are two million hashes; nobody else may wait for them."""
    infos = [maker.info().serialise() for _ in range(2_000)]
    asks = JobParameters(attribution_report_to=ORIGIN, filtering_ids=MANY)
    questions: list[Callable[[], object]] = [
        lambda: client.check_budget(asks, infos),
        lambda: client.balances(infos, filtering_ids=MANY),
    ]
    for question in questions:
        with pytest.raises(ClientError, match="units") as caught:
            question()
        assert caught.value.return_code == "INVALID_JOB"
    # What a caller needs is still answered.
    assert client.check_budget(replace(asks, filtering_ids=tuple(range(50))), infos).unit_count == 100_000
    assert len(client.balances(infos[:10], filtering_ids=MANY)) == 2_560


def test_a_unit_of_another_length_and_a_receipt_that_is_none_are_refused(client: Client) -> None:
    for unit in (b"x", bytes(19), bytes(21)):
        with pytest.raises(ClientError, match="20 bytes") as caught:
            list(client.entries(unit=unit))
        assert caught.value.return_code == "INVALID_JOB"
    assert list(client.entries(unit=bytes(20))) == []
    for receipt in (b"", b"{}", b"\xff", b'{"format":"aggservice-receipt-1"}'):
        with pytest.raises(ClientError, match="not a receipt") as caught:
            client.verify_ledger([receipt])
        assert caught.value.return_code == "INVALID_JOB"


def test_a_log_that_cannot_be_written_ends_nothing(maker: Any) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        log = EventLog(maker.clock, stream)
        log.event("call", method="Aggregate")
        log.fault("call_failed", ValueError("x"))
