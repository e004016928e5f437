"""A service as a whole: ledger, keys, engine, gRPC and HTTP, from start to orderly stop."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from aggservice.engine import Engine, EngineSettings, InlineOpener, LocalEngine, WorkerPool
from aggservice.engine.opening.pool import BatchOpener
from aggservice.mechanisms import Bits, Clock
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import aggregation_service_pb2_grpc as aggregation_grpc
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.rpc.v1 import budget_service_pb2_grpc as budget_grpc
from aggservice.service.api.aggregation import AggregationServicer
from aggservice.service.api.budget import BudgetServicer
from aggservice.service.api.gate import Gate
from aggservice.service.config.callers import Register
from aggservice.service.config.check import check_ports, open_port
from aggservice.service.config.keyring import KeyRing
from aggservice.service.config.settings import ServiceConfig, TlsFiles, read_secret
from aggservice.service.errors import ConfigError
from aggservice.service.jobs.book import JobBook
from aggservice.service.jobs.desk import JobDesk
from aggservice.service.jobs.dispatch import Dispatcher, JobRunner
from aggservice.service.jobs.objects import ObjectPublisher
from aggservice.service.jobs.places import Places
from aggservice.service.jobs.slots import JobSlots
from aggservice.service.log import EventLog
from aggservice.service.metrics import Metrics
from aggservice.service.queue.databases import MemoryQueue, PostgresQueue, QueueDatabase, SqliteQueue
from aggservice.service.queue.queue import JobQueue
from aggservice.wire import KeySet
from budget import BudgetError, Ledger, MemoryStore, PostgresStore, Signer, SqliteStore, Staging, Store

_GRACE_S = 10.0
_KEY_CHECK_EVERY_S = 5.0
_SERVICES = count()
SERVICE_NAMES = (
    aggregation_pb2.DESCRIPTOR.services_by_name["AggregationService"].full_name,
    budget_pb2.DESCRIPTOR.services_by_name["BudgetService"].full_name,
)


def open_keys(config: ServiceConfig, *, clock: Clock, bits: Bits) -> KeyRing:
    """Read or create the configured keys. Those of a memory ledger are never written: nor is what they spent."""
    if config.ledger == "memory":
        return KeyRing(KeySet.create(bits, clock), clock)
    return KeyRing.load_or_create(config.keys or config.state / "keys.json", bits, clock)


def open_ledger(config: ServiceConfig, *, clock: Clock, bits: Bits, keys: KeyRing | None = None) -> Ledger:
    """Open or create the configured ledger, which must be that of the keys; settle what a crash left staged.

    Only a simulation over reports that are not sealed has no keys.
    """
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    store: Store
    if config.ledger == "memory":
        store = MemoryStore()
    elif config.ledger == "sqlite":
        store = SqliteStore(config.ledger_path or config.state / "ledger.sqlite")
    else:
        store = PostgresStore(_dsn(config))
    publisher = ObjectPublisher(config.output_folder, *config.buckets.values())
    ledger = Ledger.open_or_create(
        store,
        filter=config.filter,
        signer=Signer.load_or_create(config.state / "signing.key", bits),
        clock=clock,
        bits=bits,
        terms=config.terms,
        witness=keys,
        staging=Staging(config.state / "staging", bits, publisher, caller_bytes=config.limits.staged_bytes_per_caller),
    )
    ledger.recover_staged()
    return ledger


def open_queue(config: ServiceConfig, clock: Clock) -> JobQueue:
    """Open or create the queue of jobs: beside a SQLite ledger, or in the database of a PostgreSQL ledger."""
    database: QueueDatabase
    if config.ledger == "memory":
        database = MemoryQueue(clock)
    elif config.ledger == "sqlite":
        database = SqliteQueue(config.state / "jobs.sqlite", clock)
    else:
        database = PostgresQueue(_dsn(config))
    return JobQueue(database, lease_ms=1000 * config.limits.lease_s)


def _dsn(config: ServiceConfig) -> str:
    assert config.ledger_dsn_file is not None
    return read_secret(config.ledger_dsn_file, "ledger.dsn_file").decode().strip()


def _owner(bits: Bits) -> str:
    """Return a name for this service that no other one has, for its leases."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{next(_SERVICES)}-{bits.read(8).hex()}"


