"""A browser's Attribution Reporting."""
