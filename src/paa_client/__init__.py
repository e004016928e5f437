"""A browser's Private Aggregation and Shared Storage."""
