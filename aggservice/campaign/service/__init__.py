"""A campaign's side of the service: sealing reports and submitting jobs."""
