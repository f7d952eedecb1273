"""Tests of `tracemap/reports/`."""
