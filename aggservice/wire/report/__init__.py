"""One report: shared_info, payload, body, units and tokens."""
