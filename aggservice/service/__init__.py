"""The aggregation service: gRPC and HTTP over the engine, with callers, rights, jobs and configuration."""

from aggservice.service.config.callers import Caller, Role, new_token, token_digest
from aggservice.service.config.settings import Limits, ServiceConfig, load_config, parse_config
from aggservice.service.embedded import EmbeddedService, embedded
from aggservice.service.errors import ConfigError, ServiceError
from aggservice.service.http.collector import Collector, collector_routes
from aggservice.service.server import Service

__all__ = [
    "Caller",
    "Collector",
    "ConfigError",
    "EmbeddedService",
    "Limits",
    "Role",
    "Service",
    "ServiceConfig",
    "ServiceError",
    "collector_routes",
    "embedded",
    "load_config",
    "new_token",
    "parse_config",
    "token_digest",
]
