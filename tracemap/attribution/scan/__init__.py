"""SQL over the runs' files: the target of every event (`lookups`, `rows`), sums and percentiles per target."""
