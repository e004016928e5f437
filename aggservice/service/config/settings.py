"""The configuration of a service: one TOML file, read strictly, with secrets in separate files."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from aggservice.engine import PrivacyUnit, ShuffleSettings, ledger_terms
from aggservice.engine.opening.coverage import BOUNDED_APIS
from aggservice.engine.spark.settings import SparkSettings
from aggservice.files.settings import (
    REQUIRED,
    Known,
    choice,
    flag,
    path,
    read_settings,
    setting,
    table,
    tables,
    text,
    whole,
)
from aggservice.files.toml import FileError, Section, read_text, read_toml
from aggservice.job.errors import EngineError
from aggservice.service.config.callers import Caller, check_origin, check_site
from aggservice.service.errors import ConfigError
from aggservice.wire import Api
from aggservice.wire.errors import KeySetError
from aggservice.wire.report.registry import RegistryKey
from budget import FILTERS, BudgetError, EpsilonDeltaFilter, Filter, Sensitivity, Terms
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

    certificate: Path = path("the service's certificate, in PEM", needs="give certificate and private_key together")
    private_key: Path = path(
        "its key, which only its owner may read", needs="give certificate and private_key together"
    )
    client_authority: Path | None = path("who signs client certificates, for `listen_mtls`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a service: running and queued jobs, bytes per message, seconds that a stream may stall, and more."""

    jobs: int = whole("jobs that run at the same time", default=4, least=1, most=1000)
    jobs_per_caller: int | None = whole(
        "of those, for one caller; 0 is the default: all, or all but one if there are several callers",
        default=None,
        shown="0",
        least=0,
        most=1000,
        convert=lambda count: count or None,
    )
    waiting: int = whole(
        "jobs in the queue, and streams that wait; further ones are refused", default=1000, least=0, most=1_000_000
    )
    message_bytes: int = whole("bytes of a gRPC message", default=4 << 20, least=1 << 16, most=64 << 20)
    stall_s: int = whole("seconds that a stream may neither send nor read", default=60, least=1, most=86_400)
    finished_kept: int = whole(
        "finished streams that GetJob remembers beside those in the ledger", default=1_000, least=1, most=10_000_000
    )
    processes: int = whole(
        "worker processes that open reports; 0 uses the service's own threads", default=2, least=0, most=1024
    )
    domain_keys: int = whole("keys of a domain", default=200_000_000, least=1, most=2_000_000_000)
    units: int = whole("privacy units of a job", default=200_000_000, least=1, most=2_000_000_000)
    max_report_age_ms: int = whole(
        "days after which a report is refused",
        key="max_report_age_days",
        default=90 * DAY_MS,
        shown="90",
        least=1,
        most=36_500,
        convert=lambda days: days * DAY_MS,
    )
    w3c_minimum_batch: int = whole("reports that a W3C job needs", default=20, least=1, most=1 << 31)
    lease_s: int = whole(
        "seconds without a sign of life until another service takes over a job", default=30, least=1, most=3600
    )
    attempts: int = whole(
        "how often a job is taken up before it fails with RETRIES_EXHAUSTED", default=5, least=1, most=1000
    )
    staged_bytes_per_caller: int = whole(
        "bytes of a caller's results that are not published yet", default=CALLER_BYTES, least=1 << 20, most=1 << 50
    )

    @property
    def poll_s(self) -> float:
        """Seconds between two renewals of leases and looks at the queue: a tenth of a lease, at most 1."""
        return min(1.0, self.lease_s / 10)

    def share(self, callers: int) -> int:
        """Return how many jobs one caller may run at once; by default all but one if there are several callers."""
        if self.jobs_per_caller is not None:
            return min(self.jobs_per_caller, self.jobs)
        return self.jobs if callers <= 1 else max(1, self.jobs - 1)


def _root(section: Section, key: str, known: Known) -> Path | str:
    """Read a root of jobs over files: a folder, by path or as file://, or the URL of a prefix in object storage."""
    given = section.text(key)
    if "://" not in given:
        return section.path_to(key) or section.folder
    if given.startswith("file:///"):
        return Path(given.removeprefix("file://"))
    if not given.startswith(REMOTE_SCHEMES) or not given.partition("://")[2].strip("/"):
        section.refuse(
            key, f"is {given!r}, which is not a folder", "Write a folder, or a URL such as s3://bucket/folder"
        )
    return given.rstrip("/")


