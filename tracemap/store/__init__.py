"""A store of many runs: append-only Parquet in a folder or bucket, and queries on it."""
