"""The hash-chained log: entries, proofs, export and search."""
