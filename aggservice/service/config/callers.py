"""Callers: their roles, the reporting origins they own, and how they authenticate."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from aggservice.files.settings import Known, choices, setting, text, texts
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits, Clock
from aggservice.service.errors import ConfigError, ForbiddenError, UnauthenticatedError
from aggservice.wire import is_reporting_origin
from aggservice.wire.origins import site_of

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_TOKEN_BYTES = 32
_MAX_TOKEN_CHARACTERS = 512


class Role(StrEnum):
    """The role of a caller; it decides which methods they may call."""

    ADTECH = "adtech"
    AUDITOR = "auditor"
    OPERATOR = "operator"


def token_digest(token: str) -> str:
    """Return the hash that the configuration keeps of a token. Its 256 random bits make one SHA-256 enough."""
    return hashlib.sha256(b"aggservice bearer token\0" + token.encode()).hexdigest()


def new_token(bits: Bits) -> str:
    """Return a new random token for a caller."""
    return f"agg_{bits.read(_TOKEN_BYTES).hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token as the service keeps it: its hash, and when it expires."""

    digest: str = field(repr=False)
    expires_ms: int | None = None

    def __post_init__(self) -> None:
        if re.fullmatch(r"[0-9a-f]{64}", self.digest) is None:
            raise ConfigError("a token is not 64 hex digits of SHA-256: make one with 'aggservice serve --new-token'")


def check_origin(section: Section, key: str, origin: str) -> None:
    """Refuse what no report can carry as its origin, because a right to it would have no effect."""
    if not is_reporting_origin(origin):
        section.refuse(key, f"has {origin!r}, which is not an origin", "Write an origin such as https://adtech.example")


def check_site(section: Section, key: str, site: str) -> None:
    """Refuse what ``site_of`` returns for no origin."""
    if site_of(site) != site:
        section.refuse(key, f"has {site!r}, which is not a site", "Write a site such as https://adtech.example")


def _checked(check: Callable[[Section, str, str], None]) -> Callable[[Section, str, Known], frozenset[str]]:
    def read(section: Section, key: str, known: Known) -> frozenset[str]:
        found = section.texts(key, any_list=True)
        for one in found:
            check(section, key, one)
        return frozenset(found)

    return read


