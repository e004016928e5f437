"""The stages of a job on Apache Spark: one task per file; executors exchange columns in a few large blobs."""
