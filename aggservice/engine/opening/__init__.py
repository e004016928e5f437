"""From sealed reports to columns: judge, open and decode, in worker processes."""
