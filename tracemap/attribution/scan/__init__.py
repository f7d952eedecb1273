"""The runs' files in SQL: the target of every event (`lookups`, `rows`), sums and percentiles per target."""
