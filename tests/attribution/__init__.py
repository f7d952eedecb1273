"""Tests of `tracemap/attribution/`."""
