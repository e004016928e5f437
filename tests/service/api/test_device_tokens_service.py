"""A caller who makes up reports: whatever they send, the price counts the clients of the registry alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aggservice.client import Client, ClientError, JobParameters, ShuffleParameters, Summary
from aggservice.engine import ShuffleSettings
from aggservice.mechanisms import AmplificationBound, SecureBits, amplified_micro
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import AggregatableReport, Api, SharedInfo
from aggservice.wire.report.registry import RegistryKeyPair, sign_token
from budget import EpsilonDeltaFilter
from ldp_client import Registry, randomized_response, randomizer_of, seal_report

from ...engine.conftest import ORIGIN, Maker

PROTOCOL = randomized_response(k=4, epsilon_micro=2_000_000)
NAME = randomizer_of(PROTOCOL).hex
KEYS = RegistryKeyPair.create(SecureBits())
FORGER = RegistryKeyPair.create(SecureBits())
COLLECTION, DELTA = "november", "0.000001"
CALLERS_OWN = 999
Forge = Callable[[SharedInfo], bytes | None]


def configured(folder: Path, *, registered: bool = True) -> ServiceConfig:
    from aggservice.service import Limits

    return ServiceConfig(
        state=folder / "state",
        listen="127.0.0.1:0",
        filter=EpsilonDeltaFilter.parse(),
        shuffle=ShuffleSettings(origins={ORIGIN: KEYS.public} if registered else {}),
        limits=Limits(processes=0),
    )


def sealed(maker: Maker, value: int, forge: Forge, **changes: object) -> AggregatableReport:
    info = maker.info(api=Api.SHARED_STORAGE, attribution_destination=None, **changes)
    keys = maker.keys.public(maker.clock)
    return seal_report(PROTOCOL, value, shared_info=info, keys=keys, bits=maker.bits, token=forge(info))


def honest(maker: Maker, count: int, registry: Registry, value: int = 3) -> list[AggregatableReport]:
    return [
        sealed(
            maker,
            value,
            lambda info, name=f"device {index}": registry.token(  # type: ignore[misc]
                name, collection=COLLECTION, shared_info=info
            ),
        )
        for index in range(count)
    ]


def signed(keys: RegistryKeyPair, *, origin: str = ORIGIN, collection: str = COLLECTION) -> Forge:
    return lambda info: sign_token(keys, origin=origin, collection=collection, report_id=info.report_id_bytes)


def copied() -> Forge:
    """The token of one device of the caller's own, for another report id, in every report."""
    own = sign_token(KEYS, origin=ORIGIN, collection=COLLECTION, report_id=bytes(16))
    return lambda info: own


def shuffle(client: Client, job_id: str, reports: list[AggregatableReport], **asked: str) -> Summary:
    wanted = ShuffleParameters(**{"randomizer": NAME, "delta": DELTA, "collection": COLLECTION, **asked})
    return client.aggregate(job_id, JobParameters(attribution_report_to=ORIGIN, shuffle=wanted), reports)


