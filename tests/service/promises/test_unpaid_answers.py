"""Questions that an attacker asks for nothing, over gRPC: what reports hold must not show in answers that no one paid.

Each test asks the same questions of two services whose reports differ in their sealed contributions alone, and whose
noise is drawn from one seed. Where nothing was charged both must answer the same; where one charged, both must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from uuid import UUID

import grpc
import numpy as np
import pytest

from aggservice.engine.release import charging
from aggservice.mechanisms import SeededBits
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service import EmbeddedService, embedded
from aggservice.wire import AggregatableReport, Contribution
from budget import ledger as ledger_module
from budget.log.entries import decode
from budget.store import Transaction

from ...engine.conftest import Maker

ORIGIN = "https://adtech.example"
L1 = 65_536
BUCKET_BITS = 16
"""A bucket among 2¹⁶ has so many."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Everything that one call gave back."""

    messages: tuple[bytes, ...]
    code: grpc.StatusCode
    text: str
    trailers: tuple[tuple[str, str | bytes], ...]


class Attacker:
    """A caller who streams what they like to a service and pays only if they must."""

    def __init__(self, service: EmbeddedService) -> None:
        self._service = service
        self._channel = grpc.insecure_channel(service.address)

    def ask(self, *parts: aggregation_pb2.AggregateRequest) -> Answered:
        """Stream these messages, close, and return everything that came back but progress, which goes by time."""
        call = self._channel.stream_stream("/aggservice.v1.AggregationService/Aggregate")(
            iter([part.SerializeToString() for part in parts]), timeout=60
        )
        messages: list[bytes] = []
        try:
            messages.extend(call)
        except grpc.RpcError:
            assert call.code() is not None
        kept = [raw for raw in messages if not aggregation_pb2.AggregateResponse.FromString(raw).HasField("progress")]
        trailers = tuple((name, value) for name, value in call.trailing_metadata() or ())
        return Answered(tuple(kept), call.code(), call.details(), trailers)

    @property
    def charges(self) -> list[tuple[str, bytes]]:
        """Every charge of the ledger so far: the job and the units that paid."""

        def work(transaction: Transaction) -> list[tuple[str, bytes]]:
            return [
                (decode(row.header)["job_id"], b"".join(part.keys for part in transaction.parts(row.seq)))
                for row in transaction.entries(1)
            ]

        return self._service.ledger.store.read("charges", work)

    def close(self) -> None:
        self._channel.close()


def parameters(job: str = "job", **more: Any) -> aggregation_pb2.AggregateRequest:
    asked = aggregation_pb2.JobParameters(job_request_id=job, attribution_report_to=ORIGIN, debug_privacy_epsilon="63")
    asked.MergeFrom(aggregation_pb2.JobParameters(**more))
    return aggregation_pb2.AggregateRequest(job_parameters=asked)


def domain(buckets: Sequence[int] | np.ndarray[Any, Any]) -> aggregation_pb2.AggregateRequest:
    both = np.zeros((len(buckets), 2), dtype=">u8")
    both[:, 1] = buckets
    return aggregation_pb2.AggregateRequest(domain=both.tobytes())


def reports(*given: AggregatableReport) -> aggregation_pb2.AggregateRequest:
    batch = aggregation_pb2.ReportBatch(
        payloads=[one.payloads[0].payload for one in given],
        key_ids=[one.payloads[0].key_id for one in given],
        shared_infos=[one.shared_info for one in given],
    )
    return aggregation_pb2.AggregateRequest(reports=batch)


def end(count: int) -> aggregation_pb2.AggregateRequest:
    return aggregation_pb2.AggregateRequest(end=aggregation_pb2.EndOfReports(report_count=count))


Contributions = dict[int, int]


def sealed(maker: Maker, contributions: Contributions, number: int = 0) -> AggregatableReport:
    """Return a report whose public part is the same for every choice of contributions."""
    identity = str(UUID(int=number, version=4))
    return maker.report(
        [Contribution(bucket=key, value=value) for key, value in contributions.items()], report_id=identity
    )


def junk() -> aggregation_pb2.AggregateRequest:
    """Return a report that nobody can read: it fills a window of batches and costs nothing."""
    batch = aggregation_pb2.ReportBatch(payloads=[bytes(100)], key_ids=["none"], shared_infos=["{}"])
    return aggregation_pb2.AggregateRequest(reports=batch)


