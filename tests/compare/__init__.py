"""Tests of `tracemap/compare/`."""