def _tokens(section: Section, key: str, known: Known) -> tuple[Token, ...]:
    tokens = []
    for one in section.sections(key):
        tokens.append(Token(digest=one.text("sha256"), expires_ms=one.time_ms("expires")))
        one.done()
    return tuple(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller and their rights. ``origins`` and ``sites`` are those whose reports they own; None for both means every
    origin, which only an embedded or loopback service without callers grants.
    """

    name: str = text("1 to 64 lower-case letters, digits, `.`, `_` and `-`", example="adtech")
    roles: frozenset[Role] = choices(
        "what the caller may do, at least one",
        tuple(Role),
        any_list=True,
        convert=lambda names: frozenset(map(Role, names)),
        default=lambda known: frozenset(),
    )
    origins: frozenset[str] | None = setting(
        "origins whose reports the caller owns",
        read=_checked(check_origin),
        allowed="list of https origins",
        key="reporting_origins",
        default=frozenset(),
        shown="none",
    )
    sites: frozenset[str] | None = setting(
        "sites whose reports the caller owns",
        read=_checked(check_site),
        allowed="list of sites",
        key="reporting_sites",
        default=frozenset(),
        shown="none",
    )
    tokens: tuple[Token, ...] = setting(
        "bearer tokens: `sha256` from `aggservice serve --new-token`, and `expires`, a date and time",
        read=_tokens,
        allowed="tables",
        default=(),
    )
    certificates: frozenset[str] = texts(
        "names in client certificates, for `listen_mtls`",
        any_list=True,
        convert=frozenset,
        default=frozenset(),
        shown="none",
    )
    folder: str = text(
        "the caller's folder below each root of files", default=lambda known: known.name, shown="`name`", factory=str
    )

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(f"caller {self.name!r}: a name is 1 to 64 lower-case letters, digits, '.', '_' and '-'")
        if not self.roles:
            raise ConfigError(f"caller {self.name!r} has no role: give at least one of {', '.join(Role)}")

    def owns(self, origin: str) -> bool:
        """Return whether the caller owns the reports of this origin."""
        if self.origins is None or self.sites is None:
            return True
        return origin in self.origins or (bool(self.sites) and site_of(origin) in self.sites)

    def check_scope(self, *, attribution_report_to: str | None, reporting_site: str | None) -> None:
        """Refuse a job over an origin or a site that the caller does not own."""
        if self.origins is None or self.sites is None:
            return
        if attribution_report_to is not None and not self.owns(attribution_report_to):
            raise ForbiddenError(f"{attribution_report_to} is not a reporting origin of {self.name}")
        if reporting_site is not None:
            mine = self.sites | {site_of(origin) for origin in self.origins}
            if reporting_site not in mine:
                raise ForbiddenError(f"{reporting_site} is not a reporting site of {self.name}")


def local_caller() -> Caller:
    """Return the caller with every right, for a service without callers, which listens on loopback only."""
    return Caller(name="local", roles=frozenset(Role), origins=None, sites=None)


class Register:
    """The callers of a service, found by token or by certificate."""

    def __init__(self, callers: Iterable[Caller], clock: Clock) -> None:
        self._callers = tuple(callers)
        self._clock = clock
        self._by_token = {token.digest: (caller, token) for caller in self._callers for token in caller.tokens}
        self._by_certificate = {name: caller for caller in self._callers for name in caller.certificates}
        names = [caller.name for caller in self._callers]
        if len(set(names)) != len(names):
            raise ConfigError("two callers have the same name: give each its own")
        if len(self._by_token) != sum(len(caller.tokens) for caller in self._callers):
            raise ConfigError("two callers have the same token: give each its own")
        if len(self._by_certificate) != sum(len(caller.certificates) for caller in self._callers):
            raise ConfigError("two callers have the same certificate name: give each its own")

    @property
    def is_empty(self) -> bool:
        """Whether the service has no configured callers, so that only the local one exists."""
        return not self._callers

    def named(self, name: str) -> Caller:
        """Return the caller of this name; ForbiddenError if the configuration no longer has them."""
        for caller in (local_caller(),) if self.is_empty else self._callers:
            if caller.name == name:
                return caller
        raise ForbiddenError(f"the configuration of this service no longer has a caller {name!r}")

    def find(self, *, authorization: str | None, certificate_names: Iterable[str]) -> Caller | None:
        """Return the caller of these credentials; None if there are no credentials.

        Wrong or expired credentials raise ``UnauthenticatedError``; the call is never treated as anonymous.
        """
        if self.is_empty:
            return local_caller()
        if authorization is not None:
            return self._bearer(authorization)
        names = list(certificate_names)
        if not names:
            return None
        for name in names:
            if name in self._by_certificate:
                return self._by_certificate[name]
        raise UnauthenticatedError("no caller is enrolled under this client certificate")

    def _bearer(self, authorization: str) -> Caller:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= _MAX_TOKEN_CHARACTERS:
            raise UnauthenticatedError("the authorization header is not of the form 'Bearer TOKEN'")
        digest = token_digest(token)
        found = self._by_token.get(digest)
        if found is None or not hmac.compare_digest(found[1].digest, digest):
            raise UnauthenticatedError("this token is unknown")
        caller, kept = found
        if kept.expires_ms is not None and not self._clock.now_ms() < kept.expires_ms:
            raise UnauthenticatedError("this token has expired")
        return caller


#: The roles that may call a method; an empty set means everyone, also without credentials. Other methods are refused.
RIGHTS: Mapping[str, frozenset[Role]] = {
    "/aggservice.v1.AggregationService/ListPublicKeys": frozenset(),
    "/grpc.health.v1.Health/Check": frozenset(),
    "/grpc.health.v1.Health/Watch": frozenset(),
    "/grpc.health.v1.Health/List": frozenset(),
    "/aggservice.v1.AggregationService/Aggregate": frozenset({Role.ADTECH}),
    "/aggservice.v1.AggregationService/CreateJob": frozenset({Role.ADTECH}),
    "/aggservice.v1.AggregationService/GetJob": frozenset({Role.ADTECH}),
    "/aggservice.v1.AggregationService/WatchJob": frozenset({Role.ADTECH}),
    "/aggservice.v1.AggregationService/ListJobs": frozenset({Role.ADTECH}),
    "/aggservice.v1.AggregationService/CancelJob": frozenset({Role.ADTECH}),
    "/aggservice.v1.AggregationService/GetSummary": frozenset({Role.ADTECH}),
    "/aggservice.v1.BudgetService/GetBalance": frozenset(Role),
    "/aggservice.v1.BudgetService/CheckBudget": frozenset({Role.ADTECH}),
    "/aggservice.v1.BudgetService/ListUnpaidUnits": frozenset({Role.ADTECH}),
    "/aggservice.v1.BudgetService/ListEntries": frozenset(Role),
    "/aggservice.v1.BudgetService/VerifyLedger": frozenset({Role.AUDITOR, Role.OPERATOR}),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": frozenset({Role.OPERATOR}),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": frozenset({Role.OPERATOR}),
}


def authorise(method: str, caller: Caller | None) -> None:
    """Refuse a call that this caller may not make, and every method that is not in ``RIGHTS``."""
    roles = RIGHTS.get(method)
    if roles is not None and not roles:
        return
    if caller is None:
        raise UnauthenticatedError("this call has no credentials")
    if roles is None or not roles & caller.roles:
        raise ForbiddenError(f"{caller.name} has no role that may call {method.rpartition('/')[2]}")
