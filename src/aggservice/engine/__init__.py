"""The aggregation engine."""
