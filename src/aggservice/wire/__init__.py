"""The wire format of aggregatable reports."""
