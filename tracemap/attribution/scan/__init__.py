"""The runs' files in SQL: the target of every event (`lookups`, `resolving`), sums and percentiles per target."""
