"""The aggregation service: wire format, engine, service, client and commands."""
