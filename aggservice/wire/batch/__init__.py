"""Many reports at once, as columns."""