Attack = Callable[[Attacker, list[AggregatableReport]], list[Answered]]


def check_tells_nothing(
    maker: Maker, attack: Attack, left: list[Contributions], right: list[Contributions], *, processes: int = 0
) -> None:
    """Attack two services, whose reports hold ``left`` or ``right``: what was not paid for must be the same."""
    seen = []
    for world in (left, right):
        held = [sealed(maker, contributions, number) for number, contributions in enumerate(world)]
        with embedded(keys=maker.keys, clock=maker.clock, bits=SeededBits("service"), processes=processes) as service:
            attacker = Attacker(service)
            seen.append((attack(attacker, held), attacker.charges))
            attacker.close()
    assert seen[0][1] == seen[1][1], "one world charged and the other did not"
    if not seen[0][1]:
        assert seen[0][0] == seen[1][0]


def ask_each_bit(attacker: Attacker, held: list[AggregatableReport]) -> list[Answered]:
    """Ask, bit by bit, whether the bucket of a report is among the keys that have the bit unset.

    A second domain part after the report and enough junk that the report has been opened; the stream ends without its
    end message, so that nothing is charged whatever the answer.
    """
    every = np.arange(1 << BUCKET_BITS)
    halves = [every[every >> bit & 1 == 0] for bit in range(BUCKET_BITS)]
    filler = [junk() for _ in range(8)]
    return [
        attacker.ask(parameters(f"bit-{bit}"), domain(half), reports(*held), *filler, domain([0]))
        for bit, half in enumerate(halves)
    ]


@pytest.mark.parametrize("processes", [0, 1])
def test_the_bucket_of_a_report_is_not_found_by_16_free_questions(maker: Maker, processes: int) -> None:
    for one, other in ((0x1234, 0xFEDC), (0, 65_535)):
        check_tells_nothing(maker, ask_each_bit, [{one: 1}], [{other: 1}], processes=processes)


def test_free_questions_do_not_tell_a_null_report_from_a_real_one(maker: Maker) -> None:
    check_tells_nothing(maker, ask_each_bit, [{}], [{0xFFFF: 1}])


DISCOVERY = {"key_discovery": aggregation_pb2.KeyDiscovery(delta="0.000001")}


def whole(attacker: Attacker, held: list[AggregatableReport], **more: Any) -> list[Answered]:
    """Send a whole job over four keys."""
    return [attacker.ask(parameters(**more), domain([0, 1, 2, 3]), reports(*held), end(len(held)))]


def discover(attacker: Attacker, held: list[AggregatableReport]) -> list[Answered]:
    return whole(attacker, held, **DISCOVERY)


HEAVY: list[Contributions] = [{9: L1}, {9: L1}, {9: L1}]
"""Reports that pass any threshold together, at a key that nobody declares."""
NULL: list[Contributions] = [{}, {}, {}]


def test_more_rows_than_a_stream_takes_are_not_told_for_nothing(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "MOST_ROWS_IN_LEDGER", 4)
    check_tells_nothing(maker, discover, HEAVY, NULL)


def test_more_bytes_than_the_ledger_keeps_are_not_told_for_nothing(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded(keys=maker.keys, clock=maker.clock, bits=SeededBits("service")) as service:
        attacker = Attacker(service)
        discover(attacker, [sealed(maker, {}, number) for number in range(len(NULL))])
        attacker.close()
        found = service.ledger.job("local", "job")
        assert found is not None
    for module in (ledger_module, charging):
        monkeypatch.setattr(module, "RESULT_MAX_BYTES", len(found.result))
    check_tells_nothing(maker, discover, HEAVY, NULL)


def ask_for_others(attacker: Attacker, held: list[AggregatableReport]) -> list[Answered]:
    return whole(attacker, held, others=aggregation_pb2.OthersTotal(epsilon="1"))


@pytest.mark.parametrize("attack", [discover, ask_for_others, whole])
@pytest.mark.parametrize("bucket", [0, 9])
def test_a_sum_beyond_its_bound_is_not_told_for_nothing(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, attack: Attack, bucket: int
) -> None:
    """With a bound small enough to reach: whether three reports passed it together would tell what they hold."""
    monkeypatch.setattr(import_module("aggservice.engine.release.noise"), "_LARGEST", 2 * L1)
    check_tells_nothing(maker, attack, [{bucket: L1}] * 3, [{bucket: 1}] * 3)
