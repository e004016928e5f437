"""The simulated world: people, impressions, conversions, attribution and collection."""
