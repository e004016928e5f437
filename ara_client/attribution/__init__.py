"""From a registration to its effects: stored sources, attributed triggers, scheduled reports."""
