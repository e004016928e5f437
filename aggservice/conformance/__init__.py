"""Conformance: runs vectors that others wrote and compares every report."""
