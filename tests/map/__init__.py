"""Tests of `tracemap/map/`."""
