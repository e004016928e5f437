"""The aggregation service: wire format, engine, service, client and commands."""

__version__ = "0.2.0"
