"""Tests of `tracemap/core/`."""
