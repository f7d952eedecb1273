"""Hardware and software counters of Linux perf: names, availability, and groups that fit together."""
