"""What `--format json` prints: one document per command, made of records (see `tracemap.codec`), version 1 of each."""
