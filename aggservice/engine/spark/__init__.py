"""The same stages on Apache Spark: files are the tasks, and columns travel between executors as a few large blobs."""