def server_credentials(tls: TlsFiles, *, mutual: bool) -> grpc.ServerCredentials:
    """Return TLS credentials; ``mutual`` requires a client certificate of the configured authority."""
    key = read_secret(tls.private_key, "tls.private_key")
    try:
        certificate = tls.certificate.read_bytes()
        authority = tls.client_authority.read_bytes() if mutual and tls.client_authority else None
    except OSError as problem:
        raise ConfigError(f"cannot read {problem.filename}: {problem.strerror}") from None
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=mutual)


class Service:
    """A service that can be started and stopped within an event loop.

    Once it has started, ``port``, ``mtls_port`` and ``http_port`` are the ports that it listens on.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        clock: Clock,
        bits: Bits,
        keys: KeyRing | None = None,
        ledger: Ledger | None = None,
        queue: JobQueue | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.log = log or EventLog(clock)
        check_ports(config)
        self.metrics = Metrics(workers_replaced=lambda: getattr(self.opener, "replaced", 0))
        try:
            self.keys = keys or open_keys(config, clock=clock, bits=bits)
            self.ledger = ledger or open_ledger(config, clock=clock, bits=bits, keys=self.keys)
            self.queue = queue or open_queue(config, clock)
        except OSError as problem:
            raise ConfigError(f"cannot use {problem.filename}: {problem.strerror}") from problem
        self.opener: BatchOpener = (
            WorkerPool(self.keys.keys, processes=config.limits.processes)
            if config.limits.processes
            else InlineOpener(self.keys.keys)
        )
        self.keys.on_change(self.opener.use_keys)
        local = LocalEngine(
            ledger=self.ledger,
            opener=self.opener,
            clock=clock,
            bits=bits,
            settings=EngineSettings(
                max_report_age_ms=config.limits.max_report_age_ms,
                max_domain_keys=config.limits.domain_keys,
                max_units=config.limits.units,
                w3c_minimum_batch=config.limits.w3c_minimum_batch,
                shuffle=config.shuffle,
            ),
            keys_unreadable=lambda: self.keys.unreadable,
        )
        self.engine: Engine = local
        if config.spark is not None:
            from aggservice.engine.spark.engine import SparkEngine  # large, and most services have no cluster

            key_file = config.keys or config.state / "keys.json"
            self.engine = SparkEngine(local, replace(config.spark, keys=key_file.absolute()))
        self.register = Register(config.callers, clock)
        self._gate = Gate(self.register, self.metrics, self.log)
        self._owner = _owner(bits)
        self.port = 0
        self.mtls_port = 0
        self.http_port = 0

    def arrange(self, executor: Executor) -> None:
        """Make what runs jobs: slots, the book of streams, the dispatcher of stored jobs and the desk."""
        config, limits = self.config, self.config.limits
        slots = JobSlots(
            jobs=limits.jobs,
            per_caller=limits.share(len(config.callers)),
            waiting=limits.waiting,
            metrics=self.metrics,
        )
        book = JobBook(self.clock, finished_kept=limits.finished_kept)
        self.runner = JobRunner(engine=self.engine, book=book, slots=slots, executor=executor, log=self.log)
        places = Places(inputs=config.input_folder, outputs=config.output_folder, buckets=config.buckets)
        self.dispatcher = Dispatcher(
            runner=self.runner,
            queue=self.queue,
            places=places,
            register=self.register,
            clock=self.clock,
            log=self.log,
            metrics=self.metrics,
            owner=self._owner,
            attempts=limits.attempts,
            poll_s=limits.poll_s,
        )
        if isinstance(self.queue.database, PostgresQueue) and isinstance(self.ledger.store, PostgresStore):
            self.ledger.store.guard = self.dispatcher.guard(self.queue.database)
        self.desk = JobDesk(
            runner=self.runner, dispatcher=self.dispatcher, places=places, clock=self.clock, limits=limits
        )

    def add_servicers(self, server: grpc.aio.Server) -> None:
        """Register the servicers of both gRPC services."""
        aggregation_grpc.add_AggregationServiceServicer_to_server(  # type: ignore[no-untyped-call]
            AggregationServicer(
                engine=self.engine, runner=self.runner, desk=self.desk, keys=self.keys, limits=self.config.limits
            ),
            server,
        )
        budget_grpc.add_BudgetServiceServicer_to_server(  # type: ignore[no-untyped-call]
            BudgetServicer(engine=self.engine, runner=self.runner), server
        )

    async def start(self) -> None:
        """Start to listen; raise ``ConfigError`` for an address or certificate that cannot be used."""
        config, limits = self.config, self.config.limits
        self._executor = ThreadPoolExecutor(max_workers=limits.jobs + 8, thread_name_prefix="job")
        self.arrange(self._executor)
        self._server = grpc.aio.server(
            interceptors=[self._gate],
            options=[
                ("grpc.max_receive_message_length", limits.message_bytes),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.max_pings_without_data", 2),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
            ],
        )
        self.add_servicers(self._server)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if config.reflection:
            names = (*SERVICE_NAMES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)
        try:
            listening = self._listen()
        except ConfigError:
            self._close()
            raise
        await self._server.start()
        await self.dispatcher.start()
        for name in ("", *SERVICE_NAMES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._background = [asyncio.create_task(self._watch_keys())]
        if listening is not None:
            await self._start_http(listening)
        self.log.event("started", listen=config.listen, port=self.port, http_port=self.http_port)

    def _listen(self) -> socket.socket | None:
        """Open every port before any of them serves; return the HTTP app's socket."""
        config = self.config
        try:
            if config.tls is None:
                self.port = self._server.add_insecure_port(config.listen)
            else:
                self.port = self._server.add_secure_port(config.listen, server_credentials(config.tls, mutual=False))
            if config.listen_mtls and config.tls is not None:
                self.mtls_port = self._server.add_secure_port(
                    config.listen_mtls, server_credentials(config.tls, mutual=True)
                )
        except RuntimeError as problem:
            raise ConfigError(f"cannot listen on {config.listen}: check that the port is free") from problem
        if not config.http_listen:
            return None
        return open_port(config.http_listen)  # here, because uvicorn ends the whole program if a port is taken

    async def _start_http(self, listening: socket.socket) -> None:
        # Imported here because the services of campaigns have no HTTP.
        import uvicorn

        from aggservice.service.api.deployed import job_routes
        from aggservice.service.http.app import Hosts, build_app

        tls = self.config.tls
        hosts = Hosts.of(self.config.http_hosts, has_callers=not self.register.is_empty)
        settings = uvicorn.Config(
            build_app(
                keys=self.keys,
                metrics=self.metrics,
                register=self.register,
                hosts=hosts,
                routes=job_routes(self.desk, self._gate, hosts=hosts, stall_s=self.config.limits.stall_s),
            ),
            log_config=None,
            access_log=False,
            lifespan="off",
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.private_key if tls else None,
        )
        self._http = uvicorn.Server(settings)
        self._http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._background.append(asyncio.create_task(self._http.serve([listening])))
        while not self._http.started:
            if self._background[-1].done():
                raise ConfigError(f"cannot serve HTTP on {self.config.http_listen}: check the TLS files")
            await asyncio.sleep(0.01)
        self.http_port = self._http.servers[0].sockets[0].getsockname()[1]

    async def _watch_keys(self) -> None:
        """Read the key file again after the operator has rotated it."""
        while True:
            await asyncio.sleep(_KEY_CHECK_EVERY_S)
            try:
                if await self.runner.blocking(self.keys.refresh):
                    self.log.event("keys_changed", published=len(self.keys.public().keys))
            except (OSError, ValueError, BudgetError) as problem:
                self.log.fault("keys_unreadable", problem)

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """Refuse new calls, let running ones end, cancel jobs that are not committed, and close everything."""
        await self._health.enter_graceful_shutdown()
        self.dispatcher.rest()
        await self._server.stop(grace_s)
        self.runner.stop()
        await self.dispatcher.stop()
        if self.config.http_listen:
            self._http.should_exit = True
        for task in self._background[1:]:
            await asyncio.wait([task])
        self._background[0].cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._close)
        self.log.event("stopped")

    def _close(self) -> None:
        """End the workers, and close the engine, the queue and the ledger."""
        self.engine.close()
        self.opener.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.queue.close()
        self.ledger.store.close()