def _hosts(section: Section, key: str, known: Known) -> tuple[str, ...]:
    """Read names for the Host header, without scheme and port."""
    found = section.texts(key, any_list=True)
    for name in found:
        if _HOST_NAME.fullmatch(name) is None:
            section.refuse(key, f"has {name!r}, which is not a host name", "Write a name such as service.example")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTable:
    """``[ledger]`` of the file: where the ledger is, its filter and its totals."""

    store: str = choice("`memory` forgets everything at the end", ("memory", "sqlite", "postgres"), default="sqlite")
    file: Path | None = path("the file of a SQLite ledger", key="path", shown="`ledger.sqlite` in `state`")
    dsn_file: Path | None = path("a file with the DSN of PostgreSQL that only its owner can read; `postgres` needs it")
    filter: str = choice(
        "how losses add up; fixed once the ledger exists",
        lambda known: FILTERS.names,
        default=EpsilonDeltaFilter.name,
        allowed=", ".join(f"`{name}`" for name in FILTERS),
    )
    uses: int | None = whole(
        "how many jobs a unit may be in; 0 sets no bound",
        default=None,
        shown="0",
        least=0,
        most=(1 << 32) - 2,
        convert=lambda count: count or None,
    )
    delta: str = text("total δ of a privacy unit", default="0.00001", allowed="decimal text")
    epsilon: str = text(
        "total ε of a privacy unit, for `epsilon-delta`",
        default="64",
        allowed="decimal text",
        when=lambda known: FILTERS[known.filter].loss_name == "epsilon",
    )
    rho: str = text(
        "total ρ of a privacy unit, for `zcdp`, which needs it",
        default=lambda known: REQUIRED if FILTERS[known.filter].loss_name == "rho" else "",
        allowed="decimal text",
        example="2",
        when=lambda known: FILTERS[known.filter].loss_name == "rho",
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse PostgreSQL without its DSN."""
        if self.store == "postgres" and self.dsn_file is None:
            section.missing("dsn_file", 'Write dsn_file = "…": a file with the DSN that only its owner can read')

    def built(self) -> Filter:
        """Return the filter of a new ledger."""
        chosen = FILTERS[self.filter]
        return chosen.of_texts(getattr(self, chosen.loss_name), self.delta, self.uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsTable:
    """``[sensitivity.API]`` of the file: what clients of this API enforce per privacy unit."""

    l1: int = whole("Λ₁: the most that one unit contributes in all", default=65_536, least=1, most=1 << 32)
    l0: int = whole(
        "Λ₀: the most contributions of one unit, at most `l1`",
        default=lambda known: known.l1,
        shown="`l1`",
        least=1,
        most=lambda known: known.l1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryTable:
    """``[[shuffle.registry_keys]]`` of the file: the public key of a device registry, for one origin or one site."""

    origin: str | None = text("whose reports its tokens vouch for; give this or `site`", default=None)
    site: str | None = text("the same for a whole site", default=None)
    public_key: Path = path("a file with the registry's public key", needs="a file with the registry's public key")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldersTable:
    """``[folders]`` of the file: the roots of jobs over files, each with a folder per caller."""

    input: Path | str | None = setting(
        "where reports are: a folder, or a URL such as `s3://bucket/reports`",
        read=_root,
        allowed="path or URL",
        default=None,
    )
    output: Path | str | None = setting(
        "where summaries go, in the same form", read=_root, allowed="path or URL", default=None
    )


def _spark_options(section: Section, key: str, known: Known) -> dict[str, str]:
    options = section.section(key)
    for name, value in options.values.items():
        if not (name.startswith("spark.") and isinstance(value, str)):
            options.refuse(name, f"is {value!r}", 'Write a setting of Spark, such as "spark.executor.memory" = "4g"')
    return dict(options.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTable:
    """``[spark]`` of the file: the cluster that ``engine = "spark"`` uses."""

    master: str = text("the cluster, such as `spark://host:7077`", example="spark://host:7077")
    options: Mapping[str, str] = setting(
        'any of Spark\'s own settings, such as `"spark.executor.memory" = "4g"`',
        read=_spark_options,
        allowed="table of texts",
        key="settings",
        default=lambda known: {},
        shown="none",
    )
    least_input_bytes: int = whole("smaller jobs run on this machine", default=0, least=0, most=1 << 62)
    partition_rows: int = whole("keys or units of a task", default=2_000_000, least=1000, most=1 << 28)
    partition_bytes: int = whole(
        "bytes of report files whose ids a task compares", default=512 << 20, least=1 << 20, most=1 << 40
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Everything that a service needs to start. ``ledger`` is memory, sqlite or postgres (with a DSN file).

    With ``spark``, large jobs over files run on that cluster; its executors use the service's staging and key files.
    ``input_folder``, ``output_folder`` and ``buckets`` (by name) are folders, or URLs of prefixes in object storage.
    ``http_hosts`` are names, besides those of loopback, that the Host header of an HTTP request may have.
    """

    state: Path = path(
        "a folder of the service's own: ledger, keys, signing key, staged results",
        needs="a folder of the service's own, for its ledger, keys and staged results",
    )
    listen: str = text("the address of gRPC; any but loopback needs [tls] and [[callers]]", default="127.0.0.1:50051")
    listen_mtls: str | None = text("gRPC that demands a client certificate", default=None)
    http_listen: str | None = text("HTTP for public keys, metrics, createJob and getJob", default=None)
    http_hosts: tuple[str, ...] = setting(
        "names in the Host header to answer under, besides those of loopback",
        read=_hosts,
        allowed="list of host names",
        default=(),
    )
    tls: TlsFiles | None = table("", TlsFiles, default=None)
    keys: Path | None = path("private HPKE keys, from `aggservice keys new`", shown="`keys.json` in `state`")
    ledger: str = "sqlite"
    ledger_path: Path | None = None
    ledger_dsn_file: Path | None = None
    filter: Filter = field(default_factory=EpsilonDeltaFilter)
    unit: PrivacyUnit = choice(
        "what has a budget",
        [unit.value for unit in PrivacyUnit],
        key="privacy_unit",
        default=PrivacyUnit.REPORT,
        convert=PrivacyUnit,
    )
    sensitivities: Mapping[Api, Sensitivity] = field(default_factory=dict)
    input_folder: Path | str | None = None
    output_folder: Path | str | None = None
    buckets: Mapping[str, Path | str] = field(default_factory=dict)
    limits: Limits = table("", Limits, factory=Limits)
    callers: tuple[Caller, ...] = tables("", Caller)
    reflection: bool = flag("gRPC reflection, for operators", default=True)
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
    ledger = read_settings(top.section("ledger"), LedgerTable)
    folders = read_settings(top.section("folders"), FoldersTable)
    return read_settings(
        top,
        ServiceConfig,
        ledger=ledger.store,
        ledger_path=ledger.file,
        ledger_dsn_file=ledger.dsn_file,
        filter=ledger.built(),
        sensitivities=_sensitivities(top.section("sensitivity")),
        input_folder=folders.input,
        output_folder=folders.output,
        buckets=_buckets(top.section("buckets")),
        shuffle=_shuffle(top.section("shuffle")),
        spark=_spark(top),
    )


def _buckets(section: Section) -> dict[str, Path | str]:
    """Read the roots of buckets, by the names that callers give."""
    for name in section.values:
        if BUCKET_NAME.fullmatch(name) is None:
            section.refuse(name, "is not the name of a bucket", "Use letters, digits, '.', '_' and '-'")
    return {name: _root(section, name, Known()) for name in section.values}


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
        given = read_settings(one, RegistryTable)
        if given.origin is not None and given.site is None:
            check_origin(one, "origin", given.origin)
            found, name = origins, given.origin
        elif given.site is not None and given.origin is None:
            check_site(one, "site", given.site)
            found, name = sites, given.site
        else:
            one.refuse("", "needs exactly one of origin and site", 'Write origin = "https://adtech.example"')
        if name in found:
            one.refuse(
                "", f"repeats {name}, which has a key already", "Give one key: a client could get a token from each"
            )
        try:
            found[name] = RegistryKey.read(given.public_key)
        except KeySetError as problem:
            one.refuse("public_key", f"cannot be used: {problem}", "Name the file with the registry's public key")
    section.done()
    return ShuffleSettings(origins=origins, sites=sites)


def _spark(top: Section) -> SparkSettings | None:
    """Read the cluster that ``engine = "spark"`` names, and any of Spark's own settings."""
    if top.choice("engine", ("local", "spark"), "local") == "local":
        if "spark" in top:
            top.refuse("spark", "is given, but engine is not spark", 'Write engine = "spark", or leave [spark] out')
        return None
    given = read_settings(top.section("spark"), SparkTable)
    return SparkSettings(**{one.name: getattr(given, one.name) for one in fields(given)})


def _sensitivities(section: Section) -> dict[Api, Sensitivity]:
    found: dict[Api, Sensitivity] = {}
    for api in BOUNDED_APIS:
        one = section.section(api.value)
        if api.value in section:
            bounds = read_settings(one, BoundsTable)
            found[api] = Sensitivity(l1=bounds.l1, l0=bounds.l0)
    section.done()
    return found


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
