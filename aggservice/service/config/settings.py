"""The configuration of a service: one TOML file, typed, strict, with secrets in files of their own."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aggservice.engine import EngineError, PrivacyUnit, ShuffleSettings, ledger_terms
from aggservice.engine.opening.sites import site_of
from aggservice.service.config.callers import Caller, Role, Token
from aggservice.service.config.toml import Table
from aggservice.service.errors import ConfigError
from aggservice.wire import Api, is_reporting_origin
from aggservice.wire.errors import KeySetError
from aggservice.wire.report.registry_keys import RegistryKey
from budget import BudgetError, EpsilonDeltaFilter, Filter, Sensitivity, Terms, ZcdpFilter

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where the certificate, its key, and the authority of client certificates lie."""

    certificate: Path
    private_key: Path
    client_authority: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a service's work: jobs at once and waiting, bytes a message, seconds a stream may stall."""

    jobs: int = 4
    jobs_per_caller: int | None = None
    waiting: int = 1000
    message_bytes: int = 4 << 20
    stall_s: int = 60
    finished_kept: int = 1_000
    processes: int = 2
    domain_keys: int = 200_000_000
    max_report_age_ms: int = 90 * DAY_MS

    def share(self, callers: int) -> int:
        """Return how many jobs one caller may have at once: all but one where there are several, unless it is set."""
        if self.jobs_per_caller is not None:
            return min(self.jobs_per_caller, self.jobs)
        return self.jobs if callers <= 1 else max(1, self.jobs - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Everything a service needs to start. ``ledger`` is ``memory``, ``sqlite``, or ``postgres`` with a DSN file."""

    state: Path
    listen: str = "127.0.0.1:50051"
    listen_mtls: str | None = None
    http_listen: str | None = None
    tls: TlsFiles | None = None
    keys: Path | None = None
    ledger: str = "sqlite"
    ledger_path: Path | None = None
    ledger_dsn_file: Path | None = None
    filter: Filter = field(default_factory=EpsilonDeltaFilter)
    unit: PrivacyUnit = PrivacyUnit.REPORT
    sensitivities: Mapping[Api, Sensitivity] = field(default_factory=dict)
    input_folder: Path | None = None
    output_folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    callers: tuple[Caller, ...] = ()
    reflection: bool = True
    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)

    def __post_init__(self) -> None:
        """Refuse to expose what is not protected: off loopback, TLS and callers are a must."""
        plain = [self.listen] + ([self.http_listen] if self.http_listen else [])
        for address in plain:
            if not is_loopback(address) and (self.tls is None or not self.callers):
                raise ConfigError(
                    f"{address} can be reached from elsewhere: give [tls] and [[callers]], or listen on 127.0.0.1"
                )
        if self.http_listen and self.http_listen.startswith("unix:"):
            raise ConfigError("http_listen is a host and a port, such as 127.0.0.1:8080")
        if self.listen_mtls and (self.tls is None or self.tls.client_authority is None or not self.callers):
            raise ConfigError("listen_mtls needs [tls] with client_authority, and [[callers]]")
        if any(caller.certificates for caller in self.callers) and not self.listen_mtls:
            raise ConfigError("a caller has a certificate but nothing listens for one: set listen_mtls")

    @property
    def terms(self) -> Terms:
        """The privacy unit and the bounds per API, as the ledger's first entry names them."""
        return ledger_terms(self.unit, self.sensitivities)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach ``address`` (host:port, or unix:path)."""
    if address.startswith("unix:"):
        return True
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host:
        raise ConfigError(f"{address!r} is not an address such as 127.0.0.1:50051")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_config(path: Path) -> ServiceConfig:
    """Read a configuration file. Relative paths in it are relative to it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is not TOML: {problem}") from None
    try:
        return parse_config(document, path.resolve().parent)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
    except (BudgetError, EngineError) as problem:
        raise ConfigError(f"{path}: {problem}") from None


def _origins(table: Table, where: str, key: str) -> frozenset[str]:
    """Read origins as a browser writes them; one that no report can carry would be a right that never counts."""
    found = table.texts(key)
    for origin in found:
        if not is_reporting_origin(origin):
            raise ConfigError(f"{where}.{key}: {origin!r} is not an origin such as https://adtech.example")
    return frozenset(found)


def _sites(table: Table, where: str, key: str) -> frozenset[str]:
    """Read sites, which are what ``site_of`` gives for an origin of theirs."""
    found = table.texts(key)
    for site in found:
        if site_of(site) != site:
            raise ConfigError(f"{where}.{key}: {site!r} is not a site such as https://adtech.example")
    return frozenset(found)


def _shuffle(table: Table) -> ShuffleSettings:
    """Read the public keys of the device registries, each for one origin or one site."""
    for removed in ("authenticated_origins", "authenticated_sites"):
        if removed in table:
            raise ConfigError(
                f"shuffle.{removed} was removed, because a list of names does not show who sent a report: give the "
                "public key of the device registry with [[shuffle.registry_keys]], as docs/shuffling.md describes"
            )
    origins: dict[str, RegistryKey] = {}
    sites: dict[str, RegistryKey] = {}
    for index, one in enumerate(table.tables("registry_keys")):
        where = f"shuffle.registry_keys[{index}]"
        origin, site, path = one.optional_text("origin"), one.optional_text("site"), one.path("public_key")
        one.done()
        if (origin is None) == (site is None):
            raise ConfigError(f"{where} needs exactly one of origin and site")
        if origin is not None and not is_reporting_origin(origin):
            raise ConfigError(f"{where}.origin: {origin!r} is not an origin such as https://adtech.example")
        if site is not None and site_of(site) != site:
            raise ConfigError(f"{where}.site: {site!r} is not a site such as https://adtech.example")
        if path is None:
            raise ConfigError(f"{where}.public_key is missing: a file with the registry's public key")
        found, name = (sites, site) if origin is None else (origins, origin)
        if name in found:
            raise ConfigError(f"{where}: {name} has a key already; one client could have a token from each")
        try:
            found[str(name)] = RegistryKey.read(path)
        except KeySetError as problem:
            raise ConfigError(f"{where}.public_key: {problem}") from None
    return ShuffleSettings(origins=origins, sites=sites)


def parse_config(document: dict[str, object], folder: Path) -> ServiceConfig:
    """Return the configuration that a parsed TOML document is."""
    table = Table(document, folder=folder)
    ledger = table.table("ledger")
    folders = table.table("folders")
    shuffle = table.table("shuffle")
    kind = ledger.text("store", "sqlite")
    if kind not in ("memory", "sqlite", "postgres"):
        raise ConfigError(f"ledger.store must be memory, sqlite or postgres, not {kind!r}")
    state = table.path("state")
    if state is None:
        raise ConfigError("state is missing: a folder of the service's own, for its ledger, keys and staged results")
    config = ServiceConfig(
        state=state,
        listen=table.text("listen", "127.0.0.1:50051"),
        listen_mtls=table.optional_text("listen_mtls"),
        http_listen=table.optional_text("http_listen"),
        tls=_tls(table),
        keys=table.path("keys"),
        ledger=kind,
        ledger_path=ledger.path("path"),
        ledger_dsn_file=ledger.path("dsn_file"),
        filter=_filter(ledger),
        unit=_unit(table),
        sensitivities=_sensitivities(table.table("sensitivity")),
        input_folder=folders.path("input"),
        output_folder=folders.path("output"),
        limits=_limits(table.table("limits")),
        callers=tuple(_caller(one) for one in table.tables("callers")),
        reflection=table.flag("reflection", True),
        shuffle=_shuffle(shuffle),
    )
    for part in (ledger, folders, shuffle, table):
        part.done()
    if kind == "postgres" and config.ledger_dsn_file is None:
        raise ConfigError("ledger.dsn_file is missing: a file with the DSN, readable by its owner only")
    return config


def _tls(table: Table) -> TlsFiles | None:
    if "tls" not in table:
        return None
    tls = table.table("tls")
    certificate, key, authority = tls.path("certificate"), tls.path("private_key"), tls.path("client_authority")
    tls.done()
    if certificate is None or key is None:
        raise ConfigError("tls.certificate and tls.private_key are both needed")
    return TlsFiles(certificate=certificate, private_key=key, client_authority=authority)


def _filter(ledger: Table) -> Filter:
    name = ledger.text("filter", EpsilonDeltaFilter.name)
    uses = ledger.whole("uses", 0, least=0, most=(1 << 32) - 2) or None
    delta = ledger.text("delta", "0.00001")
    if name == ZcdpFilter.name:
        return ZcdpFilter.parse(rho=ledger.text("rho"), delta=delta, uses=uses)
    if name == EpsilonDeltaFilter.name:
        return EpsilonDeltaFilter.parse(epsilon=ledger.text("epsilon", "64"), delta=delta, uses=uses)
    raise ConfigError(f"ledger.filter must be {EpsilonDeltaFilter.name} or {ZcdpFilter.name}, not {name!r}")


def _unit(table: Table) -> PrivacyUnit:
    text = table.text("privacy_unit", PrivacyUnit.REPORT.value)
    try:
        return PrivacyUnit(text)
    except ValueError:
        raise ConfigError(f"privacy_unit must be {' or '.join(PrivacyUnit)}, not {text!r}") from None


def _sensitivities(table: Table) -> dict[Api, Sensitivity]:
    found = {}
    for api in Api:
        if api.value in table:
            one = table.table(api.value)
            l1 = one.whole("l1", 65_536, least=1, most=1 << 32)
            found[api] = Sensitivity(l1=l1, l0=one.whole("l0", l1, least=1, most=l1))
            one.done()
        else:
            table.table(api.value)
    table.done()
    return found


def _limits(table: Table) -> Limits:
    limits = Limits(
        jobs=table.whole("jobs", 4, least=1, most=1000),
        jobs_per_caller=table.whole("jobs_per_caller", 0, least=0, most=1000) or None,
        waiting=table.whole("waiting", 1000, least=0, most=1_000_000),
        message_bytes=table.whole("message_bytes", 4 << 20, least=1 << 16, most=64 << 20),
        stall_s=table.whole("stall_s", 60, least=1, most=86_400),
        finished_kept=table.whole("finished_kept", 1_000, least=1, most=10_000_000),
        processes=table.whole("processes", 2, least=0, most=1024),
        domain_keys=table.whole("domain_keys", 200_000_000, least=1, most=2_000_000_000),
        max_report_age_ms=table.whole("max_report_age_days", 90, least=1, most=36_500) * DAY_MS,
    )
    table.done()
    return limits


def _caller(table: Table) -> Caller:
    name = table.text("name")
    try:
        roles = frozenset(Role(role) for role in table.texts("roles"))
    except ValueError:
        raise ConfigError(f"caller {name!r}: a role is one of {', '.join(Role)}") from None
    tokens = []
    for one in table.tables("tokens"):
        tokens.append(Token(digest=one.text("sha256"), expires_ms=one.time_ms("expires")))
        one.done()
    caller = Caller(
        name=name,
        roles=roles,
        origins=_origins(table, f"caller {name!r}", "reporting_origins"),
        sites=_sites(table, f"caller {name!r}", "reporting_sites"),
        tokens=tuple(tokens),
        certificates=frozenset(table.texts("certificates")),
        folder=table.text("folder", name),
    )
    table.done()
    return caller
