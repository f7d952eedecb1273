"""IREE's own profiles (`.ireeprof`) and what `iree-profile` exports of them: the events that were timed."""
