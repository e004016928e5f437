"""The service under attack: one of our own with a ledger per game, or one that runs elsewhere with a test ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.service.runner import answer
from aggservice.client import Client, ClientError, Credentials, JobParameters
from aggservice.engine.opening.coverage import PrivacyUnit
from aggservice.job.result import Summary
from aggservice.mechanisms import Bits, Clock
from aggservice.service import Caller, Role, ServiceConfig, embedded
from aggservice.service.config.callers import Token, new_token, token_digest
from aggservice.wire import AggregatableReport, Api, Contribution, KeySet, PublicKeySet, SharedInfo, make_report
from budget import EpsilonDeltaFilter, Sensitivity
from budget.filters import Filter

DESTINATION = "https://shop.example"
L1 = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTarget:
    """A service elsewhere, and the reporting origin whose reports the caller may use."""

    address: str
    origin: str
    credentials: Credentials = field(default_factory=Credentials)


@dataclass(slots=True, kw_only=True)
class Attacked:
    """An open connection to the service: what an ad-tech can do, and what its reports have been charged."""

    clients: Sequence[Client]
    origin: str
    keys: PublicKeySet
    bits: Bits
    clock: Clock
    prefix: str
    _jobs: int = 0

    def parameters(self, epsilon: str = "", **more: object) -> JobParameters:
        """Return the parameters of a job over all reports of the origin."""
        return JobParameters(attribution_report_to=self.origin, epsilon=epsilon, **more)  # type: ignore[arg-type]

    def new_job(self) -> str:
        """Return a job id that was not used before."""
        self._jobs += 1
        return f"{self.prefix}{self._jobs}"

    def ask(
        self,
        parameters: JobParameters,
        reports: Sequence[AggregatableReport],
        keys: int = 0,
        *,
        job: str = "",
        caller: int = 0,
    ) -> Summary | None:
        """Run a job that declares the keys 0 to ``keys`` - 1; None if some unit cannot pay."""
        found = answer(self.clients[caller], job or self.new_job(), parameters, list(reports), domain=range(keys))
        return found if isinstance(found, Summary) else None

    def metrics(self, summary: Summary | None) -> NDArray[np.int64]:
        """Return the metrics of a summary; ClientError if there is none, because the job was refused."""
        if summary is None or summary.metrics is None:
            raise ClientError("a job that the ledger can pay was refused: give the audit a ledger of its own")
        return np.asarray(summary.metrics, dtype=np.int64)

    def charged(
        self, reports: Sequence[AggregatableReport], filtering_ids: Sequence[int] = (0,)
    ) -> tuple[float, float, float]:
        """Return the largest (ε, ρ, δ) that the ledger charged any of some reports."""
        spent = [
            one.spent for one in self.clients[0].balances([one.shared_info for one in reports[:200]], filtering_ids)
        ]
        return tuple(max(float(getattr(one, name) or 0) for one in spent) for name in ("epsilon", "rho", "delta"))  # type: ignore[return-value]

    def report(self, contributions: Sequence[Contribution], api: Api = Api.ATTRIBUTION_REPORTING) -> AggregatableReport:
        """Return a sealed report."""
        return make_report(
            contributions,
            shared_info=SharedInfo(
                api=api,
                report_id=str(UUID(bytes=self.bits.read(16), version=4)),
                reporting_origin=self.origin,
                scheduled_report_time_s=self.clock.now_ms() // 1000,
                attribution_destination=DESTINATION if api.has_destination else None,
            ),
            keys=self.keys,
            bits=self.bits,
            maximum=2,
        )

    def units(self, count: int, *, every: int = 1) -> list[AggregatableReport]:
        """Return reports of that many units: the i-th contributes Λ₁ to key i·every."""
        return [self.report([Contribution(bucket=every * at, value=L1)]) for at in range(count)]

    def nulls(self, count: int) -> list[AggregatableReport]:
        """Return null reports."""
        return [self.report([]) for _ in range(count)]


@dataclass(slots=True, kw_only=True)
class Target:
    """Opens the service under attack. Without a ``remote`` each game has a service and a ledger of its own."""

    bits: Bits
    clock: Clock
    remote: RemoteTarget | None = None
    _keys: KeySet | None = None

    @contextmanager
    def open(
        self,
        limits: Filter | None = None,
        *,
        unit: PrivacyUnit = PrivacyUnit.REPORT,
        l0: int = L1,
        callers: int = 1,
        state: Path | None = None,
    ) -> Iterator[Attacked]:
        """Yield a connection, or several as different callers, to a service with these limits on its ledger."""
        prefix = f"audit-{self.bits.read(6).hex()}-"
        with ExitStack() as stack:
            if self.remote is not None:
                client = stack.enter_context(Client(self.remote.address, credentials=self.remote.credentials))
                yield self._attacked([client], self.remote.origin, client.public_keys(), prefix)
                return
            origin = "https://adtech.example"
            tokens = [new_token(self.bits) for _ in range(callers)] if callers > 1 else []
            folder = state or Path(stack.enter_context(TemporaryDirectory(prefix="aggservice-audit-")))
            config = ServiceConfig(
                state=folder,
                listen="127.0.0.1:0",
                ledger="memory" if state is None else "sqlite",
                filter=limits or EpsilonDeltaFilter(),
                unit=unit,
                sensitivities={Api.ATTRIBUTION_REPORTING: Sensitivity(l1=L1, l0=l0)},
                callers=tuple(
                    Caller(
                        name=f"caller-{at}",
                        roles=frozenset({Role.ADTECH}),
                        origins=frozenset({origin}),
                        sites=frozenset(),
                        tokens=(Token(digest=token_digest(token)),),
                    )
                    for at, token in enumerate(tokens)
                ),
            )
            config = replace(config, limits=replace(config.limits, processes=0))
            service = stack.enter_context(embedded(config, clock=self.clock, bits=self.bits, keys=self.keys()))
            credentials = [Credentials(token=token) for token in tokens] or [Credentials()]
            clients = [stack.enter_context(Client(service.address, credentials=one)) for one in credentials]
            yield self._attacked(clients, origin, self.keys().public(self.clock), prefix)

    def keys(self) -> KeySet:
        """Return the keys of our own services: the same for all of them."""
        if self._keys is None:
            self._keys = KeySet.create(self.bits, self.clock)
        return self._keys

    def _attacked(self, clients: Sequence[Client], origin: str, keys: PublicKeySet, prefix: str) -> Attacked:
        return Attacked(clients=clients, origin=origin, keys=keys, bits=self.bits, clock=self.clock, prefix=prefix)
