"""The configuration of a service: one TOML file, read strictly, with secrets in separate files."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aggservice.engine import EngineError, PrivacyUnit, ShuffleSettings, ledger_terms
from aggservice.engine.opening.coverage import BOUNDED_APIS
from aggservice.engine.spark.settings import SparkSettings
from aggservice.files.toml import FileError, Section, read_text, read_toml
from aggservice.service.config.callers import Caller, Role, Token
from aggservice.service.errors import ConfigError
from aggservice.wire import Api, is_reporting_origin
from aggservice.wire.errors import KeySetError
from aggservice.wire.origins import site_of
from aggservice.wire.report.registry_keys import RegistryKey
from budget import BudgetError, EpsilonDeltaFilter, Filter, Sensitivity, Terms, ZcdpFilter
from budget.files.staging import CALLER_BYTES

DAY_MS = 86_400_000
REMOTE_SCHEMES = ("s3://", "gs://", "az://")
"""The beginnings of the URLs of object storage."""
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9a-fA-F:.]+\]", re.ASCII)
BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}", re.ASCII)


_PORT_DIGITS, _MOST_PORT = 5, 65_535


class ConfigFileError(FileError, ConfigError):
    """A configuration file that is refused; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files of the certificate, its private key, and the authority of client certificates."""

    certificate: Path
    private_key: Path
    client_authority: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a service: running and queued jobs, bytes per message, seconds that a stream may stall, and more."""

    jobs: int = 4
    jobs_per_caller: int | None = None
    waiting: int = 1000
    message_bytes: int = 4 << 20
    stall_s: int = 60
    finished_kept: int = 1_000
    processes: int = 2
    domain_keys: int = 200_000_000
    units: int = 200_000_000
    max_report_age_ms: int = 90 * DAY_MS
    w3c_minimum_batch: int = 20
    lease_s: int = 30
    attempts: int = 5
    staged_bytes_per_caller: int = CALLER_BYTES

    @property
    def poll_s(self) -> float:
        """Seconds between two renewals of leases and looks at the queue: a tenth of a lease, at most 1."""
        return min(1.0, self.lease_s / 10)

    def share(self, callers: int) -> int:
        """Return how many jobs one caller may run at once; by default all but one if there are several callers."""
        if self.jobs_per_caller is not None:
            return min(self.jobs_per_caller, self.jobs)
        return self.jobs if callers <= 1 else max(1, self.jobs - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Everything that a service needs to start. ``ledger`` is memory, sqlite or postgres (with a DSN file).

    With ``spark``, large jobs over files run on that cluster; its executors use the service's staging and key files.
    ``input_folder``, ``output_folder`` and ``buckets`` (by name) are folders, or URLs of prefixes in object storage.
    ``http_hosts`` are names, besides those of loopback, that the Host header of an HTTP request may have.
    """

    state: Path
    listen: str = "127.0.0.1:50051"
    listen_mtls: str | None = None
    http_listen: str | None = None
    http_hosts: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    keys: Path | None = None
    ledger: str = "sqlite"
    ledger_path: Path | None = None
    ledger_dsn_file: Path | None = None
    filter: Filter = field(default_factory=EpsilonDeltaFilter)
    unit: PrivacyUnit = PrivacyUnit.REPORT
    sensitivities: Mapping[Api, Sensitivity] = field(default_factory=dict)
    input_folder: Path | str | None = None
    output_folder: Path | str | None = None
    buckets: Mapping[str, Path | str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    callers: tuple[Caller, ...] = ()
    reflection: bool = True
    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)
    spark: SparkSettings | None = None

    def __post_init__(self) -> None:
        """Refuse an unprotected service: beyond loopback, TLS and callers are required."""
        plain = [self.listen] + ([self.http_listen] if self.http_listen else [])
        for address in plain:
            if not is_loopback(address) and (self.tls is None or not self.callers):
                raise ConfigError(
                    f"{address} can be reached from other machines: give [tls] and [[callers]], or listen on 127.0.0.1"
                )
        if self.http_listen and self.http_listen.startswith("unix:"):
            raise ConfigError("http_listen is a unix socket: give a host and a port, such as 127.0.0.1:8080")
        if self.listen_mtls:
            is_loopback(self.listen_mtls)  # refuses what is not an address
        if self.listen_mtls and (self.tls is None or self.tls.client_authority is None or not self.callers):
            raise ConfigError("listen_mtls cannot work alone: give [tls] with client_authority, and [[callers]]")
        if any(caller.certificates for caller in self.callers) and not self.listen_mtls:
            raise ConfigError("a caller has certificates, but no port asks for them: set listen_mtls")
        if len(self.callers) > 1 and (self.input_folder or self.output_folder or self.buckets):
            self._check_callers_folders()
        self._check_roots()
        if self.ledger == "memory" and (self.keys is not None or self.spark is not None):
            raise ConfigError(
                f"{'keys' if self.keys is not None else 'spark'} needs a ledger that lasts: a memory ledger forgets "
                "what reports have spent, so its keys are made at the start and never written; set "
                'ledger.store = "sqlite"'
            )

    def _check_callers_folders(self) -> None:
        """Refuse callers without a folder, and two callers with one folder, also one that is a link to the other."""
        found: dict[str, str] = {}
        for caller in self.callers:
            if not caller.folder:
                raise ConfigError(
                    f"caller {caller.name!r} has no folder, and would read and write those of all callers: give "
                    "each caller a folder of their own"
                )
            places = [caller.folder.casefold()]
            for _, root in self._roots():
                if isinstance(root, Path):
                    places.append(os.path.realpath(root / caller.folder))
            for place in dict.fromkeys(places):
                other = found.setdefault(place, caller.name)
                if other != caller.name:
                    raise ConfigError(
                        f"callers {other!r} and {caller.name!r} have the same folder {caller.folder!r}, and would read "
                        "and write each other's files: give each caller a folder of their own"
                    )

    def _roots(self) -> list[tuple[str, Path | str]]:
        given = {"folders.input": self.input_folder, "folders.output": self.output_folder}
        given |= {f"buckets.{name}": root for name, root in self.buckets.items()}
        return [(name, root) for name, root in given.items() if root is not None]

    def _check_roots(self) -> None:
        """Refuse a root inside another one, and the service's own files inside a root: callers could name them."""
        placed = {name: _place(root) for name, root in self._roots()}
        for outer, above in placed.items():
            for inner, below in placed.items():
                if below.startswith(f"{above}/"):
                    raise ConfigError(
                        f"{inner} lies inside {outer}: a caller of one could read the files of another caller in the "
                        "other; give roots that do not contain each other"
                    )
            for own in (self.state, self.keys, self.ledger_path, self.ledger_dsn_file) if self.callers else ():
                if own is not None and f"{_place(own)}/".startswith(f"{above}/"):
                    raise ConfigError(
                        f"{own} lies inside {outer}, where callers can read it: move it, or name another folder"
                    )

    @property
    def terms(self) -> Terms:
        """The privacy unit and the bounds per API, as the ledger's first entry names them."""
        return ledger_terms(self.unit, self.sensitivities)


def _place(root: Path | str) -> str:
    """Return a text by which places are compared: the path after all links, or the URL."""
    return os.path.realpath(root) if isinstance(root, Path) else root.rstrip("/")


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach ``address`` (host:port, or unix:path)."""
    if address.startswith("unix:"):
        return True
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS) or not host:
        raise ConfigError(f"{address!r} is not an address such as 127.0.0.1:50051")
    if int(port) > _MOST_PORT:
        raise ConfigError(f"{address} has no such port: give one of 0 to {_MOST_PORT}")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_config(path: Path) -> ServiceConfig:
    """Read a configuration file. Relative paths in it are relative to it."""
    text = read_text(path, remedy="Name a TOML file; examples/service.toml is one", error=ConfigFileError)
    try:
        return _config_of(read_toml(text, file=str(path), error=ConfigFileError, folder=path.resolve().parent))
    except ConfigFileError:
        raise
    except (BudgetError, EngineError) as problem:
        raise ConfigError(f"{path}: {problem}") from None


def parse_config(document: dict[str, object], folder: Path) -> ServiceConfig:
    """Return the configuration that a parsed TOML document describes."""
    return _config_of(Section(document, file="the configuration", error=ConfigFileError, folder=folder))


def _config_of(top: Section) -> ServiceConfig:
    ledger, folders, shuffle = top.section("ledger"), top.section("folders"), top.section("shuffle")
    kind = ledger.choice("store", ("memory", "sqlite", "postgres"), "sqlite")
    config = ServiceConfig(
        state=_required_path(top, "state", "a folder of the service's own, for its ledger, keys and staged results"),
        listen=top.text("listen", "127.0.0.1:50051"),
        listen_mtls=top.optional_text("listen_mtls"),
        http_listen=top.optional_text("http_listen"),
        http_hosts=_hosts(top),
        tls=_tls(top),
        keys=top.path_to("keys"),
        ledger=kind,
        ledger_path=ledger.path_to("path"),
        ledger_dsn_file=ledger.path_to("dsn_file"),
        filter=_filter(ledger),
        unit=PrivacyUnit(top.choice("privacy_unit", [unit.value for unit in PrivacyUnit], "report")),
        sensitivities=_sensitivities(top.section("sensitivity")),
        input_folder=_root(folders, "input"),
        output_folder=_root(folders, "output"),
        buckets=_buckets(top.section("buckets")),
        limits=_limits(top.section("limits")),
        callers=tuple(_caller(one) for one in top.sections("callers")),
        reflection=top.flag("reflection", True),
        shuffle=_shuffle(shuffle),
        spark=_spark(top),
    )
    for part in (ledger, folders, shuffle, top):
        part.done()
    if kind == "postgres":
        _required_path(ledger, "dsn_file", "a file with the DSN that only its owner can read")
    return config


def _required_path(section: Section, key: str, what: str) -> Path:
    path = section.path_to(key)
    if path is None:
        section.missing(key, f'Write {key} = "…": {what}')
    return path


def _root(section: Section, key: str) -> Path | str | None:
    """Read a root of jobs over files: a folder, by path or as file://, or the URL of a prefix in object storage."""
    given = section.optional_text(key)
    if given is None or "://" not in given:
        return section.path_to(key)
    if given.startswith("file:///"):
        return Path(given.removeprefix("file://"))
    if not given.startswith(REMOTE_SCHEMES) or not given.partition("://")[2].strip("/"):
        section.refuse(
            key, f"is {given!r}, which is not a folder", "Write a folder, or a URL such as s3://bucket/folder"
        )
    return given.rstrip("/")


def _hosts(top: Section) -> tuple[str, ...]:
    """Read names for the Host header, without scheme and port."""
    found = tuple(top.texts("http_hosts", (), any_list=True))
    for name in found:
        if _HOST_NAME.fullmatch(name) is None:
            top.refuse("http_hosts", f"has {name!r}, which is not a host name", "Write a name such as service.example")
    return found


def _buckets(section: Section) -> dict[str, Path | str]:
    """Read the roots of buckets, by the names that callers give."""
    for name in section.values:
        if BUCKET_NAME.fullmatch(name) is None:
            section.refuse(name, "is not the name of a bucket", "Use letters, digits, '.', '_' and '-'")
    found = {name: root for name in section.values if (root := _root(section, name)) is not None}
    section.done()
    return found


def _origins(section: Section, key: str) -> frozenset[str]:
    """Read origins as a browser writes them; no report can carry any other, so a right to it would have no effect."""
    found = section.texts(key, (), any_list=True)
    for origin in found:
        _check_origin(section, key, origin)
    return frozenset(found)


def _check_origin(section: Section, key: str, origin: str) -> None:
    if not is_reporting_origin(origin):
        section.refuse(key, f"has {origin!r}, which is not an origin", "Write an origin such as https://adtech.example")


def _sites(section: Section, key: str) -> frozenset[str]:
    """Read sites, in the form that ``site_of`` returns for an origin of the site."""
    found = section.texts(key, (), any_list=True)
    for site in found:
        _check_site(section, key, site)
    return frozenset(found)


def _check_site(section: Section, key: str, site: str) -> None:
    if site_of(site) != site:
        section.refuse(key, f"has {site!r}, which is not a site", "Write a site such as https://adtech.example")


def _shuffle(section: Section) -> ShuffleSettings:
    """Read the public keys of the device registries, each for one origin or one site."""
    for removed in ("authenticated_origins", "authenticated_sites"):
        if removed in section:
            section.refuse(
                removed,
                "was removed, because a list of names does not show who sent a report",
                "Give the public key of the device registry with [[shuffle.registry_keys]], as docs/shuffling.md "
                "describes",
            )
    origins: dict[str, RegistryKey] = {}
    sites: dict[str, RegistryKey] = {}
    for one in section.sections("registry_keys"):
        origin, site = one.optional_text("origin"), one.optional_text("site")
        path = _required_path(one, "public_key", "a file with the registry's public key")
        one.done()
        if origin is not None and site is None:
            _check_origin(one, "origin", origin)
            found, name = origins, origin
        elif site is not None and origin is None:
            _check_site(one, "site", site)
            found, name = sites, site
        else:
            one.refuse("", "needs exactly one of origin and site", 'Write origin = "https://adtech.example"')
        if name in found:
            one.refuse(
                "", f"repeats {name}, which has a key already", "Give one key: a client could get a token from each"
            )
        try:
            found[name] = RegistryKey.read(path)
        except KeySetError as problem:
            one.refuse("public_key", f"cannot be used: {problem}", "Name the file with the registry's public key")
    return ShuffleSettings(origins=origins, sites=sites)


def _spark(top: Section) -> SparkSettings | None:
    """Read the cluster that ``engine = "spark"`` names, and any of Spark's own settings."""
    if top.choice("engine", ("local", "spark"), "local") == "local":
        if "spark" in top:
            top.refuse("spark", "is given, but engine is not spark", 'Write engine = "spark", or leave [spark] out')
        return None
    spark = top.section("spark")
    options = spark.section("settings")
    for name, value in options.values.items():
        if not (name.startswith("spark.") and isinstance(value, str)):
            options.refuse(name, f"is {value!r}", 'Write a setting of Spark, such as "spark.executor.memory" = "4g"')
    settings = SparkSettings(
        master=spark.text("master", example="spark://host:7077"),
        options={name: options.text(name) for name in options.values},
        least_input_bytes=spark.whole("least_input_bytes", 0, least=0, most=1 << 62),
        partition_rows=spark.whole("partition_rows", 2_000_000, least=1000, most=1 << 28),
        partition_bytes=spark.whole("partition_bytes", 512 << 20, least=1 << 20, most=1 << 40),
    )
    spark.done()
    return settings


def _tls(top: Section) -> TlsFiles | None:
    if "tls" not in top:
        return None
    tls = top.section("tls")
    files = TlsFiles(
        certificate=_required_path(tls, "certificate", "give certificate and private_key together"),
        private_key=_required_path(tls, "private_key", "give certificate and private_key together"),
        client_authority=tls.path_to("client_authority"),
    )
    tls.done()
    return files


def _filter(ledger: Section) -> Filter:
    name = ledger.choice("filter", (EpsilonDeltaFilter.name, ZcdpFilter.name), EpsilonDeltaFilter.name)
    uses = ledger.whole("uses", 0, least=0, most=(1 << 32) - 2) or None
    delta = ledger.text("delta", "0.00001")
    if name == ZcdpFilter.name:
        return ZcdpFilter.parse(rho=ledger.text("rho", example="2"), delta=delta, uses=uses)
    return EpsilonDeltaFilter.parse(epsilon=ledger.text("epsilon", "64"), delta=delta, uses=uses)


def _sensitivities(section: Section) -> dict[Api, Sensitivity]:
    found: dict[Api, Sensitivity] = {}
    for api in BOUNDED_APIS:
        one = section.section(api.value)
        if api.value in section:
            l1 = one.whole("l1", 65_536, least=1, most=1 << 32)
            found[api] = Sensitivity(l1=l1, l0=one.whole("l0", l1, least=1, most=l1))
            one.done()
    section.done()
    return found


def _limits(section: Section) -> Limits:
    limits = Limits(
        jobs=section.whole("jobs", 4, least=1, most=1000),
        jobs_per_caller=section.whole("jobs_per_caller", 0, least=0, most=1000) or None,
        waiting=section.whole("waiting", 1000, least=0, most=1_000_000),
        message_bytes=section.whole("message_bytes", 4 << 20, least=1 << 16, most=64 << 20),
        stall_s=section.whole("stall_s", 60, least=1, most=86_400),
        finished_kept=section.whole("finished_kept", 1_000, least=1, most=10_000_000),
        processes=section.whole("processes", 2, least=0, most=1024),
        domain_keys=section.whole("domain_keys", 200_000_000, least=1, most=2_000_000_000),
        units=section.whole("units", 200_000_000, least=1, most=2_000_000_000),
        max_report_age_ms=section.whole("max_report_age_days", 90, least=1, most=36_500) * DAY_MS,
        w3c_minimum_batch=section.whole("w3c_minimum_batch", 20, least=1, most=1 << 31),
        lease_s=section.whole("lease_s", 30, least=1, most=3600),
        attempts=section.whole("attempts", 5, least=1, most=1000),
        staged_bytes_per_caller=section.whole("staged_bytes_per_caller", CALLER_BYTES, least=1 << 20, most=1 << 50),
    )
    section.done()
    return limits


def _caller(section: Section) -> Caller:
    name = section.text("name", example="adtech")
    roles = section.choices("roles", [role.value for role in Role], (), any_list=True)
    tokens = []
    for one in section.sections("tokens"):
        tokens.append(Token(digest=one.text("sha256"), expires_ms=one.time_ms("expires")))
        one.done()
    caller = Caller(
        name=name,
        roles=frozenset(map(Role, roles)),
        origins=_origins(section, "reporting_origins"),
        sites=_sites(section, "reporting_sites"),
        tokens=tuple(tokens),
        certificates=frozenset(section.texts("certificates", (), any_list=True)),
        folder=section.text("folder", name),
    )
    section.done()
    return caller


def read_secret(path: Path, what: str) -> bytes:
    """Return the bytes of a secret file; refuse a file that others can read. The bytes never appear in a message."""
    try:
        mode = path.stat().st_mode
        raw = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{what}: cannot read {path}: {problem.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{what}: others can read {path}; run 'chmod 600 {path}'")
    if not raw.strip():
        raise ConfigError(f"{what}: {path} is empty")
    return raw
