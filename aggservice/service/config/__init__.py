"""What the operator decides: configuration, callers and keys."""
