"""The aggregation service: gRPC and HTTP over the engine, with callers, rights, jobs and configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of
from aggservice.service.config.callers import Caller, Role, new_token, token_digest
from aggservice.service.config.settings import Limits, ServiceConfig, load_config, parse_config
from aggservice.service.embedded import EmbeddedService, embedded
from aggservice.service.errors import ConfigError, ServiceError
from aggservice.service.server import Service

if TYPE_CHECKING:
    from aggservice.service.http.collector import Collector, collector_routes
else:  # a service without HTTP needs no framework for it
    __getattr__ = exports_of(__name__, __file__)

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
