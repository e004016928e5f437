"""The aggregation service: gRPC and HTTP over the engine, with callers, rights, jobs and configuration."""

from aggservice.service.callers import RIGHTS, Caller, Register, Role, Token, local_caller, new_token, token_digest
from aggservice.service.config import Limits, ServiceConfig, TlsFiles, load_config, parse_config
from aggservice.service.embedded import EmbeddedService, embedded
from aggservice.service.errors import (
    BusyError,
    ConfigError,
    ForbiddenError,
    NoKeysError,
    NoSuchJobError,
    PathRefusedError,
    ProtocolError,
    ServiceError,
    StalledError,
    UnauthenticatedError,
)
from aggservice.service.folders import Folder
from aggservice.service.http import PUBLIC_KEYS_PATH, build_app
from aggservice.service.keyring import KeyRing
from aggservice.service.log import EventLog, silence_libraries
from aggservice.service.metrics import Metrics
from aggservice.service.server import SERVICE_NAMES, Service, open_ledger

__all__ = [
    "PUBLIC_KEYS_PATH",
    "RIGHTS",
    "SERVICE_NAMES",
    "BusyError",
    "Caller",
    "ConfigError",
    "EmbeddedService",
    "EventLog",
    "Folder",
    "ForbiddenError",
    "KeyRing",
    "Limits",
    "Metrics",
    "NoKeysError",
    "NoSuchJobError",
    "PathRefusedError",
    "ProtocolError",
    "Register",
    "Role",
    "Service",
    "ServiceConfig",
    "ServiceError",
    "StalledError",
    "TlsFiles",
    "Token",
    "UnauthenticatedError",
    "build_app",
    "embedded",
    "load_config",
    "local_caller",
    "new_token",
    "open_ledger",
    "parse_config",
    "silence_libraries",
    "token_digest",
]
