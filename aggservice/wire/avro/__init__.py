"""Avro files of reports, domains and summaries."""