def price(reports: int) -> str:
    micro = amplified_micro(AmplificationBound.NUMERICAL, local_micro=2_000_000, reports=reports, delta_atto=10**12)
    return f"{micro / 1e6:.6f}".rstrip("0")


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda info: None, id="no token"),
        pytest.param(copied(), id="copied token"),
        pytest.param(lambda info: SecureBits().read(64), id="random bytes"),
        pytest.param(signed(FORGER), id="another key"),
        pytest.param(signed(KEYS, collection="october"), id="another collection"),
        pytest.param(signed(KEYS, origin="https://other.example"), id="another origin"),
    ],
)
def test_reports_of_the_callers_own_never_lower_the_price(maker: Maker, tmp_path: Path, forge: Forge) -> None:
    """Once 999 of the caller's own and a victim's cost 0.397 with ε₀ = 2, and showed the victim's report."""
    victim = honest(maker, 1, Registry(KEYS))
    own = [sealed(maker, 0, forge) for _ in range(CALLERS_OWN)]
    with (
        embedded(configured(tmp_path), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        summary = shuffle(client, "attack", [*own, *victim])
        part = summary.statement.shuffle
        assert part is not None and not part.amplified and part.reports == 1
        assert "at least two reports" in part.not_amplified
        assert summary.statement.cost == {"epsilon": "2", "delta": "0"}
        assert dict(summary.error_counts) == {"NO_DEVICE_TOKEN": CALLERS_OWN}
        assert len(summary.reports) == 1
        balance = client.check_budget(
            JobParameters(attribution_report_to=ORIGIN, shuffle=ShuffleParameters(randomizer=NAME)),
            [report.shared_info for report in own],
        )
        assert balance.sufficient and balance.unpaid_count == 0


def test_the_victim_hides_among_registered_clients_only(maker: Maker, tmp_path: Path) -> None:
    """20 clients with tokens and 979 reports of the caller's own: the price is that of 20."""
    clients = honest(maker, 20, Registry(KEYS))
    own = [sealed(maker, 0, signed(FORGER)) for _ in range(979)]
    with (
        embedded(configured(tmp_path), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        summary = shuffle(client, "mixed", [*own, *clients])
        part = summary.statement.shuffle
        assert part is not None and part.reports == 20 and part.amplified
        assert summary.statement.cost == {"epsilon": price(20), "delta": DELTA}
        assert float(price(20)) > 1.5 > float(price(1000))
        assert len(summary.reports) == 20


def test_without_a_registry_everything_costs_what_it_costs(maker: Maker, tmp_path: Path) -> None:
    victim = honest(maker, 1, Registry(KEYS))
    own = [sealed(maker, 0, signed(KEYS)) for _ in range(CALLERS_OWN)]
    with (
        embedded(configured(tmp_path, registered=False), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        summary = shuffle(client, "attack", [*own, *victim])
        part = summary.statement.shuffle
        assert part is not None and not part.amplified and part.reports == 1000
        assert "no device registry" in part.not_amplified
        assert summary.statement.cost == {"epsilon": "2", "delta": "0"} and not summary.error_counts


@pytest.mark.parametrize(("asked", "reason"), [({"delta": ""}, "no delta"), ({"collection": ""}, "no collection")])
def test_a_job_that_asks_for_half_is_not_amplified(
    maker: Maker, tmp_path: Path, asked: dict[str, str], reason: str
) -> None:
    reports = [*honest(maker, 30, Registry(KEYS)), *(sealed(maker, 0, lambda info: None) for _ in range(30))]
    with (
        embedded(configured(tmp_path), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        summary = shuffle(client, "half", reports, **asked)
        part = summary.statement.shuffle
        assert part is not None and reason in part.not_amplified and part.reports == 60
        assert summary.statement.cost == {"epsilon": "2", "delta": "0"} and not summary.error_counts


def test_a_token_counts_once_in_a_job_and_in_one_job_only(maker: Maker, tmp_path: Path) -> None:
    reports = honest(maker, 50, Registry(KEYS))
    # The caller's own device, which has a token, may seal it into many reports of the same id.
    own = sealed(maker, 1, signed(KEYS))
    identity = SharedInfo.parse(own.shared_info).report_id
    copies = [
        sealed(maker, value % 4, signed(KEYS), report_id=identity, scheduled_report_time_s=1_699_990_000 + value)
        for value in range(100)
    ]
    with (
        embedded(configured(tmp_path), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        summary = shuffle(client, "first", [*reports, own, *copies, *reports[:10]])
        part = summary.statement.shuffle
        assert part is not None and part.amplified and part.reports == 51 == len(summary.reports)
        assert dict(summary.error_counts) == {"REPEATED_REPORT_ID": 110}
        assert summary.statement.cost["epsilon"] == price(51)
        with pytest.raises(ClientError) as refused:
            shuffle(client, "second", reports[1:])
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED" and refused.value.count == 49
        with pytest.raises(ClientError) as refused:
            shuffle(client, "plain", reports[1:], delta="", collection="")
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED" and refused.value.count == 49


def test_a_sealed_token_cannot_be_moved_to_another_report(maker: Maker, tmp_path: Path) -> None:
    """The payload is bound to shared_info: under another report id, or another origin's, it does not open."""
    first = honest(maker, 40, Registry(KEYS))
    moved = []
    for report in first:
        info = SharedInfo.parse(report.shared_info)
        other = maker.info(
            api=Api.SHARED_STORAGE,
            attribution_destination=None,
            scheduled_report_time_s=info.scheduled_report_time_s,
        )
        text = report.shared_info.replace(info.report_id, other.report_id)
        moved.append(AggregatableReport(shared_info=text, payloads=report.payloads))
    with (
        embedded(configured(tmp_path), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        with pytest.raises(ClientError) as refused:
            shuffle(client, "moved", [*first, *moved])
        assert refused.value.error_counts["DECRYPTION_ERROR"] == 40
